"""Since when each address owes a response, or a connection: a silent broker fails no request until the request times out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from chaffinch.client.addresses import Address

ATTEMPTS_GAP_MS_MAX: Final = 5_000
"""Attempts with a longer gap in between belong to different waits."""


class PendingResponses:
    """Requests without a response, counted by address. The owner reports what it sends and what the network reports."""

    __slots__ = ("_connected", "_counts", "_last_ms", "_since_ms")

    def __init__(self) -> None:
        self._counts: Counter[Address] = Counter()
        self._since_ms: dict[Address, int] = {}
        self._last_ms: dict[Address, int] = {}
        """When the last attempt failed."""
        self._connected: set[Address] = set()

    def sent(self, address: Address, now_ms: int) -> None:
        is_new = not self._counts[address] and now_ms - self._last_ms.get(address, now_ms) > ATTEMPTS_GAP_MS_MAX
        self._counts[address] += 1
        self._since_ms[address] = now_ms if is_new else self._since_ms.get(address, now_ms)

    def answered(self, address: Address, now_ms: int) -> None:
        self._connected.add(address)
        self._counts[address] -= 1
        if self._counts[address] > 0:
            self._since_ms[address] = now_ms
        else:
            self._since_ms.pop(address, None)

    def failed(self, address: Address, now_ms: int, *, was_refused_here: bool) -> None:
        """No response. `was_refused_here`: the request was never to be sent. Otherwise the address owes one to the next attempt as well."""
        self._counts[address] -= 1
        self._last_ms[address] = now_ms
        if was_refused_here and self._counts[address] <= 0:
            self._since_ms.pop(address, None)

    def connected(self, address: Address) -> None:
        self._connected.add(address)

    def disconnected(self, address: Address, now_ms: int, *, was_answered: bool) -> None:
        """`was_answered`: the connection was of use, so the wait for the next one begins now."""
        self._connected.discard(address)
        if was_answered and address in self._since_ms:
            self._since_ms[address] = now_ms

    def is_connected(self, address: Address) -> bool:
        return address in self._connected

    def since_ms(self, address: Address) -> int | None:
        """The last response, or the first request after it; None if the address owes nothing."""
        return self._since_ms.get(address)

    def owed(self) -> Iterator[tuple[Address, int]]:
        """All addresses that owe something, and since when."""
        yield from self._since_ms.items()
