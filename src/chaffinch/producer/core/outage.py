"""While no broker can be reached and accepted records wait, `send` raises nothing: the log says so, once, and once when it is over."""

from __future__ import annotations

from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.effects import Effect, Report
from chaffinch.producer.core.giving_up import GivingUp
from chaffinch.producer.core.wiring import Wiring

# A broker that starts again is back sooner, as a rule.
SAID_AFTER_MS: Final = 1_000


class Outage:
    """Begins when a connection ends, and ends with the next answer of any broker."""

    def __init__(self, wiring: Wiring, outstanding: Outstanding, giving_up: GivingUp, out: list[Effect]) -> None:
        self._wiring = wiring
        self._outstanding = outstanding
        self._giving_up = giving_up
        self._out = out
        self.was_answered = False
        """Some broker has answered, now or before."""
        self._since_ms: int | None = None
        self.is_said = False
        """The log has said that this one began, not yet that it is over."""

    @property
    def said_since_ms(self) -> int | None:
        """When it began, if the log has said so."""
        return self._since_ms if self.is_said else None

    def lost(self, now_ms: int) -> bool:
        """A connection ended, or could not be made. Whether the log says now that no broker can be reached."""
        if self._since_ms is None:
            self._since_ms = now_ms
        wiring, lasts_ms = self._wiring, now_ms - self._since_ms
        expires_ms = self._giving_up.next_deadline_ms()
        addresses = wiring.known_addresses
        if self.is_said or lasts_ms < SAID_AFTER_MS or expires_ms is None or not all(map(wiring.attempts.failures, addresses)):
            return False
        self.is_said, left_ms = True, max(0, expires_ms - now_ms)
        tried = f"each is tried until delivery.timeout.ms, {wiring.delivery_timeout_ms} ms, is over, the first for {left_ms} ms more"
        self._report(f"{wiring.attempts.describe(addresses, lasts_ms)}; {self._waiting()}: {tried}")
        return True

    def answered(self, address: Address, now_ms: int) -> None:
        """A broker is there."""
        self.was_answered = True
        if self.is_said and self._since_ms is not None:
            self._report(f"the broker at {address} answers after an outage of {now_ms - self._since_ms} ms; {self._waiting()}")
        self._since_ms, self.is_said = None, False

    def _waiting(self) -> str:
        count = self._outstanding.count()
        return "1 record waits" if count == 1 else f"{count} records wait"

    def _report(self, text: str) -> None:
        self._out.append(Report(text))
