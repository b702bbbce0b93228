"""Retention rules of log compaction: Kafka's `Cleaner` and `CleanedTransactionMetadata`, for format 2.

- The last record of each key stays.
- A tombstone stays until the delete horizon that its batch gets when the tombstone is first the only record of its key.
- The marker of a transaction without other records stays until such a horizon as well.
- Records of aborted transactions and records without a key are removed.
- A batch without records stays, empty, if it holds a producer's last sequence or the end of the log.

Pass batches in the order of the log.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import attrgetter

import numpy as np

from chaffinch.records.batch_header import ATTRIBUTE_DELETE_HORIZON, BatchHeader, BatchView
from chaffinch.records.control_batch import read_control
from chaffinch.records.key_filter import KeyedRecords, emptied, read_keys, retained
from chaffinch.storage.aborted_transactions import AbortedTransaction
from chaffinch.storage.files import BytesLike

ENTRY_BYTES = 150
"""Approximate memory of a dictionary entry without the bytes of its key."""
_NEVER_LATEST = 2**63 - 1
_BY_LAST_OFFSET = attrgetter("last_offset")


class LatestOffsets:
    """Key -> offset of its last record, for the batches added. `end_offset`: the offset after those batches."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.size_bytes = 0
        """Approximate memory used."""
        # A record without a key is never the last of its key, so it is removed.
        self._offsets: dict[bytes | None, int] = {None: _NEVER_LATEST}

    def add(self, records: KeyedRecords) -> None:
        offsets, count = self._offsets, len(records.keys)
        if count:
            before = len(offsets)
            offsets.update(zip(records.keys, records.offsets.tolist(), strict=True))
            offsets[None] = _NEVER_LATEST
            self.size_bytes += (len(offsets) - before) * (ENTRY_BYTES + records.key_bytes // count)

    def are_latest(self, records: KeyedRecords) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """For each record, whether no later record with its key was added; true for all from `end_offset` on."""
        found = np.fromiter(map(self._offsets.get, records.keys, repeat(-1)), np.int64, len(records.keys))
        return (records.offsets >= found) | (records.offsets >= self.end_offset)


class AbortedRanges:
    """Which batches belong to aborted transactions."""

    def __init__(self, entries: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for entry in sorted(entries, key=_BY_LAST_OFFSET):
            self._by_producer.setdefault(entry.producer_id, []).append(entry)

    def holds(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        entry = self._ending_from(header)
        return entry is not None and entry.first_offset <= header.base_offset

    def ended_by(self, header: BatchHeader) -> AbortedTransaction | None:
        """The transaction that this marker ends."""
        entry = self._ending_from(header)
        return entry if entry is not None and entry.last_offset == header.base_offset else None

    def _ending_from(self, header: BatchHeader) -> AbortedTransaction | None:
        """The producer's first aborted transaction that ends at this batch or later."""
        entries = self._by_producer.get(header.producer_id, [])
        index = bisect_left(entries, header.base_offset, key=_BY_LAST_OFFSET)
        return entries[index] if index < len(entries) else None


class Rules:
    """The rules for one pass over a log, at one wall time.

    `last_of_producers`: producer id -> (epoch, last offset of its last data batch, None if only a marker holds its epoch).
    """

    def __init__(
        self,
        latest: LatestOffsets,
        aborted: AbortedRanges,
        last_of_producers: Mapping[int, tuple[int, int | None]],
        *,
        wall_ms: int,
        delete_retention_ms: int,
        decompressed_bytes_max: int,
    ) -> None:
        self._latest = latest
        self._aborted = aborted
        self._last_of_producers = last_of_producers
        self._wall_ms = wall_ms
        self._horizon_ms = wall_ms + delete_retention_ms
        self._decompressed_bytes_max = decompressed_bytes_max
        self._has_data: set[int] = set()  # Producers of transactional batches since their last marker.

    def apply(self, view: BatchView, *, is_last: bool) -> BytesLike | None:
        """The bytes to write for the batch, `view.data` itself if it does not change; None if it is removed.

        `is_last`: offsets after it continue in another file, so a part of it must stay. Raises RecordsError.
        """
        if view.header.is_control:
            return self._marker(view, is_last)
        result = self._data(view)
        if result is None and (is_last or self._holds_last_sequence(view.header)):
            return view.data if not view.header.count else emptied(view)
        return result

    def note_marker(self, header: BatchHeader) -> AbortedTransaction | None:
        """Call for each marker before `apply`: returns the aborted transaction that it ends, if batches of it remain."""
        return self._aborted.ended_by(header) if header.producer_id in self._has_data else None

    def _data(self, view: BatchView) -> BytesLike | None:
        header = view.header
        if header.is_transactional:
            self._has_data.add(header.producer_id)
        if not header.count or self._aborted.holds(header):
            return None
        records = read_keys(view, self._decompressed_bytes_max)
        keeps = self._latest.are_latest(records)
        has_horizon = bool(header.attributes & ATTRIBUTE_DELETE_HORIZON)
        has_value = records.has_value != 0
        if has_horizon and self._wall_ms >= header.base_timestamp:
            keeps &= has_value | (records.offsets >= self._latest.end_offset)
        if not keeps.any():
            return None
        needs_horizon = not has_horizon and bool((keeps & ~has_value).any())
        if keeps.all() and not needs_horizon:
            return view.data
        return retained(view, records, keeps.view(np.uint8), self._horizon_ms if needs_horizon else None)

    def _marker(self, view: BatchView, is_last: bool) -> BytesLike | None:
        header = view.header
        if read_control(view)[0] is None:
            return view.data  # Of an unknown type: keep it.
        has_data = header.producer_id in self._has_data
        self._has_data.discard(header.producer_id)
        if has_data:
            return view.data
        if not header.attributes & ATTRIBUTE_DELETE_HORIZON:
            records = read_keys(view, self._decompressed_bytes_max)
            return retained(view, records, np.ones(header.count, np.uint8), self._horizon_ms)
        if self._wall_ms < header.base_timestamp or is_last or self._holds_last_epoch(header):
            return view.data
        return None

    def _holds_last_sequence(self, header: BatchHeader) -> bool:
        return header.has_producer_id and self._last_of_producers.get(header.producer_id, (0, None))[1] == header.last_offset

    def _holds_last_epoch(self, header: BatchHeader) -> bool:
        return self._last_of_producers.get(header.producer_id) == (header.producer_epoch, None)
