"""Writing records: columns in, the payload of a batch out."""

from __future__ import annotations

from chaffinch.records.kernels_reference.byte_lists import CORRUPT, Bytes, Int64s, lengths
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
    written: Int64s,
) -> int:
    """Write records into `out` from `position` on while they have room; returns the position after the last, `written[0]` how many.

    `rows`: the records to write, in this order, or all where it is empty. Offset deltas are 0, 1, 2, ... A negative result is
    -(n+1) when record number n of them is not there, or its offsets do not ascend within the data.
    """
    sides = [
        lengths(key_offsets, len(key_data), key_valid),
        lengths(value_offsets, len(value_data), value_valid),
        lengths(header_key_offsets, len(header_key_data), header_value_valid[:0]),
        lengths(header_value_offsets, len(header_value_data), header_value_valid),
    ]
    key_lengths, value_lengths, header_key_lengths, header_value_lengths = sides
    keys, values = _values(key_offsets, key_data, key_lengths), _values(value_offsets, value_data, value_lengths)
    header_keys = _values(header_key_offsets, header_key_data, header_key_lengths)
    header_values = _values(header_value_offsets, header_value_data, header_value_lengths)
    header_starts, times = header_offsets.tolist(), timestamps.tolist()
    record, length = bytearray(), bytearray()
    written[0] = 0
    for number, index in enumerate(rows.tolist() if len(rows) else range(len(times))):
        if not 0 <= index < len(times):
            return -(number + 1)
        first, last = header_starts[index], header_starts[index + 1]
        if not 0 <= first <= last <= len(header_keys):
            return -(number + 1)
        if CORRUPT in (key_lengths[index], value_lengths[index], *header_key_lengths[first:last], *header_value_lengths[first:last]):
            return -(number + 1)
        record.clear()
        record.append(0)
        write_varint(record, wrap_int64(times[index] - base_timestamp))
        write_varint(record, number)
        _write_field(record, keys[index])
        _write_field(record, values[index])
        write_varint(record, last - first)
        for entry in range(first, last):
            _write_field(record, header_keys[entry])
            _write_field(record, header_values[entry])
        length.clear()
        write_varint(length, len(record))
        end = position + len(length) + len(record)
        if position < 0 or end > len(out):
            return position
        out.data[position:end] = length + record
        position = end
        written[0] = number + 1
    return position


def _values(offsets: Int64s, data: Bytes, lengths: list[int]) -> list[memoryview | None]:
    """The entries of a column; None for null, and nothing of use for one whose offsets lie."""
    bytes_view = data.data
    return [None if length < 0 else bytes_view[start : start + length] for start, length in zip(offsets.tolist(), lengths, strict=False)]


def _write_field(out: bytearray, value: memoryview | None) -> None:
    if value is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(value))
        out += value
