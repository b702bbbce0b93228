"""The rows that records become, value by value as in Spark's Kafka source."""

import numpy as np
import pyarrow as pa
import pytest

from chaffinch.records.columns import RecordColumns
from chaffinch.spark.source.rows import TIMESTAMP_MAX_MS, batch_read


def rows_read(columns: RecordColumns, **given: bool) -> pa.RecordBatch:
    with_offsets = RecordColumns.of(
        columns.keys, columns.values, columns.timestamps, header_offsets=columns.header_offsets, header_keys=columns.header_keys,
        header_values=columns.header_values, offsets=np.arange(len(columns), dtype=np.int64),
    )  # fmt: skip
    return batch_read(with_offsets, "orders", 0, 0, **{"include_headers": False, **given})


def test_record_without_headers_has_null_headers() -> None:
    headers: list[list[tuple[str, bytes | None]]] = [[], [("h", b"1"), ("h", None)], [], [("i", b"")], []]
    columns = RecordColumns.from_lists(None, [b"v"] * 5, [0] * 5, headers)
    assert rows_read(columns, include_headers=True)["headers"].to_pylist() == [
        None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, [{"key": "i", "value": b""}], None,
    ]  # fmt: skip
    assert rows_read(columns.slice(2, 4), include_headers=True)["headers"].to_pylist() == [None, [{"key": "i", "value": b""}]]


@pytest.mark.parametrize("beyond", [TIMESTAMP_MAX_MS + 1, 1_700_000_000_000_000_000, -TIMESTAMP_MAX_MS - 1, 2**63 - 1, -(2**63)])
def test_timestamp_out_of_range_is_null(beyond: int) -> None:
    """Such as nanoseconds in place of milliseconds; the multiplication would overflow to another time."""
    columns = RecordColumns.from_lists(None, [b"v"] * 4, [beyond, -1, TIMESTAMP_MAX_MS, -TIMESTAMP_MAX_MS])
    found = rows_read(columns)["timestamp"]
    assert found.cast(pa.int64()).to_pylist() == [None, -1000, TIMESTAMP_MAX_MS * 1000, -TIMESTAMP_MAX_MS * 1000]
