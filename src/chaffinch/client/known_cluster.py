"""What producer and consumer cores know alike: the cluster, which of its addresses may be tried, and the waits between attempts."""

from __future__ import annotations

from typing import Final

from chaffinch.client.addresses import Address, Attempts
from chaffinch.client.advertised import AnyEvent, explained
from chaffinch.client.backoff import Backoff, Dice
from chaffinch.client.bootstrap import Bootstrap
from chaffinch.client.cluster import ClusterState
from chaffinch.client.options import reconnect_backoff, retry_backoff
from chaffinch.settings import Settings


class KnownCluster:
    """Fixed but for `cluster` and `attempts`, which live. `limit_ms`: how long a caller waits for the first answer."""

    def __init__(self, settings: Settings, dice: Dice, *, limit_ms: int) -> None:
        self.dice: Final = dice
        self.retry_backoff: Final[Backoff] = retry_backoff(settings)
        self.cluster: Final = ClusterState()
        self.bootstrap: Final = Bootstrap(settings, self.cluster, limit_ms=limit_ms)
        self.attempts: Final = Attempts(reconnect_backoff(settings), dice)

    def wait_ms(self, failures: int) -> int:
        """How long to wait before something is tried again after so many failures."""
        return self.retry_backoff.wait_ms(failures, self.dice)

    def explained(self, event: AnyEvent) -> AnyEvent:
        """The event with what is known here of why the address cannot be reached."""
        return explained(event, self.attempts, self.bootstrap.servers)

    @property
    def known_addresses(self) -> list[Address]:
        """The cluster's brokers, and where it was first looked for."""
        return self.bootstrap.candidates()

    def any_address(self, now_ms: int) -> Address | None:
        """A broker to ask; None while all have to wait after a failure."""
        return self.attempts.pick(self.known_addresses, now_ms)
