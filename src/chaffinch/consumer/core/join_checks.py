"""Checks of a JoinGroup with DescribeGroups: finds a lost response on a live connection, and the reason for a rejected JoinGroup.

JoinGroup waits for the other members, for up to max.poll.interval.ms. After a third of the session DescribeGroups, which changes nothing,
goes to the coordinator over another connection:

| the coordinator describes | meaning |
|---|---|
| this member, in a group that prepares a rebalance | the coordinator waits for the other members, and so does this one |
| this member, in a group that has completed the join | the response is lost, or on its way |
| a group without this member | the request is lost, or the member was removed |
| a group that was joined without a member id, which brokers give at once (KIP-394) | the response is lost |

If the response does not arrive within 3 s after that, the connection of the JoinGroup is closed, and the member joins again under the same
member id: the coordinator replaces the request that it holds, or responds with its generation. This happens before the session of the
member ends, and before the SyncGroup requests of the others time out.

INCONSISTENT_GROUP_PROTOCOL has many causes. After it the coordinator describes the group, and the error says which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import ResponseReceived
from chaffinch.consumer.core import group_requests
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.group_protocol import PROTOCOL_TYPE
from chaffinch.consumer.core.group_requests import Identity
from chaffinch.errors import KafkaException, codes, exception_for
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest

PREPARING: Final = "PreparingRebalance"
IN_FLIGHT_MS: Final = 3_000
"""Longest time that a response may be on its way after the coordinator has sent it."""
FAILURES_MAX: Final = 2
"""Probes in a row without a response; then the connection of the JoinGroup is expected to be dead, too."""
VERSION_WITH_IDS_AT_ONCE: Final = 3
"""Of DescribeGroups, since Apache Kafka 2.3. Since 2.2 JoinGroup gives a new member its id without waiting for others."""
VERSION_WITH_INSTANCE_IDS: Final = 4
LOST: Final = "the response to JoinGroup did not arrive"
TRANSIENT: Final = frozenset({codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REBALANCE_IN_PROGRESS})
UNUSABLE: Final = frozenset({codes.GROUP_AUTHORIZATION_FAILED, codes.UNSUPPORTED_VERSION})


@dataclass(frozen=True, slots=True)
class JoinProbeToken:
    """Token of a probe; a probe for an earlier JoinGroup is ignored."""

    attempt: int


class JoinProbe:
    """The probes for one member's JoinGroup. `begin` when it is sent, `end` with its outcome."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._attempt = 0
        self._address: Address | None = None
        """Where the JoinGroup was sent; None while none is under way."""
        self._member_id = ""
        self._due_ms: int | None = None
        self._in_flight_ms = min(context.request_timeout_ms, IN_FLIGHT_MS)
        self._first_ms = min(context.request_timeout_ms, int(context.settings["session.timeout.ms"]) // 3)
        self._is_lost = False
        self._failures = 0
        self._began_ms = 0
        self._is_held = False
        """Whether the coordinator was seen to hold the JoinGroup under way."""

    def begin(self, address: Address, identity: Identity, steady_ms: int) -> None:
        self._attempt += 1
        self._address, self._member_id = address, identity.member_id
        self._is_lost, self._failures = False, 0
        self._began_ms, self._is_held = steady_ms, False
        self._due_ms = steady_ms + self._first_ms

    def end(self) -> None:
        """The JoinGroup has completed or failed."""
        self._attempt += 1
        self._address, self._due_ms, self._is_held = None, None, False

    def advance(self, steady_ms: int) -> None:
        """Send the probe that is due, or close the connection of the JoinGroup."""
        if self._address is None or self._due_ms is None or steady_ms < self._due_ms:
            return
        self._due_ms = None
        if self._is_lost:
            self._close_connection(self._address)
            return
        self._context.send(self._address.first_lane, group_requests.describe(self._context.group_id), JoinProbeToken(self._attempt))

    def response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        if event.token.attempt != self._attempt:
            return
        self._failures = 0
        for group in event.message.groups:
            code = codes.by_number(group.error_code, numbering=event.numbering)
            if code not in UNUSABLE:
                is_waiting = self._is_waiting(group, event.version or 0) if code is codes.NONE else code in TRANSIENT
                self._schedule_next(steady_ms, is_waiting=is_waiting)

    def request_failed(self, token: JoinProbeToken, steady_ms: int, *, is_unsupported: bool) -> None:
        if token.attempt == self._attempt and not is_unsupported:
            self._failures += 1
            self._is_lost = self._failures >= FAILURES_MAX
            self._due_ms = steady_ms if self._is_lost else steady_ms + self._in_flight_ms

    def _is_waiting(self, group: Any, version: int) -> bool:
        """Whether the coordinator holds the JoinGroup until the other members have joined. True where its version cannot show it."""
        if self._member_id:
            is_in = any(member.member_id == self._member_id for member in group.members)
        elif self._context.instance_id is None:
            return version < VERSION_WITH_IDS_AT_ONCE
        else:
            mine = self._context.instance_id
            is_in = version < VERSION_WITH_INSTANCE_IDS or any(member.group_instance_id == mine for member in group.members)
        return is_in and group.group_state == PREPARING

    def _schedule_next(self, steady_ms: int, *, is_waiting: bool) -> None:
        self._is_lost, self._is_held = not is_waiting, is_waiting
        self._due_ms = steady_ms + (self._context.request_timeout_ms if is_waiting else self._in_flight_ms)

    def _close_connection(self, address: Address) -> None:
        why = "accepts no second connection" if self._failures else "does not wait for other members"
        self._context.report(
            f"group {self._context.group_id!r}: the coordinator {address} {why}, and its response to JoinGroup did not arrive:"
            " joining again over a new connection"
        )
        self._context.disconnect(address, LOST)

    @property
    def waiting_since_ms(self) -> int | None:
        """Since when the coordinator holds the JoinGroup until other members join; None if that is not known."""
        return self._began_ms if self._is_held else None

    def next_deadline_ms(self) -> int | None:
        return self._due_ms


DEAD: Final = "Dead"
CONSUMER_PROTOCOL: Final = (
    "the group uses the consumer protocol (KIP-848): its members have group.protocol=consumer, and this client supports classic only."
    " Choose another group.id, or stop all members of the group and start them with group.protocol=classic"
)
OTHER_KIND: Final = "the group is not a classic one: it may be a share or streams group, or have ended just now. Choose another group.id"


@dataclass(frozen=True, slots=True)
class GroupKindToken:
    """Token of one of the two requests."""

    attempt: int
    is_consumer_protocol: bool


class RefusedJoin:
    """`on_error` gets the error when both requests have completed or failed. Until then the member does not join again."""

    def __init__(self, context: ConsumerContext, on_error: Callable[[KafkaException], None]) -> None:
        self._context = context
        self._on_error = on_error
        self._attempt = 0
        self._pending = 0
        self._is_consumer_protocol = False
        self._classic: Any = None
        """The group as DescribeGroups shows it; None if it does not."""

    @property
    def is_under_way(self) -> bool:
        return self._pending > 0

    def begin(self, address: Address) -> None:
        self._attempt += 1
        self._pending, self._is_consumer_protocol, self._classic = 2, False, None
        group_id = self._context.group_id
        requests = (ConsumerGroupDescribeRequest(group_ids=[group_id]), True), (group_requests.describe(group_id), False)
        for message, is_consumer_protocol in requests:
            self._context.send(address.first_lane, message, GroupKindToken(self._attempt, is_consumer_protocol))

    def response_received(self, event: ResponseReceived) -> None:
        for group in event.message.groups:
            code = codes.by_number(group.error_code, numbering=event.numbering)
            if event.token.attempt != self._attempt:
                continue
            if event.token.is_consumer_protocol:
                self._is_consumer_protocol = code is codes.NONE
            elif code is codes.NONE or code is codes.GROUP_ID_NOT_FOUND:
                self._classic = group
        self.ended(event.token)

    def ended(self, token: GroupKindToken) -> None:
        """A response was processed, or will not arrive."""
        if token.attempt != self._attempt or not self._pending:
            return
        self._pending -= 1
        if not self._pending:
            code = codes.INCONSISTENT_GROUP_PROTOCOL
            self._on_error(exception_for(code, message=f"group {self._context.group_id!r}: {self._cause()}", api="JoinGroup"))

    def _cause(self) -> str:
        group = self._classic
        if self._is_consumer_protocol:
            return CONSUMER_PROTOCOL
        if group is None:
            return f"{self._assignors_text('its members have none of them in common')}. Or {CONSUMER_PROTOCOL}"
        if group.error_code or group.group_state == DEAD:
            return OTHER_KIND
        if group.protocol_type != PROTOCOL_TYPE:
            text = f"its members are of protocol type {group.protocol_type!r}, and this one is of {PROTOCOL_TYPE!r}"
            return f"{text}. Choose another group.id"
        uses = f"the group uses {group.protocol_data}" if group.protocol_data else "its members have none of them in common"
        return self._assignors_text(uses)

    def _assignors_text(self, uses: str) -> str:
        offered = ", ".join(self._context.settings["partition.assignment.strategy"])
        advice = "there must be one in the partition.assignment.strategy of every member"
        return f"this member offers the assignors {offered}, and {uses}: {advice}"
