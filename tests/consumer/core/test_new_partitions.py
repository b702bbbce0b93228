"""auto.offset.reset.new.partitions: records that are written to a new partition before the consumer finds it are not left out."""

import re
from uuid import UUID

import pytest

from chaffinch import errors
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.options import parse_options
from chaffinch.errors import codes
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest
from tests.consumer.core.rig import Rig

LATEST = {"auto.offset.reset": "latest"}
SAFE = {**LATEST, "auto.offset.reset.new.partitions": "earliest"}


def refresh(rig: Rig, answer: MetadataResponse | None = None) -> None:
    """Metadata is requested again, and arrives."""
    rig.core.context.refresh()
    rig.advance(1_000)
    for _ in rig.pending(MetadataRequest):
        rig.answer_metadata() if answer is None else rig.answer(MetadataRequest, answer)


def asked(rig: Rig) -> dict[int, int]:
    """The timestamps in ListOffsets, by partition."""
    topics = [topic for sent in rig.pending(ListOffsetsRequest) for topic in sent.message.topics]
    return {part.partition_index: part.timestamp for topic in topics for part in topic.partitions}


@pytest.mark.parametrize(("options", "start"), [(SAFE, OFFSET_EARLIEST), (LATEST, OFFSET_LATEST)])
def test_partition_added_after_first_metadata(options: dict[str, str], start: int) -> None:
    rig = Rig(**options).reach(State.STABLE)
    rig.answer_offsets({0: -1, 1: -1})
    assert asked(rig) == {0: OFFSET_LATEST, 1: OFFSET_LATEST}
    rig.partitions = 5
    refresh(rig)
    rig.poll()
    rig.answer_join(generation=2)
    rig.waiting = [sent for sent in rig.waiting if not isinstance(sent.message, ListOffsetsRequest)]
    rig.answer_sync(2, 4)
    rig.poll()
    rig.answer_offsets({2: -1, 4: -1})
    assert asked(rig) == {2: OFFSET_LATEST, 4: start}


def test_committed_offset_has_precedence() -> None:
    rig = Rig(**SAFE).reach(State.STABLE)
    rig.answer_offsets({0: -1, 1: -1})
    rig.partitions = 5
    refresh(rig)
    rig.poll()
    rig.answer_join(generation=2)
    rig.answer_sync(4)
    rig.poll()
    rig.answer_offsets({4: 7})
    assert rig.position(TopicPartition("t", 4)).offset == 7


def test_topic_created_after_first_metadata() -> None:
    rig = Rig(**{**SAFE, "group.id": None})
    rig.core.assign([TopicPartition("t", 0)], rig.steady_ms)
    rig.step()
    rig.answer_metadata(code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)
    refresh(rig)
    assert asked(rig) == {0: OFFSET_EARLIEST}


def test_reset_waits_until_the_topic_is_known() -> None:
    rig = Rig(**SAFE)
    rig.core.assign([TopicPartition("t", 0)], rig.steady_ms)
    rig.step()
    rig.find_coordinator()
    rig.answer_offsets({0: -1})
    assert not rig.pending(OffsetFetchRequest), "not at once"
    rig.answer_metadata(code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)
    rig.advance(500)
    rig.answer_offsets({0: -1})
    refresh(rig)
    assert asked(rig) == {0: OFFSET_EARLIEST}


def test_topic_created_after_a_pattern_subscription() -> None:
    rig = Rig(**SAFE)
    rig.core.subscribe_pattern(re.compile("t.*"))
    rig.step()
    rig.answer(MetadataRequest, MetadataResponse(brokers=[MetadataResponseBroker(node_id=0, host="b", port=1)]))
    assert rig.pending(FindCoordinatorRequest)
    refresh(rig)
    assert rig.core.resets.strategy_for(TopicPartition("t", 0)).name == "earliest"


def test_first_topics_of_a_pattern_are_not_new() -> None:
    rig = Rig(**SAFE)
    rig.core.subscribe_pattern(re.compile("t.*"))
    rig.step()
    rig.answer_metadata()
    assert rig.core.resets.strategy_for(TopicPartition("t", 2)).name == "latest"
    assert rig.core.resets.strategy_for(TopicPartition("t", 3)).name == "earliest"


def test_recreated_topic_is_new() -> None:
    rig = Rig(**{**SAFE, "group.id": None}).assign(0)
    rig.topic_id = UUID(int=8)
    refresh(rig)
    assert asked(rig) == {0: OFFSET_EARLIEST}
    assert "reading starts again where auto.offset.reset.new.partitions says (earliest)" in rig.reports[-1]


@pytest.mark.parametrize("is_assigned", [True, False])
def test_recreated_topic_under_latest_logs_unread_records(is_assigned: bool) -> None:
    rig = Rig(**{"auto.offset.reset": "latest", "group.id": None}).assign(0)
    if not is_assigned:
        rig.core.assign([TopicPartition("other", 0)], rig.steady_ms)
    rig.topic_id = UUID(int=8)
    refresh(rig)
    starts = "reading starts again" if is_assigned else "once a partition is assigned, reading starts"
    expected = f"{starts} where auto.offset.reset says (latest): records that are written before that are not read (auto.offset.reset.new."
    assert expected in rig.reports[-1]


def test_broker_without_topic_ids_does_not_make_a_topic_new() -> None:
    rig = Rig(**{**SAFE, "group.id": None}).assign(0)
    rig.topic_id = UUID(int=0)
    refresh(rig)
    assert rig.core.resets.strategy_for(TopicPartition("t", 0)).name == "latest"


@pytest.mark.parametrize("value", ["earliest", "latest", "none", "by_duration:PT1H"])
def test_option_accepts_values_of_auto_offset_reset(value: str) -> None:
    named = {"bootstrap.servers": "b:1", "auto.offset.reset.new.partitions": value}
    assert parse_options(named)["auto.offset.reset.new.partitions"] == value


def test_wrong_value_names_the_option() -> None:
    with pytest.raises(errors.ConfigException, match=r"option auto.offset.reset.new.partitions cannot be 'begin'"):
        parse_options({"bootstrap.servers": "b:1", "auto.offset.reset.new.partitions": "begin"})
