"""Responses of the coordinator that are lost while the connection lives: found without harm to a group that is slow."""

from typing import Any

import pytest

from chaffinch.client.connections import ResponseReceived
from chaffinch.consumer.core.join_checks import IN_FLIGHT_MS
from chaffinch.consumer.core.membership_states import State
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest
from chaffinch.protocol.messages.sync_group import SyncGroupRequest
from tests.consumer.core.rig import MEMBER_ID, Rig, number_of

REQUEST_MS = 30_000
FIRST_MS = 15_000
"""A third of the session."""
STATIC = {"group.instance.id": "i"}


class ProbeRig(Rig):
    """Answers probes by hand."""

    def describe(
        self,
        state: str = "PreparingRebalance",
        *,
        member: str | None = MEMBER_ID,
        instance: str | None = None,
        code: int = 0,
        version: int = 5,
    ) -> None:
        """The answer to the probe that waits. `member` None: the group is without this member."""
        members = [DescribedGroupMember(member_id=member or "other", group_instance_id=instance if member else None)]
        group = DescribedGroup(group_id="g", group_state=state, error_code=code, members=members)
        sent = self.take(DescribeGroupsRequest)
        assert sent.address.lane == 0, "the JoinGroup waits on the other connection"
        self.step(ResponseReceived(address=sent.address, token=sent.token, message=DescribeGroupsResponse(groups=[group]), version=version))

    def is_joining_again(self) -> bool:
        """Whether the connection was closed; the coordinator is looked for, and the member joins again."""
        if self.pending(JoinGroupRequest):
            return False
        self.advance(1_000)
        self.find_coordinator()
        self.advance(1_000)
        assert len(self.pending(JoinGroupRequest)) == 1
        return True


def joining(*, has_id: bool = True, **options: Any) -> ProbeRig:
    rig = ProbeRig(**options).reach(State.JOINING)
    if has_id:
        rig.answer_join(code=number_of("MEMBER_ID_REQUIRED"))
    return rig


def joining_again(**options: Any) -> ProbeRig:
    """A member of generation 1."""
    rig = ProbeRig(**options).reach(State.STABLE)
    rig.group.membership.request_rejoin("a test")
    rig.poll()
    return rig


LOST = [
    {"state": "CompletingRebalance"},
    {"state": "Stable"},
    {"member": None},
    {"state": "Empty", "member": None},
    {"code": number_of("NOT_COORDINATOR")},
    {"code": number_of("GROUP_ID_NOT_FOUND")},
]
WAITING = [
    {},
    {"code": number_of("COORDINATOR_LOAD_IN_PROGRESS")},
]


def lose_join(rig: ProbeRig, **described: Any) -> JoinGroupRequest:
    """The probe suspects that the response is lost, and it does not arrive."""
    rig.advance(FIRST_MS)
    rig.describe(**described)
    rig.advance(IN_FLIGHT_MS - 1)
    assert rig.pending(JoinGroupRequest), "the response may be on its way"
    rig.advance(1)
    assert rig.is_joining_again()
    message = rig.pending(JoinGroupRequest)[0].message
    assert isinstance(message, JoinGroupRequest)
    return message


@pytest.mark.parametrize("described", LOST)
@pytest.mark.parametrize("is_static", [False, True])
def test_lost_response_to_join_leads_to_a_join_under_the_same_id(described: dict[str, Any], is_static: bool) -> None:
    rig = joining_again(**(STATIC if is_static else {}))
    assert lose_join(rig, **described).member_id == MEMBER_ID
    assert rig.group.membership.identity == (1, MEMBER_ID)
    (said,) = [text for text in rig.reports if "JoinGroup" in text]
    assert said == (
        "group 'g': the coordinator b:1 does not wait for other members, and its response to JoinGroup did not arrive:"
        " joining again over a new connection"
    )
    rig.answer_join(generation=2)
    rig.answer_sync(0, 1)
    rig.poll()
    assert rig.state is State.STABLE


@pytest.mark.parametrize("described", WAITING)
def test_slow_rebalance_is_waited_for(described: dict[str, Any]) -> None:
    rig = joining_again()
    rig.advance(FIRST_MS)
    for _ in range(8):
        rig.describe(**described)
        rig.advance(REQUEST_MS - 1)
        assert not rig.pending(DescribeGroupsRequest)
        rig.advance(1)
    assert len(rig.pending(JoinGroupRequest)) == 1
    what = "other members of group 'g', for 15000 ms: the coordinator prepares a rebalance, and they have not rejoined yet"
    assert rig.reports[0] == f"{what}; retrying for up to 285000 ms more (max.poll.interval.ms)"
    assert all("other members" in text for text in rig.reports)
    rig.answer_join(generation=2)
    assert rig.state is State.SYNCING
    rig.waiting = [sent for sent in rig.waiting if not isinstance(sent.message, DescribeGroupsRequest)]
    rig.advance(REQUEST_MS)
    assert not rig.pending(DescribeGroupsRequest)


def test_response_that_was_on_its_way_is_taken() -> None:
    rig = joining_again()
    rig.advance(FIRST_MS)
    rig.describe("CompletingRebalance")
    rig.advance(IN_FLIGHT_MS - 1)
    rig.answer_join(generation=2)
    rig.advance(1)
    assert rig.state is State.SYNCING
    assert rig.pending(SyncGroupRequest)
    assert not rig.reports


def test_first_join_without_an_id_starts_over() -> None:
    """Brokers since 2.2 give an id at once (KIP-394): waiting for others is no reason."""
    assert lose_join(joining(has_id=False), member=None).member_id == ""


