"""Input formats of `produce`: reads lines, JSON lines, CSV, Parquet and Arrow in pieces of limited size.

Each piece has a table for `Producer.send_table`, the number of each row in the input, and the rows that cannot be parsed.
"""

from __future__ import annotations

import csv as standard_csv
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.cli.rows.record_json import compact
from chaffinch.cli.rows.record_texts import READ_ONLY, TextRecord, headers_of, no_key, parse_json, partition_of, timestamp_of
from chaffinch.errors import ConfigException, KafkaException
from chaffinch.identifiers import pluralize
from chaffinch.records.arrow_columns import HEADER_TYPE

# The rest of a quoted field up to its closing quote, or to the end. Two quotes inside the field are an escaped quote.
_REST_OF_FIELD: Final = rb'[^"]*(?:""[^"]*)*("(?!")|\Z)'
_INSIDE: Final = re.compile(_REST_OF_FIELD)
# A quote opens a field only where the field begins.
_QUOTED_FIELD: Final = re.compile(
    rb'"(?<=[,\r\n]")' + _REST_OF_FIELD
)  # The quote comes first, so that the search skips text without quotes.


class QuoteTracker:
    """A file wrapper for Arrow's CSV reader that tracks open quotes. `file` is positioned at the beginning of line `line`."""

    closed = False

    def __init__(self, file: IO[bytes], line: int) -> None:
        self.open_line: int | None = None
        """The line of the quote that is still open after the bytes read so far, or None."""
        self.is_ended = False
        self._file = file
        self._line = line
        self._last_byte = b"\n"
        self._trailing_quotes = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """No effect: the caller closes the file."""

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        if not self.is_ended:
            self.is_ended = not chunk
            self._scan(self._trailing_quotes + chunk)
        return chunk

    def _scan(self, data: bytes) -> None:
        # Whether quotes at the end of the data close a field depends on the next bytes.
        end = len(data) if self.is_ended else len(data.rstrip(b'"'))
        text, self._trailing_quotes = self._last_byte + data[:end], data[end:]
        position = 1
        if self.open_line is not None:
            rest = _INSIDE.match(text, 1)
            assert rest is not None, "it also matches the empty string"
            position = rest.end()
            self.open_line = None if rest[1] else self.open_line
        if self.open_line is None:
            for last in deque(_QUOTED_FIELD.finditer(text, position), maxlen=1):
                self.open_line = None if last[1] else self._line + text.count(b"\n", 1, last.start())
        self._line += text.count(b"\n", 1)
        self._last_byte = text[-1:]


# Size of a piece: large enough for full batches in several partitions, small compared with the producer's memory.
PIECE_BYTES: Final = 4 << 20
PIECE_ROWS_MAX: Final = 1 << 16
# Limits the memory for a file without line feeds. Brokers do not accept records this large.
LINE_BYTES_MAX: Final = 128 << 20

Numbers = npt.NDArray[np.int64]

HEADERS_TYPE: Final = pa.list_(HEADER_TYPE)
TEXT_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE), ("timestamp", pa.int64()), ("partition", pa.int32())]
)
"""Schema of rows that were parsed from text."""


class BrokenRow(NamedTuple):
    """A row that is not a valid record: its number, its text as far as known, and the error."""

    number: int
    text: bytes
    reason: str


class Piece(NamedTuple):
    """A part of the input. `numbers`: row numbers of `table`, from 1. `done`: bytes or rows of the input read up to this piece."""

    table: pa.Table
    numbers: Numbers
    broken: list[BrokenRow]
    done: int


# Lines --------------------------------------------------------------------------------------------------------------------------------


