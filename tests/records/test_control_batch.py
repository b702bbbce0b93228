"""Visibility of batches for readers of committed records (KIP-98)."""

import pytest

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.records.control_batch import committed, encode_control_batch


def data(offset: int, producer: int | None = None, count: int = 2) -> bytearray:
    columns = RecordColumns.from_lists(None, [b"v"] * count, [0] * count)
    identity = NO_PRODUCER if producer is None else ProducerIdentity(producer, 0)
    return batches.encode(columns, base_offset=offset, identity=identity, base_sequence=-1 if producer is None else 0,
                          is_transactional=producer is not None)  # fmt: skip


def marker(offset: int, producer: int, *, is_commit: bool) -> bytearray:
    return encode_control_batch(is_commit, ProducerIdentity(producer, 0), 0, 0, base_offset=offset)


def seen(log: list[bytearray], aborted: list[tuple[int, int]]) -> list[int]:
    return [view.header.base_offset for view, is_visible in committed(batches.views(b"".join(log)), aborted) if is_visible]


@pytest.mark.parametrize(
    ("log", "aborted", "expected"),
    [
        ([data(0), data(2, 1), marker(4, 1, is_commit=True)], [], [0, 2]),
        ([data(0), data(2, 1), marker(4, 1, is_commit=False)], [(1, 2)], [0]),
        ([data(0, 1), marker(2, 1, is_commit=False), data(3, 1), marker(5, 1, is_commit=True)], [(1, 0)], [3]),
        ([data(0, 1), data(2, 2), marker(4, 1, is_commit=False), data(5, 2), marker(7, 2, is_commit=True)], [(1, 0)], [2, 5]),
        ([data(0, 1), data(2, 2), marker(4, 2, is_commit=False), marker(5, 1, is_commit=False)], [(2, 2), (1, 0)], []),
        # The same producer aborts twice.
        ([data(0, 1), marker(2, 1, is_commit=False), data(3, 1), marker(5, 1, is_commit=False), data(6)], [(1, 3), (1, 0)], [6]),
        # A fetch that begins inside an aborted transaction.
        ([data(10, 1), marker(12, 1, is_commit=False), data(13)], [(1, 4)], [13]),
        # An idempotent producer that never was in the transaction keeps its batches.
        ([data(0, 1), data(2), marker(4, 1, is_commit=False)], [(1, 0)], [2]),
    ],
)
def test_aborted_and_control_batches_are_invisible(log: list[bytearray], aborted: list[tuple[int, int]], expected: list[int]) -> None:
    assert seen(log, aborted) == expected
