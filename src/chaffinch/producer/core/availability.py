"""Which partitions can be written now, and how much waits for each: what the partitioner asks.

Source: RecordAccumulator.java, `updatePartitionLoadInfo` and `partitionAvailabilityTimeoutMs` (KIP-794).
"""

from __future__ import annotations

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.wiring import Wiring
from chaffinch.settings import Settings


class Availability:
    """`now_ms` is set by the core at each round."""

    def __init__(self, settings: Settings, wiring: Wiring, accumulator: Accumulator) -> None:
        self.now_ms = 0
        self._wiring = wiring
        self._accumulator = accumulator
        is_adaptive = settings["partitioner.adaptive.partitioning.enable"]
        self._timeout_ms: int = settings["partitioner.availability.timeout.ms"] if is_adaptive else 0

    def partitions(self, topic: str) -> list[int]:
        """Partitions that have a leader which has taken what is ready for it in time."""
        state = self._wiring.cluster.topic(topic)
        hanging = self._hanging_leaders()
        return [] if state is None else [i for i, p in sorted(state.partitions.items()) if p.leader_id >= 0 and p.leader_id not in hanging]

    def _hanging_leaders(self) -> set[int | None]:
        """Nodes for which something has been ready longer than `partitioner.availability.timeout.ms`."""
        if not self._timeout_ms:
            return set()
        ready = ((tp, self._accumulator.ready_at_ms(tp)) for tp in self._accumulator.partitions())
        late_ms = self.now_ms - self._timeout_ms
        return {self._wiring.cluster.leader_of(tp) for tp, ready_at_ms in ready if ready_at_ms is not None and ready_at_ms < late_ms}

    def loads(self, topic: str) -> tuple[list[int], list[int]]:
        """Partitions that can be written now, and how many batches wait for each."""
        partitions = self.partitions(topic)
        return partitions, [self._accumulator.waiting_count(TopicPartition(topic, partition)) for partition in partitions]
