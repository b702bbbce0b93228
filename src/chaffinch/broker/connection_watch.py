"""Finds connections that hold resources without progress: idle ones, incomplete requests, unread responses.

Connections are checked periodically, so that the request path has no overhead. Limits are therefore enforced slightly late, never early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chaffinch.broker.connections import Peer

SWEEPS_PER_LIMIT: Final = 4
"""Checks of each connection within the shortest limit."""

INTERVAL_MIN_S: Final = 0.1
"""Shortest check interval, however short the limits are: a limit of 0 would otherwise keep a CPU busy."""

SHARE_OF_CAPACITY: Final = 8
"""One response may use one eighth of the remaining unread bytes: with a limit of 512 MiB the first may have 55 MB, and the tenth, if no
client reads, 20 MB."""

RECORDS_MIN: Final = 1 << 16
"""A response may always carry a batch of ordinary size."""


@dataclass(slots=True)
class _Seen:
    """Snapshot of a connection at the last check. Times are event loop seconds."""

    received: int
    sent: int
    requests: int
    active_at: float
    read_at: float
    unfinished_since: float | None = None


class ConnectionWatch:
    """See the module docstring. Limits are the broker's options; -1 ms disables a limit, 0 ms means until the next check."""

    def __init__(self, settings: Mapping[str, Any], now: Callable[[], float]) -> None:
        self._now = now
        self._idle_s, self._unread_s, self._unfinished_s = (
            settings[name] / 1000 if settings[name] >= 0 else None
            for name in ("connections.max.idle.ms", "connections.max.unread.ms", "connections.max.unfinished.ms")
        )
        self._unread_bytes_max: int = settings["queued.max.response.bytes"]
        self._seen: dict[int, _Seen] = {}
        # Connections with unsent bytes, longest first, with the byte count at the last check.
        self._unread: dict[int, tuple[Peer, int]] = {}
        self._unread_bytes = 0

    @property
    def interval_s(self) -> float | None:
        """Interval at which to call `sweep`; None for never."""
        limits = [limit for limit in (self._idle_s, self._unread_s, self._unfinished_s) if limit is not None]
        return max(min(limits) / SWEEPS_PER_LIMIT, INTERVAL_MIN_S) if limits else None

    def forget(self, peer: Peer) -> None:
        self._seen.pop(peer.connection_id, None)
        self._set_unread(peer, 0)

    def output_pending(self, peer: Peer) -> list[Peer]:
        """Record a connection's unread responses. Returns the connections to close so that all unread responses together are within their
        limit.

        Called after each response, so the other connections are examined only if the total may exceed the limit. All growth is recorded
        here, so since the last check their counts can only have fallen.
        """
        self._set_unread(peer, peer.unsent_bytes)
        if self._unread_bytes <= self._unread_bytes_max:
            return []
        self._refresh()
        victims = []
        for victim, size in list(self._unread.values()):
            if self._unread_bytes <= self._unread_bytes_max:
                break
            if size:
                victims.append(victim)
            self._set_unread(victim, 0)
        return victims

    def records_max(self) -> int:
        """Bytes of records that the next response may carry: a share of the remaining capacity. Many slow readers get less each, and no
        client is closed for reading a response it was entitled to.
        """
        if 2 * self._unread_bytes > self._unread_bytes_max:
            self._refresh()
        return max((self._unread_bytes_max - self._unread_bytes) // SHARE_OF_CAPACITY, RECORDS_MIN)

    def _refresh(self) -> None:
        """Update the counts of clients that may have read since the last check."""
        for waiting, _ in list(self._unread.values()):
            self._set_unread(waiting, waiting.unsent_bytes)

    def _set_unread(self, peer: Peer, size: int) -> None:
        """Record the number of unread bytes of a connection."""
        known = self._unread.get(peer.connection_id)
        self._unread_bytes += size - (known[1] if known is not None else 0)
        if size:
            self._unread[peer.connection_id] = peer, size  # Keeps its position in the order.
        elif known is not None:
            del self._unread[peer.connection_id]

    def sweep(self, peers: Iterable[Peer]) -> list[tuple[Peer, str]]:
        """The connections to close, with the reason."""
        found = []
        now = self._now()
        for peer in peers:
            reason = self._fault_of(peer, now)
            if reason is not None:
                found.append((peer, reason))
        return found

    def _fault_of(self, peer: Peer, now: float) -> str | None:
        unsent = peer.unsent_bytes
        sent = peer.bytes_answered - unsent
        seen = self._seen.get(peer.connection_id)
        if seen is None:
            self._seen[peer.connection_id] = _Seen(peer.bytes_received, sent, peer.requests_received, now, now)
            return None
        if unsent == 0:
            self._set_unread(peer, 0)
        if unsent == 0 or sent != seen.sent:
            seen.read_at = now
        if (peer.bytes_received, sent) != (seen.received, seen.sent) or (peer.open_count and not peer.is_finished):
            seen.active_at = now
        if not peer.frames.bytes_pending or not peer.is_reading:
            seen.unfinished_since = None
        elif seen.unfinished_since is None or peer.requests_received != seen.requests:
            seen.unfinished_since = now
        seen.received, seen.sent, seen.requests = peer.bytes_received, sent, peer.requests_received
        if self._unread_s is not None and now - seen.read_at > self._unread_s:
            return f"{unsent} bytes of responses have not been read for more than {self._unread_s:g} s"
        if self._unfinished_s is not None and seen.unfinished_since is not None and now - seen.unfinished_since > self._unfinished_s:
            return f"a request has been incomplete for more than {self._unfinished_s:g} s"
        if self._idle_s is not None and now - seen.active_at > self._idle_s:
            return f"idle for more than {self._idle_s:g} s"
        return None
