"""What driver and executors send each other in this tree, as a fixture; see `make_fixtures.py`."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.data_source import ChaffinchDataSource
from chaffinch.spark.refusals import Refusal

WRITTEN = {"key": BinaryType(), "value": BinaryType()}
READ = {
    **WRITTEN,
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
LATER_VERSION = "9.9.9"


def make_messages(folder: Path) -> dict[str, Any]:
    """One pickle of each kind: `to_executors` are asked to work, `to_driver` are answers."""
    with EmbeddedBroker(topics=["rows"]) as broker:
        client = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        sink, source = ChaffinchDataSource({**client, "topic": "rows"}), ChaffinchDataSource({**client, "subscribe": "rows"})
        to_executors: dict[str, Any] = {
            "stream_writer": sink.streamWriter(schema_of(WRITTEN), False),
            "batch_writer": sink.writer(schema_of(WRITTEN), False),
            "stream_reader": source.streamReader(schema_of(READ)),
            "batch_reader": source.reader(schema_of(READ)),
        }
        to_driver: dict[str, Any] = {
            "outcome": to_executors["batch_writer"].write(iter([pa.record_batch({"key": [b"a"], "value": [b"1"]})]))
        }
    unpickle, (kind, _, state) = to_executors["batch_writer"].__reduce__()
    with suppress(Refusal):  # A tree that raises it sends no message.
        to_driver["versions_differ"] = unpickle(kind, LATER_VERSION, state).write(iter([]))
    for name, messages in {"to_executors": to_executors, "to_driver": to_driver}.items():
        (folder / name).mkdir()
        for kind, message in messages.items():
            (folder / name / f"{kind}.pickle").write_bytes(pickle.dumps(message))
    return {}


def schema_of(columns: dict[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])
