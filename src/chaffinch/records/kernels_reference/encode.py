"""Writing records: columns in, the payload of a batch out."""

from __future__ import annotations

from chaffinch.records.kernels_reference.byte_lists import NULL, Bytes, Int64s, lengths
from chaffinch.records.kernels_reference.varints import wrap_int64, write_varint


def encode(
    key_offsets: Int64s,
    key_data: Bytes,
    key_valid: Bytes,
    value_offsets: Int64s,
    value_data: Bytes,
    value_valid: Bytes,
    timestamps: Int64s,
    header_offsets: Int64s,
    header_key_offsets: Int64s,
    header_key_data: Bytes,
    header_value_offsets: Int64s,
    header_value_data: Bytes,
    header_value_valid: Bytes,
    base_timestamp: int,
    out: Bytes,
    position: int,
    rows: Int64s,
) -> int:
    """Write the records into `out` from `position` on; returns the position after the last, or -1 when `out` is too small.

    `rows`: the records to write, in this order, or all where it is empty; -1 also for one that is not there. Offset deltas are
    0, 1, 2, ... Columns and sizes must have gone through `measure`: what it counts is what this writes.
    """
    keys = _values(key_offsets, key_data, key_valid)
    values = _values(value_offsets, value_data, value_valid)
    header_keys = _values(header_key_offsets, header_key_data, header_value_valid[:0])
    header_values = _values(header_value_offsets, header_value_data, header_value_valid)
    header_starts, times = header_offsets.tolist(), timestamps.tolist()
    written, record = bytearray(), bytearray()
    for number, index in enumerate(rows.tolist() if len(rows) else range(len(times))):
        if not 0 <= index < len(times):
            return -1
        record.clear()
        record.append(0)
        write_varint(record, wrap_int64(times[index] - base_timestamp))
        write_varint(record, number)
        _write_field(record, keys[index])
        _write_field(record, values[index])
        first, last = header_starts[index], header_starts[index + 1]
        write_varint(record, last - first)
        for entry in range(first, last):
            _write_field(record, header_keys[entry])
            _write_field(record, header_values[entry])
        write_varint(written, len(record))
        written += record
    end = position + len(written)
    if position < 0 or end > len(out):
        return -1
    out.data[position:end] = written
    return end


def _values(offsets: Int64s, data: Bytes, valid: Bytes) -> list[memoryview | None]:
    """The entries of a column; None for null."""
    bytes_view = data.data
    found = zip(offsets.tolist(), lengths(offsets, len(data), valid), strict=False)
    return [None if length == NULL else bytes_view[start : start + length] for start, length in found]


def _write_field(out: bytearray, value: memoryview | None) -> None:
    if value is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(value))
        out += value
