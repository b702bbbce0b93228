"""What went through the broker's connections since the start, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaffinch.broker.connections import Peer


@dataclass(slots=True)
class Traffic:
    """`requests`: how many by API. Bytes are counted by the connections themselves; here are those of the ones that are gone."""

    connections: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    _bytes_received: int = 0
    _bytes_answered: int = 0

    def count_gone(self, peer: Peer) -> None:
        """A connection is closed."""
        self._bytes_received += peer.bytes_received
        self._bytes_answered += peer.bytes_answered

    def bytes_received(self, peers: Iterable[Peer]) -> int:
        """With those of the connections that are there."""
        return self._bytes_received + sum(peer.bytes_received for peer in peers)

    def bytes_answered(self, peers: Iterable[Peer]) -> int:
        return self._bytes_answered + sum(peer.bytes_answered for peer in peers)
