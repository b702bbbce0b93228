"""What a log's segments say about the times of their records: the latest, and where those from some time on begin (ListOffsets)."""

from collections.abc import Iterator, Sequence

from chaffinch.identifiers import NO_TIMESTAMP
from chaffinch.records.batch import BatchHeader, BatchView, decode
from chaffinch.storage.segment import Segment


class Timestamps:
    """Of the records from `log_start_offset` on in `segments`, which are the last ones of a log. Batches are decompressed up to
    `decompressed_bytes_max`. All methods raise StorageError."""

    __slots__ = ("_decompressed_bytes_max", "_log_start_offset", "_segments")

    def __init__(self, segments: Sequence[Segment], log_start_offset: int, decompressed_bytes_max: int) -> None:
        self._segments = segments
        self._log_start_offset = log_start_offset
        self._decompressed_bytes_max = decompressed_bytes_max

    def latest(self) -> int:
        """The largest one (ms); -1 while there is none."""
        segments = self._segments
        latest = max((segment.max_timestamp for segment in segments[1:]), default=NO_TIMESTAMP)
        if not segments or segments[0].max_timestamp <= latest:
            return latest
        if segments[0].base_offset >= self._log_start_offset:
            return segments[0].max_timestamp
        return max(latest, self._latest_left(segments[0]))

    def _latest_left(self, segment: Segment) -> int:
        """Of a segment whose first records were deleted."""
        latest = NO_TIMESTAMP
        for position, header in segment.headers(segment.position_of(self._log_start_offset)):
            if header.base_offset >= self._log_start_offset and header.count:
                latest = max(latest, header.max_timestamp)
            elif header.max_timestamp > latest:
                times = [found for offset, found in self._of_batch(segment, position, header) if offset >= self._log_start_offset]
                latest = max(times, default=latest)
        return latest

    def first_from(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp (ms) is `timestamp` or later; None if there is none."""
        for segment in self._segments:
            if segment.max_timestamp >= timestamp:
                for position, header in segment.headers(segment.index.floor_timestamp(timestamp)[1]):
                    if header.max_timestamp >= timestamp and header.last_offset >= self._log_start_offset:
                        found = self._first_in_batch(segment, position, header, timestamp)
                        if found is not None:
                            return found
        return None

    def _first_in_batch(self, segment: Segment, position: int, header: BatchHeader, timestamp: int) -> tuple[int, int] | None:
        for offset, found in self._of_batch(segment, position, header):
            if found >= timestamp and offset >= self._log_start_offset:
                return offset, found
        return None

    def _of_batch(self, segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
        """(offset, timestamp) of each record."""
        view = BatchView(memoryview(segment.log.read(position, header.size)), header)
        columns = decode(view, decompressed_bytes_max=self._decompressed_bytes_max)
        assert columns.offsets is not None, "decode gives every record its offset"
        return zip(columns.offsets.tolist(), columns.timestamps.tolist(), strict=True)
