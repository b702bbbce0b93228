"""A member of a group of the classic protocol: it joins, syncs, assigns for the others if it leads them, and keeps alive.

Follows AbstractCoordinator.java and ConsumerCoordinator.java. What a rebalance means for the caller (callbacks, commits, the assignment)
is `rebalance.py`'s; here are the requests to the coordinator and its responses. LeaveGroup without a response is repeated over another
connection: a second LeaveGroup changes nothing.
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
from chaffinch.consumer.core.coordinator import CoordinatorFinder
from chaffinch.consumer.core.group_protocol import PROTOCOL_TYPE, MemberSubscription, decode_assignment
from chaffinch.consumer.core.group_requests import NO_IDENTITY, Identity
from chaffinch.consumer.core.join_checks import JoinProbe, RefusedJoin
from chaffinch.consumer.core.leading import ADDED, Leadership
from chaffinch.consumer.core.membership_moves import MOVES, Happening, State
from chaffinch.consumer.core.wiring import LANE_LEAVE, Wiring
from chaffinch.errors import ErrorCode, KafkaException, UnsupportedVersionException, codes, exception_for
from chaffinch.identifiers import ConsumerGroupMetadata, TopicPartition
from chaffinch.protocol.violations import MalformedMessage

REPEAT_AFTER_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class LeaveSent:
    """Token of a LeaveGroup; its repetition has the same one."""

    number: int


class Departure:
    """The last LeaveGroup of a member. Until it has a response the group may still wait for the member."""

    def __init__(self, wiring: Wiring) -> None:
        self.is_under_way = False
        self._wiring = wiring
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
        message = group_requests.leave(self._wiring.group_id, self._member_id, self._reason)
        self._wiring.send(address, message, LeaveSent(self._number))

    def advance(self, steady_ms: int, *, is_committing: bool) -> None:
        """Repeat it when that is due; not before commits on their way, which the coordinator refuses afterwards."""
        if not self.is_under_way or self._address is None:
            return
        if self._repeat_ms is None:
            self._repeat_ms = steady_ms + REPEAT_AFTER_MS
        if steady_ms >= self._repeat_ms and not is_committing:
            address, self._address = self._address, None
            self._send(address._replace(lane=LANE_LEAVE))

    def ended(self, token: LeaveSent) -> None:
        """A response, or the end of a connection."""
        if token.number == self._number:
            self.is_under_way = False

    def next_deadline_ms(self) -> int | None:
        return self._repeat_ms if self.is_under_way and self._address is not None else None


# JoinGroup waits for the other members for as long as a rebalance may take; so much later its answer is late.
JOIN_LAPSE_MS: Final = 5_000
# A request without a response is given up in time for another one within the session, unless the session is very short.
GIVEN_UP_MS_MIN: Final = 3_000

STABLE_GROUP: Final = "Stable"
COORDINATOR_GONE: Final = frozenset({codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR})
OUT_OF_GROUP: Final = frozenset({codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION})
COMES_AGAIN: Final = frozenset({codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REBALANCE_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class GroupAsked:
    """Token of a request of the member; an answer to an earlier identity says nothing about this one."""

    kind: str
    identity: Identity


class Membership:
    """One member. `fatal` is set when it can never be one again: another with its name has taken its place."""

    def __init__(self, wiring: Wiring) -> None:
        settings = wiring.settings
        self.state = State.OUT
        self.identity = NO_IDENTITY
        self.identity_of_caller = NO_IDENTITY
        """As whom the caller last took an assignment over. It stays when the group goes on without us: what was read as that member must
        not be written in a transaction as if it were nobody's."""
        self.joined_from: Identity | None = None
        """As whom it came into its generation, straight from the one before: with what it had, if it is cooperative."""
        self.assignment: tuple[TopicPartition, ...] = ()
        """What the group has given us, for the caller's poll to take over."""
        self.protocol_name = ""
        self.joined_topics: frozenset[str] = frozenset()
        self.fatal: KafkaException | None = None
        self.refusal: KafkaException | None = None
        """What the coordinator refused the last request with, if it may accept the next one."""
        self._last_poll_ms = 0
        self._is_polling = False
        self.assignors = tuple(ASSIGNORS[name] for name in settings["partition.assignment.strategy"])
        self.is_cooperative = all(assignor.is_cooperative for assignor in self.assignors)
        self.leadership = Leadership(wiring, is_cooperative=self.is_cooperative)
        self.finder = CoordinatorFinder(wiring)
        self.probe = JoinProbe(wiring)
        self.departure = Departure(wiring)
        self.refused_join = RefusedJoin(wiring, self._refused)
        self._wiring = wiring
        self._remembered: tuple[tuple[TopicPartition, ...], int] | None = None
        self._next_round_ms: int | None = None
        self._under_way: set[str] = set()
        self._failures = 0
        self._not_before_ms = 0
        self._poll_interval_ms = int(settings["max.poll.interval.ms"])
        self._session_ms = int(settings["session.timeout.ms"])
        self._timeout_ms = min(wiring.request_timeout_ms, max(2 * self._session_ms // 3, GIVEN_UP_MS_MIN))
        """Of SyncGroup and Heartbeat."""
        self._heartbeat_interval_ms = int(settings["heartbeat.interval.ms"])
        self._heartbeat_ms = 0
        self._heard_ms = 0
        self._reason = "a new consumer"

    def metadata_of_caller(self, topic_ids: Mapping[TopicPartition, UUID]) -> ConsumerGroupMetadata:
        """As whom the caller has read, and topics of which ids."""
        found = ConsumerGroupMetadata(self._wiring.group_id, *self.identity_of_caller, self._wiring.instance_id)
        found.topic_ids = topic_ids
        return found

    # What moves it.

    def move(self, happening: Happening, reason: str = "") -> None:
        after = MOVES.get((self.state, happening))
        assert after is not None, f"{happening.value} while {self.state.value}"
        if reason and happening in (Happening.REBALANCING, Happening.LOST):
            self._reason = reason
        self.state = after

    def rebalance(self, reason: str) -> None:
        """Join anew, at the caller's next poll."""
        if self.state is not State.OUT:
            self.move(Happening.REBALANCING, reason)

    def lose(self, reason: str, *, keeps_id: bool = False) -> None:
        """The group has gone on without us, whatever we have is not ours any more."""
        if self.state is State.OUT:
            return
        if self.identity.has_generation or self._wiring.subscriptions.assigned:
            self._wiring.report(f"group {self._wiring.group_id!r}: out of the group: {reason}")
        self.identity, self.joined_from = Identity(-1, self.identity.member_id if keeps_id else ""), None
        self.move(Happening.LOST, reason)

    def leave(self, reason: str) -> None:
        """Leave the group for now or for good; static members are expected back within their session, and say nothing."""
        if self.identity.member_id and self._wiring.instance_id is None:
            self._send_leave(self.identity.member_id, reason)
        self.identity = self.identity_of_caller = NO_IDENTITY
        self.joined_from = None
        self.leadership.end()
        self.move(Happening.LEFT)

    def _send_leave(self, member_id: str, reason: str) -> None:
        address = self.finder.address_known
        if address is not None:
            # Commits on their way go before it; but what waits for other members does not hold it up.
            address = address.first_lane if self._under_way & {"join", "sync"} else address
            self.departure.send(address, member_id, reason)
        else:
            self._wiring.report(
                f"group {self._wiring.group_id!r}: LeaveGroup is not sent, because the coordinator is not known now:"
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
        """Topics have come, gone or grown: the leader assigns anew."""
        if self.state is State.STABLE and self.leadership.has_news:
            self.rebalance("the partitions of the group's topics have changed")

    # The round.

    def advance(self, steady_ms: int) -> None:
        """Send what is due."""
        self._check_poll_interval(steady_ms)
        if self.state is State.STABLE and self._next_round_ms is not None and steady_ms >= self._next_round_ms:
            self.leadership.asks()
            self.rebalance(self.leadership.next_reason)
            self._wiring.wake()
        if self.state is State.JOINING:
            self.probe.advance(steady_ms)
        address = self.finder.address(steady_ms)
        if address is None or steady_ms < self._not_before_ms or self.fatal is not None:
            return  # Who was replaced joins no more: it would replace the other in turn.
        if self.state is State.JOINING and "join" not in self._under_way and not self.refused_join.is_under_way:
            self._send_join(address, steady_ms)
        elif self.state is State.SYNCING and "sync" not in self._under_way and self.leadership.is_ready:
            shares = self.leadership.shares()
            sync = group_requests.sync(self._wiring.group_id, self.identity, self._wiring.instance_id, self.protocol_name, shares)
            self._send("sync", address, sync, self._timeout_ms)
        elif self.state is State.STABLE and self.leadership.is_unsure and "describe" not in self._under_way:
            self._send("describe", address, group_requests.describe(self._wiring.group_id))
        elif self._beats and "heartbeat" not in self._under_way and steady_ms >= self._heartbeat_ms:
            self._heartbeat_ms = steady_ms + self._heartbeat_interval_ms
            self._wiring.counts["heartbeats_sent"] += 1
            heartbeat = group_requests.heartbeat(self._wiring.group_id, self.identity, self._wiring.instance_id)
            self._send("heartbeat", address, heartbeat, self._timeout_ms)
        self._check_session(steady_ms)

    @property
    def _beats(self) -> bool:
        return self.identity.has_generation and self.state not in (State.OUT, State.JOINING, State.SYNCING)

    def _check_poll_interval(self, steady_ms: int) -> None:
        limit = self._poll_interval_ms
        is_in = self.identity.has_generation or self.state not in (State.OUT, State.UNJOINED)
        if not is_in or self._is_polling or steady_ms - self._last_poll_ms < limit:
            return
        if self.identity.member_id and self._wiring.instance_id is None:
            self._send_leave(self.identity.member_id, "consumer poll timeout has expired")
        self.lose(f"no poll for max.poll.interval.ms, {limit} ms: poll more often, or get fewer records with each poll")

    def _check_session(self, steady_ms: int) -> None:
        session_ms = self._session_ms
        if self._beats and steady_ms - self._heard_ms >= session_ms:
            self._wiring.report(f"group {self._wiring.group_id!r}: the coordinator has answered no heartbeat for {session_ms} ms")
            self._heard_ms = steady_ms
            self.finder.forget()

    def _send(self, kind: str, address: Any, message: Any, timeout_ms: int | None = None) -> None:
        self._under_way.add(kind)
        self._wiring.send(address, message, GroupAsked(kind, self.identity), timeout_ms=timeout_ms)

    def _send_join(self, address: Any, steady_ms: int) -> None:
        settings = self._wiring.settings
        self.joined_topics = self._wiring.subscriptions.topics
        self._wiring.counts["rebalances"] += 1
        message = group_requests.join(
            settings,
            self.identity,
            [(assignor.name, self._said(assignor.name)) for assignor in self.assignors],
            self._reason,
        )
        timeout_ms = max(self._poll_interval_ms + JOIN_LAPSE_MS, self._wiring.request_timeout_ms)
        self._send("join", address, message, timeout_ms)
        self.probe.begin(address, self.identity, steady_ms)

    def _said(self, assignor: str) -> MemberSubscription:
        return MemberSubscription(
            topics=tuple(sorted(self.joined_topics)),
            owned=tuple(self._wiring.subscriptions.assigned),
            generation=self.identity.generation,
            rack=self._wiring.settings["client.rack"] or None,
            user_data=group_requests.user_data(assignor, self._remembered, self.identity.generation),
        )

    # Answers.

    def answered(self, token: GroupAsked, event: ResponseReceived, steady_ms: int) -> None:
        self._under_way.discard(token.kind)
        self.refusal = None
        if token.kind == "describe":
            if token.identity == self.identity and self.leadership.is_unsure:
                self._described(event, steady_ms)
            return
        code = codes.by_number(event.message.error_code, numbering=event.numbering)
        if token.kind == "join":
            self.probe.end()
            self._join_answered(event.address, event.message, code, steady_ms)
        elif token.identity == self.identity and token.kind == "sync" and self.state is State.SYNCING:
            self._sync_answered(event.message, code, steady_ms)
        elif token.identity == self.identity and token.kind == "heartbeat":
            self._heartbeat_answered(code, steady_ms)

    def failed(self, token: GroupAsked, event: RequestFailed, steady_ms: int) -> None:
        self._under_way.discard(token.kind)
        if token.kind == "join":
            self.probe.end()
        if event.is_unsupported and token.kind == "describe":
            self.leadership.is_unsure = False
        elif event.is_unsupported:
            self._refused(UnsupportedVersionException(f"{event.address}: {event.reason}"))
            return
        if token.kind == "sync" and self.state is State.SYNCING:
            self.move(Happening.REBALANCING, "the answer to SyncGroup was lost")
        self._wait(steady_ms)

    def _wait(self, steady_ms: int) -> None:
        """What failed goes again after this wait. So does a heartbeat, which need not be the next one of the usual interval."""
        self._failures += 1
        self._not_before_ms = steady_ms + self._wiring.wait_ms(self._failures)
        self._heartbeat_ms = min(self._heartbeat_ms, steady_ms)

    def _join_answered(self, address: Address, answer: Any, code: ErrorCode, steady_ms: int) -> None:
        if self.state is not State.JOINING:  # Unsubscribed meanwhile: the group need not wait for us.
            if answer.member_id and self._wiring.instance_id is None and self.state is State.OUT:
                self._send_leave(answer.member_id, "unsubscribed while joining")
            return
        if code is codes.NONE:
            self._joined(answer, steady_ms)
        elif code is codes.MEMBER_ID_REQUIRED:
            self.identity = Identity(-1, answer.member_id)
        elif code is codes.UNKNOWN_MEMBER_ID:
            self.lose("the coordinator does not know this member")
        elif code is codes.INCONSISTENT_GROUP_PROTOCOL:
            self.refused_join.begin(address)
        elif not self._passes(code, steady_ms):
            why = group_requests.refusal_of_join(self._wiring.settings, code)
            self._refused(exception_for(code, message=f"group {self._wiring.group_id!r}: {why}", api="JoinGroup"))

    def _joined(self, answer: Any, steady_ms: int) -> None:
        self._failures = 0
        offered = [assignor.name for assignor in self.assignors]
        if answer.protocol_type not in (None, PROTOCOL_TYPE) or answer.protocol_name not in offered:
            chosen = f"the coordinator chose {answer.protocol_name!r} of {answer.protocol_type or PROTOCOL_TYPE!r}"
            text = f"group {self._wiring.group_id!r}: {chosen}, and this member offered {', '.join(offered)} of {PROTOCOL_TYPE!r}"
            self._refused(exception_for(codes.INCONSISTENT_GROUP_PROTOCOL, message=text, api="JoinGroup"))
            return
        self.joined_from = self.identity if self.identity.has_generation else None
        self.identity = Identity(answer.generation_id, answer.member_id)
        self.protocol_name = answer.protocol_name
        self.leadership.end()
        self._heard_ms = steady_ms
        if answer.leader == answer.member_id:
            try:
                self.leadership.begin(answer)
            except MalformedMessage as malformed:
                self._refused(KafkaException(f"group {self._wiring.group_id!r}: a member's subscription cannot be read: {malformed}"))
                return
        self.move(Happening.JOINED)

    def _sync_answered(self, answer: Any, code: ErrorCode, steady_ms: int) -> None:
        if code is codes.NONE:
            try:
                self.assignment = decode_assignment(answer.assignment)
            except MalformedMessage as malformed:
                self._refused(KafkaException(f"group {self._wiring.group_id!r}: the assignment cannot be read: {malformed}"))
                return
            self._failures = 0
            self._next_round_ms = self.leadership.next_round_ms(self.assignment, steady_ms)
            self._remembered = self.assignment, self.identity.generation
            self._heard_ms = steady_ms
            self._heartbeat_ms = steady_ms + self._heartbeat_interval_ms
            self.move(Happening.SYNCED)
            self._wiring.wake()
        elif code in OUT_OF_GROUP:
            self.lose(f"SyncGroup was answered with {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
        elif code in COORDINATOR_GONE or code in COMES_AGAIN:
            self._passes(code, steady_ms)
            self.move(Happening.REBALANCING, f"SyncGroup was answered with {code.name}")
        else:
            self._refused(exception_for(code, message=f"group {self._wiring.group_id!r}: {code.text}", api="SyncGroup"))

    def _heartbeat_answered(self, code: ErrorCode, steady_ms: int) -> None:
        self._heard_ms = steady_ms
        if code is codes.REBALANCE_IN_PROGRESS:
            if self.state is State.STABLE:
                self.rebalance("the group is rebalancing")
                self._wiring.wake()
        elif code in OUT_OF_GROUP:
            self.lose(f"a heartbeat was answered with {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
            self._wiring.wake()
        elif code is not codes.NONE and not self._passes(code, steady_ms):
            self._refused(exception_for(code, message=f"group {self._wiring.group_id!r}: {code.text}", api="Heartbeat"))

    def _described(self, event: ResponseReceived, steady_ms: int) -> None:
        """What the others have, while there is no other round that leaves nothing out."""
        for group in event.message.groups:
            code = codes.by_number(group.error_code, numbering=event.numbering)
            if self._passes(code, steady_ms):
                return
            self.leadership.is_unsure = False
            if code is not codes.NONE:
                text = f"whether new partitions are left out is not known: {code.name}: {code.text}"
                self._wiring.report(f"group {self._wiring.group_id!r}: {text}")
            elif group.group_state == STABLE_GROUP and self.state is State.STABLE:
                with suppress(MalformedMessage):  # A leader of another kind knows what it gave.
                    if self.leadership.is_lacking(
                        place for member in group.members for place in decode_assignment(member.member_assignment)
                    ):
                        self.rebalance(ADDED)
                        self._wiring.wake()

    def _passes(self, code: ErrorCode, steady_ms: int) -> bool:
        """Whether an error passes by itself; then it is waited for, or the coordinator looked for."""
        if code in COORDINATOR_GONE:
            self.finder.forget()
        elif code not in COMES_AGAIN:
            return False
        if code is not codes.REBALANCE_IN_PROGRESS:
            self.refusal = exception_for(code, message=code.text)
        self._wait(steady_ms)
        return True

    def _refused(self, error: KafkaException) -> None:
        """The caller hears of it, and tries again with the next poll; not where another member has our name."""
        if error.code is codes.FENCED_INSTANCE_ID:
            self.fenced(error)
        elif self.state is not State.OUT:
            self.move(Happening.REFUSED)
            self._wiring.fail(error)

    def fenced(self, error: KafkaException) -> None:
        """Another member with our group.instance.id has taken our place: this one is of no use any more."""
        self.fatal = error
        self.lose("another member has its group.instance.id")
        self._wiring.wake()

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When something is due."""
        if self.state is State.OUT:
            return self.departure.next_deadline_ms()
        times: list[int] = [self._not_before_ms]
        times += [time for time in (self.probe.next_deadline_ms(), self.departure.next_deadline_ms()) if time is not None]
        if self._beats:
            times.append(self._heartbeat_ms)
            times.append(self._heard_ms + self._session_ms)
        if self.state is State.STABLE and self._next_round_ms is not None:
            times.append(self._next_round_ms)
        if not self._is_polling:
            times.append(self._last_poll_ms + self._poll_interval_ms)
        return min((time for time in times if time > steady_ms), default=None)
