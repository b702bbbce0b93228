"""Output formats of `consume` (lines, JSON lines, CSV, Parquet, Arrow): write Arrow batches as bytes, without an object per record."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import IO, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.cli.rows.record_json import headers_text, json_lines
from chaffinch.errors import ConfigException, KafkaException
from chaffinch.identifiers import NO_TIMESTAMP, TopicPartition
from chaffinch.records.arrow_columns import SCHEMA as RECORD_SCHEMA
from chaffinch.records.arrow_columns import to_arrow
from chaffinch.records.columns import RecordColumns

# Size of a row group in Parquet and Arrow files. Small groups make files larger and slower to read.
GROUP_BYTES: Final = 64 << 20
GROUP_ROWS: Final = 1 << 20

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        RECORD_SCHEMA.field("timestamp"),
        RECORD_SCHEMA.field("key"),
        RECORD_SCHEMA.field("value"),
        RECORD_SCHEMA.field("headers"),
    ]
)
"""All columns of a fetched record."""

SUFFIXES: Final[Mapping[str, str]] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".log": "lines",
    ".txt": "lines",
}
FORMATS: Final = ("lines", "json", "csv", "parquet", "arrow")
BINARY_FORMATS: Final = ("parquet", "arrow")


def format_of(path: str | None, option: str) -> str:
    """The format for the suffix of a file; lines if it has none, and for pipes and devices. `option` is the option that named the file.

    Raises ConfigException for an unknown suffix, whose content would not match its name.
    """
    suffix = "" if path is None else PurePath(path).suffix.lower()
    found = SUFFIXES.get(suffix, "" if suffix else "lines")
    if found or (os.path.exists(str(path)) and not os.path.isfile(str(path))):
        return found or "lines"
    raise ConfigException(
        f"{option} {path!r}: unknown suffix {suffix}, known: {', '.join(SUFFIXES)}; or give the format with --format: {', '.join(FORMATS)}"
    )


def read_batch(tp: TopicPartition, columns: RecordColumns) -> pa.RecordBatch:
    """Records of one partition as a batch of `SCHEMA`. A missing timestamp is null, as `produce` accepts it."""
    assert columns.offsets is not None, "fetched records have offsets"
    found = to_arrow(columns)
    times = pa.array(columns.timestamps, pa.int64(), mask=columns.timestamps == NO_TIMESTAMP)
    arrays = {
        "topic": pa.repeat(pa.scalar(tp.topic, pa.string()), len(columns)),
        "partition": pa.repeat(pa.scalar(tp.partition, pa.int32()), len(columns)),
        "offset": pa.array(columns.offsets, pa.int64()),
        **{name: found.column(name) for name in RECORD_SCHEMA.names},
        "timestamp": times.cast(SCHEMA.field("timestamp").type),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


class RowSink(Protocol):
    """Writes batches with columns of `SCHEMA`. `flush` writes buffered data if the format allows; `close` ends the data, not the file."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TextSink:
    """Writes the texts of records, which `texts_of` returns for a batch."""

    def __init__(self, out: IO[bytes], texts_of: Callable[[pa.RecordBatch], pa.Array]) -> None:
        self._out = out
        self._texts_of = texts_of

    def write(self, batch: pa.RecordBatch) -> None:
        _write_all(self._out, self._texts_of(batch))

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


def lines(key_separator: str | None, null_marker: str) -> Callable[[pa.RecordBatch], pa.Array]:
    """A function that returns a line per record: the value, preceded by key and separator if one is given. Null becomes `null_marker`."""
    separator = None if key_separator is None else pa.scalar(key_separator.encode(), pa.binary())
    null = pa.scalar(null_marker.encode(), pa.binary())

    def lines_of(batch: pa.RecordBatch) -> pa.Array:
        parts: list[pa.Array | pa.Scalar] = [batch.column("value").fill_null(null)]
        if separator is not None:
            parts = [batch.column("key").fill_null(null), separator, *parts]
        end = [pa.scalar(text, pa.binary()) for text in (b"\n", b"")]
        return pc.binary_join_element_wise(*parts, *end)

    return lines_of


