"""What is committed before partitions are given up, and after which generation, with a clock and answers by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import errors
from chaffinch.consumer.core.group_requests import Identity
from chaffinch.consumer.core.membership_moves import State
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.consumer.core.rig import ME, Rig, number_of, records

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


class TestCommitsAroundRebalances:
    def rig(self, **options: Any) -> Rig:
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 100_000, **options}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.group.commits._auto_due_ms = 10**9
        rig.group.membership.rebalance("a test")
        rig.poll()
        return rig

    def answer_to_commit(self, code: str) -> OffsetCommitResponse:
        told = [OffsetCommitResponsePartition(partition_index=number, error_code=number_of(code)) for number in (0, 1)]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=told)])

    def committed(self, rig: Rig, code: str = "NONE") -> None:
        rig.answer(OffsetCommitRequest, self.answer_to_commit(code))

    def test_positions_are_committed_before_they_are_given_up(self) -> None:
        rig = self.rig()
        assert (rig.state, rig.callbacks) == (State.PREPARING, [("assign", 2)])
        sent = rig.pending(OffsetCommitRequest)[0].message
        assert [(found.partition_index, found.committed_offset) for found in sent.topics[0].partitions] == [(0, 5), (1, 7)]
        assert (sent.generation_id_or_member_epoch, sent.member_id) == (1, ME)
        self.committed(rig)
        rig.poll()
        assert (rig.state, rig.callbacks) == (State.JOINING, [("assign", 2), ("revoke", 2)])

    def test_a_commit_that_another_broker_should_have_had_looks_for_that(self) -> None:
        rig = self.rig()
        self.committed(rig, "NOT_COORDINATOR")
        rig.advance(1_000)
        rig.find_coordinator()
        assert len(rig.pending(OffsetCommitRequest)) == 1

    def test_an_automatic_commit_that_waits_for_the_coordinator_is_not_made_besides(self) -> None:
        """It would come after the partitions are given up, with what was read up to long before."""
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 1_000, "default.api.timeout.ms": 9_000}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.group.finder.forget()
        rig.advance(2_000)
        rig.poll()
        rig.group.membership.rebalance("a test")
        for _ in range(5):
            rig.advance(1_000)
            rig.poll()
        rig.find_coordinator()
        assert len(rig.pending(OffsetCommitRequest)) == 1

    def test_so_is_what_was_read_on_while_others_joined(self) -> None:
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
        told: list[errors.KafkaException | None] = []
        rig.group.commits.commit_all(rig.steady_ms + 30_000, told.append, retries=True)
        rig.core.close("call", rig.steady_ms + 30_000)
        rig.step()
        assert not rig.pending(LeaveGroupRequest)
        return rig, told

    def test_the_last_commit_does_not_wait_for_those_who_join(self) -> None:
        rig, told = self.closing(State.JOINING)
        sent = rig.pending(OffsetCommitRequest)[0]
        assert (sent.message.generation_id_or_member_epoch, sent.address.lane) == (1, 0)
        self.committed(rig)
        assert told == [None]
        assert len(rig.pending(LeaveGroupRequest)) == 1

    def test_nor_comes_before_they_can_commit(self) -> None:
        rig, told = self.closing(State.SYNCING)
        assert not rig.pending(OffsetCommitRequest)
        rig.answer_sync(0)
        sent = rig.pending(OffsetCommitRequest)[0]
        assert (sent.message.generation_id_or_member_epoch, sent.address.lane) == (2, 2)
        self.committed(rig)
        assert told == [None]
        assert len(rig.pending(LeaveGroupRequest)) == 1

    @pytest.mark.parametrize("code", ["ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"])
    @pytest.mark.parametrize("is_answered_first", [True, False])
    def test_a_last_commit_that_comes_after_the_next_generation_has_begun_is_made_in_it(self, code: str, is_answered_first: bool) -> None:
        """JoinGroup and the commit go over two connections, and their answers, too."""
        rig, told = self.closing(State.JOINING)
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
        assert told == [None]
        assert len(rig.pending(LeaveGroupRequest)) == 1
        assert not rig.reports

    def test_a_last_commit_of_who_was_expelled_meanwhile_is_not_made_in_a_later_generation(self) -> None:
        rig, told = self.closing(State.JOINING)
        rig.answer_join(code=number_of("UNKNOWN_MEMBER_ID"))
        self.committed(rig, "UNKNOWN_MEMBER_ID")
        assert [type(error) for error in told] == [errors.CommitFailedException]
        assert not rig.pending(OffsetCommitRequest)

    def test_what_an_eager_member_had_waiting_is_not_made_in_the_next_generation(self) -> None:
        """It has given its partitions up: others may have committed further."""
        rig = Rig(**{"enable.auto.commit": True}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.group.finder.forget()
        told: list[errors.KafkaException | None] = []
        rig.group.commits.commit_all(rig.steady_ms + 60_000, told.append, retries=False)
        membership = rig.group.membership
        membership.joined_from, membership.identity = membership.identity, Identity(2, ME)
        rig.step()
        assert [type(error) for error in told] == [errors.CommitFailedException]

    def test_a_refused_commit_does_not_tell_who_joins_that_it_is_out(self) -> None:
        """Asked for just before, while nobody knew the coordinator: what has become of the member the answer to JoinGroup says."""
        rig = Rig(**COOPERATIVE).reach(State.STABLE)
        rig.group.finder.forget()
        rig.group.membership.rebalance("a test")
        told: list[errors.KafkaException | None] = []
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, rig.steady_ms + 60_000, told.append, retries=False)
        rig.poll()
        rig.find_coordinator()
        assert rig.state is State.JOINING
        rig.answer(OffsetCommitRequest, self.answer_to_commit("ILLEGAL_GENERATION"))
        assert [type(error) for error in told] == [errors.CommitFailedException]
        rig.answer_join(generation=2)
        rig.answer_sync(0, 1)
        rig.poll()
        assert (rig.state, rig.callbacks) == (State.STABLE, [("assign", 2), ("assign", 0)])

    @pytest.mark.parametrize(
        ("code", "told"), [("UNKNOWN_MEMBER_ID", "lost"), ("REBALANCE_IN_PROGRESS", "revoke"), ("OFFSET_METADATA_TOO_LARGE", "revoke")]
    )
    def test_a_commit_that_fails_does_not_stop_the_rebalance(self, code: str, told: str) -> None:
        rig = self.rig()
        self.committed(rig, code)
        rig.poll()
        assert (rig.state, rig.callbacks[-1]) == (State.JOINING, (told, 2))
        assert any("not committed before the rebalance" in text for text in rig.reports)

    def test_a_commit_that_is_not_answered_holds_it_up_no_longer_than_polls_may_be_apart(self) -> None:
        rig = self.rig(**{"max.poll.interval.ms": 2_000})
        for _ in range(4):
            rig.advance(499)
            rig.poll()
        before = rig.state
        rig.advance(4)
        rig.poll()
        assert (before, rig.state) == (State.PREPARING, State.JOINING)
        assert any("not committed before the rebalance" in text for text in rig.reports)
