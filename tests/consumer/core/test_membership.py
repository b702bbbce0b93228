"""A member's states and moves, and what it does about every answer, with a clock and answers by hand."""

from typing import Any

import pytest

from chaffinch import errors
from chaffinch.client.effects import FailCall
from chaffinch.consumer.core.group_protocol import decode_subscription
from chaffinch.consumer.core.membership_states import TRANSITIONS, MembershipEvent, State
from chaffinch.errors import KafkaException, codes
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from chaffinch.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from chaffinch.protocol.messages.sync_group import SyncGroupRequest
from tests.consumer.core.rig import MEMBER_ID, Rig, number_of
from tools.markdown_tables import member_table

REACHABLE = [State.UNJOINED, State.JOINING, State.SYNCING, State.ADOPTING, State.STABLE]
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", MembershipEvent)
def test_each_state_and_event(state: State, event: MembershipEvent) -> None:
    """What is in the table is done; what is not is a mistake of ours, never passed over."""
    rig = Rig()
    membership = rig.group.membership
    membership.state = state
    if (state, event) in TRANSITIONS:
        membership.transition(event)
        assert membership.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(AssertionError, match=f"{event.value} while {state.value}"):
            membership.transition(event)


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.OUT}
    while (more := reached | {after for (before, _), after in TRANSITIONS.items() if before in reached}) != reached:
        reached = more
    assert reached == set(State)
    assert all((state, MembershipEvent.LEFT) in TRANSITIONS for state in State)
    assert "| `unjoined` | polled | `preparing` |" in member_table()


def test_join_sequence() -> None:
    rig = Rig().reach(State.STABLE)
    assert rig.callbacks == [("assign", 2)]
    assert set(rig.core.subscriptions.assigned) == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert rig.core.group_metadata() == ("g", 1, MEMBER_ID, None)


def test_new_member_rejoins_with_its_id() -> None:
    rig = Rig().reach(State.JOINING)
    assert rig.pending(JoinGroupRequest)[0].message.member_id == ""
    rig.answer_join(code=number_of("MEMBER_ID_REQUIRED"))
    assert rig.pending(JoinGroupRequest)[0].message.member_id == MEMBER_ID


def test_blocking_requests_use_their_own_connections() -> None:
    rig = Rig().reach(State.JOINING)
    join = rig.pending(JoinGroupRequest)[0]
    assert join.address.lane == 2
    assert join.timeout_ms == 305_000


@pytest.mark.parametrize(
    ("name", "state", "keeps_id", "raised"),
    [
        ("COORDINATOR_LOAD_IN_PROGRESS", State.JOINING, True, None),
        ("NOT_COORDINATOR", State.JOINING, True, None),
        ("COORDINATOR_NOT_AVAILABLE", State.JOINING, True, None),
        ("REBALANCE_IN_PROGRESS", State.JOINING, True, None),
        ("UNKNOWN_MEMBER_ID", State.UNJOINED, False, None),
        ("INCONSISTENT_GROUP_PROTOCOL", State.UNJOINED, True, errors.InconsistentGroupProtocolException),
        ("INVALID_SESSION_TIMEOUT", State.UNJOINED, True, errors.InvalidSessionTimeoutException),
        ("INVALID_GROUP_ID", State.UNJOINED, True, errors.InvalidGroupIdException),
        ("GROUP_AUTHORIZATION_FAILED", State.UNJOINED, True, errors.GroupAuthorizationException),
        ("GROUP_MAX_SIZE_REACHED", State.UNJOINED, True, errors.GroupMaxSizeReachedException),
        ("FENCED_INSTANCE_ID", State.UNJOINED, False, errors.FencedInstanceIdException),
    ],
)
def test_error_codes_of_join(name: str, state: State, keeps_id: bool, raised: type[KafkaException] | None) -> None:
    rig = Rig().reach(State.JOINING)
    rig.answer_join(code=number_of("MEMBER_ID_REQUIRED"))
    rig.answer_join(code=number_of(name))
    answer_describe_with_nothing(rig)
    assert rig.state is state
    assert rig.group.membership.identity.member_id == (MEMBER_ID if keeps_id else "")
    if raised is None:
        rig.poll()
        assert rig.state is State.JOINING
    else:
        with pytest.raises(raised):
            rig.poll()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("INVALID_SESSION_TIMEOUT", "group 'g': session.timeout.ms is 5000: choose one between the broker's group.min.session.timeout.ms"),
        ("INCONSISTENT_GROUP_PROTOCOL", "group 'g': this member offers the assignors sticky, range, and its members have none of them"),
        ("GROUP_MAX_SIZE_REACHED", f"group 'g': {codes.GROUP_MAX_SIZE_REACHED.text}"),
    ],
)
def test_rejected_join_names_the_invalid_option(name: str, text: str) -> None:
    rig = Rig(**{"session.timeout.ms": 5_000, "partition.assignment.strategy": "sticky,range"}).reach(State.JOINING)
    rig.answer_join(code=number_of(name))
    answer_describe_with_nothing(rig)
    with pytest.raises(errors.KafkaException) as caught:
        rig.poll()
    assert text.rstrip(".") in str(caught.value)