class NotUtf8Text(KafkaException):
    """Row `row` of a batch, from 0, has bytes that are not UTF-8, which the format cannot represent."""

    def __init__(self, message: str, *, row: int) -> None:
        super().__init__(message)
        self.row = row


class CsvSink:
    """Writes a header line and one row per record: text quoted, null empty and unquoted, times in ms, headers as JSON."""

    def __init__(self, out: IO[bytes], names: Sequence[str]) -> None:
        from pyarrow import csv

        self._out = out
        self._schema = pa.schema([pa.field(name, _CSV_TYPES.get(name, SCHEMA.field(name).type)) for name in names])
        self._writer = csv.CSVWriter(out, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(pa.RecordBatch.from_arrays([_csv_column(batch, name) for name in self._schema.names], schema=self._schema))

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self._writer.close()
        self._out.flush()


_CSV_TYPES: Final = {"timestamp": pa.int64(), "key": pa.string(), "value": pa.string(), "headers": pa.string()}


def _csv_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    array = batch.column(name)
    if name == "headers":
        return pa.array([headers_text(entries) if entries else None for entries in array.to_pylist()], pa.string())
    try:
        return array.cast(_CSV_TYPES.get(name, array.type))
    except pa.ArrowInvalid:
        text = f"column {name} has bytes that are not UTF-8, which CSV cannot hold: choose json, parquet or arrow"
        raise NotUtf8Text(text, row=next(row for row, value in enumerate(array) if not _is_text(value.as_py()))) from None


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


class GroupedSink:
    """Parquet or Arrow: collects batches into row groups. `write_group` and `end` are functions of the format's writer."""

    def __init__(self, out: IO[bytes], write_group: Callable[[pa.Table], object], end: Callable[[], object]) -> None:
        self._out = out
        self._write_group = write_group
        self._exit = end
        self._buffered: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._buffered.append(batch)
        self._bytes += batch.nbytes
        self._rows += len(batch)
        if self._bytes >= GROUP_BYTES or self._rows >= GROUP_ROWS:
            self._write_buffered()

    def flush(self) -> None:
        """No effect: a row group is written when it is full or at the end."""

    def _write_buffered(self) -> None:
        if self._buffered:
            self._write_group(pa.Table.from_batches(self._buffered))
        self._buffered, self._bytes, self._rows = [], 0, 0

    def close(self) -> None:
        self._write_buffered()
        self._exit()
        self._out.flush()


@contextmanager
def open_sink(
    name: str, out: IO[bytes], columns: Sequence[str], *, key_separator: str | None, null_marker: str, is_file: bool
) -> Iterator[RowSink]:
    """Open the sink of a format. `is_file`: write an Arrow file with a footer instead of an Arrow stream."""
    schema = pa.schema([SCHEMA.field(column) for column in columns])
    match name:
        case "json":
            yield TextSink(out, json_lines)  # One object per line, as `record_json` describes.
        case "csv":
            yield CsvSink(out, columns)
        case "parquet":
            from pyarrow import parquet

            parquet_writer = parquet.ParquetWriter(out, schema)
            try:
                yield GroupedSink(out, parquet_writer.write_table, parquet_writer.close)
            finally:
                with suppress(Exception):
                    parquet_writer.close()  # Otherwise its finalizer would write to the closed `out`, and Python would print the error.
        case "arrow":
            arrow_writer = pa.ipc.new_file(out, schema) if is_file else pa.ipc.new_stream(out, schema)
            yield GroupedSink(out, arrow_writer.write_table, arrow_writer.close)
        case _:
            yield TextSink(out, lines(key_separator, null_marker))


def _write_all(out: IO[bytes], lines: Any) -> None:
    """Write the bytes of all elements in one call."""
    if not len(lines):
        return
    width = 8 if pa.types.is_large_string(lines.type) or pa.types.is_large_binary(lines.type) else 4
    _, offsets, data = lines.buffers()
    ends = memoryview(offsets).cast("B").cast("q" if width == 8 else "i")
    out.write(memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]])
