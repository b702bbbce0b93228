"""Copying entries out of bytes into a column."""

from __future__ import annotations

from chaffinch.records.kernels_reference.byte_lists import CORRUPT, Bytes, Int64s, lengths


def gather(data: Bytes, starts: Int64s, out_offsets: Int64s, out: Bytes) -> int:
    """Fill a column: entry i, of length `out_offsets[i+1] - out_offsets[i]`, is copied from `data[starts[i]:]`.

    Returns -1, or the first i whose source or target does not lie within the buffers; nothing outside them is touched.
    """
    source, target = data.data, out.data
    out_starts, sizes = out_offsets.tolist(), lengths(out_offsets, len(out), data[:0])
    for index, (start, out_start, size) in enumerate(zip(starts.tolist(), out_starts, sizes, strict=False)):
        if size == CORRUPT or not 0 <= start <= len(data) - size:
            return index
        target[out_start : out_start + size] = source[start : start + size]
    return -1