def answer_describe_with_nothing(rig: Rig) -> None:
    """If there is a DescribeGroups, its response is empty."""
    for kind in (ConsumerGroupDescribeRequest, DescribeGroupsRequest):
        if rig.pending(kind):
            rig.fail(kind, is_unsupported=True)


NOT_FOUND = number_of("GROUP_ID_NOT_FOUND")
CONSUMER_GROUP = ConsumerGroupDescribeResponse(groups=[DescribedConsumerGroup(group_id="g", group_state="Stable")])
NO_CONSUMER_GROUP = ConsumerGroupDescribeResponse(groups=[DescribedConsumerGroup(group_id="g", error_code=NOT_FOUND)])


@pytest.mark.parametrize(
    ("consumer_group", "classic_group", "text"),
    [
        (
            CONSUMER_GROUP,
            {"error_code": NOT_FOUND},
            "the group uses the consumer protocol (KIP-848): its members have group.protocol=consumer",
        ),
        (CONSUMER_GROUP, {"group_state": "Dead"}, "start them with group.protocol=classic"),
        (NO_CONSUMER_GROUP, {"error_code": NOT_FOUND}, "the group is not a classic one: it may be a share or streams group"),
        (NO_CONSUMER_GROUP, {"group_state": "Dead"}, "Choose another group.id"),
        (NO_CONSUMER_GROUP, {"protocol_type": "connect", "group_state": "Stable"}, "its members are of protocol type 'connect'"),
        (
            NO_CONSUMER_GROUP,
            {"protocol_type": "consumer", "group_state": "Stable", "protocol_data": "roundrobin"},
            "offers the assignors range, cooperative-sticky, and the group uses roundrobin: there must be one in the",
        ),
        (
            NO_CONSUMER_GROUP,
            {"protocol_type": "consumer", "group_state": "PreparingRebalance"},
            "and its members have none of them in common: there must be one",
        ),
    ],
)
def test_inconsistent_protocol_error_names_the_cause(
    consumer_group: ConsumerGroupDescribeResponse, classic_group: dict[str, Any], text: str
) -> None:
    rig = Rig().reach(State.JOINING)
    rig.answer_join(code=number_of("INCONSISTENT_GROUP_PROTOCOL"))
    rig.answer(ConsumerGroupDescribeRequest, consumer_group)
    rig.advance(1_000)
    assert not rig.pending(JoinGroupRequest), "it waits for the reason"
    rig.answer(DescribeGroupsRequest, DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", **classic_group)]))
    with pytest.raises(errors.InconsistentGroupProtocolException) as caught:
        rig.poll()
    assert text in str(caught.value)
    rig.poll()
    assert rig.pending(JoinGroupRequest), "the next poll tries again"


@pytest.mark.parametrize(("name", "kind"), [("other", "consumer"), (None, None), ("range", "connect")])
def test_unoffered_protocol_is_rejected(name: str | None, kind: str | None) -> None:
    rig = Rig().reach(State.JOINING)
    rig.answer(
        JoinGroupRequest, JoinGroupResponse(generation_id=1, protocol_type=kind, protocol_name=name, leader=MEMBER_ID, member_id=MEMBER_ID)
    )
    with pytest.raises(errors.InconsistentGroupProtocolException, match=f"chose {name!r} of '{kind or 'consumer'}'.* offered range, coop"):
        rig.poll()
    rig.poll()
    assert rig.state is State.JOINING


@pytest.mark.parametrize(
    ("name", "state", "identity"),
    [
        ("REBALANCE_IN_PROGRESS", State.JOINING, (1, MEMBER_ID)),
        ("NOT_COORDINATOR", State.JOINING, (1, MEMBER_ID)),
        ("UNKNOWN_MEMBER_ID", State.UNJOINED, (-1, "")),
        ("ILLEGAL_GENERATION", State.UNJOINED, (-1, MEMBER_ID)),
        ("GROUP_AUTHORIZATION_FAILED", State.UNJOINED, (1, MEMBER_ID)),
    ],
)
def test_error_codes_of_sync(name: str, state: State, identity: tuple[int, str]) -> None:
    rig = Rig().reach(State.SYNCING)
    rig.answer_sync(code=number_of(name))
    assert (rig.state, rig.group.membership.identity) == (state, identity)


@pytest.mark.parametrize(
    ("name", "state", "outcomes"),
    [
        ("NONE", State.STABLE, []),
        ("REBALANCE_IN_PROGRESS", State.UNJOINED, [("revoke", 2)]),
        ("NOT_COORDINATOR", State.STABLE, []),
        ("COORDINATOR_NOT_AVAILABLE", State.STABLE, []),
        ("UNKNOWN_MEMBER_ID", State.UNJOINED, [("lost", 2)]),
        ("ILLEGAL_GENERATION", State.UNJOINED, [("lost", 2)]),
    ],
)
def test_error_codes_of_heartbeat(name: str, state: State, outcomes: list[tuple[str, int]]) -> None:
    rig = Rig().reach(State.STABLE)
    rig.callbacks.clear()
    rig.advance(3_000)
    rig.answer(HeartbeatRequest, HeartbeatResponse(error_code=number_of(name)))
    assert rig.state is state
    assert bool(rig.pending(FindCoordinatorRequest)) == ("COORDINATOR" in name)
    rig.poll()
    assert rig.callbacks == outcomes


def test_stale_heartbeat_response_is_ignored() -> None:
    rig = Rig().reach(State.STABLE)
    rig.advance(3_000)
    beat = rig.take(HeartbeatRequest)
    rig.group.membership.request_rejoin("a test")
    rig.poll()
    rig.answer_join(generation=2)
    rig.answer_sync(0)
    rig.poll()
    rig.answer(beat, HeartbeatResponse(error_code=number_of("UNKNOWN_MEMBER_ID")))
    assert rig.state is State.STABLE


@pytest.mark.parametrize("way", [HeartbeatRequest, SyncGroupRequest])
def test_fenced_member_does_not_rejoin(way: type[HeartbeatRequest] | type[SyncGroupRequest]) -> None:
    rig = Rig(**{"group.instance.id": "i"}).reach(State.STABLE)
    if way is SyncGroupRequest:
        rig.group.membership.request_rejoin("a test")
        rig.poll()
        rig.answer_join(generation=2)
        rig.answer_sync(code=number_of("FENCED_INSTANCE_ID"))
    else:
        rig.advance(3_000)
        rig.answer(HeartbeatRequest, HeartbeatResponse(error_code=number_of("FENCED_INSTANCE_ID")))

    def commit() -> None:
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, 0, raised, retries=False)

    def commit_what_was_read() -> None:
        rig.group.commits.commit(rig.group.commits.positions(), 0, raised, retries=False)

    outcomes = []
    for call in (rig.poll, commit_what_was_read, rig.poll, commit, commit_what_was_read):
        with pytest.raises(errors.FencedInstanceIdException) as fenced:
            call()
        outcomes.append(fenced.value)
        rig.advance(10_000)
        assert not rig.pending(JoinGroupRequest)
    assert len({id(error) for error in outcomes}) == 5, "their tracebacks would grow into each other"
    assert rig.callbacks[-1] == (("lost", 2) if way is HeartbeatRequest else ("revoke", 2))
    closed: list[errors.KafkaException | None] = []
    rig.group.commits.commit_all(0, closed.append, retries=True)
    assert closed == [None], "nothing was lost, so a close has nothing to say"


