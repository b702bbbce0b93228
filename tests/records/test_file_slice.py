"""File slices, which are read, or sent by the system, at the time of sending."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaffinch.records import file_slice
from chaffinch.records.file_slice import FileSlice, loaded
from chaffinch.storage.file_system import DiskFileSystem
from chaffinch.storage.segment import RecordsFile
from tests.records.sources import BytesSource

DATA = bytes(range(100))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> BytesSource:
    monkeypatch.setattr(file_slice, "PIECE_BYTES", 10)
    return BytesSource(DATA)


def test_nothing_is_read_before_use(source: BytesSource) -> None:
    assert len(FileSlice(source, 5, 25)) == 25
    assert source.reads == []


def test_slice_is_read_in_pieces_or_whole(source: BytesSource) -> None:
    found = FileSlice(source, 5, 25)
    assert b"".join(found.pieces()) == bytes(found) == DATA[5:30]
    assert source.reads == [(5, 10), (15, 10), (25, 5), (5, 25)]


def test_each_piece_is_read_on_demand(source: BytesSource) -> None:
    pieces = FileSlice(source, 0, 30).pieces()
    assert (next(pieces), source.reads) == (DATA[:10], [(0, 10)])


def test_parts_that_are_bytes_stay_as_they_are(source: BytesSource) -> None:
    head, view = bytearray(b"head"), memoryview(b"view")
    result = loaded([head, FileSlice(source, 5, 25), view])
    assert result == [b"head", DATA[5:30], b"view"]
    assert (result[0] is head, result[2] is view) == (True, True)


def test_held_slice_outlives_its_file(tmp_path: Path) -> None:
    files = DiskFileSystem(tmp_path)
    opened = files.open("records")
    opened.append([DATA])
    found = FileSlice(RecordsFile(opened), 5, 25)
    found.skip(3)
    held = found.hold()
    assert held is not None
    opened.close()
    files.remove("records")
    files.open("records").append([bytes(100)])
    assert (len(found), bytes(found)) == (22, DATA[8:30])
    held.close()


def test_slice_in_memory_cannot_be_held(source: BytesSource) -> None:
    assert FileSlice(source, 5, 25).hold() is None
