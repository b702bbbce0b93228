"""Work that becomes due by the clock and not by a request: timeouts, expiry, maintenance of logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chaffinch.broker.core.effects import Report


class Chore(Protocol):
    """Part of the broker that `BrokerCore` calls when its time has come."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do (ms since 1970), None for never. Asked for after every request: no work here. May be early."""

    def expire(self, now_ms: int) -> Sequence[str | Report]:
        """Do what is due, in short: long work is cut into slices, with the next one due at once. Returns lines for the log: a text is a
        warning.

        Never raises StorageError: what a full disk prevents is due again later.
        """


def next_deadline_ms(chores: Sequence[Chore]) -> int | None:
    """The earliest deadline of all."""
    earliest: int | None = None
    for chore in chores:
        deadline_ms = chore.next_deadline_ms
        if deadline_ms is not None and (earliest is None or deadline_ms < earliest):
            earliest = deadline_ms
    return earliest
