"""Rows of Spark to `RecordColumns`: which columns a row that is written may have, and what they become.

Input: Arrow tables with the columns of Spark's Kafka sink. The other direction is `source/rows.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from chaffinch.errors import ConfigException
from chaffinch.records.columns import RecordColumns
from chaffinch.settings import LIKENESS_MIN

if TYPE_CHECKING:
    import pyarrow as pa

NO_PARTITION: Final = -1
NEGATIVE_PARTITION: Final = -2
BYTES_TYPES: Final = ("string", "binary")
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
# Column -> the types it may have, in Spark's own short spelling.
WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "key": BYTES_TYPES,
    "value": BYTES_TYPES,
    "headers": (HEADERS_TYPE, "array<struct<key:string,value:string>>"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "partition": ("int", "smallint", "tinyint"),
    "topic": ("string",),
}
# What reading a topic adds; a row that was read may be written as it is, these say where it came from.
READ_ONLY: Final = ("offset", "timestampType")
_COLLATION: Final = re.compile(r"(?<=\bstring) collate \w+")


class _Schema(Protocol):
    fields: list[Any]


def check_schema(schema: _Schema, *, has_topic: bool) -> None:
    """Refuses a schema (Spark's StructType) that cannot be written: ConfigException naming the column, its type and what is allowed."""
    # In small letters: names inside of types have any case, as in Spark's own sink. How strings are compared changes no byte of them.
    types = {field.name: _COLLATION.sub("", field.dataType.simpleString().lower()) for field in schema.fields}
    allowed = ", ".join(WRITTEN)
    names = [field.name for field in schema.fields]
    for name in types:
        if (count := names.count(name)) > 1:
            raise ConfigException(f"column {name!r} is there {count} times: a row has one of each, leave out the others")
    if unknown := [name for name in types if name not in WRITTEN and name not in READ_ONLY]:
        raise ConfigException(f"{'; '.join(map(_unknown, unknown))}; select among: {allowed}")
    for name, seen in types.items():
        if name not in READ_ONLY and seen not in WRITTEN[name]:
            raise ConfigException(f"column {name!r} has type {seen}; allowed: {', '.join(WRITTEN[name])}")
    if "value" not in types:
        raise ConfigException(f"column 'value' is missing (there are: {', '.join(types) or 'none'}); it must be {' or '.join(BYTES_TYPES)}")
    if not has_topic and "topic" not in types:
        raise ConfigException("there is neither an option topic nor a column 'topic': name the target topic")


def _unknown(name: str) -> str:
    found = difflib.get_close_matches(name.lower(), WRITTEN, n=1, cutoff=LIKENESS_MIN)
    return f"column {name!r} would not be written" + (f", the nearest known one is {found[0]!r}" if found else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a task as records: `topics` holds one name for all of them, or one per row by `topic_index` int32[n] (-1: null).

    `partitions` int32[n]: what the column says, NO_PARTITION where it is null, NEGATIVE_PARTITION where it is below 0; None without
    such a column. `keyless_headers`: rows with a header that has no key; they hold no headers here and cannot be written.
    """

    columns: RecordColumns
    topics: tuple[str, ...]
    topic_index: npt.NDArray[np.int32] | None
    partitions: npt.NDArray[np.int32] | None
    keyless_headers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns)


def rows_of(data: pa.Table, topic: str | None, *, timestamp_default_ms: int) -> Rows:
    """Rows of Arrow data that passed `check_schema`. `topic`: the option; it wins over a column, as in Spark."""
    import pyarrow as pa

    from chaffinch.records.arrow_columns import from_arrow

    data, keyless_headers = _without_keyless_headers(data)
    columns = from_arrow(
        data.select([name for name in ("value", "key", "timestamp", "headers") if name in data.schema.names]),
        timestamp_default_ms=timestamp_default_ms,
    )
    partitions = None
    if "partition" in data.schema.names:
        column = data.column("partition").cast(pa.int32())
        values = column.fill_null(0).to_numpy()
        known = np.where(values < 0, NEGATIVE_PARTITION, values)
        partitions = np.where(column.is_null().to_numpy(), NO_PARTITION, known).astype(np.int32)
    if topic is not None:
        return Rows(columns=columns, topics=(topic,), topic_index=None, partitions=partitions, keyless_headers=keyless_headers)
    encoded = data.column("topic").combine_chunks().dictionary_encode()
    index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    # Spark's strings may hold any bytes. No topic has such a name, so its row is a bad one.
    topics = tuple(name.decode(errors="replace") for name in encoded.dictionary.cast(pa.large_binary()).to_pylist())
    return Rows(columns=columns, topics=topics, topic_index=index, partitions=partitions, keyless_headers=keyless_headers)


def _without_keyless_headers(data: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The table with null in place of headers one of which has no key, and the indices of those rows: no type forbids them, Kafka does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    none = np.empty(0, np.int64)
    if "headers" not in data.schema.names:
        return data, none
    column_index = data.schema.get_field_index("headers")
    headers = data.column(column_index).combine_chunks()
    assert isinstance(headers, pa.ListArray), "`check_schema` has looked at it"
    pair = headers.values.type
    assert isinstance(pair, pa.StructType)
    if (pair[0].name, pair[1].name) != ("key", "value"):
        headers = headers.view(pa.list_(pa.struct([("key", pair[0].type), ("value", pair[1].type)])))
        data = data.set_column(column_index, "headers", headers)
    pairs = headers.flatten()
    assert isinstance(pairs, pa.StructArray)
    keys = pairs.flatten()[0]  # With the validity of the pairs themselves, which `field` leaves out.
    if not keys.null_count:
        return data, none
    # A list that is null may have pairs all the same: `flatten` passes them over.
    lists = np.flatnonzero(headers.is_valid().to_numpy(zero_copy_only=False))
    parents = pc.list_parent_indices(headers.take(pa.array(lists)))
    rows = lists[np.unique(parents.filter(keys.is_null()).to_numpy(zero_copy_only=False))].astype(np.int64)
    is_bad = np.zeros(len(data), bool)
    is_bad[rows] = True
    cleaned = pc.if_else(pa.array(is_bad), pa.scalar(None, headers.type), headers)
    return data.set_column(column_index, "headers", cleaned), rows