def test_first_join_at_an_old_broker_is_waited_for() -> None:
    rig = joining(has_id=False)
    for wait_ms in (FIRST_MS, REQUEST_MS, REQUEST_MS):
        rig.advance(wait_ms)
        rig.describe(member=None, version=2)
    assert rig.pending(JoinGroupRequest)


def test_first_join_with_the_id_that_was_given() -> None:
    assert lose_join(joining(), state="CompletingRebalance").member_id == MEMBER_ID


class TestStaticMembers:
    """Their first join waits for the others, and brings the id with the generation."""

    @pytest.mark.parametrize("version", [3, 4])
    def test_slow_rebalance_is_waited_for(self, version: int) -> None:
        rig = joining(has_id=False, **STATIC)
        for wait_ms in (FIRST_MS, REQUEST_MS, REQUEST_MS):
            rig.advance(wait_ms)
            rig.describe(member="given", instance="i" if version >= 4 else None, version=version)
        assert rig.pending(JoinGroupRequest)

    @pytest.mark.parametrize("described", [{"state": "CompletingRebalance", "instance": "i"}, {"member": None}])
    def test_lost_response_does_not_fence_the_member(self, described: dict[str, Any]) -> None:
        rig = joining(has_id=False, **STATIC)
        sent = rig.pending(JoinGroupRequest)[0]
        message = lose_join(rig, **described)
        assert all(waiting is not sent for waiting in rig.waiting), (
            "the coordinator answers it with FENCED_INSTANCE_ID: its connection is closed before"
        )
        assert (message.member_id, message.group_instance_id) == ("", "i")
        assert rig.group.membership.fatal is None


@pytest.mark.parametrize("code", ["GROUP_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"])
def test_coordinator_that_describes_nothing_is_asked_once(code: str) -> None:
    rig = joining_again()
    rig.advance(FIRST_MS)
    rig.describe(code=number_of(code))
    rig.advance(200_000)
    assert not rig.pending(DescribeGroupsRequest)
    assert rig.pending(JoinGroupRequest)


def test_coordinator_that_cannot_be_reached_any_more_is_looked_for() -> None:
    """Its machine lost power, so nothing closed the connection of the JoinGroup."""
    rig = joining_again()
    rig.advance(FIRST_MS)
    rig.fail(DescribeGroupsRequest)
    rig.advance(IN_FLIGHT_MS)
    assert rig.pending(JoinGroupRequest)
    rig.fail(DescribeGroupsRequest)
    assert rig.is_joining_again()


def test_stale_probe_says_nothing_about_the_next_join() -> None:
    rig = joining_again()
    rig.advance(FIRST_MS)
    stale = rig.take(DescribeGroupsRequest)
    rig.answer_join(code=number_of("REBALANCE_IN_PROGRESS"))
    rig.advance(1_000)
    message = DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Stable")])
    rig.step(ResponseReceived(address=stale.address, token=stale.token, message=message, version=5))
    rig.advance(IN_FLIGHT_MS)
    assert not rig.reports
    assert rig.pending(JoinGroupRequest)


@pytest.mark.parametrize(("session_ms", "given_up_ms"), [(45_000, 30_000), (10_000, 6_666), (1_000, 3_000)])
def test_sync_and_heartbeat_are_given_up_within_the_session(session_ms: int, given_up_ms: int) -> None:
    rig = Rig(**{"session.timeout.ms": session_ms, "heartbeat.interval.ms": 100}).reach(State.SYNCING)
    assert rig.pending(SyncGroupRequest)[0].timeout_ms == given_up_ms
    rig.answer_sync(0, 1)
    rig.poll()
    rig.advance(100)
    assert rig.pending(HeartbeatRequest)[0].timeout_ms == given_up_ms


def test_lost_response_to_sync_leads_to_a_join_under_the_same_id() -> None:
    rig = Rig().reach(State.SYNCING)
    rig.fail(SyncGroupRequest)
    rig.find_coordinator()
    rig.advance(1_000)
    assert rig.pending(JoinGroupRequest)[0].message.member_id == MEMBER_ID


class TestLeaving:
    def test_lost_leave_is_repeated_once_over_another_connection(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.core.close("call", rig.steady_ms + 30_000)
        rig.step()
        first = rig.pending(LeaveGroupRequest)[0]
        rig.advance(2_999)
        assert rig.pending(LeaveGroupRequest) == [first]
        rig.advance(1)
        first, second = rig.pending(LeaveGroupRequest)
        assert first.address != second.address
        assert first.message == second.message
        rig.advance(20_000)
        assert len(rig.pending(LeaveGroupRequest)) == 2
        rig.answer(second, LeaveGroupResponse(error_code=number_of("UNKNOWN_MEMBER_ID")))
        assert [done.call for done in rig.done] == ["call"]

    def test_commits_on_their_way_go_before_it(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, rig.steady_ms + 60_000, lambda error: None, retries=False)
        rig.step()
        rig.core.leave("a test")
        rig.step()
        assert rig.pending(OffsetCommitRequest)
        rig.advance(10_000)
        assert len(rig.pending(LeaveGroupRequest)) == 1

    def test_late_response_says_nothing_about_the_next_leave(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.core.leave("a test")
        rig.step()
        late = rig.take(LeaveGroupRequest)
        rig.core.subscribe(["t"])
        rig.poll()
        rig.answer_join(generation=2)
        rig.answer_sync(0)
        rig.poll()
        rig.core.close("call", rig.steady_ms + 30_000)
        rig.step()
        rig.answer(late, LeaveGroupResponse())
        assert not rig.done
