"""Where the keys of some records lie: what a producer asks about the culprits of a batch, without reading the others."""

from __future__ import annotations

from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX, read_varint


def find_keys(payload: Bytes, indices: Int64s, starts: Int64s, lengths: Int64s) -> int:
    """Of each record at `indices`, which ascend: where its key starts, and its length, -1 for null. Returns how many were found: fewer
    where an index does not ascend, an output is full, or the payload does not hold so many records.

    Of the records between only the length is looked at: whoever calls has made the payload, or checked it.
    """
    data = payload.tobytes()
    position = at = 0
    for found, index in enumerate(indices.tolist()):
        if index < at or found >= min(len(starts), len(lengths)):
            return found
        while True:
            length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
            if body < 0 or length < 0 or length > len(data) - body:
                return found
            position = body + length
            at += 1
            if at > index:
                break
        after = body + 1
        for bytes_max in (INT64_BYTES_MAX, INT32_BYTES_MAX, INT32_BYTES_MAX):
            if after < 0:
                return found
            length, after = read_varint(data, after, position, bytes_max)
        if after < 0 or length > position - after:
            return found
        starts[found], lengths[found] = after, max(length, -1)
    return len(indices)
