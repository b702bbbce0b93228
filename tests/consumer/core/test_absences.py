"""Topics and partitions that are not there: one line in the log at once, and an error after three seconds instead of the whole time-out."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from chaffinch import errors
from chaffinch.consumer.core.absences import ABSENT_MS
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.consumer.core.topic_watch import TopicCall
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tests.consumer.core.rig import Rig

ABSENT, PRESENT = TopicPartition("t", 7), TopicPartition("t", 0)
SAID = "topic 't' has partitions 0 to 2, there is no partition 7; the consumer goes on asking for it, without a limit"
TOLD = "topic 't' has partitions 0 to 2, there is no partition 7; none has come for .* ms: choose one of those, or give the topic more"


def alone() -> Rig:
    rig = Rig(**{"group.id": None})
    rig.step()
    return rig


def go_on(rig: Rig, by_ms: int, *, tells: object = None) -> None:
    """Time passes, and whoever asks for metadata gets it."""
    until_ms = rig.steady_ms + by_ms
    while rig.steady_ms < until_ms:
        rig.advance(min(200, until_ms - rig.steady_ms))
        for _ in rig.pending(MetadataRequest):
            rig.answer(MetadataRequest, tells) if tells is not None else rig.tell_metadata()


def nothing_there() -> MetadataResponse:
    answer = Rig(**{"group.id": None}).metadata()
    answer.topics = [MetadataResponseTopic(error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number, name="t")]
    return answer


def assign(rig: Rig, *places: TopicPartition) -> None:
    rig.core.assign(places, rig.steady_ms)
    rig.step()


def test_poll_tells_of_a_partition_that_the_caller_assigned_once() -> None:
    rig = alone()
    assign(rig, ABSENT)
    go_on(rig, 2_800)
    assert rig.reports == [SAID]
    assert rig.poll() == []
    go_on(rig, 400)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=TOLD) as caught:
        rig.poll()
    assert caught.value.topic_partition == ABSENT
    go_on(rig, 6_000)
    assert rig.poll() == []
    assert rig.reports == [SAID]
    assign(rig, PRESENT)
    assign(rig, ABSENT)
    go_on(rig, 3_400)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=TOLD):
        rig.poll()


def test_the_log_repeats_it_with_growing_pauses() -> None:
    """After the error `poll` gives nothing of the partition, and raises nothing more."""
    rig = alone()
    assign(rig, ABSENT)
    go_on(rig, 3_400)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=TOLD):
        rig.poll()
    go_on(rig, 200_000)
    again = (
        r"topic 't' has partitions 0 to 2, there is no partition 7, for (\d+) ms now; the consumer goes on asking for it, without a limit"
    )
    first, *others = rig.reports
    assert first == SAID
    found = [re.fullmatch(again, text) for text in others]
    times_ms = [0, *(int(match[1]) for match in found if match is not None)]
    assert len(times_ms) == len(rig.reports)
    pauses_ms = [round(after - before, -4) for before, after in pairwise(times_ms)]
    assert pauses_ms == [10_000, 20_000, 40_000, 60_000, 60_000]
    rig.partitions = 8
    go_on(rig, 65_000)
    assert not any("partition 7" in text for text in rig.reports[6:])


def test_position_tells_of_it_and_poll_does_not_repeat_it() -> None:
    rig = alone()
    assign(rig, ABSENT)
    go_on(rig, 2_800)
    rig.core.raise_absence(ABSENT, rig.steady_ms)
    go_on(rig, 600)
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=TOLD):
        rig.core.raise_absence(ABSENT, rig.steady_ms)
    assert rig.poll() == []


def test_offsets_that_are_asked_for() -> None:
    rig = alone()
    rig.core.lookups.ask(OffsetsCall("mine", {PRESENT: -1, ABSENT: -1}, rig.steady_ms + 60_000))
    rig.step()
    go_on(rig, 2_800)
    assert rig.done == []
    go_on(rig, 600)
    [error] = rig.errors
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=TOLD):
        raise error


@pytest.mark.parametrize("asks", ["offsets", "partitions"])
def test_a_topic_that_is_not_there(asks: str) -> None:
    rig = alone()
    if asks == "offsets":
        rig.core.lookups.ask(OffsetsCall("mine", {PRESENT: -1}, rig.steady_ms + 60_000))
    else:
        rig.core.topic_calls.ask(TopicCall("mine", "t", rig.steady_ms + 60_000))
    rig.step()
    go_on(rig, 3_600, tells=nothing_there())
    assert len(rig.reports) == 1
    [error] = rig.errors
    with pytest.raises(errors.UnknownTopicOrPartitionException, match=r"Metadata for t: .* topic 't' is not there: misspelt.* create it"):
        raise error


def test_a_topic_may_be_assigned_or_subscribed_to_before_it_is_created() -> None:
    rig = alone()
    assign(rig, PRESENT)
    go_on(rig, 10_000, tells=nothing_there())
    assert rig.poll() == []
    assert len(rig.reports) == 1
    rig = Rig()
    rig.core.subscribe(["t"])
    rig.poll()
    go_on(rig, 10_000, tells=nothing_there())
    assert rig.poll() == []
    assert [text.partition(":")[0] for text in rig.reports] == ["topic 't' is not there"]


def test_what_comes_in_time_is_no_absence() -> None:
    rig = alone()
    assign(rig, PRESENT)
    go_on(rig, 2_000, tells=nothing_there())
    go_on(rig, 5_000)
    rig.core.raise_absence(PRESENT, rig.steady_ms)
    assert rig.poll() == []


def test_without_metadata_nothing_is_known_to_be_absent() -> None:
    rig = alone()
    assign(rig, ABSENT)
    rig.tell_metadata()
    rig.advance(20_000)
    rig.core.raise_absence(ABSENT, rig.steady_ms)
    assert rig.poll() == []


def test_beside_a_pattern_all_topics_are_asked_for_and_one_that_is_not_among_them_is_absent() -> None:
    rig = Rig()
    rig.core.subscribe_pattern(re.compile("t"))
    rig.core.topic_calls.ask(TopicCall("mine", "elsewhere", rig.steady_ms + 60_000))
    rig.step()
    go_on(rig, 3_600)
    [error] = rig.errors
    with pytest.raises(errors.UnknownTopicOrPartitionException, match="topic 'elsewhere' is not there"):
        raise error


def test_what_is_absent_for_long_hides_no_later_deadline() -> None:
    core = Rig().core
    for topic, steady_ms in (("first", 10_000), ("second", 12_000)):
        core.wiring.cluster.learn_missing_topic(topic, steady_ms)
        core.absences.look([TopicPartition(topic, -1)], steady_ms)
    told_ms = [10_000 + ABSENT_MS, 12_000 + ABSENT_MS]
    assert [core.absences.next_deadline_ms(steady_ms) for steady_ms in (12_000, *told_ms)] == [*told_ms, None]


def test_poll_does_not_repeat_what_a_call_was_told() -> None:
    rig = alone()
    assign(rig, PRESENT)
    rig.tell_metadata()
    rig.core.topic_calls.ask(TopicCall("mine", "secret", rig.steady_ms + 60_000))
    rig.step()
    answer = rig.metadata()
    answer.topics.append(MetadataResponseTopic(error_code=codes.TOPIC_AUTHORIZATION_FAILED.number, name="secret"))
    go_on(rig, 400, tells=answer)
    [error] = rig.errors
    with pytest.raises(errors.TopicAuthorizationException):
        raise error
    assert rig.poll() == []
