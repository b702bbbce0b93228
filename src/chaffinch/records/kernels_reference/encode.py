"""Record encoder: from columns to the payload of a batch."""

from __future__ import annotations

from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
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
    """Write records into `out` from `position` on while they fit; returns the end position, and their number in `written[0]`.

    `rows`: the records to write, in this order; empty means all. Offset deltas are 0, 1, 2, ... A negative result is -(n+1) if record
    number n of them does not exist, or if its offsets do not ascend within the data.
    """
    # Row by row while they fit: lists of whole columns would be created again for each batch of a table.
    header_count, valid_of_header_keys = len(header_key_offsets) - 1, header_value_valid[:0]
    record, length = bytearray(), bytearray()
    written[0] = 0
    for number in range(len(rows) or len(timestamps)):
        index = int(rows[number]) if len(rows) else number
        if not 0 <= index < len(timestamps):
            return -(number + 1)
        first, last = int(header_offsets[index]), int(header_offsets[index + 1])
        if not 0 <= first <= last <= header_count:
            return -(number + 1)
        try:
            fields = [_value(key_offsets, key_data, key_valid, index), _value(value_offsets, value_data, value_valid, index)]
            for entry in range(first, last):
                fields.append(_value(header_key_offsets, header_key_data, valid_of_header_keys, entry))
                fields.append(_value(header_value_offsets, header_value_data, header_value_valid, entry))
        except _InvalidOffsets:
            return -(number + 1)
        record.clear()
        record.append(0)
        write_varint(record, wrap_int64(int(timestamps[index]) - base_timestamp))
        write_varint(record, number)
        _write_field(record, fields[0])
        _write_field(record, fields[1])
        write_varint(record, last - first)
        for field in fields[2:]:
            _write_field(record, field)
        length.clear()
        write_varint(length, len(record))
        end = position + len(length) + len(record)
        if position < 0 or end > len(out):
            return position
        out.data[position:end] = length + record
        position = end
        written[0] = number + 1
    return position


class _InvalidOffsets(Exception):
    """Offsets that do not ascend within the data."""


def _value(offsets: Int64s, data: Bytes, valid: Bytes, index: int) -> memoryview | None:
    """An entry of a column; None for null."""
    start, end = int(offsets[index]), int(offsets[index + 1])
    if not 0 <= start <= end <= len(data):
        raise _InvalidOffsets
    return None if len(valid) and not valid[index] else data.data[start:end]


def _write_field(out: bytearray, value: memoryview | None) -> None:
    if value is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(value))
        out += value
