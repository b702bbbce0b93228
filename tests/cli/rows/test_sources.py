"""Files in pieces: every row once, with its number, however the pieces fall."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.cli.rows import sources as row_sources
from chaffinch.cli.rows.record_texts import record_of
from chaffinch.cli.rows.sources import BrokenRow, Piece, QuoteTracker
from chaffinch.errors import KafkaException

LINES = st.lists(
    st.binary(max_size=12).filter(lambda line: b"\n" not in line and not line.endswith(b"\r") and b"\r\n" not in line), max_size=30
)
SMALL = st.integers(1, 40)


@pytest.fixture
def piece_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that sets how much is read at once."""
    return lambda size: monkeypatch.setattr(row_sources, "PIECE_BYTES", size)


def rows_of(pieces: Iterable[Piece]) -> tuple[list[tuple[int, dict[str, Any]]], list[BrokenRow]]:
    """All rows by number, and the broken ones."""
    found = list(pieces)
    assert all(isinstance(piece, Piece) and len(piece.table) == len(piece.numbers) for piece in found)
    rows = [(int(number), row) for piece in found for number, row in zip(piece.numbers, piece.table.to_pylist(), strict=True)]
    return rows, [broken for piece in found for broken in piece.broken]


@given(lines=LINES, size=SMALL, ending=st.sampled_from([b"\n", b"\r\n"]), is_ended=st.booleans())
def test_lines_are_values(lines: list[bytes], size: int, ending: bytes, is_ended: bool) -> None:
    text = ending.join(lines) + (ending if is_ended and lines else b"")
    expected = lines if is_ended or not lines or lines[-1] else lines[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sources, "PIECE_BYTES", size)
        rows, broken = rows_of(row_sources.read_lines(io.BytesIO(text), key_separator=None, null_marker=None))
    assert rows == [(number, {"value": line}) for number, line in enumerate(expected, 1)]
    assert broken == []


@given(lines=LINES, size=SMALL, separator=st.sampled_from([":", "::", "é"]))
def test_key_separator_splits_lines(lines: list[bytes], size: int, separator: str) -> None:
    text = b"".join(line + b"\n" for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sources, "PIECE_BYTES", size)
        rows, broken = rows_of(row_sources.read_lines(io.BytesIO(text), key_separator=separator, null_marker="a"))
    parts = {number: line.partition(separator.encode()) for number, line in enumerate(lines, 1)}

    def content(part: bytes) -> bytes | None:
        return None if part == b"a" else part

    assert rows == [(number, {"key": content(key), "value": content(value)}) for number, (key, found, value) in parts.items() if found]
    assert [(row.number, row.text) for row in broken] == [(number, key) for number, (key, found, _) in parts.items() if not found]


