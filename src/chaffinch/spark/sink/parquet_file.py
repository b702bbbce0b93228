"""Parquet file with the dead letters of one batch: written to a temporary name, synced, renamed (decision 36)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaffinch.spark.folders import Folder
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks.replay_notes import RetainedRows

if TYPE_CHECKING:
    import pyarrow as pa

# In the file's metadata: the topic that holds the same dead letters. Files of earlier versions have none of these.
_FORMAT: Final = b"chaffinch.letters.format"
_TOPIC: Final = b"chaffinch.letters.topic"
_TOPIC_ID: Final = b"chaffinch.letters.topic.id"
FORMAT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFileInfo:
    """Metadata of a file. `topic`: the dead letter topic with the same dead letters, by name and, if brokers report it, by id."""

    format: int = 1
    topic: str | None = None
    topic_id: bytes = bytes(16)

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> DeadLetterFileInfo:
        """From the metadata of a file's schema. Raises ValueError for metadata that no version has written."""
        found = metadata or {}
        topic = found.get(_TOPIC)
        return cls(
            format=int(found.get(_FORMAT, b"1")),
            topic=None if topic is None else topic.decode(),
            topic_id=bytes.fromhex(found.get(_TOPIC_ID, b"00" * 16).decode()),
        )


def dead_letter_metadata(target: TopicSnapshot | None) -> dict[bytes, bytes]:
    """Metadata of a file whose dead letters also go to this topic; None: to no topic."""
    fields = {_FORMAT: str(FORMAT).encode()}
    if target is not None:
        fields |= {_TOPIC: target.topic.encode(), _TOPIC_ID: target.topic_id.hex().encode()}
    return fields


def write_parquet(
    folder: Folder,
    name: str,
    streams: Iterable[bytes | bytearray],
    metadata: Mapping[bytes, bytes] | None = None,
    retained: RetainedRows | None = None,
) -> None:
    """Replaces file `name` with these rows: first the `retained` ones of an older file in the folder, then those of Arrow IPC streams of
    one schema. One stream, or one row group, is in memory at a time.
    """
    import pyarrow.parquet as pq

    writer = None
    with folder.replacing(name) as out:
        for table in _tables(folder, streams, retained):
            writer = writer or pq.ParquetWriter(out, table.schema.with_metadata({**(table.schema.metadata or {}), **(metadata or {})}))
            writer.write_table(_with_schema(table, writer.schema))
        if writer is not None:
            writer.close()


def _tables(folder: Folder, streams: Iterable[bytes | bytearray], retained: RetainedRows | None) -> Iterator[pa.Table]:
    import pyarrow as pa

    if retained is not None:
        yield from _retained_tables(folder, retained)
    for stream in streams:
        yield pa.ipc.open_stream(pa.py_buffer(stream)).read_all()


def _retained_tables(folder: Folder, retained: RetainedRows) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    with folder.opened()[0].open_input_file(folder.path(retained.name)) as source:
        file = pq.ParquetFile(source)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            is_retained = np.zeros(len(table), bool)
            for start, end in retained.ranges:
                is_retained[max(0, start - first) : max(0, end - first)] = True
            first += len(table)
            if is_retained.any():
                yield table.filter(pa.array(is_retained)).replace_schema_metadata(None)


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns of the file's first rows: an earlier version may have had different ones."""
    import pyarrow as pa

    columns: list[Any] = [
        table.column(field.name).cast(field.type) if field.name in table.schema.names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
