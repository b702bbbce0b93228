"""Compiled twin of `kernels_reference/gather.py`."""

from __future__ import annotations

from chaffinch.records.kernels.compiled import BYTES, BYTES_OUT, INT64S, compiled, copy_bytes
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s


@compiled(BYTES, INT64S, INT64S, BYTES_OUT)
def gather(data: Bytes, starts: Int64s, out_offsets: Int64s, out: Bytes) -> int:
    for index in range(min(starts.size, out_offsets.size - 1)):
        start, out_start, out_end = starts[index], out_offsets[index], out_offsets[index + 1]
        if out_start < 0 or out_end < out_start or out_end > out.size:
            return index
        size = out_end - out_start
        if start < 0 or start > data.size - size:
            return index
        if size:
            copy_bytes(out, out_start, data, start, size)
    return -1
