"""LeaveGroup, and its repetition over another connection where no response arrives: a second LeaveGroup changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.consumer.core import group_requests
from chaffinch.consumer.core.wiring import LANE_LEAVE, Wiring

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

    def advance(self, now_ms: int, *, is_committing: bool) -> None:
        """Repeat it when that is due; not before commits on their way, which the coordinator refuses afterwards."""
        if not self.is_under_way or self._address is None:
            return
        if self._repeat_ms is None:
            self._repeat_ms = now_ms + REPEAT_AFTER_MS
        if now_ms >= self._repeat_ms and not is_committing:
            address, self._address = self._address, None
            self._send(address._replace(lane=LANE_LEAVE))

    def ended(self, token: LeaveSent) -> None:
        """A response, or the end of a connection."""
        if token.number == self._number:
            self.is_under_way = False

    def next_deadline_ms(self) -> int | None:
        return self._repeat_ms if self.is_under_way and self._address is not None else None
