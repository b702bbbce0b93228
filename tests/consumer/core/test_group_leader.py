"""Group leader: assignments, and rebalances for unassigned partitions; with a manual clock and manual responses."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from chaffinch.consumer.core.group_protocol import decode_assignment, encode_assignment
from chaffinch.consumer.core.membership_states import State
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.sync_group import SyncGroupRequest
from tests.consumer.core.rig import MEMBER_ID, Rig, number_of

EAGER: dict[str, Any] = {"partition.assignment.strategy": "range"}
COOPERATIVE: dict[str, Any] = {"partition.assignment.strategy": "cooperative-sticky"}
MIXED: dict[str, Any] = {"partition.assignment.strategy": "cooperative-sticky,range"}


def test_leader_waits_for_metadata_of_all_topics() -> None:
    rig = Rig().reach(State.SYNCING, topics=("t", "unknown"))
    assert not rig.pending(SyncGroupRequest)
    rig.answer(MetadataRequest, rig.metadata())
    assert not rig.pending(SyncGroupRequest)


def test_sync_has_the_assignment_of_every_member() -> None:
    rig = Rig().reach(State.SYNCING)
    assert [assignment.member_id for assignment in rig.pending(SyncGroupRequest)[0].message.assignments] == [MEMBER_ID]
    rig = Rig().reach(State.SYNCING, is_leader=False)
    assert rig.pending(SyncGroupRequest)[0].message.assignments == []


@pytest.mark.parametrize(("is_leader", "state"), [(True, State.UNJOINED), (False, State.STABLE)])
def test_leader_rebalances_after_topic_changes(is_leader: bool, state: State) -> None:
    rig = Rig(**{"metadata.max.age.ms": 1_000}).reach(State.STABLE, is_leader=is_leader)
    rig.partitions = 5
    rig.advance(1_000)
    rig.answer_metadata()
    assert rig.state is state


class TestReturningStaticLeader:
    """Its assignment stands, and that of the others (KIP-814)."""

    def back(self, *assigned: int, others: Mapping[str, list[int]] = MappingProxyType({"other": [2]}), **options: Any) -> Rig:
        rig = Rig(**{"group.instance.id": "i", "metadata.max.age.ms": 1_000, **options}).reach(State.JOINING)
        rig.answer_join(has_returned=True, generation=7, others=others)
        assert rig.pending(SyncGroupRequest)[0].message.assignments == []
        rig.answer_sync(*assigned)
        rig.poll()
        return rig

    @pytest.mark.parametrize("options", [EAGER, COOPERATIVE])
    def test_rebalances_after_topic_changes(self, options: dict[str, Any]) -> None:
        """No other member would: new partitions were never assigned."""
        rig = self.back(0, 1, **options)
        rig.advance(900)
        before = rig.state
        rig.partitions = 5
        rig.advance(1_000)
        rig.answer_metadata()
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_rebalances_for_a_possible_orphan(self) -> None:
        rig = self.back(0, **COOPERATIVE)
        assert rig.state is State.UNJOINED
        rig.poll()
        rig.answer_join(generation=8, others={"other": [2]})
        assignments = rig.pending(SyncGroupRequest)[0].message.assignments
        assert sorted(tp.partition for assignment in assignments for tp in decode_assignment(assignment.assignment)) == [0, 1, 2]

    @pytest.mark.parametrize("options", [EAGER, MIXED])
    @pytest.mark.parametrize(("others_own", "state"), [((1, 2), State.STABLE), ((2,), State.UNJOINED)])
    def test_describes_eager_members(self, options: dict[str, Any], others_own: tuple[int, ...], state: State) -> None:
        """Eager members do not report their partitions, and a rebalance stops them all: it is requested only if partitions were added.

        Members with a mixed list are eager, whichever assignor the group has chosen."""
        rig = self.back(0, **options)
        assert rig.state is State.STABLE
        rig.answer(DescribeGroupsRequest, described([0], others_own))
        assert rig.state is state
        rig.advance(2_000)
        assert not rig.pending(DescribeGroupsRequest)

    @pytest.mark.parametrize("options", [EAGER, MIXED])
    @pytest.mark.parametrize(("assigned", "state"), [((0, 1, 2), State.STABLE), ((0, 1), State.UNJOINED), ((), State.UNJOINED)])
    def test_sole_member_sends_no_describe(self, options: dict[str, Any], assigned: tuple[int, ...], state: State) -> None:
        rig = self.back(*assigned, others={}, **options)
        assert rig.state is state
        assert not rig.pending(DescribeGroupsRequest)
        if state is State.UNJOINED:
            rig.poll()
            rig.answer_join(generation=8)
            rig.answer_sync(0, 1, 2)
            rig.poll()
            rig.advance(100)
            assert rig.state is State.STABLE

    def test_unanswered_describe_is_repeated(self) -> None:
        rig = self.back(0, **EAGER)
        rig.answer(DescribeGroupsRequest, described(code="COORDINATOR_LOAD_IN_PROGRESS"))
        rig.advance(1_000)
        rig.fail(DescribeGroupsRequest)
        rig.advance(1_000)
        rig.find_coordinator()
        rig.answer(DescribeGroupsRequest, described([0], [2]))
        assert rig.state is State.UNJOINED

    @pytest.mark.parametrize(
        ("answer", "reports"),
        [({"state": "PreparingRebalance"}, 0), ({"code": "GROUP_AUTHORIZATION_FAILED"}, 1)],
    )
    def test_failed_describe_is_not_repeated(self, answer: dict[str, Any], reports: int) -> None:
        """A round that others have begun leaves nothing out."""
        rig = self.back(0, **EAGER)
        rig.answer(DescribeGroupsRequest, described([0], **answer))
        assert rig.state is State.STABLE
        assert len(rig.reports) == reports
        rig.advance(1_000)
        assert not rig.pending(DescribeGroupsRequest)


def described(*assignments: Sequence[int], state: str = "Stable", code: str = "NONE") -> DescribeGroupsResponse:
    members = [
        DescribedGroupMember(
            member_id=str(number), member_assignment=encode_assignment(TopicPartition("t", partition) for partition in partitions)
        )
        for number, partitions in enumerate(assignments)
    ]
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state=state, error_code=number_of(code), members=members)])


class TestPendingRevocation:
    def led(self, **options: Any) -> Rig:
        rig = Rig(**{**COOPERATIVE, "max.poll.interval.ms": 10_000, **options}).reach(State.JOINING)
        rig.answer_join(others={"other": [0, 1, 2]})
        assignments = {
            assignment.member_id: decode_assignment(assignment.assignment)
            for assignment in rig.pending(SyncGroupRequest)[0].message.assignments
        }
        assert (len(assignments[MEMBER_ID]), len(assignments["other"])) == (0, 2)
        rig.answer_sync()
        rig.poll()
        return rig

    def wait(self, rig: Rig, ms: int) -> None:
        """The caller polls, and the coordinator answers heartbeats."""
        for _ in range(ms // 1_000):
            rig.advance(1_000)
            rig.poll()
            for _ in rig.pending(HeartbeatRequest):
                rig.answer(HeartbeatRequest, HeartbeatResponse())
            for _ in rig.pending(MetadataRequest):
                rig.answer_metadata()

    def test_waits_for_the_owner_up_to_max_poll_interval(self) -> None:
        """Then the leader requests a rebalance: the owner has been replaced by a process that does not know of the revocation."""
        rig = self.led()
        self.wait(rig, 9_000)
        before = rig.state
        rig.advance(1_000)
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_rebalance_is_requested_once(self) -> None:
        """For a member that never revokes its partitions."""
        rig = self.led()
        self.wait(rig, 9_000)
        rig.advance(1_000)
        rig.poll()
        rig.answer_join(generation=2, others={"other": [0, 1, 2]})
        rig.answer_sync()
        rig.poll()
        self.wait(rig, 30_000)
        assert rig.state is State.STABLE

    def test_returning_static_leader_waits(self) -> None:
        """The leader returns before the owner has revoked it. If the owner dies, too, its successor starts no rebalance."""
        rig = Rig(**{**COOPERATIVE, "group.instance.id": "i", "max.poll.interval.ms": 10_000}).reach(State.JOINING)
        rig.answer_join(has_returned=True, generation=7, others={"other": [0, 1, 2]})
        rig.answer_sync()
        rig.poll()
        self.wait(rig, 9_000)
        before = rig.state
        rig.advance(1_000)
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_returning_static_leader_does_not_wait_if_nothing_moves(self) -> None:
        rig = Rig(**{**COOPERATIVE, "group.instance.id": "i", "max.poll.interval.ms": 10_000}).reach(State.JOINING)
        rig.answer_join(has_returned=True, generation=7, others={"other": [0, 1]})
        rig.answer_sync(2)
        rig.poll()
        self.wait(rig, 30_000)
        assert rig.state is State.STABLE

    def test_new_orphan_requests_another_rebalance(self) -> None:
        """A third member has joined in that rebalance: it gets partition 1 once the owner has revoked it."""
        rig = self.led()
        self.wait(rig, 9_000)
        rig.advance(1_000)
        rig.poll()
        rig.answer_join(generation=2, others={"other": [0, 1], "third": []})
        rig.answer_sync(2)
        rig.poll()
        self.wait(rig, 9_000)
        before = rig.state
        rig.advance(1_000)
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_no_wait_if_all_is_assigned(self) -> None:
        rig = Rig(**{**COOPERATIVE, "max.poll.interval.ms": 10_000}).reach(State.STABLE)
        self.wait(rig, 30_000)
        assert rig.state is State.STABLE
