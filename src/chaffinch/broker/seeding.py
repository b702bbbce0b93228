"""Test data of an embedded broker: rows or an Arrow table, validated and appended like the batches of a producer, without a connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from chaffinch.broker.core.append import VERSION_WITH_BATCHES, AppendTerms, append
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.acknowledgement import ACKS_ALL
from chaffinch.broker.core.topics.registry import Partition, Topic
from chaffinch.errors import ConfigException
from chaffinch.records import batch
from chaffinch.records.errors import InvalidColumn
from chaffinch.records.validation import Origin, check_batch, check_records
from chaffinch.records.validation_result import Rejected
from chaffinch.settings import shown_value

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from chaffinch.records.columns import RecordColumns


class SupportsArrowStream(Protocol):
    """Interface of tables and data frames (pyarrow, polars, pandas, DuckDB)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Bytes: TypeAlias = bytes | str | None
Row: TypeAlias = "Bytes | tuple[Bytes, Bytes] | Mapping[str, Any]"
"""A value; a pair of key and value; or a mapping with `value` and, if wanted, `key`, `headers`, `timestamp` (ms) and `partition`."""

Rows: TypeAlias = "SupportsArrowStream | Iterable[Row]"
"""An Arrow table, or another object with the Arrow stream interface, or rows."""

FIELDS: Final = ("key", "value", "headers", "timestamp", "partition")
CULPRITS_IN_TEXT: Final = 10
ALLOWED: Final = {
    "key": "bytes, a string or None",
    "value": "bytes, a string or None",
    "headers": "a mapping or a list of pairs, of strings to bytes, strings or None",
    "timestamp": "milliseconds since 1970 as a whole number, or None for now",
    "partition": "the number of a partition, or None",
}
"""What each field of a row may be."""


def to_table(rows: Any) -> pa.Table:
    """The rows as a table: any object with the Arrow stream interface, or an iterable of `Row`. Raises ConfigException."""
    import pyarrow as pa

    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ConfigException(f"rows: expected a table or a list of rows, not a value of type {type(rows).__name__}")
    fields = [_fields(number, row) for number, row in enumerate(rows)]
    return pa.table(
        {
            "key": _column("key", [_bytes(row.get("key")) for row in fields], pa.binary()),
            "value": _column("value", [_bytes(row.get("value")) for row in fields], pa.binary()),
            "headers": _column("headers", [_headers(row.get("headers")) for row in fields], pa.map_(pa.string(), pa.binary())),
            "timestamp": _column("timestamp", [row.get("timestamp") for row in fields], pa.int64()),
            "partition": _column("partition", [row.get("partition") for row in fields], pa.int32()),
        }
    )


def _column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values of one field. Raises ConfigException with the first row whose value is of a wrong type."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                raise ConfigException(f"rows: row {row}, field {name}: {shown_value(value)}; expected {ALLOWED[name]}") from None
        raise


def _fields(number: int, row: Row) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        unknown = [name for name in row if name not in FIELDS]
        if unknown:
            raise ConfigException(f"rows: row {number} has the unknown field {unknown[0]!r}; the fields are {', '.join(FIELDS)}")
        return row
    if isinstance(row, tuple) and len(row) == 2:
        return {"key": row[0], "value": row[1]}
    if row is None or isinstance(row, str | bytes):
        return {"value": row}
    raise ConfigException(f"rows: row {number} is a {type(row).__name__}; expected a value, a pair (key, value) or a mapping")


def _bytes(text: Bytes) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _headers(headers: Any) -> list[Any]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        return [pairs]  # Of a wrong type: `_column` names the row.
    return [(pair[0], _bytes(pair[1])) if isinstance(pair, tuple | list) and len(pair) == 2 else pair for pair in pairs]


class _Batch(NamedTuple):
    """An encoded batch for one partition. `rows`: the row of the table that each record comes from."""

    partition: Partition
    data: memoryview
    rows: npt.NDArray[np.int64]


def seed(core: BrokerCore, topic: Topic, table: pa.Table, steady_ms: int) -> None:
    """Validate all rows, then append them. Runs on the core's thread.

    A row goes to its `partition`; without one, to the partition of its key, as Java's client computes it; without a key, round robin.
    Raises ConfigException for a wrong column; RequestRefused if a row is refused, and nothing is written then; StorageError.
    """
    wall_ms = core.state.wall.at(steady_ms)
    batches = list(_batches(topic, table, wall_ms))
    for one in batches:
        view, policy = next(batch.views(one.data)), one.partition.policy
        verdict = check_batch(view, policy, Origin.CLIENT) or check_records(view, policy, Origin.CLIENT, wall_ms)
        if isinstance(verdict, Rejected):
            raise _refused(verdict, one)
    terms = AppendTerms(acks=ACKS_ALL, version=VERSION_WITH_BATCHES, transactional_id=None)
    for one in batches:
        outcome = append(core.state, one.partition, one.data, terms, steady_ms)
        if isinstance(outcome, Rejected):
            raise _refused(outcome, one)


def _batches(topic: Topic, table: pa.Table, wall_ms: int) -> Iterator[_Batch]:
    """The rows as batches of at most the topic's max.message.bytes; a larger row is a batch of its own, which the validation refuses."""
    import numpy as np

    from chaffinch.records.arrow_columns import from_arrow

    records = table.select([name for name in table.schema.names if name != "partition"])
    try:
        columns = from_arrow(records, timestamp_default_ms=wall_ms)
    except InvalidColumn as error:
        raise ConfigException(f"rows: {error}") from None
    partitions = _partitions(columns, table, len(topic.partitions))
    for index in np.unique(partitions):
        partition = topic.partitions[index]
        rows = np.flatnonzero(partitions == index)
        part = columns.take(rows)
        while len(part):
            data, count = batch.encode_filling(part, partition.policy.batch_bytes_max - batch.HEADER_BYTES)
            if not count:
                data, count = batch.encode(part.slice(0, 1)), 1
            yield _Batch(partition, memoryview(data), rows[:count])
            part, rows = part.slice(count, len(part)), rows[count:]


def _partitions(columns: RecordColumns, table: pa.Table, count: int) -> npt.NDArray[np.int64]:
    import numpy as np
    import pyarrow as pa

    of_key = columns.murmur2_partitions(count).astype(np.int64)
    found = np.where(of_key < 0, np.arange(len(columns)) % count, of_key)
    if "partition" in table.schema.names:
        wanted = table["partition"].cast(pa.int64()).fill_null(-1).to_numpy()
        if len(wanted) and not -1 <= wanted.min() <= wanted.max() < count:
            row = int(np.flatnonzero((wanted < -1) | (wanted >= count))[0])
            raise ConfigException(f"rows: row {row} has partition {wanted[row]}; the topic has the partitions 0 to {count - 1}")
        found = np.where(wanted < 0, found, wanted)
    return found


def _refused(rejected: Rejected, one: _Batch) -> RequestRefused:
    reasons = [f"row {one.rows[culprit.batch_index]}: {culprit.message}" for culprit in rejected.culprits[:CULPRITS_IN_TEXT]]
    return RequestRefused(rejected.code, f"no row is written: {'; '.join(reasons) or rejected.message}")
