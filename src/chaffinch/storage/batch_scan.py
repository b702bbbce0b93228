"""Sequential scan of the record batches of one file, shared by recovery and journal replay.

After a crash a file holds valid batches, then at most one torn write. The scan yields the valid batches and stops at the first byte that is
not a whole batch with the right CRC and the right offset. `batch_search` then decides whether that is a torn end or damage in the middle: a
torn write is the last one, so no whole batch can follow it.
"""

from collections.abc import Iterator

from chaffinch.records.batch_header import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, BatchView, unpack_header
from chaffinch.storage.files import File

CHUNK_BYTES = 4 << 20  # Large enough that a read is cheap next to the CRC, small enough for the processor's cache.


class BatchScan:
    """One pass over `file` from `position`, where the batch of offset `offset` is expected, to `end` (default: the file's end).

    Iterating yields (position, batch); each view is invalid after the next step. Afterwards `position` and `offset` are where the scan
    stopped, and `damage` is why it stopped before the end (None: it reached the end). Offsets below `gaps_below` may be missing, because
    compaction removes some.
    """

    def __init__(self, file: File, position: int, offset: int, *, end: int | None = None, gaps_below: int = 0) -> None:
        self.position = position
        self.offset = offset
        self.damage: str | None = None
        self._file = file
        self._end = file.size if end is None else end
        self._gaps_below = gaps_below

    def __iter__(self) -> Iterator[tuple[int, BatchView]]:
        chunk, start = memoryview(b""), self.position
        while self.position < self._end:
            at = self.position - start
            needed = HEADER_BYTES
            if len(chunk) - at >= needed:
                header = unpack_header(chunk, at)
                self.damage = self._fault(header)
                if self.damage is not None:
                    return
                needed = header.length + LENGTH_END
                if len(chunk) - at >= needed:
                    view = BatchView(chunk[at : at + needed], header)
                    if not view.crc_is_valid():
                        self.damage = f"the batch of offset {header.base_offset} does not match its CRC"
                        return
                    position, self.position = self.position, self.position + needed
                    self.offset = header.last_offset + 1
                    yield position, view
                    continue
            if self._end - self.position < needed:
                self.damage = f"the batch of offset {self.offset} ends after {self._end - self.position} bytes"
                return
            start = self.position
            chunk = memoryview(self._file.read(start, min(max(needed, CHUNK_BYTES), self._end - start)))

    def _fault(self, header: BatchHeader) -> str | None:
        """The fault of the header, except for its CRC; None if there is none. Fields that decide how much is read are checked first."""
        if header.magic != MAGIC:
            return f"magic {header.magic} where a batch of format {MAGIC} is expected"
        if header.length + LENGTH_END < HEADER_BYTES or header.last_offset_delta < 0:
            return f"a batch of length {header.length} with {header.last_offset_delta + 1} offsets"
        if header.base_offset == self.offset or self.offset < header.base_offset < self._gaps_below:
            return None
        return f"the batch of offset {header.base_offset} is where offset {self.offset} is expected"