@given(broken=st.lists(st.booleans(), max_size=25), size=SMALL)
def test_json_lines_are_records(broken: list[bool], size: int) -> None:
    lines = ["{" if is_broken else json.dumps({"value": str(number)}) for number, is_broken in enumerate(broken, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sources, "PIECE_BYTES", size)
        rows, wrong = rows_of(row_sources.read_json(io.BytesIO("\n".join(lines).encode()), record_of))
    assert [(number, row["value"]) for number, row in rows] == [(n, b"%d" % n) for n, is_broken in enumerate(broken, 1) if not is_broken]
    assert [row.number for row in wrong] == [number for number, is_broken in enumerate(broken, 1) if is_broken]


@given(kinds=st.lists(st.sampled_from(["good", "short", "long", "time"]), max_size=25), size=st.integers(40, 200))
def test_csv_rows_are_records(kinds: list[str], size: int) -> None:
    rows = {"good": "v{n},5", "short": "v{n}", "long": "v{n},5,7", "time": "v{n},never"}
    text = "value,timestamp\n" + "".join(rows[kind].format(n=number) + "\n" for number, kind in enumerate(kinds, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sources, "PIECE_BYTES", size)
        found, broken = rows_of(row_sources.read_csv(io.BytesIO(text.encode()), key_field=None, null_marker=None))
    good = [number for number, kind in enumerate(kinds, 1) if kind == "good"]
    assert found == [(number, {"value": b"v%d" % number, "timestamp": 5}) for number in good]
    assert sorted(row.number for row in broken) == [number for number, kind in enumerate(kinds, 1) if kind != "good"]
    assert all(row.text.startswith(b"v%d" % row.number) for row in broken)


@pytest.mark.parametrize(
    ("text", "rows", "row", "line"),
    [
        (b'a,1\nb,"2\nc,3\nd,4\n', 1, 2, 3),
        (b'a,"1\n1"\n"b""\n,",2\nc,"d\n', 2, 3, 6),
        (b'a,5" disk\nb,"', 1, 2, 3),
        (b'"a\nb,2\nc,3\n', 0, 1, 2),
        (b'a,"1"\nb,"2""', 1, 2, 3),
    ],
)
def test_unclosed_quote_names_its_line(text: bytes, rows: int, row: int, line: int) -> None:
    found, (broken,) = rows_of(row_sources.read_csv(io.BytesIO(b"key,value\n" + text), key_field=None, null_marker=None))
    assert [number for number, _ in found] == list(range(1, rows + 1))
    assert broken.number == row
    assert broken.reason.startswith(f"the quote that opens a field in line {line} is not closed")


def test_unclosed_quote_larger_than_a_block_names_its_line(piece_bytes: Callable[[int], None]) -> None:
    piece_bytes(200)
    text = b'key,value\na,1\nb,"2\n' + b"d,4\n" * 1000
    with pytest.raises(KafkaException, match="the quote that opens a field in line 3 is not closed"):
        rows_of(row_sources.read_csv(io.BytesIO(text), key_field=None, null_marker=None))


FIELDS = st.lists(st.sampled_from(["x", '"y"', '"a""b"', '"a,\n"', '""', '5"', '"""q"']), max_size=20)


@given(fields=FIELDS, size=st.integers(1, 9), is_open=st.booleans())
def test_quotes_are_tracked_across_any_block_boundary(fields: list[str], size: int, is_open: bool) -> None:
    text = "\n".join([*fields, *(['"z""'] if is_open else [])]).encode()
    watch = QuoteTracker(io.BytesIO(text), 1)
    while watch.read(size):
        pass
    opened = sum(field.count("\n") + 1 for field in fields) + 1 if is_open else None
    assert watch.open_line == opened


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_tables_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(row_sources, "PIECE_ROWS_MAX", 3)
    table = pa.table({"value": [b"%d" % number for number in range(1, 11)], "offset": range(10), "topic": ["t"] * 10})
    path = tmp_path / form
    if form == "parquet":
        pq.write_table(table, path, row_group_size=4)
    else:
        with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    with path.open("rb") as file:
        read = row_sources.read_parquet if form == "parquet" else row_sources.read_arrow
        pieces = list(read(file, None))
    assert max(len(piece.table) for piece in pieces) == 3
    assert rows_of(pieces) == ([(number, {"value": b"%d" % number}) for number in range(1, 11)], [])


class Pipe(io.RawIOBase):
    """A stream that can only be read once, from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._data.readinto(buffer)


@pytest.mark.parametrize("form", ["parquet", "stream"])
def test_tables_are_read_from_a_pipe(form: str) -> None:
    table, out = pa.table({"value": [b"1", b"2"]}), io.BytesIO()
    if form == "parquet":
        pq.write_table(table, out)
    else:
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
    file = io.BufferedReader(Pipe(out.getvalue()))
    rows, _ = rows_of((row_sources.read_parquet if form == "parquet" else row_sources.read_arrow)(file, None))
    assert rows == [(1, {"value": b"1"}), (2, {"value": b"2"})]


def test_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch, piece_bytes: Callable[[int], None]) -> None:
    piece_bytes(10)
    monkeypatch.setattr(row_sources, "LINE_BYTES_MAX", 100)
    with pytest.raises(KafkaException, match="line 2 is longer than 100 bytes"):
        list(row_sources.read_lines(io.BytesIO(b"short\n" + b"x" * 1000), key_separator=None, null_marker=None))


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe,a\n"], ids=["empty", "no names", "bytes"])
def test_csv_without_header_is_refused(data: bytes) -> None:
    with pytest.raises(KafkaException, match="not readable as CSV"):
        list(row_sources.read_csv(io.BytesIO(data), key_field=None, null_marker=None))


def test_csv_with_header_only_has_no_rows() -> None:
    assert rows_of(row_sources.read_csv(io.BytesIO(b"key,value\n"), key_field=None, null_marker=None)) == ([], [])
