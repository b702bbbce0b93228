"""Partitioner: chooses the partition of a record by the hash of its key as in Java, round-robin, or with a user's function.

Source: BuiltInPartitioner.java (KIP-480, KIP-794), RoundRobinPartitioner.java. Records without a key stick to one partition until it has
got `batch.size` bytes, so that batches fill up. Then another partition is chosen at random, with less weight for partitions with more
waiting batches (adaptive). The random source is passed in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, islice
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from chaffinch.client.backoff import Rng
from chaffinch.client.plugins import callable_name
from chaffinch.identifiers import TopicPartition, format_partitions
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES, Accumulator
from chaffinch.producer.core.context import ProducerContext
from chaffinch.records import kernels
from chaffinch.records.columns import RecordColumns
from chaffinch.settings import Settings

Partitions: TypeAlias = npt.NDArray[np.int32]
Rule: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int | None]
"""A user's function of topic, key, value and number of partitions; None leaves the choice to the key."""
Loads: TypeAlias = Callable[[str], tuple[Sequence[int], Sequence[int]]]
"""For a topic: the partitions that can be written now, and the number of batches that wait for each."""
BeginsBatch: TypeAlias = Callable[[str, int, int], bool]
"""For topic, partition and size: whether a record would begin a new batch, because none is growing or it does not fit."""

ROUND_ROBIN: Final = "round_robin"
MURMUR2: Final = "murmur2"
NO_STICKY_PARTITION: Final = (-1, 0)
FOR_COLUMNS: Final = "for_columns"
"""Name of a rule's optional method that chooses the partitions of all rows of a table at once."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, as in every Java producer. Source: Utils.java, `murmur2` and `toPositive`."""
    return (kernels.choose(1).murmur2_of_key(key, len(key)) & 0x7FFFFFFF) % partition_count


class Availability:
    """Which partitions can be written now, and how much waits for each. `steady_ms` is set by the core at each round.

    Source: RecordAccumulator.java, `updatePartitionLoadInfo` and `partitionAvailabilityTimeoutMs` (KIP-794).
    """

    def __init__(self, settings: Settings, context: ProducerContext, accumulator: Accumulator) -> None:
        self.steady_ms = 0
        self._context = context
        self._accumulator = accumulator
        is_adaptive = settings["partitioner.adaptive.partitioning.enable"]
        self._timeout_ms: int = settings["partitioner.availability.timeout.ms"] if is_adaptive else 0

    def partitions(self, topic: str) -> list[int]:
        """Partitions whose leader is known and has accepted ready batches in time."""
        state = self._context.cluster.topic(topic)
        hanging = self._hanging_leaders()
        return [] if state is None else [i for i, p in sorted(state.partitions.items()) if p.leader_id >= 0 and p.leader_id not in hanging]

    def _hanging_leaders(self) -> set[int | None]:
        """Nodes with a batch that has been ready longer than `partitioner.availability.timeout.ms`."""
        if not self._timeout_ms:
            return set()
        ready = ((tp, self._accumulator.ready_at_ms(tp)) for tp in self._accumulator.partitions())
        late_ms = self.steady_ms - self._timeout_ms
        return {self._context.cluster.leader_of(tp) for tp, ready_at_ms in ready if ready_at_ms is not None and ready_at_ms < late_ms}

    def loads(self, topic: str) -> tuple[list[int], list[int]]:
        """Partitions that can be written now, and the number of batches that wait for each."""
        partitions = self.partitions(topic)
        return partitions, [self._accumulator.waiting_count(TopicPartition(topic, partition)) for partition in partitions]


