"""Topics and partitions that are not there: one line in the log at once, and an error after three seconds instead of the whole time-out."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from chaffinch import errors
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.consumer.core.metadata_watch import TopicCall
from chaffinch.consumer.core.missing_partitions import MISSING_MS
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tests.consumer.core.rig import Rig

ABSENT, PRESENT = TopicPartition("t", 7), TopicPartition("t", 0)
LOG_LINE = "topic 't' has partitions 0 to 2, there is no partition 7; the consumer keeps requesting it, without a limit"
ERROR_TEXT = "topic 't' has partitions 0 to 2, there is no partition 7; missing for .* ms: use an existing partition, or add partitions"


def groupless_rig() -> Rig:
    rig = Rig(**{"group.id": None})
    rig.step()
    return rig


def advance(rig: Rig, by_ms: int, *, response: object = None) -> None:
    """Time passes, and Metadata requests get a response."""
    until_ms = rig.steady_ms + by_ms
    while rig.steady_ms < until_ms:
        rig.advance(min(200, until_ms - rig.steady_ms))
        for _ in rig.pending(MetadataRequest):
            rig.answer(MetadataRequest, response) if response is not None else rig.answer_metadata()


def no_topic() -> MetadataResponse:
    answer = Rig(**{"group.id": None}).metadata()
    answer.topics = [MetadataResponseTopic(error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number, name="t")]
    return answer


def assign(rig: Rig, *tps: TopicPartition) -> None:
    rig.core.assign(tps, rig.steady_ms)
    rig.step()


def test_poll_reports_missing_assigned_partition_once() -> None:
    rig = groupless_rig()
    assign(rig, ABSENT)
    advance(rig, 2_800)
    assert rig.reports == [LOG_LINE]
    assert rig.poll() == []
    advance(rig, 400)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=ERROR_TEXT) as caught:
        rig.poll()
    assert caught.value.topic_partition == ABSENT
    advance(rig, 6_000)
    assert rig.poll() == []
    assert rig.reports == [LOG_LINE]
    assign(rig, PRESENT)
    assign(rig, ABSENT)
    advance(rig, 3_400)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=ERROR_TEXT):
        rig.poll()


def test_log_line_is_repeated_with_growing_pauses() -> None:
    """After the error `poll` returns nothing of the partition, and raises nothing more."""
    rig = groupless_rig()
    assign(rig, ABSENT)
    advance(rig, 3_400)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=ERROR_TEXT):
        rig.poll()
    advance(rig, 200_000)
    again = r"topic 't' has partitions 0 to 2, there is no partition 7, for (\d+) ms now; the consumer keeps requesting it, without a limit"
    first, *others = rig.reports
    assert first == LOG_LINE
    found = [re.fullmatch(again, text) for text in others]
    times_ms = [0, *(int(match[1]) for match in found if match is not None)]
    assert len(times_ms) == len(rig.reports)
    pauses_ms = [round(after - before, -4) for before, after in pairwise(times_ms)]
    assert pauses_ms == [10_000, 20_000, 40_000, 60_000, 60_000]
    rig.partitions = 8
    advance(rig, 65_000)
    assert not any("partition 7" in text for text in rig.reports[6:])


def test_position_reports_it_and_poll_does_not_repeat_it() -> None:
    rig = groupless_rig()
    assign(rig, ABSENT)
    advance(rig, 2_800)
    rig.core.raise_if_missing(ABSENT, rig.steady_ms)
    advance(rig, 600)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=ERROR_TEXT):
        rig.core.raise_if_missing(ABSENT, rig.steady_ms)
    assert rig.poll() == []


def test_offset_query_of_missing_partition_fails() -> None:
    rig = groupless_rig()
    rig.core.lookups.add(OffsetsCall("mine", {PRESENT: -1, ABSENT: -1}, rig.steady_ms + 60_000))
    rig.step()
    advance(rig, 2_800)
    assert rig.done == []
    advance(rig, 600)
    [error] = rig.errors
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=ERROR_TEXT):
        raise error


@pytest.mark.parametrize("api", ["offsets", "partitions"])
def test_missing_topic_fails_calls(api: str) -> None:
    rig = groupless_rig()
    if api == "offsets":
        rig.core.lookups.add(OffsetsCall("mine", {PRESENT: -1}, rig.steady_ms + 60_000))
    else:
        rig.core.topic_calls.add(TopicCall("mine", "t", rig.steady_ms + 60_000))
    rig.step()
    advance(rig, 3_600, response=no_topic())
    assert len(rig.reports) == 1
    [error] = rig.errors
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=r"Metadata for t: .* topic 't' does not exist: misspelt.* create it"):
        raise error


def test_topic_may_be_created_after_assign_or_subscribe() -> None:
    rig = groupless_rig()
    assign(rig, PRESENT)
    advance(rig, 10_000, response=no_topic())
    assert rig.poll() == []
    assert len(rig.reports) == 1
    rig = Rig()
    rig.core.subscribe(["t"])
    rig.poll()
    advance(rig, 10_000, response=no_topic())
    assert rig.poll() == []
    assert [text.partition(":")[0] for text in rig.reports] == ["topic 't' does not exist"]


def test_partition_that_appears_in_time_is_not_missing() -> None:
    rig = groupless_rig()
    assign(rig, PRESENT)
    advance(rig, 2_000, response=no_topic())
    advance(rig, 5_000)
    rig.core.raise_if_missing(PRESENT, rig.steady_ms)
    assert rig.poll() == []


def test_nothing_is_missing_before_metadata() -> None:
    rig = groupless_rig()
    assign(rig, ABSENT)
    rig.answer_metadata()
    rig.advance(20_000)
    rig.core.raise_if_missing(ABSENT, rig.steady_ms)
    assert rig.poll() == []


def test_topic_not_listed_in_metadata_of_all_topics_is_missing() -> None:
    rig = Rig()
    rig.core.subscribe_pattern(re.compile("t"))
    rig.core.topic_calls.add(TopicCall("mine", "elsewhere", rig.steady_ms + 60_000))
    rig.step()
    advance(rig, 3_600)
    [error] = rig.errors
    with pytest.raises(errors.UnknownTopicOrPartitionException, match="topic 'elsewhere' does not exist"):
        raise error


def test_old_missing_partition_does_not_hide_a_later_deadline() -> None:
    core = Rig().core
    for topic, steady_ms in (("first", 10_000), ("second", 12_000)):
        core.context.cluster.learn_missing_topic(topic, steady_ms)
        core.missing_partitions.update([TopicPartition(topic, -1)], steady_ms)
    due_ms = [10_000 + MISSING_MS, 12_000 + MISSING_MS]
    assert [core.missing_partitions.next_deadline_ms(steady_ms) for steady_ms in (12_000, *due_ms)] == [*due_ms, None]


def test_poll_does_not_repeat_the_error_of_a_call() -> None:
    rig = groupless_rig()
    assign(rig, PRESENT)
    rig.answer_metadata()
    rig.core.topic_calls.add(TopicCall("mine", "secret", rig.steady_ms + 60_000))
    rig.step()
    answer = rig.metadata()
    answer.topics.append(MetadataResponseTopic(error_code=codes.TOPIC_AUTHORIZATION_FAILED.number, name="secret"))
    advance(rig, 400, response=answer)
    [error] = rig.errors
    with pytest.raises(errors.TopicAuthorizationException):
        raise error
    assert rig.poll() == []
