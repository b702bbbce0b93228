"""Requests written as plain dictionaries, and the batches that cases send."""

from __future__ import annotations

import time
from typing import Any

from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.apis import APIS, Api
from chaffinch.protocol.primitives import Array, Struct, Structure
from chaffinch.protocol.schema import Message
from chaffinch.records import batch
from chaffinch.records.batch import Compression
from chaffinch.records.columns import RecordColumns

API_BY_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}


def request(api: str, **values: Any) -> Message:
    """A request of an API by its name; nested structures are dictionaries."""
    made = _made(API_BY_NAME[api].request, values)
    assert isinstance(made, Message)
    return made


def _made(cls: type[Structure], values: dict[str, Any]) -> Structure:
    kinds = {field.name: field.kind for field in cls.FIELDS}
    return cls(**{name: _value(kinds[name], value) for name, value in values.items()})


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, Array) and isinstance(value, list):
        return [_value(kind.element, part) for part in value]
    if isinstance(value, dict):
        return _made(kind.message if isinstance(kind, Struct) else kind, value)
    return value


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def records(
    *values: bytes,
    keys: list[bytes | None] | None = None,
    timestamps: list[int] | None = None,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    is_transactional: bool = False,
) -> bytearray:
    """One batch of format 2 with the time of now."""
    columns = RecordColumns.from_lists(keys or [b"k"] * len(values), list(values), timestamps or [wall_ms()] * len(values))
    identity = ProducerIdentity(*producer)
    return batch.encode(columns, compression=compression, identity=identity, base_sequence=sequence, is_transactional=is_transactional)


def produce(topic: str, data: Any, *, partition: int = 0, acks: int = -1, transactional_id: str | None = None, **more: Any) -> Message:
    part = {"name": topic, "partitions": [{"index": partition, "records": data}], **more}
    return request("Produce", transactional_id=transactional_id, acks=acks, timeout_ms=5000, topics=[part])


def fetch(topic: str, offset: int, *, partition: int = 0, **more: Any) -> Message:
    asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    values = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **more}
    return request("Fetch", topics=[{"topic": topic, "partitions": [asked]}], **values)


def list_offsets(topic: str, timestamp: int, *, partition: int = 0, **more: Any) -> Message:
    asked = {"partition_index": partition, "timestamp": timestamp}
    return request("ListOffsets", topics=[{"name": topic, "partitions": [asked]}], **more)
