"""What a leader does for its group, and what keeps a partition from being nobody's, with a clock and answers by hand."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from chaffinch.consumer.core.group_protocol import decode_assignment, encode_assignment
from chaffinch.consumer.core.membership_moves import State
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
from tests.consumer.core.rig import ME, Rig, number_of

EAGER: dict[str, Any] = {"partition.assignment.strategy": "range"}
COOPERATIVE: dict[str, Any] = {"partition.assignment.strategy": "cooperative-sticky"}
MIXED: dict[str, Any] = {"partition.assignment.strategy": "cooperative-sticky,range"}


def test_the_leader_waits_until_it_knows_all_topics() -> None:
    rig = Rig().reach(State.SYNCING, topics=("t", "unknown"))
    assert not rig.pending(SyncGroupRequest)
    rig.answer(MetadataRequest, rig.metadata())
    assert not rig.pending(SyncGroupRequest)


def test_it_brings_everybody_s_share() -> None:
    rig = Rig().reach(State.SYNCING)
    assert [share.member_id for share in rig.pending(SyncGroupRequest)[0].message.assignments] == [ME]
    rig = Rig().reach(State.SYNCING, leads=False)
    assert rig.pending(SyncGroupRequest)[0].message.assignments == []


@pytest.mark.parametrize(("leads", "state"), [(True, State.UNJOINED), (False, State.STABLE)])
def test_the_leader_looks_after_the_topics(leads: bool, state: State) -> None:
    rig = Rig(**{"metadata.max.age.ms": 1_000}).reach(State.STABLE, leads=leads)
    rig.partitions = 5
    rig.advance(1_000)
    rig.tell_metadata()
    assert rig.state is state


class TestAStaticLeaderThatComesBack:
    """Its assignment stands, and that of the others (KIP-814)."""

    def back(self, *assigned: int, others: Mapping[str, list[int]] = MappingProxyType({"other": [2]}), **options: Any) -> Rig:
        rig = Rig(**{"group.instance.id": "i", "metadata.max.age.ms": 1_000, **options}).reach(State.JOINING)
        rig.answer_join(is_back=True, generation=7, others=others)
        assert rig.pending(SyncGroupRequest)[0].message.assignments == []
        rig.answer_sync(*assigned)
        rig.poll()
        return rig

    @pytest.mark.parametrize("options", [EAGER, COOPERATIVE])
    def test_looks_after_the_topics(self, options: dict[str, Any]) -> None:
        """Nobody else would: new partitions were never assigned."""
        rig = self.back(0, 1, **options)
        rig.advance(900)
        before = rig.state
        rig.partitions = 5
        rig.advance(1_000)
        rig.tell_metadata()
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_asks_for_another_round_where_a_partition_may_be_nobody_s(self) -> None:
        rig = self.back(0, **COOPERATIVE)
        assert rig.state is State.UNJOINED
        rig.poll()
        rig.answer_join(generation=8, others={"other": [2]})
        shares = rig.pending(SyncGroupRequest)[0].message.assignments
        assert sorted(place.partition for share in shares for place in decode_assignment(share.assignment)) == [0, 1, 2]

    @pytest.mark.parametrize("options", [EAGER, MIXED])
    @pytest.mark.parametrize(("others_have", "state"), [((1, 2), State.STABLE), ((2,), State.UNJOINED)])
    def test_asks_what_eager_members_have(self, options: dict[str, Any], others_have: tuple[int, ...], state: State) -> None:
        """They do not say it, and everything stops for another round: it is asked for where partitions were added meanwhile. Those with a
        mixed list are eager, whatever the group has chosen of it."""
        rig = self.back(0, **options)
        assert rig.state is State.STABLE
        rig.answer(DescribeGroupsRequest, described([0], others_have))
        assert rig.state is state
        rig.advance(2_000)
        assert not rig.pending(DescribeGroupsRequest)

    @pytest.mark.parametrize("options", [EAGER, MIXED])
    @pytest.mark.parametrize(("assigned", "state"), [((0, 1, 2), State.STABLE), ((0, 1), State.UNJOINED), ((), State.UNJOINED)])
    def test_that_is_alone_asks_nobody(self, options: dict[str, Any], assigned: tuple[int, ...], state: State) -> None:
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

    def test_asks_again_what_was_not_answered(self) -> None:
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
    def test_leaves_it_at_that_where_it_is_not_told(self, answer: dict[str, Any], reports: int) -> None:
        """A round that others have begun leaves nothing out."""
        rig = self.back(0, **EAGER)
        rig.answer(DescribeGroupsRequest, described([0], **answer))
        assert rig.state is State.STABLE
        assert len(rig.reports) == reports
        rig.advance(1_000)
        assert not rig.pending(DescribeGroupsRequest)


def described(*shares: Sequence[int], state: str = "Stable", code: str = "NONE") -> DescribeGroupsResponse:
    members = [
        DescribedGroupMember(
            member_id=str(number), member_assignment=encode_assignment(TopicPartition("t", partition) for partition in partitions)
        )
        for number, partitions in enumerate(shares)
    ]
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state=state, error_code=number_of(code), members=members)])


class TestAPartitionThatIsToBeGivenUpFirst:
    def led(self, **options: Any) -> Rig:
        rig = Rig(**{**COOPERATIVE, "max.poll.interval.ms": 10_000, **options}).reach(State.JOINING)
        rig.answer_join(others={"other": [0, 1, 2]})
        shares = {share.member_id: decode_assignment(share.assignment) for share in rig.pending(SyncGroupRequest)[0].message.assignments}
        assert (len(shares[ME]), len(shares["other"])) == (0, 2)
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
                rig.tell_metadata()

    def test_is_waited_for_as_long_as_its_owner_may_take(self) -> None:
        """Then the leader asks for another round: who was to give it up is another process by now, and does not know."""
        rig = self.led()
        self.wait(rig, 9_000)
        before = rig.state
        rig.advance(1_000)
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_is_asked_for_once(self) -> None:
        """Of a member that never gives anything up."""
        rig = self.led()
        self.wait(rig, 9_000)
        rig.advance(1_000)
        rig.poll()
        rig.answer_join(generation=2, others={"other": [0, 1, 2]})
        rig.answer_sync()
        rig.poll()
        self.wait(rig, 30_000)
        assert rig.state is State.STABLE

    def test_a_static_leader_that_comes_back_waits_for_it_too(self) -> None:
        """Before its owner has given it up. When the owner then dies, too, who takes its place begins no round."""
        rig = Rig(**{**COOPERATIVE, "group.instance.id": "i", "max.poll.interval.ms": 10_000}).reach(State.JOINING)
        rig.answer_join(is_back=True, generation=7, others={"other": [0, 1, 2]})
        rig.answer_sync()
        rig.poll()
        self.wait(rig, 9_000)
        before = rig.state
        rig.advance(1_000)
        assert (before, rig.state) == (State.STABLE, State.UNJOINED)

    def test_a_static_leader_that_comes_back_waits_for_nothing_where_everybody_keeps_what_he_has(self) -> None:
        rig = Rig(**{**COOPERATIVE, "group.instance.id": "i", "max.poll.interval.ms": 10_000}).reach(State.JOINING)
        rig.answer_join(is_back=True, generation=7, others={"other": [0, 1]})
        rig.answer_sync(2)
        rig.poll()
        self.wait(rig, 30_000)
        assert rig.state is State.STABLE

    def test_another_one_is_asked_for_although_the_round_before_was(self) -> None:
        """A third member has come in that round: it gets partition 1 as soon as its owner has given it up."""
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

    def test_nothing_is_waited_for_where_all_is_shared_out(self) -> None:
        rig = Rig(**{**COOPERATIVE, "max.poll.interval.ms": 10_000}).reach(State.STABLE)
        self.wait(rig, 30_000)
        assert rig.state is State.STABLE
