"""Writes the dead letters of one batch as one Parquet file: under a temporary name, synced, renamed (decision 36)."""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.spark.folders import Folder


def write_parquet(folder: Folder, name: str, streams: Iterable[bytes | bytearray]) -> None:
    """Replaces file `name` by the rows of these Arrow IPC streams, all of one schema; one stream in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    with folder.replacing(name) as temporary, folder.opened()[0].open_output_stream(temporary) as out:
        for stream in streams:
            table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
            writer = writer or pq.ParquetWriter(out, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
