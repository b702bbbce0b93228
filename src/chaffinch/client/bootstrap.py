"""Bootstrap: addresses for requests that any broker can answer, from metadata and from `bootstrap.servers` (KIP-899, KIP-1102).

With `metadata.recovery.strategy=rebootstrap` the bootstrap addresses stay candidates in addition to the known brokers. They are the only
candidates after `metadata.recovery.rebootstrap.trigger.ms` without metadata, so a cluster that has moved completely is found again. With
`none` they are used only until the cluster is known.

Until the cluster is known, an address that accepts a connection without responding does not get the whole `request.timeout.ms` if another
address has not failed: it would delay every start. Addresses are tried one after the other, over one connection at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from chaffinch.client.addresses import Address, Attempts, parse_bootstrap_servers
from chaffinch.client.cluster import ClusterState
from chaffinch.settings import Option

NONE: Final = "none"
REBOOTSTRAP: Final = "rebootstrap"

RECOVERY_OPTIONS: Final = (
    Option(
        "metadata.recovery.strategy",
        "string",
        REBOOTSTRAP,
        "when no known broker responds: `rebootstrap` also tries `bootstrap.servers` again, `none` only the known brokers",
        choices=(REBOOTSTRAP, NONE),
        synonyms=((REBOOTSTRAP.upper(), REBOOTSTRAP), (NONE.upper(), NONE)),  # Java accepts both spellings.
    ),
    Option(
        "metadata.recovery.rebootstrap.trigger.ms",
        "int",
        300_000,
        "with `rebootstrap`: the known brokers are forgotten after this time without metadata",
        minimum=0,
    ),
)

# The first timeout is this fraction of socket.connection.setup.timeout.ms, which is too long if there are several addresses.
_FIRST_TIMEOUT_DIVISOR: Final = 5
# A shorter timeout may fail for a broker that responds.
_FIRST_TIMEOUT_MS_MIN: Final = 100


def first_response_timeout_ms(
    address: Address, servers: Collection[Address], attempts: Attempts, *, setup_ms: int, request_ms: int, limit_ms: int
) -> int:
    """Timeout of the first response about a cluster that is still unknown.

    All `servers` together take at most half of `limit_ms`, the time for which callers wait.
    """
    if attempts.failures(address) or all(attempts.failures(other) for other in servers if other != address):
        return request_ms
    return min(request_ms, max(_FIRST_TIMEOUT_MS_MIN, min(setup_ms // _FIRST_TIMEOUT_DIVISOR, limit_ms // (2 * len(servers)))))


class Bootstrap:
    """Candidate addresses for requests that any broker can answer. `limit_ms`: longest wait of callers."""

    def __init__(self, settings: Mapping[str, Any], cluster: ClusterState, *, limit_ms: int) -> None:
        self._setup_ms: int = settings["socket.connection.setup.timeout.ms"]
        self._request_ms: int = settings["request.timeout.ms"]
        self._limit_ms = limit_ms
        self.servers = parse_bootstrap_servers(settings["bootstrap.servers"])
        self._cluster = cluster
        self._can_rebootstrap: bool = settings["metadata.recovery.strategy"] == REBOOTSTRAP
        self._trigger_ms: int = settings["metadata.recovery.rebootstrap.trigger.ms"]
        self._failing_since_ms: int | None = None

    def candidates(self) -> list[Address]:
        """The known brokers and, unless the strategy is `none`, the bootstrap addresses."""
        known = self._cluster.nodes.values()
        return list(known) if known and not self._can_rebootstrap else list(dict.fromkeys([*known, *self.servers]))

    def response_timeout_ms(self, address: Address, attempts: Attempts) -> int:
        """Timeout of a request to one of the candidates."""
        if self._cluster.nodes:
            return self._request_ms
        return first_response_timeout_ms(
            address, self.servers, attempts, setup_ms=self._setup_ms, request_ms=self._request_ms, limit_ms=self._limit_ms
        )

    def metadata_received(self) -> None:
        """A Metadata response has arrived."""
        self._failing_since_ms = None

    def metadata_failed(self, steady_ms: int) -> None:
        """A Metadata request has failed. Rebootstraps if requests have failed for the trigger time."""
        if self._failing_since_ms is None:
            self._failing_since_ms = steady_ms
        if steady_ms - self._failing_since_ms >= self._trigger_ms:
            self.rebootstrap()

    def rebootstrap(self) -> None:
        """Forget the known brokers: the cluster has moved, or is another one. A no-op with the strategy `none`."""
        if self._can_rebootstrap:
            self._failing_since_ms = None
            self._cluster.forget_nodes()
