"""Which brokers to ask: those that the cluster is known to have, and the first ones, where one begins again (KIP-899, KIP-1102).

With `metadata.recovery.strategy=rebootstrap` the first addresses stay candidates beside the known ones, and are the only ones once no
metadata has come for `metadata.recovery.rebootstrap.trigger.ms`: a cluster that has moved altogether is found again. With `none` they
are asked until the cluster is known, and never again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaffinch.client.addresses import Address, parse_bootstrap_servers
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


class Bootstrap:
    """The candidates for questions that any broker can answer. `servers` are the first addresses."""

    def __init__(self, settings: Mapping[str, Any], cluster: ClusterState) -> None:
        self.servers = parse_bootstrap_servers(settings["bootstrap.servers"])
        self._cluster = cluster
        self._goes_back: bool = settings["metadata.recovery.strategy"] == REBOOTSTRAP
        self._trigger_ms: int = settings["metadata.recovery.rebootstrap.trigger.ms"]
        self._unanswered_since_ms: int | None = None

    def candidates(self) -> list[Address]:
        """The cluster's brokers, and where it was first looked for."""
        known = self._cluster.nodes.values()
        return list(known) if known and not self._goes_back else list(dict.fromkeys([*known, *self.servers]))

    def answered(self) -> None:
        """Metadata has come."""
        self._unanswered_since_ms = None

    def unanswered(self, now_ms: int) -> None:
        """A question for metadata got no answer: after too long a time without one, begin again."""
        if self._unanswered_since_ms is None:
            self._unanswered_since_ms = now_ms
        if now_ms - self._unanswered_since_ms >= self._trigger_ms:
            self.begin_again()

    def begin_again(self) -> None:
        """The cluster is another one, or has moved: what is known of its brokers is worth nothing."""
        if self._goes_back:
            self._unanswered_since_ms = None
            self._cluster.forget_nodes()
