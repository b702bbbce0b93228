"""Cluster membership: stops and starts declared nodes at run time. Leaders move, in-sync sets shrink and grow, high watermarks wait.

A node that is shut down cleanly leaves every in-sync set immediately, as in Kafka's controlled shutdown. A node that stops abruptly stays
in them for `replica.lag.time.max.ms`, like a follower that no longer fetches. In the meantime appended data is not on every in-sync
replica, so the high watermarks of its partitions do not advance and writes with acks=all wait (`acknowledgement.py`).

A node that starts again leads nothing at first. After `leader.imbalance.check.interval.seconds` leaderships return to the preferred
replicas, unless `auto.leader.rebalance.enable` is off.

A partition's leader epoch must not go back after a restart, or clients would take new metadata for outdated. The epoch rises by at most one
with each change of the nodes, so the number of changes, stored in the journal, is an upper bound. Opening a data directory with a
different number of nodes is such a change.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from contextlib import suppress
from typing import Final

from chaffinch.broker.core.configs.dynamic_settings import DynamicSettings
from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.replicas.declared_replicas import DeclaredNodes
from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.errors import ConfigException
from chaffinch.identifiers import pluralize
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.journal import Journal

COORDINATORS: Final = "coordinators"
"""Additional key of every delayed response at a coordinator: a group's coordinator may move when a node starts or stops."""

_CHANGES_KEY = b"node.changes"
_COUNT_KEY = b"node.count"


def first_epoch(journal: Journal, node_count: int) -> int:
    """The initial leader epoch of all partitions in this run of the broker. If it cannot be stored on a full disk, the first change stores
    it.
    """
    stored = journal.items()
    changes, count = int(stored.get(_CHANGES_KEY, b"0")), b"%d" % node_count
    if changes or stored.get(_COUNT_KEY, count) != count:
        changes += 1
    news = {_CHANGES_KEY: b"%d" % changes, _COUNT_KEY: count} if changes else {_COUNT_KEY: count}
    if any(stored.get(key) != value for key, value in news.items()):
        with suppress(StorageError):
            journal.put(news)
    return changes


class ClusterMembership:
    """See the module docstring. A scheduled task: lagging nodes leave the in-sync sets, leaderships return. `changed_keys` collects the
    partitions whose leader or high watermark moved, and COORDINATORS.
    """

    def __init__(
        self, nodes: DeclaredNodes, topics: TopicRegistry, settings: DynamicSettings, journal: Journal, changed_keys: list[Hashable]
    ) -> None:
        self._nodes = nodes
        self._topics = topics
        self._settings = settings
        self._journal = journal
        self._changed_keys = changed_keys
        self._balance_at_ms: int | None = None

    def stop(self, node_id: int, steady_ms: int, *, abruptly: bool = False) -> None:
        """Stop a node. A node that is already stopped leaves the in-sync sets immediately, unless `abruptly`.

        Raises ConfigException for a node that does not exist, StorageError.
        """
        self.check(node_id)
        is_change = node_id not in self._nodes.stopped
        if is_change:
            self._count_change()
            self._nodes.stopped.add(node_id)
        if not abruptly:
            self._nodes.lagging.pop(node_id, None)
        elif is_change:
            self._nodes.lagging[node_id] = steady_ms + self._settings["replica.lag.time.max.ms"]
        self._follow()

    def start(self, node_id: int, steady_ms: int) -> None:
        """Start a node; it is in sync again. Has no effect on a running node. Raises the errors of `stop`."""
        self.check(node_id)
        if node_id in self._nodes.stopped:
            self._count_change()
            self._nodes.stopped.discard(node_id)
            self._nodes.lagging.pop(node_id, None)
            self._follow()
            if self._settings["auto.leader.rebalance.enable"]:
                self._balance_at_ms = steady_ms + 1000 * self._settings["leader.imbalance.check.interval.seconds"]

    def elect(self, partition: Partition, leader: int) -> None:
        """Make another, running node the leader of a partition. If it was out of sync, it becomes in sync. Raises StorageError."""
        self._count_change()
        partition.replicas.elect(leader)
        self._follow_one(partition, self._nodes.live_ids)
        self._changed_keys.append(partition.topic_partition)

    def check(self, node_id: int) -> None:
        """Raises ConfigException for a node that does not exist."""
        if not 0 <= node_id < len(self._nodes.nodes):
            last = len(self._nodes.nodes) - 1
            raise ConfigException(f"node {node_id} does not exist: this broker has {'node 0 only' if last == 0 else f'nodes 0 to {last}'}")

    @property
    def next_deadline_ms(self) -> int | None:
        if self._balance_at_ms is None and not self._nodes.lagging:
            return None
        return min([*self._nodes.lagging.values(), *([] if self._balance_at_ms is None else [self._balance_at_ms])])

    def run_due(self, steady_ms: int) -> Sequence[str | LogLine]:
        gone = [node_id for node_id, leaves_at_ms in self._nodes.lagging.items() if leaves_at_ms <= steady_ms]
        for node_id in gone:
            del self._nodes.lagging[node_id]
        if gone:
            self._follow()
        lines: list[str | LogLine] = []
        lines += [f"node {node_id} has been stopped for replica.lag.time.max.ms and leaves the in-sync sets" for node_id in gone]
        if self._balance_at_ms is not None and steady_ms >= self._balance_at_ms:
            self._balance_at_ms = None
            lines += self._balance(steady_ms)
        return lines

    def _balance(self, steady_ms: int) -> list[LogLine]:
        """Return leaderships to the preferred replicas."""
        live = self._nodes.live_ids
        moving = [partition for partition in self._topics.partitions() if partition.replicas.prefers(live)]
        if not moving:
            return []
        try:
            self._count_change()
        except StorageError:
            self._balance_at_ms = steady_ms + 1000 * self._settings["leader.imbalance.check.interval.seconds"]
            return []
        for partition in moving:
            partition.replicas.elect(partition.replicas.assigned[0])
            self._changed_keys.append(partition.topic_partition)
        return [LogLine(f"leadership of {pluralize(len(moving), 'partition')} returned to the preferred replica", is_routine=True)]

    def _count_change(self) -> None:
        changes = max(int(self._journal.get(_CHANGES_KEY) or b"0"), self._nodes.first_epoch)
        self._journal.put({_CHANGES_KEY: b"%d" % (changes + 1), _COUNT_KEY: b"%d" % len(self._nodes.nodes)})

    def _follow(self) -> None:
        """Adjust all partitions to the running nodes."""
        self._changed_keys.append(COORDINATORS)
        live = self._nodes.live_ids
        for partition in self._topics.partitions():
            before = partition.replicas.leader
            if self._follow_one(partition, live) or partition.replicas.leader != before:
                self._changed_keys.append(partition.topic_partition)

    def _follow_one(self, partition: Partition, live: Container[int]) -> bool:
        """Adjust one partition. Returns whether its high watermark was held or released."""
        replicas = partition.replicas
        was_held = replicas.is_held
        replicas.follow(live, self._nodes.lagging)
        if replicas.is_held and not was_held:
            partition.log.high_watermark = partition.log.log_end_offset
        elif was_held and not replicas.is_held:
            partition.log.high_watermark = None
        return replicas.is_held != was_held
