"""Which brokers to ask: those that the cluster is known to have, and the first ones, where one begins again (KIP-899, KIP-1102).

With `metadata.recovery.strategy=rebootstrap` the first addresses stay candidates beside the known ones, and are the only ones once no
metadata has come for `metadata.recovery.rebootstrap.trigger.ms`: a cluster that has moved altogether is found again. With `none` they
are asked until the cluster is known, and never again.

Until the cluster is known, one that accepts and says nothing does not have the whole of `request.timeout.ms`, while there is another one
that has not failed: it would hold up every start. One after the other is asked, so there is never more than one connection for this.
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
        "when no known broker answers: with `rebootstrap` those of `bootstrap.servers` are asked again, with `none` only those known",
        choices=(REBOOTSTRAP, NONE),
        synonyms=((REBOOTSTRAP.upper(), REBOOTSTRAP), (NONE.upper(), NONE)),  # Java takes either.
    ),
    Option(
        "metadata.recovery.rebootstrap.trigger.ms",
        "int",
        300_000,
        "with `rebootstrap`: the known brokers are forgotten when they have told no metadata for so long",
        minimum=0,
    ),
)

# Of socket.connection.setup.timeout.ms, which alone would be a long time to wait for one of several.
_FIRST_TIMEOUT_DIVISOR: Final = 5
# Less may be too little for a broker that does answer.
_FIRST_TIMEOUT_MS_MIN: Final = 100


def first_response_timeout_ms(
    address: Address, servers: Collection[Address], attempts: Attempts, *, setup_ms: int, request_ms: int, limit_ms: int
) -> int:
    """How long a broker may take for the first answer about a cluster of which nothing is known. Callers wait for `limit_ms`, half of
    which is enough for all of them."""
    if attempts.failures(address) or all(attempts.failures(other) for other in servers if other != address):
        return request_ms
    return min(request_ms, max(_FIRST_TIMEOUT_MS_MIN, min(setup_ms // _FIRST_TIMEOUT_DIVISOR, limit_ms // (2 * len(servers)))))


class Bootstrap:
    """The candidates for questions that any broker can answer. `servers` are the first addresses, callers wait for `limit_ms` at most."""

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
        """The cluster's brokers, and where it was first looked for."""
        known = self._cluster.nodes.values()
        return list(known) if known and not self._can_rebootstrap else list(dict.fromkeys([*known, *self.servers]))

    def response_timeout_ms(self, address: Address, attempts: Attempts) -> int:
        """How long to wait for the answer to such a question."""
        if self._cluster.nodes:
            return self._request_ms
        return first_response_timeout_ms(
            address, self.servers, attempts, setup_ms=self._setup_ms, request_ms=self._request_ms, limit_ms=self._limit_ms
        )

    def metadata_received(self) -> None:
        """Metadata has come."""
        self._failing_since_ms = None

    def metadata_failed(self, steady_ms: int) -> None:
        """A question for metadata got no answer: after too long a time without one, begin again."""
        if self._failing_since_ms is None:
            self._failing_since_ms = steady_ms
        if steady_ms - self._failing_since_ms >= self._trigger_ms:
            self.rebootstrap()

    def rebootstrap(self) -> None:
        """The cluster is another one, or has moved: what is known of its brokers is worth nothing."""
        if self._can_rebootstrap:
            self._failing_since_ms = None
            self._cluster.forget_nodes()
