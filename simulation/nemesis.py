"""Nemesis (Jepsen's word): injects faults other than those of the network.

The faults: broker deaths, immediately or inside a later disk operation; nodes that stop, so that other nodes lead their partitions; full
disks; killed clients; a wall clock that is set; and the administrator's changes to topics. Works until `stop`, which begins the quiet
phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.administrator import Administrator
from simulation.brokers.broker_process import BrokerProcess
from simulation.brokers.disk import Death
from simulation.report import CRASHES
from simulation.world import World

ARMED_OPERATIONS_MAX = 60
FULL_BYTES_MAX = 3_000
FULL_MS_MAX = 1_200
CLOCK_AHEAD_MS_MAX = 1_800_000
"""Largest step, forward or back: half of `message.timestamp.after.max.ms`, so that good records stay good."""
NODE_DOWN_MS_MAX = 2_500
UP_AGAIN_MS = 5
"""Interval of checks for a broker that is to die."""
ARMED_START_OPERATIONS_MAX = 12
"""A start does few mutating disk operations: an armed death happens within them, or soon after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSchedule:
    """Rates of faults: mean time between two of a kind in ms, 0 for never; shares are fractions of broker deaths."""

    broker_death_ms: int = 0
    client_death_ms: int = 0
    zombie_ms: int = 0
    full_disk_ms: int = 0
    clock_step_ms: int = 0
    node_stop_ms: int = 0
    recreate_ms: int = 0
    """A topic is deleted and created again."""
    twin_ms: int = 0
    """A second process gets a member's group.instance.id."""
    trim_ms: int = 0
    """A log loses its oldest records."""
    first_death_ms: int = 0
    """One guaranteed broker death while there is work, at this time. If the broker is down then and has not crashed yet, it dies once it is
    up."""
    in_operation_share: float = 0.5
    clean_stop_share: float = 0.15
    power_loss_share: float = 0.0
    """Only with flush.policy=always."""
    dies_starting_share: float = 0.1


class Nemesis:
    """Injects the faults of a schedule. `kills`: per client, ends its process, which restarts later. `replacements`: starts a second
    process. `twins`: the same for a group member, under the same group.instance.id."""

    def __init__(
        self,
        world: World,
        fault_schedule: FaultSchedule,
        broker: BrokerProcess,
        administrator: Administrator,
        kills: Sequence[Callable[[], None]],
        replacements: Sequence[Callable[[], None]],
        twins: Sequence[Callable[[], None]],
    ) -> None:
        self._world = world
        self._fault_schedule = fault_schedule
        self._broker = broker
        self._administrator = administrator
        self._is_over = False
        self._plan(fault_schedule.broker_death_ms, self._kill_broker)
        self._plan(fault_schedule.client_death_ms, lambda: world.rng.choice(kills)())
        self._plan(fault_schedule.full_disk_ms, self._fill_disk)
        self._plan(fault_schedule.clock_step_ms, self._set_clock)
        self._plan(fault_schedule.node_stop_ms, self._stop_node)
        if fault_schedule.first_death_ms:
            world.after(fault_schedule.first_death_ms, self._kill_once)
        self._plan(fault_schedule.recreate_ms, administrator.delete_topic)
        self._plan(fault_schedule.trim_ms, administrator.trim)
        self._plan(fault_schedule.zombie_ms, lambda: world.rng.choice(replacements)())
        if twins:
            self._plan(fault_schedule.twin_ms, lambda: world.rng.choice(twins)())

    def stop(self) -> None:
        self._is_over = True
        self._broker.disk.disarm()
        self._broker.disk.empty()
        self._broker.start_nodes()
        self._administrator.stop()

    @property
    def owes_a_death(self) -> bool:
        """Whether the guaranteed death is still to come."""
        return self._fault_schedule.first_death_ms > 0 and not any(self._world.counters[name] for name in CRASHES)

    def _kill_once(self) -> None:
        if self._broker.core is None and self.owes_a_death:
            self._world.after(UP_AGAIN_MS, self._kill_once)
        elif not self._is_over:
            self._broker.die(Death.POWER_LOST if self._world.chance(self._fault_schedule.power_loss_share) else Death.KILLED)

    def _stop_node(self) -> None:
        rng = self._world.rng
        self._broker.stop_node(rng.choice(self._broker.nodes).id, abruptly=rng.random() < 0.5)
        self._world.after(rng.randint(1, NODE_DOWN_MS_MAX), self._broker.start_nodes)

    def _set_clock(self) -> None:
        rng = self._world.rng
        size_ms = rng.choice((1_000, 60_000, CLOCK_AHEAD_MS_MAX))
        self._world.count("clock steps")
        self._broker.set_wall_clock(rng.randint(-size_ms, size_ms))

    def _fill_disk(self) -> None:
        disk, rng = self._broker.disk, self._world.rng
        disk.fill(rng.choice((0, rng.randint(0, FULL_BYTES_MAX))))
        self._world.after(rng.randint(1, FULL_MS_MAX), disk.empty)

    def _plan(self, mean_ms: int, inject: Callable[[], None]) -> None:
        if mean_ms and not self._is_over:
            self._world.after(self._world.rng.randint(1, 2 * mean_ms), lambda: self._do(mean_ms, inject))

    def _do(self, mean_ms: int, inject: Callable[[], None]) -> None:
        if not self._is_over:
            inject()
            self._plan(mean_ms, inject)

    def _kill_broker(self) -> None:
        world, fault_schedule, rng = self._world, self._fault_schedule, self._world.rng
        death = Death.POWER_LOST if world.chance(fault_schedule.power_loss_share) else Death.KILLED
        if self._broker.core is None:
            if world.chance(fault_schedule.dies_starting_share):
                self._broker.disk.arm(rng.randrange(ARMED_START_OPERATIONS_MAX), death)
        elif world.chance(fault_schedule.in_operation_share):
            self._broker.disk.arm(rng.randrange(ARMED_OPERATIONS_MAX), death)
        elif world.chance(fault_schedule.clean_stop_share):
            self._broker.die(Death.STOPPED)
        else:
            self._broker.die(death)