def test_waiting_commit_of_a_fenced_member_fails() -> None:
    rig = Rig(**{"group.instance.id": "i"}).reach(State.STABLE)
    rig.advance(3_000)
    beat = rig.take(HeartbeatRequest)
    rig.group.finder.forget()
    outcomes: list[errors.KafkaException | None] = []
    rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, rig.steady_ms + 60_000, outcomes.append, retries=True)
    rig.answer(beat, HeartbeatResponse(error_code=number_of("FENCED_INSTANCE_ID")))
    assert [type(error) for error in outcomes] == [errors.FencedInstanceIdException]


def raised(error: KafkaException | None) -> None:
    assert error is not None
    raise error


class TestTime:
    @pytest.mark.parametrize("state", [State.JOINING, State.SYNCING, State.ADOPTING, State.STABLE])
    @pytest.mark.parametrize("is_static", [False, True])
    def test_member_that_does_not_poll_leaves(self, state: State, is_static: bool) -> None:
        rig = Rig(**({"group.instance.id": "i"} if is_static else {})).reach(State.JOINING)
        rig.answer_join(code=number_of("MEMBER_ID_REQUIRED"))
        if state is not State.JOINING:
            rig.answer_join()
        if state in (State.ADOPTING, State.STABLE):
            rig.answer_sync(0, 1)
        if state is State.STABLE:
            rig.poll()
        rig.group.membership._last_response_ms = 10**9  # Whether the coordinator answers is another question.
        rig.advance(300_000)
        assert rig.state is State.UNJOINED
        assert len(rig.pending(LeaveGroupRequest)) == (0 if is_static else 1)
        assert rig.group.membership.identity == (-1, "")

    def test_member_that_waits_in_poll_stays(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.core.poll_started(rig.steady_ms, 0)
        rig.advance(3_000)
        for _ in range(110):
            rig.answer(HeartbeatRequest, HeartbeatResponse())
            rig.advance(3_000)
        assert rig.state is State.STABLE

    def test_heartbeat_interval(self) -> None:
        rig = Rig(**{"heartbeat.interval.ms": 100}).reach(State.STABLE)
        rig.advance(99)
        assert not rig.pending(HeartbeatRequest)
        rig.advance(1)
        assert len(rig.pending(HeartbeatRequest)) == 1
        rig.advance(500)
        assert len(rig.pending(HeartbeatRequest)) == 1

    def test_silent_coordinator_is_looked_up_again(self) -> None:
        rig = Rig(**{"session.timeout.ms": 6_000}).reach(State.STABLE)
        rig.advance(6_000)
        assert len(rig.pending(FindCoordinatorRequest)) == 1
        assert "not responded to heartbeats for 6000 ms" in rig.reports[-1]


class TestLeaving:
    @pytest.mark.parametrize("state", REACHABLE)
    def test_unsubscribe_in_every_state(self, state: State) -> None:
        rig = Rig().reach(state)
        had_id = rig.group.membership.identity.member_id
        rig.core.leave("a test")
        rig.step()
        assert rig.state is State.OUT
        assert len(rig.pending(LeaveGroupRequest)) == bool(had_id)
        assert not rig.core.subscriptions.assigned

    def test_unsubscribe_while_joining_leaves_the_group(self) -> None:
        rig = Rig().reach(State.JOINING)
        rig.core.leave("a test")
        rig.step()
        rig.answer_join()
        assert rig.take(LeaveGroupRequest).message.members[0].member_id == MEMBER_ID
        assert rig.state is State.OUT

    @pytest.mark.parametrize(("state", "lane"), [(State.STABLE, 2), (State.JOINING, 0), (State.SYNCING, 0)])
    def test_leave_follows_commits_but_not_blocking_requests(self, state: State, lane: int) -> None:
        rig = Rig().reach(State.STABLE)
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, rig.steady_ms + 60_000, lambda error: None, retries=False)
        rig.step()
        assert rig.pending(OffsetCommitRequest)[0].address.lane == 2
        if state is not State.STABLE:
            rig.group.membership.request_rejoin("a test")
            rig.poll()
        if state is State.SYNCING:
            rig.answer_join(generation=2)
        assert rig.state is state
        rig.core.leave("a test")
        rig.step()
        assert rig.pending(LeaveGroupRequest)[0].address.lane == lane

    @pytest.mark.parametrize("is_late", [False, True])
    def test_close_sends_waiting_commits_first(self, is_late: bool) -> None:
        rig = Rig().reach(State.STABLE)
        rig.group.finder.forget()
        outcomes: list[errors.KafkaException | None] = []
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(5)}, rig.steady_ms + 60_000, outcomes.append, retries=False)
        rig.core.close("call", rig.steady_ms + 1_000)
        rig.step()
        rig.find_coordinator()
        assert not rig.pending(LeaveGroupRequest)
        if is_late:
            rig.advance(1_000)
            assert [done.call for done in rig.done] == ["call"]
        else:
            part = OffsetCommitResponsePartition(partition_index=0)
            rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])]))
            assert (outcomes, rig.done) == ([None], [])
        assert len(rig.pending(LeaveGroupRequest)) == 1

    def test_close_waits_for_the_response_or_the_deadline(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.core.close("call", rig.steady_ms + 1_000)
        rig.step()
        assert not rig.done
        rig.answer(LeaveGroupRequest, LeaveGroupResponse())
        assert [done.call for done in rig.done] == ["call"]
        rig = Rig().reach(State.STABLE)
        rig.core.close("call", rig.steady_ms + 1_000)
        rig.step()
        rig.advance(1_000)
        assert [done.call for done in rig.done] == ["call"]


class TestSubscriptions:
    def test_eager_members_own_nothing_when_they_join(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.group.membership.request_rejoin("a test")
        rig.poll()
        said = decode_subscription(rig.pending(JoinGroupRequest)[0].message.protocols[0].metadata)
        assert (said.topics, said.owned, said.generation) == (("t",), (), 1)
        assert rig.callbacks == [("assign", 2), ("revoke", 2)]

    def test_cooperative_members_keep_what_they_have(self) -> None:
        rig = Rig(**COOPERATIVE).reach(State.STABLE)
        rig.group.membership.request_rejoin("a test")
        rig.poll()
        said = decode_subscription(rig.pending(JoinGroupRequest)[0].message.protocols[0].metadata)
        assert (len(said.owned), said.generation, len(rig.callbacks)) == (2, 1, 1)
        rig.answer_join(generation=2)
        rig.answer_sync(0)
        rig.poll()
        # The revocation runs a callback, and starts another rebalance.
        assert rig.callbacks == [("assign", 2), ("revoke", 1), ("assign", 0)]
        assert rig.state is State.JOINING or rig.state is State.UNJOINED

    def test_partitions_of_remaining_topics_are_retained(self) -> None:
        rig = Rig(**COOPERATIVE).reach(State.STABLE)
        rig.core.subscribe(["other"])
        rig.poll()
        assert rig.callbacks == [("assign", 2), ("revoke", 2)]

    def test_assignment_of_unsubscribed_topics_is_rejected(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.group.membership.request_rejoin("a test")
        rig.poll()
        rig.core.subscribe(["t", "u"])
        rig.answer_join(generation=2)
        rig.answer_sync(2)
        rig.poll()
        assert rig.callbacks == [("assign", 2), ("revoke", 2), ("assign", 1), ("revoke", 1)]
        assert rig.state is State.JOINING


@pytest.mark.parametrize(("state", "rebalances"), [(State.JOINING, True), (State.SYNCING, True), (State.STABLE, False)])
def test_timeout_of_committed_names_the_rebalance(state: State, rebalances: bool) -> None:
    rig = Rig().reach(state)
    rig.group.commits.committed.look_up([TopicPartition("t", 0)], rig.steady_ms + 2_000, "mine")
    rig.step()
    rig.advance(2_000)
    (failed,) = [done for done in rig.done if isinstance(done, FailCall) and done.call == "mine"]
    text = "in time: the group rebalances, and its coordinator responds after that: poll until partitions are assigned"
    assert (text in str(failed.error)) is rebalances
    assert "group 'g': the committed offsets of t-0 were not received in time" in str(failed.error)
