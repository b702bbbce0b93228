"""A topic is deleted and created again: state of the old topic is not used for the new one. With a manual clock and manual responses."""

from uuid import UUID

import pytest

from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.positions import Stage
from chaffinch.consumer.poller import begin_iteration, iterate_records
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from chaffinch.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.consumer.core.rig import TOPIC_ID, Rig, as_records, number_of, records

P0 = TopicPartition("t", 0)
ANOTHER = UUID(int=8)


def recreate(rig: Rig, topic_id: UUID = ANOTHER) -> None:
    """The next metadata has this id."""
    rig.topic_id = topic_id
    rig.core.context.refresh()
    rig.advance(1_000)
    rig.answer_metadata()


@pytest.mark.parametrize("is_missed", [False, True], ids=["at once", "after a while without"])
def test_recreated_topic_is_read_from_its_start(is_missed: bool) -> None:
    rig = Rig().assign(0)
    if is_missed:
        rig.topic_id = UUID(int=0)
        rig.core.context.refresh()
        rig.advance(1_000)
        rig.answer_metadata(number_of("UNKNOWN_TOPIC_OR_PARTITION"))
    recreate(rig)
    assert rig.core.subscriptions.of(P0).stage is Stage.RESETTING
    assert "deleted and created again" in rig.reports[-1]


def test_state_of_the_deleted_topic_is_dropped() -> None:
    """An answer that comes late fits the position once as much has been read of the new topic."""
    rig = Rig().assign(0, position=0)
    late = rig.take(FetchRequest)
    recreate(rig)
    rig.answer_list({0: 0})
    assert rig.position(P0).offset == 0
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[PartitionData(partition_index=0, records=memoryview(records(0, b"old")))])
        ]
    )
    rig.answer(late, answer)
    assert rig.poll() == []
    rig.answer_fetch(p0=records(0, b"new"))
    assert rig.poll() == [(0, b"new")]


def test_late_reset_for_the_deleted_topic_is_ignored() -> None:
    rig = Rig()
    rig.core.assign([P0], rig.steady_ms)
    rig.step()
    rig.answer_metadata()
    rig.find_coordinator()
    rig.answer_offsets({0: -1})
    late = rig.take(ListOffsetsRequest)
    recreate(rig)
    partition = ListOffsetsPartitionResponse(partition_index=0, offset=100)
    rig.answer(late, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])]))
    assert rig.core.subscriptions.of(P0).stage is Stage.RESETTING
    rig.answer_list({0: 7})
    assert rig.position(P0).offset == 7


def test_old_id_of_a_lagging_broker_is_ignored() -> None:
    rig = Rig().assign(0)
    for topic_id in (ANOTHER, TOPIC_ID, ANOTHER):
        recreate(rig, topic_id)
    assert sum("deleted and created again" in report for report in rig.reports) == 1


def take(rig: Rig) -> list[Portion]:
    """One portion of the topic before, as a poll takes it."""
    rig.answer_fetch(p0=records(0, b"a", b"b", b"c"))
    portions = rig.core.take(500)
    assert rig.position(P0).offset == 3
    return portions


def test_records_of_an_interrupted_poll_are_dropped() -> None:
    rig = Rig().assign(0)
    portions = take(rig)
    recreate(rig)
    rig.answer_list({0: 7})
    rig.core.fetcher.put_back(portions)
    assert rig.position(P0).offset == 7


def test_iterated_records_are_not_committed() -> None:
    rig = Rig().assign(0)
    found = as_records(take(rig))
    recreate(rig)
    rig.answer_list({0: 7})
    batch = begin_iteration(rig.core, found)
    assert rig.group.commits.positions()[P0].offset == 7
    assert list(iterate_records(rig.core, batch, lambda: None)) == []


def test_group_metadata_has_topic_ids_of_delivered_records() -> None:
    rig = Rig().assign(0)
    assert rig.core.group_metadata().topic_ids == {}
    take(rig)
    recreate(rig)
    rig.answer_list({0: 0})
    assert rig.core.group_metadata().topic_ids == {P0: TOPIC_ID}
    for request in rig.pending(FetchRequest):
        rig.waiting.remove(request)
        rig.answer(request, FetchResponse(responses=[]))
    rig.answer_fetch(p0=records(0, b"new"))
    rig.poll()
    assert rig.core.group_metadata().topic_ids == {P0: ANOTHER}
