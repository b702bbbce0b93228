"""Group membership, classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the assignment if this member leads.

Follows AbstractCoordinator.java and ConsumerCoordinator.java. The caller's part of a rebalance (callbacks, commits, the assignment) is in
`rebalance.py`; this module has the requests to the coordinator and their responses. A LeaveGroup without a response is repeated over
another connection: a second LeaveGroup changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.consumer.core import group_requests
from chaffinch.consumer.core.assignors import ASSIGNORS
from chaffinch.consumer.core.context import LANE_LEAVE, ConsumerContext
from chaffinch.consumer.core.coordinator import CoordinatorFinder
from chaffinch.consumer.core.group_leader import ADDED, GroupLeader
from chaffinch.consumer.core.group_protocol import PROTOCOL_TYPE, MemberSubscription, decode_assignment
from chaffinch.consumer.core.group_requests import NO_IDENTITY, Identity
from chaffinch.consumer.core.join_checks import JoinProbe, RefusedJoin
from chaffinch.consumer.core.membership_states import TRANSITIONS, MembershipEvent, State
from chaffinch.errors import ErrorCode, KafkaException, UnsupportedVersionException, codes, exception_for
from chaffinch.identifiers import ConsumerGroupMetadata, TopicPartition
from chaffinch.protocol.violations import MalformedMessage

REPEAT_AFTER_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class LeaveToken:
    """Token of a LeaveGroup; its repetition has the same token."""

    number: int


class PendingLeave:
    """The last LeaveGroup of a member. Until its response the group may still wait for the member."""

    def __init__(self, context: ConsumerContext) -> None:
        self.is_under_way = False
        self._context = context
        self._number = 0
        self._address: Address | None = None
        self._member_id = self._reason = ""
        self._repeat_ms: int | None = None

    def send(self, address: Address, member_id: str, reason: str) -> None:
        self._number += 1
        self.is_under_way, self._repeat_ms = True, None
        self._address, self._member_id, self._reason = address, member_id, reason
        self._send(address)

    def _send(self, address: Address) -> None:
        message = group_requests.leave(self._context.group_id, self._member_id, self._reason)
        self._context.send(address, message, LeaveToken(self._number))

    def advance(self, steady_ms: int, *, is_committing: bool) -> None:
        """Repeat it when due, but not before pending commits, which the coordinator rejects afterwards."""
        if not self.is_under_way or self._address is None:
            return
        if self._repeat_ms is None:
            self._repeat_ms = steady_ms + REPEAT_AFTER_MS
        if steady_ms >= self._repeat_ms and not is_committing:
            address, self._address = self._address, None
            self._send(address._replace(lane=LANE_LEAVE))

    def ended(self, token: LeaveToken) -> None:
        """A response, or the end of a connection."""
        if token.number == self._number:
            self.is_under_way = False

    def next_deadline_ms(self) -> int | None:
        return self._repeat_ms if self.is_under_way and self._address is not None else None


# JoinGroup waits for the other members for the whole rebalance timeout. This is added for the response to arrive.
JOIN_LAPSE_MS: Final = 5_000
# SyncGroup and Heartbeat time out early enough for another attempt within the session, unless the session is very short.
GIVEN_UP_MS_MIN: Final = 3_000

STABLE_GROUP: Final = "Stable"
COORDINATOR_GONE: Final = frozenset({codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR})
OUT_OF_GROUP: Final = frozenset({codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION})
TRANSIENT: Final = frozenset({codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REBALANCE_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class MemberToken:
    """Token of a request of the member; a response for an earlier identity is ignored."""

    kind: str
    identity: Identity


class Membership:
    """One member. `fatal` is set when another member with its group.instance.id has replaced it: it never joins again."""

    def __init__(self, context: ConsumerContext) -> None:
        settings = context.settings
        self.state = State.OUT
        self.identity = NO_IDENTITY
        self.caller_identity = NO_IDENTITY
        """Identity with which the caller last adopted an assignment.

        It stays after the group has removed the member: records read with that identity must not be written in a transaction without one.
        """
        self.previous_identity: Identity | None = None
        """Identity from which it joined directly into its generation; a cooperative member kept its partitions."""
        self.assignment: tuple[TopicPartition, ...] = ()
        """The assignment from SyncGroup, for the caller's poll to adopt."""
        self.protocol_name = ""
        self.joined_topics: frozenset[str] = frozenset()
        self.fatal: KafkaException | None = None
        self.last_error: KafkaException | None = None
        """The last error response of the coordinator, if retries can solve it."""
        self._last_poll_ms = 0
        self._is_polling = False
        self.assignors = tuple(ASSIGNORS[name] for name in settings["partition.assignment.strategy"])
        self.is_cooperative = all(assignor.is_cooperative for assignor in self.assignors)
        self.leader = GroupLeader(context, is_cooperative=self.is_cooperative)
        self.finder = CoordinatorFinder(context)
        self.probe = JoinProbe(context)
        self.pending_leave = PendingLeave(context)
        self.refused_join = RefusedJoin(context, self._fail)
        self._context = context
        self._last_assignment: tuple[tuple[TopicPartition, ...], int] | None = None
        self._next_rebalance_ms: int | None = None
        self._under_way: set[str] = set()
        self._failures = 0
        self._not_before_ms = 0
        self._poll_interval_ms = int(settings["max.poll.interval.ms"])
        self._session_ms = int(settings["session.timeout.ms"])
        self._timeout_ms = min(context.request_timeout_ms, max(2 * self._session_ms // 3, GIVEN_UP_MS_MIN))
        """Timeout of SyncGroup and Heartbeat."""
        self._heartbeat_interval_ms = int(settings["heartbeat.interval.ms"])
        self._heartbeat_ms = 0
        self._last_response_ms = 0
        self._reason = "a new consumer"

    def caller_metadata(self, topic_ids: Mapping[TopicPartition, UUID]) -> ConsumerGroupMetadata:
        """The identity with which the caller has read, and the ids of the topics."""
        found = ConsumerGroupMetadata(self._context.group_id, *self.caller_identity, self._context.instance_id)
        found.topic_ids = topic_ids
        return found

    # State transitions.

    def transition(self, event: MembershipEvent, reason: str = "") -> None:
        after = TRANSITIONS.get((self.state, event))
        assert after is not None, f"{event.value} while {self.state.value}"
        if reason and event in (MembershipEvent.REBALANCING, MembershipEvent.LOST):
            self._reason = reason
        self.state = after

    def request_rejoin(self, reason: str) -> None:
        """Join again, at the caller's next poll."""
        if self.state is not State.OUT:
            self.transition(MembershipEvent.REBALANCING, reason)

    def reset_generation(self, reason: str, *, keeps_id: bool = False) -> None:
        """The group has removed this member: its partitions belong to others."""
        if self.state is State.OUT:
            return
        if self.identity.has_generation or self._context.subscriptions.assigned:
            self._context.report(f"group {self._context.group_id!r}: no longer in the group: {reason}")
        self.identity, self.previous_identity = Identity(-1, self.identity.member_id if keeps_id else ""), None
        self.transition(MembershipEvent.LOST, reason)

    def leave(self, reason: str) -> None:
        """Leave the group, for now or for good. A static member sends no LeaveGroup: it is expected back within its session."""
        if self.identity.member_id and self._context.instance_id is None:
            self._send_leave(self.identity.member_id, reason)
        self.identity = self.caller_identity = NO_IDENTITY
        self.previous_identity = None
        self.leader.end()
        self.transition(MembershipEvent.LEFT)

    def _send_leave(self, member_id: str, reason: str) -> None:
        address = self.finder.known_address
        if address is not None:
            # Pending commits are sent first. A JoinGroup or SyncGroup that waits for other members does not delay it.
            address = address.first_lane if self._under_way & {"join", "sync"} else address
            self.pending_leave.send(address, member_id, reason)
        else:
            self._context.report(
                f"group {self._context.group_id!r}: LeaveGroup is not sent, because the coordinator is not known:"
                f" the group removes the member after session.timeout.ms, {self._session_ms} ms"
            )

    def polled(self, steady_ms: int, *, is_polling: bool) -> None:
        """The caller is in `poll`, or has just left it."""
        self._last_poll_ms, self._is_polling = steady_ms, is_polling

    @property
    def is_active(self) -> bool:
        """Whether the coordinator is needed."""
        return self.state is not State.OUT

    def metadata_changed(self) -> None:
        """Topics were created, deleted or extended: the leader rebalances."""
        if self.state is State.STABLE and self.leader.has_topic_changes:
            self.request_rejoin("the partitions of the group's topics have changed")

    # The round.

    def advance(self, steady_ms: int) -> None:
        """Send requests that are due."""
        self._check_poll_interval(steady_ms)
        if self.state is State.STABLE and self._next_rebalance_ms is not None and steady_ms >= self._next_rebalance_ms:
            self.leader.rebalance_requested()
            self.request_rejoin(self.leader.rejoin_reason)
            self._context.wake_caller()
        if self.state is State.JOINING:
            self.probe.advance(steady_ms)
        address = self.finder.address(steady_ms)
        if address is None or steady_ms < self._not_before_ms or self.fatal is not None:
            return  # A replaced member does not join again: it would replace the other member in turn.
        if self.state is State.JOINING and "join" not in self._under_way and not self.refused_join.is_under_way:
            self._send_join(address, steady_ms)
        elif self.state is State.SYNCING and "sync" not in self._under_way and self.leader.is_ready:
            assignments = self.leader.assignments()
            sync = group_requests.sync(self._context.group_id, self.identity, self._context.instance_id, self.protocol_name, assignments)
            self._send("sync", address, sync, self._timeout_ms)
        elif self.state is State.STABLE and self.leader.needs_describe and "describe" not in self._under_way:
            self._send("describe", address, group_requests.describe(self._context.group_id))
        elif self._sends_heartbeats and "heartbeat" not in self._under_way and steady_ms >= self._heartbeat_ms:
            self._heartbeat_ms = steady_ms + self._heartbeat_interval_ms
            self._context.counts["heartbeats_sent"] += 1
            heartbeat = group_requests.heartbeat(self._context.group_id, self.identity, self._context.instance_id)
            self._send("heartbeat", address, heartbeat, self._timeout_ms)
        self._check_session(steady_ms)

    @property
    def _sends_heartbeats(self) -> bool:
        return self.identity.has_generation and self.state not in (State.OUT, State.JOINING, State.SYNCING)

    def _check_poll_interval(self, steady_ms: int) -> None:
        limit = self._poll_interval_ms
        is_in = self.identity.has_generation or self.state not in (State.OUT, State.UNJOINED)
        if not is_in or self._is_polling or steady_ms - self._last_poll_ms < limit:
            return
        if self.identity.member_id and self._context.instance_id is None:
            self._send_leave(self.identity.member_id, "consumer poll timeout has expired")
        self.reset_generation(f"no poll for max.poll.interval.ms, {limit} ms: poll more often, or set a lower max.poll.records")

    def _check_session(self, steady_ms: int) -> None:
        session_ms = self._session_ms
        if self._sends_heartbeats and steady_ms - self._last_response_ms >= session_ms:
            self._context.report(f"group {self._context.group_id!r}: the coordinator has not responded to heartbeats for {session_ms} ms")
            self._last_response_ms = steady_ms
            self.finder.forget()

    def _send(self, kind: str, address: Any, message: Any, timeout_ms: int | None = None) -> None:
        self._under_way.add(kind)
        self._context.send(address, message, MemberToken(kind, self.identity), timeout_ms=timeout_ms)

    def _send_join(self, address: Any, steady_ms: int) -> None:
        settings = self._context.settings
        self.joined_topics = self._context.subscriptions.topics
        self._context.counts["rebalances"] += 1
        message = group_requests.join(
            settings,
            self.identity,
            [(assignor.name, self._subscription_for(assignor.name)) for assignor in self.assignors],
            self._reason,
        )
        timeout_ms = max(self._poll_interval_ms + JOIN_LAPSE_MS, self._context.request_timeout_ms)
        self._send("join", address, message, timeout_ms)
        self.probe.begin(address, self.identity, steady_ms)

    def _subscription_for(self, assignor: str) -> MemberSubscription:
        return MemberSubscription(
            topics=tuple(sorted(self.joined_topics)),
            owned=tuple(self._context.subscriptions.assigned),
            generation=self.identity.generation,
            rack=self._context.settings["client.rack"] or None,
            user_data=group_requests.user_data(assignor, self._last_assignment, self.identity.generation),
        )

    # Responses.

    def response_received(self, token: MemberToken, event: ResponseReceived, steady_ms: int) -> None:
        self._under_way.discard(token.kind)
        self.last_error = None
        if token.kind == "describe":
            if token.identity == self.identity and self.leader.needs_describe:
                self._describe_response_received(event, steady_ms)
            return
        code = codes.by_number(event.message.error_code, numbering=event.numbering)
        if token.kind == "join":
            self.probe.end()
            self._join_response_received(event.address, event.message, code, steady_ms)
        elif token.identity == self.identity and token.kind == "sync" and self.state is State.SYNCING:
            self._sync_response_received(event.message, code, steady_ms)
        elif token.identity == self.identity and token.kind == "heartbeat":
            self._heartbeat_response_received(code, steady_ms)

    def request_failed(self, token: MemberToken, event: RequestFailed, steady_ms: int) -> None:
        self._under_way.discard(token.kind)
        if token.kind == "join":
            self.probe.end()
        if event.is_unsupported and token.kind == "describe":
            self.leader.needs_describe = False
        elif event.is_unsupported:
            self._fail(UnsupportedVersionException(f"{event.address}: {event.reason}"))
            return
        if token.kind == "sync" and self.state is State.SYNCING:
            self.transition(MembershipEvent.REBALANCING, "the response to SyncGroup was lost")
        self._wait(steady_ms)

    def _wait(self, steady_ms: int) -> None:
        """Back off: failed requests, and a heartbeat ahead of its interval, are sent again after this wait."""
        self._failures += 1
        self._not_before_ms = steady_ms + self._context.wait_ms(self._failures)
        self._heartbeat_ms = min(self._heartbeat_ms, steady_ms)

    def _join_response_received(self, address: Address, response: Any, code: ErrorCode, steady_ms: int) -> None:
        if self.state is not State.JOINING:  # Unsubscribed in the meantime: the group need not wait for this member.
            if response.member_id and self._context.instance_id is None and self.state is State.OUT:
                self._send_leave(response.member_id, "unsubscribed while joining")
            return
        if code is codes.NONE:
            self._joined(response, steady_ms)
        elif code is codes.MEMBER_ID_REQUIRED:
            self.identity = Identity(-1, response.member_id)
        elif code is codes.UNKNOWN_MEMBER_ID:
            self.reset_generation("the coordinator does not know this member")
        elif code is codes.INCONSISTENT_GROUP_PROTOCOL:
            self.refused_join.begin(address)
        elif not self._handle_transient(code, steady_ms):
            why = group_requests.join_error_text(self._context.settings, code)
            self._fail(exception_for(code, message=f"group {self._context.group_id!r}: {why}", api="JoinGroup"))

    def _joined(self, response: Any, steady_ms: int) -> None:
        self._failures = 0
        offered = [assignor.name for assignor in self.assignors]
        if response.protocol_type not in (None, PROTOCOL_TYPE) or response.protocol_name not in offered:
            chosen = f"the coordinator chose {response.protocol_name!r} of {response.protocol_type or PROTOCOL_TYPE!r}"
            text = f"group {self._context.group_id!r}: {chosen}, and this member offered {', '.join(offered)} of {PROTOCOL_TYPE!r}"
            self._fail(exception_for(codes.INCONSISTENT_GROUP_PROTOCOL, message=text, api="JoinGroup"))
            return
        self.previous_identity = self.identity if self.identity.has_generation else None
        self.identity = Identity(response.generation_id, response.member_id)
        self.protocol_name = response.protocol_name
        self.leader.end()
        self._last_response_ms = steady_ms
        if response.leader == response.member_id:
            try:
                self.leader.begin(response)
            except MalformedMessage as malformed:
                self._fail(KafkaException(f"group {self._context.group_id!r}: a member's subscription cannot be read: {malformed}"))
                return
        self.transition(MembershipEvent.JOINED)

    def _sync_response_received(self, response: Any, code: ErrorCode, steady_ms: int) -> None:
        if code is codes.NONE:
            try:
                self.assignment = decode_assignment(response.assignment)
            except MalformedMessage as malformed:
                self._fail(KafkaException(f"group {self._context.group_id!r}: the assignment cannot be read: {malformed}"))
                return
            self._failures = 0
            self._next_rebalance_ms = self.leader.next_rebalance_ms(self.assignment, steady_ms)
            self._last_assignment = self.assignment, self.identity.generation
            self._last_response_ms = steady_ms
            self._heartbeat_ms = steady_ms + self._heartbeat_interval_ms
            self.transition(MembershipEvent.SYNCED)
            self._context.wake_caller()
        elif code in OUT_OF_GROUP:
            self.reset_generation(f"the response to SyncGroup was {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
        elif code in COORDINATOR_GONE or code in TRANSIENT:
            self._handle_transient(code, steady_ms)
            self.transition(MembershipEvent.REBALANCING, f"the response to SyncGroup was {code.name}")
        else:
            self._fail(exception_for(code, message=f"group {self._context.group_id!r}: {code.text}", api="SyncGroup"))

    def _heartbeat_response_received(self, code: ErrorCode, steady_ms: int) -> None:
        self._last_response_ms = steady_ms
        if code is codes.REBALANCE_IN_PROGRESS:
            if self.state is State.STABLE:
                self.request_rejoin("the group is rebalancing")
                self._context.wake_caller()
        elif code in OUT_OF_GROUP:
            self.reset_generation(f"the response to a heartbeat was {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
            self._context.wake_caller()
        elif code is not codes.NONE and not self._handle_transient(code, steady_ms):
            self._fail(exception_for(code, message=f"group {self._context.group_id!r}: {code.text}", api="Heartbeat"))

    def _describe_response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        """The assignments of the other members, from a stable group: rebalance if a partition is unassigned."""
        for group in event.message.groups:
            code = codes.by_number(group.error_code, numbering=event.numbering)
            if self._handle_transient(code, steady_ms):
                return
            self.leader.needs_describe = False
            if code is not codes.NONE:
                text = f"cannot check whether new partitions are unassigned: {code.name}: {code.text}"
                self._context.report(f"group {self._context.group_id!r}: {text}")
            elif group.group_state == STABLE_GROUP and self.state is State.STABLE:
                with suppress(MalformedMessage):  # Assignments of another client's leader may be unreadable; that leader knows them.
                    if self.leader.has_unassigned(tp for member in group.members for tp in decode_assignment(member.member_assignment)):
                        self.request_rejoin(ADDED)
                        self._context.wake_caller()

    def _handle_transient(self, code: ErrorCode, steady_ms: int) -> bool:
        """Whether the error is temporary; if so, wait, or look up the coordinator again."""
        if code in COORDINATOR_GONE:
            self.finder.forget()
        elif code not in TRANSIENT:
            return False
        if code is not codes.REBALANCE_IN_PROGRESS:
            self.last_error = exception_for(code, message=code.text)
        self._wait(steady_ms)
        return True

    def _fail(self, error: KafkaException) -> None:
        """Report the error to the caller; the next poll tries again, unless another member has the same group.instance.id."""
        if error.code is codes.FENCED_INSTANCE_ID:
            self.fenced(error)
        elif self.state is not State.OUT:
            self.transition(MembershipEvent.REFUSED)
            self._context.fail(error)

    def fenced(self, error: KafkaException) -> None:
        """Another member with the same group.instance.id has replaced this one, which is unusable from now on."""
        self.fatal = error
        self.reset_generation("another member has its group.instance.id")
        self._context.wake_caller()

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When something is due."""
        if self.state is State.OUT:
            return self.pending_leave.next_deadline_ms()
        times: list[int] = [self._not_before_ms]
        times += [time for time in (self.probe.next_deadline_ms(), self.pending_leave.next_deadline_ms()) if time is not None]
        if self._sends_heartbeats:
            times.append(self._heartbeat_ms)
            times.append(self._last_response_ms + self._session_ms)
        if self.state is State.STABLE and self._next_rebalance_ms is not None:
            times.append(self._next_rebalance_ms)
        if not self._is_polling:
            times.append(self._last_poll_ms + self._poll_interval_ms)
        return min((time for time in times if time > steady_ms), default=None)
