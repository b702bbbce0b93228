"""Search for a whole record batch in damaged bytes: is the damage the torn end of a file, or in its middle?

After damage no length can be trusted, so a batch may begin at any byte. The bytes may come from a client that put thousands of headers into
a record. Each header claims a different size, and checking the CRCs one by one would read the file once per header. So the CRC of the file
is computed once and recorded wherever a claimed batch begins or ends. The CRC between two positions follows from those two values. The work
grows with the size of the file, whatever the file contains.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from chaffinch.records.batch_header import CHECKED_POSITION, CRC_POSITION, HEADER_BYTES, LENGTH_END, MAGIC, MAGIC_POSITION
from chaffinch.records.checksum import crc32c
from chaffinch.storage.files import File

Numbers = npt.NDArray[np.int64]
CHUNK_BYTES = 4 << 20
POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C, bits reversed."""
_OFFSETS_MAX = 2**32
_ATTRIBUTES_POSITION, _DELTA_POSITION, _COUNT_POSITION = 21, 23, 57
_KNOWN_ATTRIBUTES = 0x7F


def whole_batch_from(file: File, position: int, offset: int) -> int | None:
    """Position of the first whole batch that begins at `position` or later and has `offset` or a later one; None if there is none.

    Comparing the offset excludes batches inside a record's value: producers number theirs from 0.
    """
    found = [claims for claims in _claims(file, position, offset) if len(claims[0])]
    if not found:
        return None
    starts, sizes, crcs = (np.concatenate(parts) for parts in zip(*found, strict=True))
    firsts, ends = starts + CHECKED_POSITION, starts + sizes
    boundaries = np.unique(np.concatenate([firsts, ends]))
    crcs_at = np.fromiter(_crcs_up_to(file, position, boundaries), np.int64, len(boundaries))
    before, after = crcs_at[np.searchsorted(boundaries, firsts)], crcs_at[np.searchsorted(boundaries, ends)]
    whole = np.flatnonzero((after ^ _shifted_crcs(before, ends - firsts)) == crcs)
    return int(starts[whole[0]]) if len(whole) else None


def _claims(file: File, position: int, offset: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """(positions, sizes, CRCs) of every plausible header, chunk by chunk, in order."""
    start, end = position, file.size
    while end - start >= HEADER_BYTES:
        data = np.frombuffer(file.read(start, CHUNK_BYTES), np.uint8)
        at = np.flatnonzero(data[MAGIC_POSITION : len(data) - HEADER_BYTES + MAGIC_POSITION + 1] == MAGIC)
        base_offsets = _number(data, at, 0, 8)
        at = at[(base_offsets >= offset) & (base_offsets - offset < _OFFSETS_MAX)]
        sizes = _number(data, at, LENGTH_END - 4, 4) + LENGTH_END
        deltas, counts = _number(data, at, _DELTA_POSITION, 4), _number(data, at, _COUNT_POSITION, 4)
        is_plausible = (sizes >= HEADER_BYTES) & (sizes <= end - start - at) & (deltas >= 0) & (counts >= 0) & (counts <= deltas + 1)
        is_plausible &= (_number(data, at, _ATTRIBUTES_POSITION, 2) & ~_KNOWN_ATTRIBUTES) == 0
        at, sizes = at[is_plausible], sizes[is_plausible]
        yield at + start, sizes, _number(data, at, CRC_POSITION, 4) & 0xFFFFFFFF
        start += max(1, len(data) - HEADER_BYTES + 1)


def _number(data: npt.NDArray[np.uint8], at: Numbers, field: int, size: int) -> Numbers:
    """The signed big-endian number of `size` bytes at `field` bytes after each position."""
    value = data[at + field].astype(np.int8).astype(np.int64)
    for byte in range(1, size):
        value = (value << 8) | data[at + field + byte]
    return value


def _crcs_up_to(file: File, position: int, boundaries: Numbers) -> Iterator[int]:
    """The CRC of the bytes from `position` to each of `boundaries`, which ascend."""
    crc, start, chunk = 0, position, memoryview(b"")
    at = position
    for boundary in boundaries.tolist():
        while boundary > at:
            if at >= start + len(chunk):
                start, chunk = at, memoryview(file.read(at, CHUNK_BYTES))
            stop = min(boundary, start + len(chunk))
            crc = crc32c(chunk[at - start : stop - start], crc)
            at = stop
        yield crc


def _shifted_crcs(crcs: Numbers, lengths: Numbers) -> Numbers:
    """Each CRC after the given number of zero bytes: CRC(a + b) = shifted(CRC(a), len(b)) ^ CRC(b), as in zlib's crc32_combine."""
    result = crcs.copy()
    for bit in range(int(lengths.max()).bit_length()):
        rows = np.flatnonzero(lengths >> bit & 1)
        tables, vectors = _zero_tables(bit), result[rows]
        product = tables[0][vectors & 0xFF]
        for byte in range(1, 4):
            product ^= tables[byte][vectors >> 8 * byte & 0xFF]
        result[rows] = product
    return result


@lru_cache(maxsize=32)
def _zero_tables(power: int) -> list[Numbers]:
    """The effect of 2^`power` zero bytes on each byte of a CRC, lowest byte first."""
    columns = _zero_operator(power + 3)
    return [_times(columns, np.arange(256, dtype=np.int64) << 8 * byte) for byte in range(4)]


@lru_cache(maxsize=64)
def _zero_operator(power: int) -> Numbers:
    """The matrix, by columns, that advances a CRC over 2^`power` zero bits."""
    if power == 0:
        return np.array([POLYNOMIAL, *(1 << bit for bit in range(31))], np.int64)
    half = _zero_operator(power - 1)
    return _times(half, half)


def _times(columns: Numbers, vectors: Numbers) -> Numbers:
    """Product of a bit matrix, by columns, with vectors of 32 bits."""
    product = np.zeros_like(vectors)
    for bit in range(32):
        product ^= np.where(vectors >> bit & 1, columns[bit], 0)
    return product
