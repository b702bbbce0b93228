"""`RecordColumns` to rows of Spark: Arrow record batches with the schema of Spark's Kafka source.

The schema is the same down to types and nullability, because Spark compares it field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.records.columns import RecordColumns

READ_SCHEMA: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS_SCHEMA: Final = ", headers array<struct<key: string, value: binary>>"


def read_schema(*, include_headers: bool) -> str:
    """The schema of a topic that is read, as Spark's Kafka source has it."""
    return READ_SCHEMA + (HEADERS_SCHEMA if include_headers else "")


def batch_read(columns: RecordColumns, topic: str, partition: int, timestamp_type: int, *, include_headers: bool) -> pa.RecordBatch:
    """Records of one partition as a record batch of `read_schema`. `columns` carry their offsets."""
    import pyarrow as pa

    count = len(columns)
    assert columns.offsets is not None, "records that were read have offsets"
    found = columns.to_arrow()
    timestamps = pa.array(columns.timestamps * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
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
        arrays["headers"] = found.column("headers")
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
