"""Parser of one record: a JSON object with the fields of `record_json`, or fields of a CSV row. Raises ValueError for invalid input.

It handles input in which each row may be invalid by itself; Parquet and Arrow have types and are converted by column.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from chaffinch.cli.rows.record_json import BASE64, compact
from chaffinch.cli.times import parse_time
from chaffinch.errors import ConfigException

Headers = list[tuple[str, bytes | None]]

FIELDS: Final = ("key", "value", "headers", "timestamp", "partition")
# Fields that `consume` adds. They are ignored, so that its output can be written again unchanged.
READ_ONLY: Final = ("topic", "offset")
_KNOWN: Final = (*FIELDS, *READ_ONLY, "key_encoding", "value_encoding")
PARTITION_MAX: Final = 2**31 - 1


class TextRecord(NamedTuple):
    """One record. `timestamp` is None for now; `partition` is None for the partitioner's choice."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None
    partition: int | None


def record_of(text: bytes) -> TextRecord:
    """Parse a JSON object with the fields of `record_json`."""
    fields = _object(text)
    for name in fields:
        if name not in _KNOWN:
            nearest = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.5)
            raise ValueError(
                f"unknown field {name!r}: {f'the nearest is {nearest[0]!r}' if nearest else 'known fields are ' + ', '.join(FIELDS)}"
            )
    if "value" not in fields:
        raise ValueError("field 'value' is missing; null is a tombstone")
    return TextRecord(
        key=_content(fields, "key"),
        value=_content(fields, "value"),
        headers=headers_of(fields.get("headers")),
        timestamp=timestamp_of(fields.get("timestamp")),
        partition=partition_of(fields.get("partition")),
    )


def keyed_object(key_field: str) -> Callable[[bytes], TextRecord]:
    """A parser of JSON objects: the whole object is the value, its required field `key_field` the key."""

    def read(text: bytes) -> TextRecord:
        key = _object(text).get(key_field)
        if key is None:
            raise ValueError(no_key(key_field))
        return TextRecord(key=_bytes(key), value=text, headers=[], timestamp=None, partition=None)

    return read


def no_key(key_field: str) -> str:
    """The error for a row without its key field. Written without a key, it would go to an arbitrary partition."""
    return f"no key: field {key_field!r} is missing or null"


def headers_of(value: Any) -> Headers:
    """Parse a list of objects with `key` and `value`, or an object of names and values."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _bytes(content)) for name, content in value.items()]
    if not isinstance(value, list):
        raise ValueError(f"headers {_shown(value)}: expected a list of objects with key and value")
    found: Headers = []
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str) or not entry.keys() <= {"key", "value", "value_encoding"}:
            raise ValueError(f"header {_shown(entry)}: expected an object with key and value")
        found.append((entry["key"], _content(entry, "value")))
    return found


def timestamp_of(value: Any) -> int | None:
    """Parse milliseconds since 1970 or an ISO 8601 time; None stays None."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, str):
        try:
            return parse_time("timestamp", value)
        except ConfigException as error:
            raise ValueError(error.message) from None
    raise ValueError(f"timestamp {_shown(value)}: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z")


def partition_of(value: Any) -> int | None:
    """Parse a partition number; None stays None."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PARTITION_MAX:
        return value
    raise ValueError(f"partition {_shown(value)}: expected a number from 0 to {PARTITION_MAX}")


def parse_json(text: bytes | str) -> Any:
    """Parse JSON strictly by RFC 8259: NaN, numbers beyond a double and repeated names are refused, since they would be changed."""
    try:
        return json.loads(text, object_pairs_hook=_fields, parse_float=_finite, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        # The text is one row: the parser's own line number would contradict the row's.
        raise ValueError(f"invalid JSON: {error.msg} at character {error.pos + 1}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid JSON: not UTF-8 at byte {error.start + 1}") from None


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"number {_cut(text)} is too large")
    return number


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"invalid JSON: {text} is not allowed")


def _object(text: bytes) -> dict[str, Any]:
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"{_shown(found)}: expected an object")
    return found


def _content(fields: dict[str, Any], name: str) -> bytes | None:
    value, encoding = fields.get(name), fields.get(f"{name}_encoding")
    if encoding is None:
        return _bytes(value)
    if encoding != BASE64 or not isinstance(value, str):
        raise ValueError(f"{name}_encoding {_shown(encoding)}: expected {BASE64!r} with a string value")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} is not base64: {error}") from None


def _bytes(value: Any) -> bytes | None:
    """A string becomes its UTF-8, null stays None, any other value becomes its JSON."""
    if value is None:
        return None
    try:
        return (value if isinstance(value, str) else compact(value)).encode()
    except UnicodeEncodeError:
        raise ValueError("text with a lone surrogate, which has no UTF-8 encoding") from None


def _shown(value: Any) -> str:
    return _cut(compact(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
