"""What producer and consumer cores know alike: the cluster, which of its addresses may be tried, and the waits between attempts.

The reasons of failed connections have a hint where the address came from brokers (`advertised.listeners`), not from `bootstrap.servers`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, TypeVar

from chaffinch.client.addresses import Address, Attempts
from chaffinch.client.backoff import Backoff, Rng
from chaffinch.client.bootstrap import Bootstrap
from chaffinch.client.cluster import ClusterState
from chaffinch.client.connections import Disconnected, RequestFailed
from chaffinch.client.options import reconnect_backoff, retry_backoff
from chaffinch.settings import Settings

ADVERTISED_HINT: Final = "brokers advertise this address (advertised.listeners), bootstrap.servers does not have it"

AnyEvent = TypeVar("AnyEvent")


def with_advertised_hint(reason: str, address: Address, servers: Collection[Address]) -> str:
    """`servers`: the addresses in `bootstrap.servers`."""
    return reason if address.first_lane in servers else f"{reason}; {ADVERTISED_HINT}"


def explain_unreachable(event: AnyEvent, attempts: Attempts, servers: Collection[Address]) -> AnyEvent:
    """The event with the hint, where no connection to the address was ever ready: all texts about the failure take its reason."""
    if not isinstance(event, (RequestFailed, Disconnected)):
        return event
    is_answer = event.had_response if isinstance(event, Disconnected) else event.was_sent or event.is_unsupported
    if is_answer or event.error is not None or attempts.was_reached(event.address):
        return event
    reason = with_advertised_hint(event.reason, event.address, servers)
    return event if reason == event.reason else replace(event, reason=reason)


class KnownCluster:
    """Fixed but for `cluster` and `attempts`, which live. `limit_ms`: how long a caller waits for the first answer."""

    def __init__(self, settings: Settings, rng: Rng, *, limit_ms: int) -> None:
        self.rng: Final = rng
        self.retry_backoff: Final[Backoff] = retry_backoff(settings)
        self.cluster: Final = ClusterState()
        self.bootstrap: Final = Bootstrap(settings, self.cluster, limit_ms=limit_ms)
        self.attempts: Final = Attempts(reconnect_backoff(settings), rng)

    def wait_ms(self, failures: int) -> int:
        """How long to wait before something is tried again after so many failures."""
        return self.retry_backoff.wait_ms(failures, self.rng)

    def explain_unreachable(self, event: AnyEvent) -> AnyEvent:
        """The event with what is known here of why the address cannot be reached."""
        return explain_unreachable(event, self.attempts, self.bootstrap.servers)

    @property
    def known_addresses(self) -> list[Address]:
        """The cluster's brokers, and where it was first looked for."""
        return self.bootstrap.candidates()

    def any_address(self, steady_ms: int) -> Address | None:
        """A broker to ask; None while all have to wait after a failure."""
        return self.attempts.pick(self.known_addresses, steady_ms)
