"""Why a group does not take this member: after INCONSISTENT_GROUP_PROTOCOL, which has many causes, the coordinator describes the group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered
from chaffinch.consumer.core import group_requests
from chaffinch.consumer.core.group_protocol import PROTOCOL_TYPE
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import KafkaException, codes, exception_for
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest

DEAD: Final = "Dead"
CONSUMER_PROTOCOL: Final = (
    "the group uses the consumer protocol (KIP-848): its members have group.protocol=consumer, and this client speaks classic only. Choose"
    " another group.id, or stop all members of the group and start them with group.protocol=classic"
)
OTHER_KIND: Final = "the group is not a classic one: it may be a share or streams group, or have ended just now. Choose another group.id"


@dataclass(frozen=True, slots=True)
class GroupKindAsked:
    """Token of one of the two requests."""

    attempt: int
    is_consumer_protocol: bool


class RefusedJoin:
    """`refuse` gets the error when both responses have come, or failed. Until then the member does not join again."""

    def __init__(self, wiring: Wiring, refuse: Callable[[KafkaException], None]) -> None:
        self._wiring = wiring
        self._refuse = refuse
        self._attempt = 0
        self._missing = 0
        self._is_consumer_protocol = False
        self._classic: Any = None
        """The group as DescribeGroups shows it; None if it does not."""

    @property
    def is_under_way(self) -> bool:
        return self._missing > 0

    def begin(self, address: Address) -> None:
        self._attempt += 1
        self._missing, self._is_consumer_protocol, self._classic = 2, False, None
        group_id = self._wiring.group_id
        requests = (ConsumerGroupDescribeRequest(group_ids=[group_id]), True), (group_requests.describe(group_id), False)
        for message, is_consumer_protocol in requests:
            self._wiring.send(address.first_lane, message, GroupKindAsked(self._attempt, is_consumer_protocol))

    def answered(self, event: Answered) -> None:
        for group in event.message.groups:
            code = codes.by_number(group.error_code, numbering=event.numbering)
            if event.token.attempt != self._attempt:
                continue
            if event.token.is_consumer_protocol:
                self._is_consumer_protocol = code is codes.NONE
            elif code is codes.NONE or code is codes.GROUP_ID_NOT_FOUND:
                self._classic = group
        self.ended(event.token)

    def ended(self, token: GroupKindAsked) -> None:
        """A response was taken in, or will not come."""
        if token.attempt != self._attempt or not self._missing:
            return
        self._missing -= 1
        if not self._missing:
            code = codes.INCONSISTENT_GROUP_PROTOCOL
            self._refuse(exception_for(code, message=f"group {self._wiring.group_id!r}: {self._why()}", api="JoinGroup"))

    def _why(self) -> str:
        group = self._classic
        if self._is_consumer_protocol:
            return CONSUMER_PROTOCOL
        if group is None:
            return f"{self._assignors('its members have none of them in common')}. Or {CONSUMER_PROTOCOL}"
        if group.error_code or group.group_state == DEAD:
            return OTHER_KIND
        if group.protocol_type != PROTOCOL_TYPE:
            text = f"its members are of protocol type {group.protocol_type!r}, and this one is of {PROTOCOL_TYPE!r}"
            return f"{text}. Choose another group.id"
        uses = f"the group uses {group.protocol_data}" if group.protocol_data else "its members have none of them in common"
        return self._assignors(uses)

    def _assignors(self, uses: str) -> str:
        offered = ", ".join(self._wiring.settings["partition.assignment.strategy"])
        advice = "there must be one in the partition.assignment.strategy of every member"
        return f"this member offers the assignors {offered}, and {uses}: {advice}"
