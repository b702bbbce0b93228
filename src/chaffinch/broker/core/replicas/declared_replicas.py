"""Declared nodes and replicas: one process simulates a cluster of N nodes.

Topics have replicas on declared nodes, a leader and an in-sync set; the data is stored once. A stopped node loses its leaderships and
leaves every in-sync set, immediately or, if it stopped abruptly, after `replica.lag.time.max.ms`. NOT_ENOUGH_REPLICAS and
NOT_LEADER_OR_FOLLOWER are therefore real errors. Durability across machines is not provided; that is Apache Kafka's job.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A declared node with its advertised address. `listens_at`: HOST:PORT of its listener, if different."""

    id: int
    host: str
    port: int
    listens_at: str = ""

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True, kw_only=True)
class Replicas:
    """The replicas of a partition.

    `assigned`: in order of preference; `in_sync`: in the same order; `leader`: NO_LEADER if none is available. `is_held`: a member of the
    in-sync set lags, so the high watermark does not advance. Without any running replica the in-sync set keeps its last members, as in
    Kafka: the first of them to return becomes the leader.
    """

    assigned: tuple[int, ...]
    in_sync: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    is_held: bool = False

    def __post_init__(self) -> None:
        self.in_sync = self.in_sync or self.assigned
        if self.leader == NO_LEADER:
            self.leader = self.in_sync[0]

    def elect(self, leader: int) -> None:
        """Set the leader and raise the epoch. A leader that is out of sync is possible only without another leader; it then is the whole
        in-sync set.
        """
        self.leader = leader
        self.leader_epoch += 1
        if leader != NO_LEADER and leader not in self.in_sync:
            self.in_sync = (leader,)

    def follow(self, live: Container[int], lagging: Container[int] = ()) -> None:
        """Adjust leader and in-sync set to the running nodes. A new leader raises the epoch.

        `lagging` nodes have stopped, but this is not noticed yet: they stay in the in-sync set.
        """
        electable = [member for member in self.in_sync if member in live]
        leader = self.leader if self.leader in electable else electable[0] if electable else NO_LEADER
        if leader != self.leader:
            self.elect(leader)
        if electable:  # Data is stored once, so every running replica has all of it while there is a leader.
            self.in_sync = tuple(member for member in self.assigned if member in live or (member in self.in_sync and member in lagging))
        self.is_held = any(member in lagging for member in self.in_sync)

    def prefers(self, live: Container[int]) -> bool:
        """Whether another node leads although the preferred replica could."""
        first = self.assigned[0]
        return self.leader not in (first, NO_LEADER) and first in self.in_sync and first in live


@dataclass(slots=True)
class DeclaredNodes:
    """The nodes of the cluster and their states. Node ids are 0, 1, 2, ...

    `lagging`: stopped nodes that are still in in-sync sets, with the time (ms) when they leave them. `first_epoch`: the initial leader
    epoch of partitions in this run of the broker, above all earlier ones.
    """

    nodes: Sequence[Node]
    stopped: set[int] = field(default_factory=set)
    lagging: dict[int, int] = field(default_factory=dict)
    first_epoch: int = 0

    @property
    def live_ids(self) -> set[int]:
        return {node.id for node in self.nodes} - self.stopped

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes if node.id not in self.stopped]

    def state_of(self, node_id: int) -> str:
        """`running`, `stopped`, or `lagging`: stopped, but still in in-sync sets."""
        return "lagging" if node_id in self.lagging else "stopped" if node_id in self.stopped else "running"

    @property
    def controller_id(self) -> int:
        return min((node.id for node in self.live), default=NO_LEADER)

    def by_id(self, node_id: int) -> Node | None:
        return next((node for node in self.live if node.id == node_id), None)

    def coordinator_of(self, key: str) -> Node | None:
        """The coordinator node of a group or a transactional id: always the same node, or the next running one while it is stopped."""
        first = sum(key.encode())
        ring = (self.nodes[(first + step) % len(self.nodes)] for step in range(len(self.nodes)))
        return next((node for node in ring if node.id not in self.stopped), None)

    def assign(self, partition_count: int, replication_factor: int, first_node: int) -> list[tuple[int, ...]]:
        """Distribute replicas and leaders over all nodes, shifted by one node per partition, starting at `first_node`.

        `replication_factor` is at most the number of nodes.
        """
        ids = [node.id for node in self.nodes]
        return [
            tuple(ids[(first_node + partition + replica) % len(ids)] for replica in range(replication_factor))
            for partition in range(partition_count)
        ]
