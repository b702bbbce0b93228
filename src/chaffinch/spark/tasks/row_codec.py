"""Conversion of Spark rows to `RecordColumns`: allowed columns and their types.

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
from chaffinch.plain_text import plain
from chaffinch.records.columns import RecordColumns
from chaffinch.settings import LIKENESS_MIN

if TYPE_CHECKING:
    import pyarrow as pa

NO_PARTITION: Final = -1
NEGATIVE_PARTITION: Final = -2
BYTES_TYPES: Final = ("string", "binary")
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
# Column -> its allowed types, in the short notation of Spark.
WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "key": BYTES_TYPES,
    "value": BYTES_TYPES,
    "headers": (HEADERS_TYPE, "array<struct<key:string,value:string>>"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "partition": ("int", "smallint", "tinyint"),
    "topic": ("string",),
}
REASON_TYPE: Final = "string"
# Columns that only the source has. Rows from the source may be written unchanged; these columns are ignored.
READ_ONLY: Final = ("offset", "timestampType")
REASON_CHARACTERS_MAX: Final = 1_000
"""Longer texts of `errors.column` are cut: they are two headers of a dead letter."""
_COLLATION: Final = re.compile(r"(?<=\bstring) collate \w+")


class _Schema(Protocol):
    fields: list[Any]


def check_schema(schema: _Schema, *, has_topic: bool, reason_column: str | None = None) -> None:
    """Refuse a schema (Spark's StructType) that cannot be written. Raises ConfigException with the column, its type and the allowed
    types. `reason_column`: the option errors.column.
    """
    # Lower case, because names inside types may have any case, as in Spark's Kafka sink. A collation does not change the bytes.
    types = {field.name: _COLLATION.sub("", field.dataType.simpleString().lower()) for field in schema.fields}
    allowed = ", ".join(WRITTEN)
    names = [field.name for field in schema.fields]
    for name in types:
        if (count := names.count(name)) > 1:
            raise ConfigException(f"column {name!r} occurs {count} times: keep one of them")
    if reason_column is not None:
        if reason_column not in types:
            raise ConfigException(f"option errors.column cannot be {reason_column!r}: no such column; the columns are {', '.join(types)}")
        if (seen := types.pop(reason_column)) != REASON_TYPE:
            raise ConfigException(f"column {reason_column!r}, which errors.column names, has type {seen}; allowed: {REASON_TYPE}")
    if unknown := [name for name in types if name not in WRITTEN and name not in READ_ONLY]:
        raise ConfigException(f"{'; '.join(map(_unknown, unknown))}; select among: {allowed}")
    for name, seen in types.items():
        if name not in READ_ONLY and seen not in WRITTEN[name]:
            raise ConfigException(f"column {name!r} has type {seen}; allowed: {', '.join(WRITTEN[name])}")
    if "value" not in types:
        raise ConfigException(f"column 'value' is missing (columns: {', '.join(types) or 'none'}); it must be {' or '.join(BYTES_TYPES)}")
    if not has_topic and "topic" not in types:
        raise ConfigException("neither the option topic nor a column 'topic' is given: name the target topic")


def _unknown(name: str) -> str:
    found = difflib.get_close_matches(name.lower(), WRITTEN, n=1, cutoff=LIKENESS_MIN)
    return f"column {name!r} would not be written" + (f", the nearest known one is {found[0]!r}" if found else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a task as records. `topics` has one name for all rows, or `topic_index` int32[n] selects the name of each row (-1: null).

    `partitions` int32[n]: the values of the column, NO_PARTITION for null, NEGATIVE_PARTITION below 0; None without the column.
    `keyless_headers`: rows with a header without a key; their headers are left out here, and the rows cannot be written.
    `reasons`: index of each row that contains its own reason for rejection -> the reason, on one line.
    """

    columns: RecordColumns
    topics: tuple[str, ...]
    topic_index: npt.NDArray[np.int32] | None
    partitions: npt.NDArray[np.int32] | None
    keyless_headers: npt.NDArray[np.int64]
    reasons: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.columns)

    def topic_at(self, index: int) -> str | None:
        """The topic of a row; None if it has none."""
        number = 0 if self.topic_index is None else int(self.topic_index[index])
        return self.topics[number] if number >= 0 else None


def rows_of(data: pa.Table, topic: str | None, *, timestamp_default_ms: int, reason_column: str | None = None) -> Rows:
    """Convert Arrow data that passed `check_schema`. `topic`: the option, which overrides the column, as in Spark. `reason_column`: the
    option errors.column.
    """
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
    reasons = {} if reason_column is None else _reasons(data.column(reason_column))
    if topic is not None:
        topics: tuple[str, ...] = (topic,)
        index = None
    else:
        topics, index = _topics(data.column("topic"))
    return Rows(columns=columns, topics=topics, topic_index=index, partitions=partitions, keyless_headers=keyless_headers, reasons=reasons)


def _topics(column: pa.ChunkedArray) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """The topics of the column, and the index of each row's."""
    import pyarrow as pa

    encoded = column.combine_chunks().dictionary_encode()
    index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    # Strings of Spark can contain any bytes. Such a name is not a legal topic, so the row is rejected.
    return tuple(name.decode(errors="replace") for name in encoded.dictionary.cast(pa.large_binary()).to_pylist()), index


def _reasons(column: pa.ChunkedArray) -> dict[int, str]:
    """The texts of the column that are neither null nor empty, by row: on one line, and cut."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.cast(pa.large_binary())
    given = np.flatnonzero(pc.binary_length(texts).fill_null(0).to_numpy())
    return {
        index: plain(text.decode(errors="replace")[:REASON_CHARACTERS_MAX])
        for index, text in zip(given.tolist(), texts.take(pa.array(given)).to_pylist(), strict=True)
    }


def _without_keyless_headers(data: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The table with null for headers that lack a key, and the indices of those rows. The column type allows them, Kafka does not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    none = np.empty(0, np.int64)
    if "headers" not in data.schema.names:
        return data, none
    column_index = data.schema.get_field_index("headers")
    headers = data.column(column_index).combine_chunks()
    assert isinstance(headers, pa.ListArray), "`check_schema` has checked it"
    pair = headers.values.type
    assert isinstance(pair, pa.StructType)
    if (pair[0].name, pair[1].name) != ("key", "value"):
        headers = headers.view(pa.list_(pa.struct([("key", pair[0].type), ("value", pair[1].type)])))
        data = data.set_column(column_index, "headers", headers)
    pairs = headers.flatten()
    assert isinstance(pairs, pa.StructArray)
    keys = pairs.flatten()[0]  # `flatten` respects the validity of the pairs, `field` does not.
    if not keys.null_count:
        return data, none
    # A null list may still have pairs, which `flatten` skips.
    lists = np.flatnonzero(headers.is_valid().to_numpy(zero_copy_only=False))
    parents = pc.list_parent_indices(headers.take(pa.array(lists)))
    rows = lists[np.unique(parents.filter(keys.is_null()).to_numpy(zero_copy_only=False))].astype(np.int64)
    is_bad = np.zeros(len(data), bool)
    is_bad[rows] = True
    cleaned = pc.if_else(pa.array(is_bad), pa.scalar(None, headers.type), headers)
    return data.set_column(column_index, "headers", cleaned), rows
