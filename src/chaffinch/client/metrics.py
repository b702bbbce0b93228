"""What `Producer.metrics()` and `Consumer.metrics()` are made of: tables of numbers, read from the client's core when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from chaffinch.client.cluster import ClusterState


class ClientContext(Protocol):
    """What the parts of either core share."""

    @property
    def counts(self) -> Counter[str]: ...
    @property
    def cluster(self) -> ClusterState: ...


class ClientCore(Protocol):
    """Either client's core, as far as the numbers below look into it."""

    @property
    def wiring(self) -> ClientContext: ...


CoreT = TypeVar("CoreT")


class Metric(NamedTuple, Generic[CoreT]):
    """One number: what it says, and where it comes from: a function of the core and its time in ms."""

    text: str
    read: Callable[[CoreT, int], float]


def count(name: str) -> Callable[[ClientCore, int], float]:
    """One of the core's own counters."""
    return lambda core, steady_ms: core.wiring.counts[name]


def metadata_age_s(core: ClientCore, steady_ms: int) -> float:
    """Seconds since the last answer about the cluster; -1 before the first."""
    updated_ms = core.wiring.cluster.updated_ms
    return -1.0 if updated_ms is None else (steady_ms - updated_ms) / 1000


def read_all(metrics: Mapping[str, Metric[CoreT]], core: CoreT, steady_ms: int) -> dict[str, float]:
    """Every metric by its name. With the client's lock held."""
    return {name: metric.read(core, steady_ms) for name, metric in metrics.items()}
