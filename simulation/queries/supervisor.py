"""Supervisor of a query: keeps its drivers running and chooses where cuts are injected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.spark.commit.operations import Operation, Step
from simulation.network import Network
from simulation.queries.cuts import Cut, CutKind
from simulation.queries.query import Query
from simulation.queries.query_driver import Driver
from simulation.world import World

RESTART_MS_MAX: Final = 1_000
RUNS_MAX: Final = 60
"""A query that needs more drivers than this is stuck."""


class Supervisor:
    """Keeps one driver running until the query is done; more than one if a cut requires it."""

    def __init__(
        self,
        world: World,
        network: Network,
        bootstrap: Sequence[Address],
        query: Query,
        *,
        cuts: Sequence[Cut] = (),
        cut_broker: Callable[[CutKind], None] | None = None,
    ) -> None:
        self.query = query
        self.run_count = 0
        self._world = world
        self._network = network
        self._bootstrap = bootstrap
        self._cuts = list(cuts)
        self._has_cuts = bool(cuts)
        self._cut_broker = cut_broker or (lambda _kind: None)
        self._occurrences = 0
        self._live: list[Driver] = []
        self._is_starting = False

    @property
    def is_done(self) -> bool:
        return self.query.is_done and not self._live

    def start(self) -> None:
        """Start one more driver."""
        self._is_starting = False
        if self.query.is_done and self.run_count:
            return
        self.run_count += 1
        assert self.run_count <= RUNS_MAX, f"{self.query.name} is not done after {RUNS_MAX} drivers: {self.query.refusals[-3:]}"
        actor = f"{self.query.name}.{self.run_count}"
        self._world.log(actor, "starts")
        driver = Driver(self._world, self._network, self._bootstrap, self, actor)
        self._live.append(driver)
        driver.next_batch()

    def ended(self, driver: Driver) -> None:
        """A driver is gone, for whatever reason: start another one unless the query is done."""
        self._live.remove(driver)
        if not self._live and not self.query.is_done and not self._is_starting:
            self._is_starting = True
            self._world.after(self._world.rng.randint(1, RESTART_MS_MAX), self.start)

    @property
    def name(self) -> str:
        return self.query.name

    def kill(self) -> None:
        """SIGKILL to the newest running driver, if there is one."""
        if self._live:
            self._world.count("drivers killed")
            self._live[-1].die("killed")

    def start_replacement(self) -> None:
        """Start another driver from the same checkpoint while one runs."""
        if self._live:
            self._world.count("second drivers")
            self.start()

    def cut_due(self, operation: Operation) -> Cut | None:
        """The next cut, if it applies to this operation. Cuts happen one after the other."""
        if not self._cuts or not self._cuts[0].matches(operation):
            return None
        self._occurrences += 1
        if self._occurrences <= self._cuts[0].occurrence:
            return None
        self._occurrences = 0
        return self._cuts.pop(0)

    def made(self, kind: CutKind, step: Step) -> None:
        """A cut has had its effect."""
        self._world.log(self.query.name, f"cut at {step.value}: {kind.value}")
        self._world.count(f"cut: {kind.value}")
        if len(self._live) > 1:
            self._world.count("cuts with another driver running")

    def batch_finished(self, outcome: str) -> None:
        """A batch has its outcome."""
        self._world.count(f"batches {outcome}")
        if self._has_cuts and not self._cuts:
            self._world.count(f"after the cuts: {outcome}")

    def cut_broker(self, kind: CutKind) -> None:
        self._cut_broker(kind)
