"""Metrics of clients: tables for `Producer.metrics()` and `Consumer.metrics()`, read from the core at each call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from chaffinch.client.cluster import ClusterState


class ClientContext(Protocol):
    """The part of `ProducerContext` and the consumer's context that metrics read."""

    @property
    def counts(self) -> Counter[str]: ...
    @property
    def cluster(self) -> ClusterState: ...


class ClientCore(Protocol):
    """The part of a producer or consumer core that metrics read."""

    @property
    def context(self) -> ClientContext: ...


CoreT = TypeVar("CoreT")


class Metric(NamedTuple, Generic[CoreT]):
    """One metric: its documentation, and a function that reads it from the core at a steady time in ms."""

    text: str
    read: Callable[[CoreT, int], float]


def count(name: str) -> Callable[[ClientCore, int], float]:
    """Reader of one of the core's counters."""
    return lambda core, steady_ms: core.context.counts[name]


def metadata_age_s(core: ClientCore, steady_ms: int) -> float:
    """Seconds since the last Metadata response; -1 before the first."""
    updated_ms = core.context.cluster.updated_ms
    return -1.0 if updated_ms is None else (steady_ms - updated_ms) / 1000


def read_all(metrics: Mapping[str, Metric[CoreT]], core: CoreT, steady_ms: int) -> dict[str, float]:
    """All metrics by name. The caller holds the client's lock."""
    return {name: metric.read(core, steady_ms) for name, metric in metrics.items()}