class Partitioner:
    """Chooses partitions. Remembers the sticky partition, or the round-robin position, of each topic."""

    def __init__(
        self,
        rng: Rng,
        loads: Loads,
        *,
        batch_bytes: int,
        rule: Rule | str = MURMUR2,
        ignores_keys: bool = False,
        is_adaptive: bool = True,
    ) -> None:
        self._rng = rng
        self._loads = loads
        self.batch_bytes = batch_bytes
        self._rule = rule
        self._ignores_keys = ignores_keys
        self.hashes_keys = rule == MURMUR2 and not ignores_keys
        """Whether the key alone decides, if there is one."""
        self._is_sticky = rule == MURMUR2
        self.has_function = callable(rule)
        """Whether a user's function decides first."""
        self._is_adaptive = is_adaptive
        self._sticky: dict[str, tuple[int, int]] = {}
        """The sticky partition of each topic, and the bytes that it has got."""
        self._turns: dict[str, int] = {}
        self._weights: dict[str, tuple[Sequence[int], list[int]]] = {}

    def uses_sticky_partition(self, key: bytes | None) -> bool:
        """Whether a record with this key goes to the sticky partition."""
        return self._is_sticky and (key is None or self._ignores_keys)

    def call_function(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int | None:
        """Call the user's function for one record. Call it without any lock, because it may be slow, or call the producer.

        Raises ValueError if the result is not a partition.
        """
        assert callable(self._rule), "only if `has_function`"
        with _named(self._rule, topic):
            chosen = self._rule(topic, key, value, partition_count)
        return None if chosen is None else _checked(chosen, self._rule, topic, partition_count)

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, size: int, begins_batch: BeginsBatch) -> int:
        """Choose the partition of one record of `size` bytes, after the user's function, if there is one, has left the choice open."""
        if self._rule == ROUND_ROBIN:
            turn = self._turns.get(topic, 0)
            self._turns[topic] = turn + 1
            candidates = self._loads(topic)[0] or range(partition_count)
            return candidates[turn % len(candidates)]
        if key is not None and not self._ignores_keys:
            return partition_of_key(key, partition_count)
        partition, produced = self._sticky.get(topic, NO_STICKY_PARTITION)
        has_enough = produced + size > self.batch_bytes and begins_batch(topic, partition, size)
        if partition < 0 or partition >= partition_count or has_enough:
            partition, produced = self._next_sticky_partition(topic, partition_count), BATCH_OVERHEAD_BYTES
        self._sticky[topic] = partition, produced + size
        return partition

    def count(self, topic: str, size: int) -> None:
        """Count `size` bytes that went to the sticky partition without a call of `choose`."""
        partition, produced = self._sticky.get(topic, NO_STICKY_PARTITION)
        self._sticky[topic] = partition, produced + size

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted and created again."""
        self._sticky.pop(topic, None)
        self._turns.pop(topic, None)

    def loads_changed(self) -> None:
        """The number of waiting batches has changed: the next choice computes new weights."""
        self._weights.clear()

    def choose_for_columns(
        self,
        topic: str,
        columns: RecordColumns,
        partition_count: int,
        with_leader: Sequence[int],
        batch_bytes: int,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> Partitions:
        """The partition of each record. Records without a key go in order to one partition after the other, up to `batch_bytes` to each.

        `with_leader`: partitions that can be written now; if empty, any partition. `sizes`: sizes of the records, if they are known.
        """
        candidates = np.array(with_leader or range(partition_count), np.int32)
        if self._rule == ROUND_ROBIN:
            turn = self._turns.get(topic, 0)
            self._turns[topic] = turn + columns.count
            return candidates[(turn + np.arange(columns.count)) % len(candidates)]
        if self.spreads(columns):
            return self._spread(candidates, columns.sizes() if sizes is None else sizes, batch_bytes)
        partitions = _of_rule(self._rule, topic, columns, partition_count) if callable(self._rule) else _undecided(columns.count)
        if not self._ignores_keys and (partitions < 0).any():
            partitions = np.where(partitions < 0, columns.murmur2_partitions(partition_count), partitions)
        keyless = np.flatnonzero(partitions < 0)
        if len(keyless):
            partitions[keyless] = self._spread(candidates, (columns.sizes() if sizes is None else sizes)[keyless], batch_bytes)
        return partitions

    def spreads(self, columns: RecordColumns) -> bool:
        """Whether these records go batch by batch to one partition after the other, independently of their content."""
        return self._is_sticky and (self._ignores_keys or (columns.key_valid is not None and not columns.key_valid.any()))

    def turns(self, partition_count: int, with_leader: Sequence[int]) -> Iterator[int]:
        """The partitions of the next batches in round-robin order, from a random start."""
        candidates = with_leader or range(partition_count)
        return islice(cycle(candidates), int(self._rng.random() * len(candidates)), None)

    def _spread(self, candidates: Partitions, sizes: npt.NDArray[np.int64], batch_bytes: int) -> Partitions:
        """Assign batches to one candidate after the other, from a random start."""
        counts = np.diff(cuts(np.cumsum(sizes), 0, len(sizes), batch_bytes))
        turns = int(self._rng.random() * len(candidates)) + np.arange(len(counts))
        return np.repeat(candidates[turns % len(candidates)], counts)

    def _next_sticky_partition(self, topic: str, partition_count: int) -> int:
        known = self._weights.get(topic)
        if known is None:
            partitions, waiting = self._loads(topic)
            most = max(waiting, default=0) if self._is_adaptive else 0
            weights = [most + 1 - count for count in waiting] if self._is_adaptive else [1] * len(partitions)
            known = self._weights[topic] = partitions, list(accumulate(weights))
        partitions, sums = known
        if not partitions:
            return int(self._rng.random() * partition_count)
        return partitions[bisect_right(sums, int(self._rng.random() * sums[-1]))]


def cuts(ends: npt.NDArray[np.int64], start: int, stop: int, batch_bytes: int) -> list[int]:
    """Start indices of batches of up to `batch_bytes` in records `start` to `stop`-1, and `stop`. A larger record gets its own batch.

    `ends`: cumulative sums of the records' sizes.
    """
    found = [start]
    while found[-1] < stop:
        before = int(ends[found[-1] - 1]) if found[-1] else 0
        cut = int(np.searchsorted(ends[found[-1] : stop], before + batch_bytes, side="right")) + found[-1]
        found.append(max(cut, found[-1] + 1))
    return found


def _undecided(count: int) -> Partitions:
    return np.full(count, -1, np.int32)


def _of_rule(rule: Rule, topic: str, columns: RecordColumns, partition_count: int) -> Partitions:
    """The user's function applied to each record, in one call if it can; -1 if it leaves the choice to the key."""
    decide: Callable[..., Any] | None = getattr(rule, FOR_COLUMNS, None)
    if decide is not None:
        with _named(rule, topic):
            chosen = np.asarray(decide(topic, columns, partition_count))
        if chosen.shape != (columns.count,) or not np.issubdtype(chosen.dtype, np.integer):
            what = f"{chosen.dtype} {chosen.shape} for {columns.count} records of {topic!r}"
            raise ValueError(f"{FOR_COLUMNS} of the partitioner {callable_name(rule)} returned {what}")
        beyond = np.flatnonzero((chosen < -1) | (chosen >= partition_count))
        if len(beyond):
            _checked(int(chosen[beyond[0]]), rule, topic, partition_count)
        return chosen.astype(np.int32)
    partitions = _undecided(columns.count)
    for index in range(columns.count):
        with _named(rule, topic):
            one = rule(topic, columns.key(index), columns.value(index), partition_count)
        if one is not None:
            partitions[index] = _checked(one, rule, topic, partition_count)
    return partitions


class _named:
    """Context manager that adds a note with the rule's name to exceptions: the caller of `send` may not know that there is a rule."""

    __slots__ = ("_rule", "_topic")

    def __init__(self, rule: Rule, topic: str) -> None:
        self._rule, self._topic = rule, topic

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(f"raised by the partitioner {callable_name(self._rule)}, which was called for a record of {self._topic!r}")


def _checked(chosen: object, rule: Rule, topic: str, partition_count: int) -> int:
    if not isinstance(chosen, int | np.integer) or isinstance(chosen, bool) or not 0 <= chosen < partition_count:
        words = format_partitions(partition_count)
        raise ValueError(f"the partitioner {callable_name(rule)} chose {chosen!r} for a record of {topic!r}, which has {words}")
    return int(chosen)
