"""Conversion of `RecordColumns` to Spark rows: Arrow record batches with the schema of Spark's Kafka source.

Types and nullability are identical, because Spark compares schemas field by field. So are the values: a record without headers has null
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.records.columns import RecordColumns

# Not `timestamp`, whose meaning depends on `spark.sql.timestampType`.
READ_SCHEMA: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz, timestampType int"
HEADERS_SCHEMA: Final = ", headers array<struct<key: string, value: binary>>"
TIMESTAMP_MAX_MS: Final = (2**63 - 1) // 1000
"""Spark timestamps are microseconds: values beyond this, before or after 1970, become null."""


def read_schema(*, include_headers: bool) -> str:
    """The schema of Spark's Kafka source."""
    return READ_SCHEMA + (HEADERS_SCHEMA if include_headers else "")


def batch_read(columns: RecordColumns, topic: str, partition: int, timestamp_type: int, *, include_headers: bool) -> pa.RecordBatch:
    """Convert records of one partition to a record batch of `read_schema`. `columns` contain their offsets."""
    import numpy as np
    import pyarrow as pa

    from chaffinch.records.arrow_columns import to_arrow

    count = len(columns)
    assert columns.offsets is not None, "records that were read have offsets"
    found = to_arrow(columns)
    has_no_time = (columns.timestamps > TIMESTAMP_MAX_MS) | (columns.timestamps < -TIMESTAMP_MAX_MS)
    timestamps = pa.array(columns.timestamps * 1000, pa.int64(), mask=has_no_time).cast(pa.timestamp("us", "UTC"))
    arrays = {
        "key": found.column("key"),
        "value": found.column("value"),
        "topic": pa.repeat(pa.scalar(topic, pa.string()), count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array(columns.offsets, pa.int64()),
        "timestamp": timestamps,
        "timestampType": pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
    }
    if include_headers:
        headers = found.column("headers")
        assert isinstance(headers, pa.ListArray)
        has_none = pa.array(np.diff(columns.header_offsets) == 0)
        arrays["headers"] = pa.ListArray.from_arrays(headers.offsets, headers.values, headers.type, mask=has_none)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