def _line_pieces(file: IO[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """(whole lines without the last line feed, number of the first line, bytes read so far)."""
    waiting: list[bytes] = []
    waiting_bytes, number, done = 0, 1, 0
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    while chunk := read(PIECE_BYTES):
        done += len(chunk)
        cut = chunk.rfind(b"\n")
        if cut < 0:
            waiting.append(chunk)
            waiting_bytes += len(chunk)
            if waiting_bytes > LINE_BYTES_MAX:
                raise KafkaException(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
            continue
        text = b"".join([*waiting, chunk[:cut]])
        yield text, number, done
        number += text.count(b"\n") + 1
        waiting, waiting_bytes = [chunk[cut + 1 :]], len(chunk) - cut - 1
    if text := b"".join(waiting):
        yield text, number, done


def read_lines(file: IO[bytes], *, key_separator: str | None, null_marker: str | None) -> Iterator[Piece]:
    """Read each line as a value. With a separator, the text before its first occurrence is the key. LF or CR LF ends a line."""
    marker = None if null_marker is None else pa.scalar(null_marker.encode(), pa.large_binary())
    for text, first, done in _line_pieces(file):
        lines = pc.split_pattern(pa.array([text.replace(b"\r\n", b"\n").removesuffix(b"\r")], pa.large_binary()), "\n").flatten()
        numbers = np.arange(first, first + len(lines), dtype=np.int64)
        if key_separator is None:
            yield Piece(pa.table({"value": _with_nulls(lines, marker)}), numbers, [], done)
            continue
        parts = pc.split_pattern(lines, key_separator, max_splits=1)
        has_key = pc.greater(pc.list_value_length(parts), 1)
        keyed = parts.filter(has_key)
        key, value = (pc.list_element(keyed, side) if len(keyed) else pa.array([], pa.large_binary()) for side in (0, 1))
        table = pa.table({"key": _with_nulls(key, marker), "value": _with_nulls(value, marker)})
        mask = has_key.to_numpy(zero_copy_only=False)
        broken = [
            BrokenRow(int(numbers[index]), lines[index].as_py(), f"no key separator {key_separator!r} in the line")
            for index in np.flatnonzero(~mask).tolist()
        ]
        yield Piece(table, numbers[mask], broken, done)


def _with_nulls(values: pa.Array, marker: pa.Scalar | None) -> pa.Array:
    return values if marker is None else pc.if_else(pc.equal(values, marker), pa.scalar(None, values.type), values)


# JSON lines ---------------------------------------------------------------------------------------------------------------------------


def read_json(file: IO[bytes], record_of: Callable[[bytes], TextRecord]) -> Iterator[Piece]:
    """Read one record per line; blank lines are skipped."""
    for text, first, done in _line_pieces(file):
        records: list[tuple[int, TextRecord]] = []
        broken: list[BrokenRow] = []
        for number, line in enumerate(text.split(b"\n"), first):
            if not line.strip():
                continue
            try:
                records.append((number, record_of(line.rstrip(b"\r"))))
            except ValueError as error:
                broken.append(BrokenRow(number, line, str(error)))
        yield Piece(_text_table([record for _, record in records]), np.array([number for number, _ in records], np.int64), broken, done)


def _text_table(records: Sequence[TextRecord]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": [[{"key": key, "value": value} for key, value in record.headers] for record in records],
        "timestamp": [record.timestamp for record in records],
        "partition": [record.partition for record in records],
    }
    return pa.table(columns, schema=TEXT_SCHEMA)


# CSV ----------------------------------------------------------------------------------------------------------------------------------


def read_csv(file: IO[bytes], *, key_field: str | None, null_marker: str | None) -> Iterator[Piece]:
    """Read rows after a header line. Columns: key, value, headers, timestamp, partition; with `key_field` any, and rows become values.

    An unquoted field that is empty, or equal to `null_marker` if given, is null. The first row has the number 1.
    """
    from pyarrow import csv

    names = _csv_names(file)
    skipped: dict[int, BrokenRow] = {}

    def skip(row: csv.InvalidRow) -> Literal["skip"]:
        reason = f"{pluralize(row.actual_columns, 'field')}, the header line has {row.expected_columns}"
        assert row.number is not None, "rows have numbers in single-threaded reads"
        skipped[row.number] = BrokenRow(row.number, row.text.encode(), reason)
        return "skip"

    options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        strings_can_be_null=True,
        null_values=["" if null_marker is None else null_marker],
        quoted_strings_can_be_null=False,
    )
    # The header is line 1.
    quotes = QuoteTracker(file, 2)
    try:
        reader = csv.open_csv(
            quotes,
            read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=PIECE_BYTES),
            parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=options,
        )
        number = 1
        for batch, is_last in _with_last(reader):
            table = pa.table(batch)
            numbers, number = _row_numbers(len(table), number, skipped)
            broken = [skipped.pop(known) for known in sorted(skipped) if known < number]
            if is_last and not skipped and len(table) and quotes.open_line is not None:
                broken.append(BrokenRow(int(numbers[-1]), _row_text(table, len(table) - 1), _unclosed_quote(quotes.open_line)))
                table, numbers = table.slice(0, len(table) - 1), numbers[:-1]
            yield _csv_piece(table, numbers, broken, key_field, file)
        rest = [skipped[known] for known in sorted(skipped)]
        if rest and quotes.open_line is not None:
            rest[-1] = rest[-1]._replace(reason=_unclosed_quote(quotes.open_line))
        yield Piece(_text_table([]), np.empty(0, np.int64), rest, file.tell() if file.seekable() else 0)
    except pa.ArrowInvalid as error:
        if quotes.open_line is not None:
            raise KafkaException(f"not readable as CSV: {_unclosed_quote(quotes.open_line)}") from None
        if "Empty CSV" not in str(error):
            raise KafkaException(f"not readable as CSV: {error}") from None


def _with_last(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each batch with whether it is the last one."""
    waiting = None
    for batch in batches:
        if waiting is not None:
            yield waiting, False
        waiting = batch
    if waiting is not None:
        yield waiting, True


def _unclosed_quote(line: int) -> str:
    return f"the quote that opens a field in line {line} is not closed: the field would include the rest of the input"


def _row_text(table: pa.Table, index: int) -> bytes:
    return b",".join(field or b"" for field in table.slice(index, 1).to_pylist()[0].values())


def _csv_names(file: IO[bytes]) -> list[str]:
    try:
        first = next(standard_csv.reader([file.readline(PIECE_BYTES).decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, standard_csv.Error) as error:
        raise KafkaException(f"not readable as CSV: the first line: {error}") from None
    if not first:
        raise KafkaException("not readable as CSV: the first line has no names")
    return first


def _row_numbers(count: int, first: int, skipped: dict[int, BrokenRow]) -> tuple[Numbers, int]:
    """The numbers of `count` rows from `first` on, without the skipped rows, and the next number."""
    candidates = np.arange(first, first + count + len(skipped), dtype=np.int64)
    numbers = candidates[~np.isin(candidates, list(skipped))][:count]
    return numbers, int(numbers[-1]) + 1 if count else first


def _csv_piece(table: pa.Table, numbers: Numbers, broken: list[BrokenRow], key_field: str | None, file: IO[bytes]) -> Piece:
    done = file.tell() if file.seekable() else 0
    if key_field is not None:
        return keyed_piece(table, numbers, broken, key_field, done)
    table = _record_columns(table)
    original, good = table, np.ones(len(table), bool)
    for name, parse, kind in _CSV_PARSERS:
        if name not in table.schema.names:
            continue
        values: list[Any] = []
        for index, text in enumerate(table.column(name).to_pylist()):
            try:
                values.append(None if text is None else parse(text.decode(errors="replace")))
            except ValueError as error:
                values.append(None)
                if good[index]:
                    broken.append(BrokenRow(int(numbers[index]), _row_text(original, index), str(error)))
                good[index] = False
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))
    return Piece(table if good.all() else table.filter(pa.array(good)), numbers[good], broken, done)


def _csv_headers(text: str) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in headers_of(parse_json(text))]


def _number(text: str) -> Any:
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else text


_CSV_PARSERS: Final[tuple[tuple[str, Callable[[str], Any], pa.DataType], ...]] = (
    ("timestamp", lambda text: timestamp_of(_number(text)), pa.int64()),
    ("partition", lambda text: partition_of(_number(text)), pa.int32()),
    ("headers", _csv_headers, HEADERS_TYPE),
)


# Tables -------------------------------------------------------------------------------------------------------------------------------


def read_parquet(file: IO[bytes], key_field: str | None) -> Iterator[Piece]:
    """Read row groups, a piece at a time. A stream that is not seekable is copied to a temporary file first."""
    from pyarrow import parquet

    with tempfile.TemporaryFile() as copy:
        if not file.seekable():
            shutil.copyfileobj(file, copy)
            file = copy
        try:
            opened = parquet.ParquetFile(file)
            row_bytes = max(
                1,
                sum(opened.metadata.row_group(i).total_byte_size for i in range(opened.num_row_groups)) // max(1, opened.metadata.num_rows),
            )
            yield from _tables(opened.iter_batches(batch_size=max(1, min(PIECE_BYTES // row_bytes, PIECE_ROWS_MAX))), key_field)
        except (pa.ArrowInvalid, OSError) as error:
            raise KafkaException(f"not readable as Parquet: {first_line(error)}") from None


def read_arrow(file: IO[bytes], key_field: str | None) -> Iterator[Piece]:
    """Read the record batches of an Arrow file (Feather 2) or stream."""
    try:
        is_file = file.seekable() and file.read(6) == b"ARROW1"
        if file.seekable():
            file.seek(0)
        if is_file:
            opened = pa.ipc.open_file(file)
            batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
            yield from _tables(batches, key_field)
        else:
            yield from _tables(pa.ipc.open_stream(file), key_field)
    except (pa.ArrowInvalid, OSError) as error:
        raise KafkaException(f"not readable as Arrow: {first_line(error)}") from None


def _tables(batches: Any, key_field: str | None) -> Iterator[Piece]:
    number = 1
    for whole in batches:
        for start in range(0, len(whole), PIECE_ROWS_MAX):
            table = pa.table(whole.slice(start, PIECE_ROWS_MAX))
            numbers = np.arange(number, number + len(table), dtype=np.int64)
            number += len(table)
            if key_field is not None:
                yield keyed_piece(table, numbers, [], key_field, number - 1)
            else:
                yield Piece(_record_columns(table), numbers, [], number - 1)


def _record_columns(table: pa.Table) -> pa.Table:
    """Drop the columns that `consume` adds. Raises KafkaException if there is no column `value`."""
    names = table.schema.names
    if "value" not in names:
        raise KafkaException(f"there is no column 'value', the columns are {', '.join(names)}; --key-field NAME writes whole rows")
    return table.drop_columns([name for name in READ_ONLY if name in names])


def keyed_piece(table: pa.Table, numbers: Numbers, broken: list[BrokenRow], key_field: str, done: int) -> Piece:
    """Each row as a JSON object in the value, with the column `key_field` as the key. Rows with a null key are broken rows."""
    if key_field not in table.schema.names:
        raise ConfigException(f"--key-field {key_field!r}: the columns are {', '.join(table.schema.names)}")
    rows = [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]
    has_key = np.array([row[key_field] is not None for row in rows], bool)
    values = [compact(row).encode() for row in rows]
    keyless = [BrokenRow(int(numbers[index]), values[index], no_key(key_field)) for index in np.flatnonzero(~has_key)]
    columns = {
        "key": pa.array([str(row[key_field]).encode() for row in rows if row[key_field] is not None], pa.binary()),
        "value": pa.array(values, pa.binary()).filter(pa.array(has_key)),
    }
    return Piece(pa.table(columns), numbers[has_key], broken + keyless, done)


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def first_line(error: BaseException) -> str:
    """The first line of an error of Arrow."""
    return str(error).partition("\n")[0]
