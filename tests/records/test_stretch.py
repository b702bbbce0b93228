"""Bytes of a file that are read when they are sent."""

from __future__ import annotations

import pytest

from chaffinch.records import stretch
from chaffinch.records.stretch import Stretch, loaded

DATA = bytes(range(100))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    monkeypatch.setattr(stretch, "PIECE_BYTES", 10)
    return []


def of(asked: list[tuple[int, int]], position: int, length: int) -> Stretch:
    def read(position: int, length: int) -> bytes:
        asked.append((position, length))
        return DATA[position : position + length]

    return Stretch(read, position, length)


def test_nothing_is_read_before_it_is_wanted(asked: list[tuple[int, int]]) -> None:
    assert len(of(asked, 5, 25)) == 25
    assert asked == []


def test_it_comes_in_pieces_or_whole(asked: list[tuple[int, int]]) -> None:
    found = of(asked, 5, 25)
    assert b"".join(found.pieces()) == bytes(found) == DATA[5:30]
    assert asked == [(5, 10), (15, 10), (25, 5), (5, 25)]


def test_a_piece_is_read_when_the_one_before_was_taken(asked: list[tuple[int, int]]) -> None:
    pieces = of(asked, 0, 30).pieces()
    assert (next(pieces), asked) == (DATA[:10], [(0, 10)])


def test_parts_that_are_bytes_stay_as_they_are(asked: list[tuple[int, int]]) -> None:
    head, view = bytearray(b"head"), memoryview(b"view")
    result = loaded([head, of(asked, 5, 25), view])
    assert result == [b"head", DATA[5:30], b"view"]
    assert (result[0] is head, result[2] is view) == (True, True)
