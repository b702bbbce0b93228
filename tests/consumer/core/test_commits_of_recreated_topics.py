"""Commits while a topic is deleted and created again: each way to commit, each kind of coordinator. With answers by hand."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from chaffinch import errors
from chaffinch.client.effects import SendRequest
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.positions import Position, Stage
from chaffinch.consumer.core.topic_ids import TopicIds
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest
from tests.consumer.core.rig import TOPIC_ID, Rig, number_of

P0 = TopicPartition("t", 0)
NEW_ID = UUID(int=8)
NO_ID = UUID(int=0)
CommitResults = list[errors.KafkaException | None]
Way = Callable[[Rig], CommitResults | None]
AUTOMATIC = {"enable.auto.commit": True, "auto.commit.interval.ms": 5_000}


def member(topic_id: UUID = TOPIC_ID, **options: Any) -> Rig:
    """A member that has read partition 0 up to 5 and partition 1 up to 7."""
    rig = Rig(**{**AUTOMATIC, **options})
    rig.topic_id = topic_id
    rig.group.commits._auto_due_ms = 10**9
    rig.reach(State.STABLE)
    rig.answer_offsets({0: 5, 1: 7})
    return rig


# Ways to start a commit. Each returns the list of outcomes, or None if there is no callback.


def by_poll(rig: Rig) -> None:
    rig.group.commits._auto_due_ms = 0
    rig.poll()


def before_a_rebalance(rig: Rig) -> None:
    rig.advance(3_000)
    rig.answer(HeartbeatRequest, HeartbeatResponse(error_code=number_of("REBALANCE_IN_PROGRESS")))
    rig.poll()


def in_close(rig: Rig) -> CommitResults:
    results: CommitResults = []
    rig.group.commits.commit_all(rig.steady_ms + 30_000, results.append, retries=True)
    rig.step()
    return results


def by_commit(rig: Rig) -> CommitResults:
    results: CommitResults = []
    rig.group.commits.commit(None, rig.steady_ms + 30_000, results.append, retries=True)
    rig.step()
    return results


def by_asynchronous_commit(rig: Rig) -> CommitResults:
    results: CommitResults = []
    rig.group.commits.commit(None, rig.steady_ms + 30_000, results.append, retries=False)
    rig.step()
    return results


WAYS = [by_poll, before_a_rebalance, in_close, by_commit, by_asynchronous_commit]


def offsets_of(request: SendRequest) -> dict[int, int]:
    return {found.partition_index: found.committed_offset for found in request.message.topics[0].partitions}


def answer(rig: Rig, code: str = "NONE") -> SendRequest:
    """The commit that waits, by id or by name as it was sent."""
    request = rig.take(OffsetCommitRequest)
    asked = request.message.topics[0]
    results = [
        OffsetCommitResponsePartition(partition_index=found.partition_index, error_code=number_of(code)) for found in asked.partitions
    ]
    by_id = {"topic_id": asked.topic_id} if asked.topic_id != NO_ID else {"name": "t"}
    rig.answer(request, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(partitions=results, **by_id)]))
    return request


def reject_topic_ids(rig: Rig) -> None:
    """The coordinator has OffsetCommit up to version 9."""
    rig.fail(OffsetCommitRequest, is_unsupported=True)


def answer_check(rig: Rig, topic_id: UUID, code: str = "NONE") -> None:
    request = rig.take(MetadataRequest)
    assert [topic.name for topic in request.message.topics] == ["t"]
    assert not request.message.allow_auto_topic_creation, "a deleted topic must not come back by it"
    coordinator = rig.group.finder.known_address
    assert coordinator is not None
    assert request.address.first_lane == coordinator.first_lane, "the coordinator itself decides"
    rig.topic_id = topic_id
    rig.answer(request, rig.metadata(number_of(code)))


def assert_dropped(rig: Rig, results: CommitResults | None) -> None:
    assert not rig.pending(OffsetCommitRequest)
    assert results in (None, [None])
    (line,) = [report for report in rig.reports if "deleted and created again" in report]
    assert all(part in line for part in ("AAAAAAAAAAAAAAAAAAAABw", "AAAAAAAAAAAAAAAAAAAACA", "earliest"))
    assert not any("not committed" in report for report in rig.reports)
    states = rig.core.subscriptions.assigned.values()
    assert all(state.position is None and state.stage is Stage.RESETTING for state in states)


@pytest.mark.parametrize("way", WAYS)
class TestRecreatedTopic:
    def test_coordinator_with_topic_ids_rejects_the_commit(self, way: Way) -> None:
        rig = member()
        results = way(rig)
        request = answer(rig, "UNKNOWN_TOPIC_ID")
        assert (request.version_max, request.message.topics[0].topic_id) == (10, TOPIC_ID)
        answer_check(rig, NEW_ID)
        assert_dropped(rig, results)

    def test_commit_by_name_is_dropped(self, way: Way) -> None:
        rig = member()
        results = way(rig)
        reject_topic_ids(rig)
        assert not rig.pending(OffsetCommitRequest), "metadata is asked for first"
        answer_check(rig, NEW_ID)
        assert_dropped(rig, results)

    def test_missing_topic_is_not_committed_by_name(self, way: Way) -> None:
        """It may be created again before the commit gets there."""
        rig = member()
        way(rig)
        reject_topic_ids(rig)
        answer_check(rig, TOPIC_ID, "UNKNOWN_TOPIC_OR_PARTITION")
        assert not rig.pending(OffsetCommitRequest)

    def test_broker_without_ids_commits(self, way: Way) -> None:
        rig = member(NO_ID)
        way(rig)
        request = answer(rig)
        assert (request.version_max, request.message.topics[0].topic_id) == (9, NO_ID)
        assert not rig.pending(MetadataRequest)

    def test_unchanged_topic_is_committed(self, way: Way) -> None:
        rig = member()
        way(rig)
        reject_topic_ids(rig)
        answer_check(rig, TOPIC_ID)
        request = answer(rig)
        assert (request.version_max, offsets_of(request)) == (9, {0: 5, 1: 7})

    def test_lagging_coordinator_is_asked_twice(self, way: Way) -> None:
        rig = member()
        way(rig)
        answer(rig, "UNKNOWN_TOPIC_ID")
        answer_check(rig, TOPIC_ID)
        assert offsets_of(answer(rig)) == {0: 5, 1: 7}
        assert not any("created again" in report for report in rig.reports)


@pytest.mark.parametrize("way", [by_poll, by_commit, in_close])
def test_old_id_of_a_lagging_coordinator_is_ignored(way: Way) -> None:
    """Positions in the new topic are retained: otherwise latest would skip records, and earliest would read them twice."""
    rig = member()
    rig.topic_id = NEW_ID
    rig.core.context.refresh()
    rig.advance(1_000)
    rig.answer_metadata()
    for state in rig.core.subscriptions.assigned.values():
        state.seek(Position(3, -1))
    way(rig)
    answer(rig, "UNKNOWN_TOPIC_ID")
    answer_check(rig, TOPIC_ID)
    assert answer(rig).message.topics[0].topic_id == NEW_ID
    assert [rig.position(tp).offset for tp in rig.core.subscriptions.assigned] == [3, 3]
    assert len([report for report in rig.reports if "created again" in report]) == 1


def test_id_unknown_to_coordinators_is_replaced_by_a_known_one() -> None:
    """A broker that lagged behind has reported the deleted topic last."""
    ids = TopicIds()
    ids.learn("t", NEW_ID)
    ids.learn("t", TOPIC_ID)
    ids.report_unknown(TOPIC_ID, 0)
    assert ids.learn("t", NEW_ID) is None
    ids.report_unknown(TOPIC_ID, 3_000)
    assert ids.learn("t", NEW_ID) == ("t", TOPIC_ID, NEW_ID)
    assert ids.current("t") == NEW_ID


def test_version_is_negotiated_once_per_connection() -> None:
    rig = member()
    by_commit(rig)
    reject_topic_ids(rig)
    answer_check(rig, TOPIC_ID)
    answer(rig)
    by_commit(rig)
    answer_check(rig, TOPIC_ID)
    assert rig.pending(OffsetCommitRequest)[0].version_max == 9
    rig.fail(OffsetCommitRequest)
    rig.advance(1_000)
    rig.answer_metadata()
    rig.find_coordinator()
    rig.advance(1_000)
    assert rig.pending(OffsetCommitRequest)[0].version_max == 10


def test_unanswered_topic_check_is_repeated() -> None:
    rig = member()
    results = by_commit(rig)
    reject_topic_ids(rig)
    rig.fail(MetadataRequest)
    rig.advance(1_000)
    rig.find_coordinator()
    while rig.pending(MetadataRequest):
        rig.answer_metadata()
    assert results == []
    reject_topic_ids(rig)
    answer_check(rig, NEW_ID)
    assert results == [None]


@pytest.mark.parametrize("takes_ids", [True, False])
def test_metadata_drops_waiting_commits(takes_ids: bool) -> None:
    """A commit waits for its retry, and the topic is created again in the meantime."""
    rig = member()
    results = by_commit(rig)
    if not takes_ids:
        reject_topic_ids(rig)
        answer_check(rig, TOPIC_ID)
    answer(rig, "COORDINATOR_LOAD_IN_PROGRESS")
    rig.topic_id = NEW_ID
    rig.core.context.refresh()
    for _ in range(20):
        rig.advance(100)
        for request in rig.pending(MetadataRequest):
            rig.waiting.remove(request)
            rig.answer(request, rig.metadata())
        if rig.pending(OffsetCommitRequest):
            answer(rig, "COORDINATOR_LOAD_IN_PROGRESS")
    assert_dropped(rig, results)


class TestExplicitOffsets:
    """They are its own affair, but for what changes while they are committed."""

    def commit(self, rig: Rig) -> CommitResults:
        results: CommitResults = []
        rig.group.commits.commit({P0: OffsetAndMetadata(3)}, rig.steady_ms + 30_000, results.append, retries=True)
        rig.step()
        return results

    def test_explicit_offsets_belong_to_the_topic_at_the_call(self) -> None:
        rig = member()
        results = self.commit(rig)
        answer(rig, "UNKNOWN_TOPIC_ID")
        answer_check(rig, NEW_ID)
        assert not rig.pending(OffsetCommitRequest)
        assert isinstance(results[0], errors.UnknownTopicIdException)
        assert "commit again if the offset is meant for the new topic" in str(results[0])
        results = self.commit(rig)
        assert answer(rig).message.topics[0].topic_id == NEW_ID
        assert results == [None]

    def test_explicit_offsets_by_name_are_not_checked(self) -> None:
        rig = member()
        results = self.commit(rig)
        reject_topic_ids(rig)
        assert offsets_of(answer(rig)) == {0: 3}
        assert results == [None]


class TestOtherStateOfTheDeletedTopic:
    def recreate(self, rig: Rig) -> None:
        rig.topic_id = NEW_ID
        rig.core.context.refresh()
        rig.advance(1_000)
        rig.answer_metadata()

    def test_late_committed_offset_is_ignored(self) -> None:
        rig = Rig().reach(State.STABLE)
        late = rig.take(OffsetFetchRequest)
        assert (late.version_max, late.message.groups[0].topics[0].topic_id) == (10, TOPIC_ID)
        self.recreate(rig)
        rig.waiting.append(late)
        rig.answer_offsets({0: 5, 1: 7})
        assert {state.stage for state in rig.core.subscriptions.assigned.values()} == {Stage.COMMITTED}
        assert rig.pending(OffsetFetchRequest)[0].message.groups[0].topics[0].topic_id == NEW_ID

    def test_paused_state_is_dropped(self) -> None:
        rig = member()
        rig.core.subscriptions.of(P0).is_paused = True
        self.recreate(rig)
        assert not rig.core.subscriptions.of(P0).is_paused
        assert "t-0 is not paused any more" in rig.reports[-1]

    def test_end_offset_is_dropped(self) -> None:
        rig = member()
        rig.core.subscriptions.of(P0).end = 100
        self.recreate(rig)
        assert rig.core.subscriptions.of(P0).end == -1
