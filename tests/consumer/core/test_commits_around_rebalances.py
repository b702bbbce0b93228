"""Commits before partitions are revoked, and their generation; with a manual clock and manual responses."""

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import errors
from chaffinch.consumer.core.group_requests import Identity
from chaffinch.consumer.core.membership_states import State
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.consumer.core.rig import MEMBER_ID, Rig, number_of, records

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


class TestCommitsAroundRebalances:
    def rig(self, **options: Any) -> Rig:
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 100_000, **options}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.group.commits._auto_due_ms = 10**9
        rig.group.membership.request_rejoin("a test")
        rig.poll()
        return rig

    def answer_to_commit(self, code: str) -> OffsetCommitResponse:
        outcomes = [OffsetCommitResponsePartition(partition_index=number, error_code=number_of(code)) for number in (0, 1)]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=outcomes)])

    def committed(self, rig: Rig, code: str = "NONE") -> None:
        rig.answer(OffsetCommitRequest, self.answer_to_commit(code))

    def test_positions_are_committed_before_revocation(self) -> None:
        rig = self.rig()
        assert (rig.state, rig.callbacks) == (State.PREPARING, [("assign", 2)])
        sent = rig.pending(OffsetCommitRequest)[0].message
        assert [(found.partition_index, found.committed_offset) for found in sent.topics[0].partitions] == [(0, 5), (1, 7)]
        assert (sent.generation_id_or_member_epoch, sent.member_id) == (1, MEMBER_ID)
        self.committed(rig)
        rig.poll()
        assert (rig.state, rig.callbacks) == (State.JOINING, [("assign", 2), ("revoke", 2)])

    def test_commit_at_a_former_coordinator_finds_the_new_one(self) -> None:
        rig = self.rig()
        self.committed(rig, "NOT_COORDINATOR")
        rig.advance(1_000)
        rig.find_coordinator()
        assert len(rig.pending(OffsetCommitRequest)) == 1

    def test_waiting_auto_commit_is_superseded(self) -> None:
        """It would arrive after the partitions are revoked, with old offsets."""
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 1_000, "default.api.timeout.ms": 9_000}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.group.finder.forget()
        rig.advance(2_000)
        rig.poll()
        rig.group.membership.request_rejoin("a test")
        for _ in range(5):
            rig.advance(1_000)
            rig.poll()
        rig.find_coordinator()
        assert len(rig.pending(OffsetCommitRequest)) == 1

    def test_records_read_during_the_rebalance_are_committed(self) -> None:
        rig = self.rig(**COOPERATIVE)
        self.committed(rig)
        assert rig.poll() == []
        rig.answer_fetch(p0=records(5, b"kept"), p1=records(7, b"read on"))
        assert rig.poll() == [(0, b"kept"), (1, b"read on")]
        rig.answer_fetch(p1=records(8, b"too late"))
        rig.answer_join(generation=2)
        rig.answer_sync(0)
        assert rig.poll() == []
        assert (rig.state, rig.callbacks) == (State.ADOPTING, [("assign", 2)])
        sent = rig.pending(OffsetCommitRequest)[0].message
        assert [(found.partition_index, found.committed_offset) for found in sent.topics[0].partitions] == [(1, 8)]
        assert sent.generation_id_or_member_epoch == 2
        self.committed(rig)
        assert rig.poll() == []
        assert rig.callbacks == [("assign", 2), ("revoke", 1), ("assign", 0)]

    def closing(self, state: State) -> tuple[Rig, list[errors.KafkaException | None]]:
        """A cooperative member that closes while it joins again."""
        rig = self.rig(**COOPERATIVE)
        self.committed(rig)
        rig.poll()
        if state is State.SYNCING:
            rig.answer_join(generation=2)
        assert rig.state is state
        outcomes: list[errors.KafkaException | None] = []
        rig.group.commits.commit_all(rig.steady_ms + 30_000, outcomes.append, retries=True)
        rig.core.close("call", rig.steady_ms + 30_000)
        rig.step()
        assert not rig.pending(LeaveGroupRequest)
        return rig, outcomes

    def test_final_commit_does_not_wait_for_joining_members(self) -> None:
        rig, outcomes = self.closing(State.JOINING)
        sent = rig.pending(OffsetCommitRequest)[0]
        assert (sent.message.generation_id_or_member_epoch, sent.address.lane) == (1, 0)
        self.committed(rig)
        assert outcomes == [None]
        assert len(rig.pending(LeaveGroupRequest)) == 1

    def test_final_commit_waits_while_members_sync(self) -> None:
        rig, outcomes = self.closing(State.SYNCING)
        assert not rig.pending(OffsetCommitRequest)
        rig.answer_sync(0)
        sent = rig.pending(OffsetCommitRequest)[0]
        assert (sent.message.generation_id_or_member_epoch, sent.address.lane) == (2, 2)
        self.committed(rig)
        assert outcomes == [None]
        assert len(rig.pending(LeaveGroupRequest)) == 1

    @pytest.mark.parametrize("code", ["ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"])
    @pytest.mark.parametrize("is_answered_first", [True, False])
    def test_late_final_commit_is_sent_in_the_next_generation(self, code: str, is_answered_first: bool) -> None:
        """JoinGroup and the commit go over two connections, and their answers, too."""
        rig, outcomes = self.closing(State.JOINING)
        answers: list[Callable[[], None]] = [lambda: self.committed(rig, code), lambda: rig.answer_join(generation=2)]
        for answer in answers if is_answered_first else answers[::-1]:
            answer()
        rig.advance(200)
        assert not rig.pending(OffsetCommitRequest)
        rig.answer_sync(0)
        rig.advance(200)
        sent = rig.pending(OffsetCommitRequest)[0]
        assert (sent.message.generation_id_or_member_epoch, sent.address.lane) == (2, 2)
        assert [(found.partition_index, found.committed_offset) for found in sent.message.topics[0].partitions] == [(0, 5), (1, 7)]
        self.committed(rig)
        assert outcomes == [None]
        assert len(rig.pending(LeaveGroupRequest)) == 1
        assert not rig.reports

    def test_final_commit_of_an_expelled_member_fails(self) -> None:
        rig, outcomes = self.closing(State.JOINING)
        rig.answer_join(code=number_of("UNKNOWN_MEMBER_ID"))
        self.committed(rig, "UNKNOWN_MEMBER_ID")
        assert [type(error) for error in outcomes] == [errors.CommitFailedException]
        assert not rig.pending(OffsetCommitRequest)

    def test_waiting_commit_of_an_eager_member_fails_in_the_next_generation(self) -> None:
        """Its partitions are revoked: others may have committed further."""
        rig = Rig(**{"enable.auto.commit": True}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.group.finder.forget()
        outcomes: list[errors.KafkaException | None] = []
        rig.group.commits.commit_all(rig.steady_ms + 60_000, outcomes.append, retries=False)
        membership = rig.group.membership
        membership.previous_identity, membership.identity = membership.identity, Identity(2, MEMBER_ID)
        rig.step()
        assert [type(error) for error in outcomes] == [errors.CommitFailedException]

    def test_rejected_commit_does_not_expel_a_joining_member(self) -> None:
        """The commit was made before the coordinator was known: the response to JoinGroup decides about the member."""
        rig = Rig(**COOPERATIVE).reach(State.STABLE)
        rig.group.finder.forget()
        rig.group.membership.request_rejoin("a test")
        outcomes: list[errors.KafkaException | None] = []
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, rig.steady_ms + 60_000, outcomes.append, retries=False)
        rig.poll()
        rig.find_coordinator()
        assert rig.state is State.JOINING
        rig.answer(OffsetCommitRequest, self.answer_to_commit("ILLEGAL_GENERATION"))
        assert [type(error) for error in outcomes] == [errors.CommitFailedException]
        rig.answer_join(generation=2)
        rig.answer_sync(0, 1)
        rig.poll()
        assert (rig.state, rig.callbacks) == (State.STABLE, [("assign", 2), ("assign", 0)])

    @pytest.mark.parametrize(
        ("code", "outcomes"), [("UNKNOWN_MEMBER_ID", "lost"), ("REBALANCE_IN_PROGRESS", "revoke"), ("OFFSET_METADATA_TOO_LARGE", "revoke")]
    )
    def test_failed_commit_does_not_stop_the_rebalance(self, code: str, outcomes: str) -> None:
        rig = self.rig()
        self.committed(rig, code)
        rig.poll()
        assert (rig.state, rig.callbacks[-1]) == (State.JOINING, (outcomes, 2))
        assert any("not committed before the rebalance" in text for text in rig.reports)

    def test_unanswered_commit_delays_the_rebalance_by_max_poll_interval(self) -> None:
        rig = self.rig(**{"max.poll.interval.ms": 2_000})
        for _ in range(4):
            rig.advance(499)
            rig.poll()
        before = rig.state
        rig.advance(4)
        rig.poll()
        assert (before, rig.state) == (State.PREPARING, State.JOINING)
        assert any("not committed before the rebalance" in text for text in rig.reports)
