"""Encoded size of records, before they are written."""

from __future__ import annotations

from chaffinch.records.kernels_reference.byte_lists import CORRUPT, Bytes, Int64s, lengths
from chaffinch.records.kernels_reference.varints import varint_size, wrap_int64


def measure(
    key_offsets: Int64s,
    key_bytes: int,
    key_valid: Bytes,
    value_offsets: Int64s,
    value_bytes: int,
    value_valid: Bytes,
    timestamps: Int64s,
    header_offsets: Int64s,
    header_key_offsets: Int64s,
    header_key_bytes: int,
    header_value_offsets: Int64s,
    header_value_bytes: int,
    header_value_valid: Bytes,
    base_timestamp: int,
    delta_bytes: int,
    sizes: Int64s,
) -> int:
    """The sum of the records' encoded sizes, and each in `sizes` unless that is empty; `*_bytes` are the lengths of the data.

    `delta_bytes`, if not 0, replaces the size of each record's deltas of offset and timestamp. Returns -(i+1) for the first record i whose
    offsets, or whose headers' offsets, do not ascend within their data.
    """
    header_spans = lengths(header_offsets, len(header_key_offsets) - 1, header_value_valid[:0])
    header_starts = header_offsets.tolist()
    header_keys = lengths(header_key_offsets, header_key_bytes, header_value_valid[:0])
    header_values = lengths(header_value_offsets, header_value_bytes, header_value_valid)
    key_lengths, value_lengths = lengths(key_offsets, key_bytes, key_valid), lengths(value_offsets, value_bytes, value_valid)
    total = 0
    for index, (timestamp, key, value, span) in enumerate(zip(timestamps.tolist(), key_lengths, value_lengths, header_spans, strict=True)):
        if CORRUPT in (key, value, span):
            return -(index + 1)
        size = 1 + (delta_bytes or varint_size(wrap_int64(timestamp - base_timestamp)) + varint_size(index))
        size += _field_size(key) + _field_size(value) + varint_size(span)
        for entry in range(header_starts[index], header_starts[index] + span):
            if CORRUPT in (header_keys[entry], header_values[entry]):
                return -(index + 1)
            size += _field_size(header_keys[entry]) + _field_size(header_values[entry])
        size += varint_size(size)
        if len(sizes):
            sizes[index] = size
        total += size
    return total


def _field_size(length: int) -> int:
    """Size of a length and the bytes that it counts; NULL counts none."""
    return varint_size(length) + max(length, 0)
