"""Arrow tables for `poll_table`: built from the decoded buffers, without an object per record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from chaffinch.consumer.core.fetcher import Portion
from chaffinch.records import arrow_columns

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        arrow_columns.SCHEMA.field("timestamp"),
        pa.field("timestampType", pa.int32()),
        arrow_columns.SCHEMA.field("key"),
        arrow_columns.SCHEMA.field("value"),
        arrow_columns.SCHEMA.field("headers"),
    ]
)


def table_of(portions: Iterable[Portion]) -> pa.Table:
    """The records of all portions, concatenated."""
    return pa.Table.from_batches([_batch(portion) for portion in portions], SCHEMA)


def _batch(portion: Portion) -> pa.RecordBatch:
    columns = portion.columns
    assert columns.offsets is not None, "records that were read have offsets"
    count = len(columns)
    found = arrow_columns.to_arrow(columns)
    arrays = {
        "topic": pa.repeat(pa.scalar(portion.tp.topic, pa.string()), count),
        "partition": pa.repeat(pa.scalar(portion.tp.partition, pa.int32()), count),
        "offset": pa.array(columns.offsets, pa.int64()),
        "timestamp": found.column("timestamp"),
        "timestampType": pa.repeat(pa.scalar(portion.timestamp_type, pa.int32()), count),
        "key": found.column("key"),
        "value": found.column("value"),
        "headers": found.column("headers"),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)
