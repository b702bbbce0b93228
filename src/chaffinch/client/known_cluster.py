"""Cluster state of a producer or consumer core: metadata, bootstrap addresses, reconnect attempts and retry backoff.

If a connection fails to an address that brokers advertise (`advertised.listeners`) and that is not in `bootstrap.servers`, its reason
contains a hint.
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

ADVERTISED_HINT: Final = "brokers advertise this address (advertised.listeners), it is not in bootstrap.servers"

AnyEvent = TypeVar("AnyEvent")


def with_advertised_hint(reason: str, address: Address, servers: Collection[Address]) -> str:
    """The reason with the hint if the address is not one of `servers`, the addresses in `bootstrap.servers`."""
    return reason if address.first_lane in servers else f"{reason}; {ADVERTISED_HINT}"


def explain_unreachable(event: AnyEvent, attempts: Attempts, servers: Collection[Address]) -> AnyEvent:
    """The event with the hint in its reason if no connection to the address was ever ready. All texts about the failure use the reason."""
    if not isinstance(event, (RequestFailed, Disconnected)):
        return event
    is_answer = event.had_response if isinstance(event, Disconnected) else event.was_sent or event.is_unsupported
    if is_answer or event.error is not None or attempts.was_reached(event.address):
        return event
    reason = with_advertised_hint(event.reason, event.address, servers)
    return event if reason == event.reason else replace(event, reason=reason)


class KnownCluster:
    """Attributes are fixed; `cluster` and `attempts` are mutable objects. `limit_ms`: how long callers wait for the first metadata."""

    def __init__(self, settings: Settings, rng: Rng, *, limit_ms: int) -> None:
        self.rng: Final = rng
        self.retry_backoff: Final[Backoff] = retry_backoff(settings)
        self.cluster: Final = ClusterState()
        self.bootstrap: Final = Bootstrap(settings, self.cluster, limit_ms=limit_ms)
        self.attempts: Final = Attempts(reconnect_backoff(settings), rng)

    def wait_ms(self, failures: int) -> int:
        """The retry backoff after this many failures."""
        return self.retry_backoff.wait_ms(failures, self.rng)

    def explain_unreachable(self, event: AnyEvent) -> AnyEvent:
        """See the function of the same name."""
        return explain_unreachable(event, self.attempts, self.bootstrap.servers)

    @property
    def known_addresses(self) -> list[Address]:
        """Candidates for requests that any broker can answer; see `Bootstrap.candidates`."""
        return self.bootstrap.candidates()

    def any_address(self, steady_ms: int) -> Address | None:
        """The address for a request that any broker can answer; None while all are backing off."""
        return self.attempts.pick(self.known_addresses, steady_ms)
