"""Which partition a record goes to: the key's hash as in Java, and for records without a key one partition until its batch is full.

Source: BuiltInPartitioner.java (KIP-480, KIP-794): murmur2 of the key; null keys stick to a partition, so that batches fill up, and move
on to another with the next batch, chosen by chance among the partitions that have a leader. The dice are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from chaffinch.client.backoff import Dice
from chaffinch.records.byte_columns import ByteColumn
from chaffinch.records.columns import RecordColumns

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, 32 bits, not negative. Source: Utils.java, `murmur2`; for single keys, columns have a compiled loop."""
    length = len(key)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if length > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, as every Java producer chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner:
    """Chooses partitions; remembers per topic where records without a key go now."""

    __slots__ = ("_dice", "_ignores_keys", "_sticky")

    def __init__(self, dice: Dice, *, ignores_keys: bool = False) -> None:
        self._dice = dice
        self._ignores_keys = ignores_keys
        self._sticky: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, partition_count: int, with_leader: Callable[[], Sequence[int]]) -> int:
        """The partition for one record. `with_leader`: which can be written now; when there are none, any will do."""
        if key is not None and not self._ignores_keys:
            return partition_of_key(key, partition_count)
        partition = self._sticky.get(topic)
        if partition is None or partition >= partition_count:
            partition = self._sticky[topic] = self._roll(partition_count, with_leader())
        return partition

    def batch_full(self, topic: str, partition: int) -> None:
        """A batch of this partition is full: records without a key move on."""
        if self._sticky.get(topic) == partition:
            del self._sticky[topic]

    def choose_for_columns(
        self, columns: RecordColumns, partition_count: int, with_leader: Sequence[int], batch_bytes: int
    ) -> npt.NDArray[np.int32]:
        """The partition of each record. Those without a key go, in order, `batch_bytes` at a time to one partition after the other."""
        if self._ignores_keys:
            nobody = ByteColumn.nulls(columns.count)
            partitions = np.full(nobody.length, -1, np.int32)
        else:
            partitions = columns.murmur2_partitions(partition_count)
        keyless = np.flatnonzero(partitions < 0)
        if len(keyless):
            sizes = (columns.value_offsets[1:] - columns.value_offsets[:-1])[keyless]
            turns = np.cumsum(sizes) // max(1, batch_bytes)
            candidates = np.array(with_leader or range(partition_count), np.int32)
            first = int(self._dice.random() * len(candidates))
            partitions[keyless] = candidates[(first + turns) % len(candidates)]
        return partitions

    def _roll(self, partition_count: int, with_leader: Sequence[int]) -> int:
        candidates = with_leader or range(partition_count)
        return candidates[int(self._dice.random() * len(candidates))]
