"""JSON lines of records, built column by column. Python objects are created only for headers and for bytes that are not UTF-8.

Keys and values are JSON strings of their UTF-8 text, or null. Bytes that are not UTF-8 are written as base64, with a field `key_encoding`
or `value_encoding`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

BASE64: Final = "base64"
_SHORT: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL: Final = r"[\x00-\x1f]"
_NULL: Final = "null"


def json_lines(batch: pa.RecordBatch) -> pa.Array:
    """One JSON object and a line feed per row, as strings. Columns may be text, bytes, integers, timestamps and headers."""
    parts: list[Any] = []
    for index, name in enumerate(batch.schema.names):
        parts.append(pa.scalar(f"{'{' if index == 0 else ','}{compact(name)}:"))
        parts.append(_column(name, batch.column(index)))
    return pc.binary_join_element_wise(*parts, pa.scalar("}\n"), pa.scalar(""))


def _column(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_binary(kind):
        return _bytes(name, array)
    if pa.types.is_string(kind):
        return _strings(array)
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.int64())
    elif isinstance(array, pa.ListArray):
        return _headers(array)
    return array.cast(pa.string()).fill_null(_NULL)


def _strings(array: pa.Array) -> pa.Array:
    escaped = array
    if pc.any(pc.match_substring_regex(array, rf'["\\]|{_CONTROL}')).as_py():
        for plain, written in _SHORT:
            escaped = pc.replace_substring(escaped, plain, written)
        if pc.any(pc.match_substring_regex(escaped, _CONTROL)).as_py():
            for number in range(32):
                escaped = pc.replace_substring(escaped, chr(number), f"\\u{number:04x}")
    quote = pa.scalar('"')
    return pc.binary_join_element_wise(quote, escaped, quote, pa.scalar("")).fill_null(_NULL)


def _bytes(name: str, array: pa.Array) -> pa.Array:
    try:
        return _strings(array.cast(pa.string()))
    except pa.ArrowInvalid:
        return pa.array([_bytes_text(name, value.as_py()) for value in array], pa.string())


def _bytes_text(name: str, value: bytes | None) -> str:
    """The JSON after the field's name and colon."""
    return compact(bytes_fields(name, value))[len(compact(name)) + 2 : -1]


def bytes_fields(name: str, value: bytes | None) -> dict[str, str | None]:
    """The fields for a bytes value: `name`, and `name_encoding` if it is not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode(), f"{name}_encoding": BASE64}


def _headers(array: pa.ListArray) -> pa.Array:
    if not len(array.flatten()):
        return pa.repeat(pa.scalar("[]"), len(array))
    return pa.array([headers_text(entries) for entries in array.to_pylist()], pa.string())


def headers_text(entries: list[Mapping[str, Any]] | None) -> str:
    """Headers as a JSON list of objects with `key` and `value`; also the content of the headers field in CSV."""
    return compact([{"key": entry["key"], **bytes_fields("value", entry["value"])} for entry in entries or ()])


def compact(value: Any) -> str:
    """JSON without blanks. Values that JSON cannot represent are written as `str(value)`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
