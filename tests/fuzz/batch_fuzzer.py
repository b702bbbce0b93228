"""Damaged batches for `decode`, by the compiled loops and by their twin: both must find the same records or the same error.

With NUMBA_BOUNDSCHECK=1 numba checks every index, and an access outside a buffer is an IndexError. Not collected by pytest:
`test_records_batch.py` and `test_bounds.py` run it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from chaffinch.records import kernels
from chaffinch.records.batch import HEADER_BYTES, Compression, RecordsError, decode, encode, without_records
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import compress

EDGES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
DECOMPRESSED_BYTES_MAX = 1 << 18
COUNT_POSITION = HEADER_BYTES - 4


@contextmanager
def loops(chosen: kernels.Loops) -> Iterator[None]:
    """Have every caller use `chosen`."""
    before = kernels.choose
    kernels.choose = lambda count: chosen
    try:
        yield
    finally:
        kernels.choose = before


def some_columns(rng: random.Random) -> RecordColumns:
    count = rng.choice((1, 1, 2, 3, 5, 40))
    keys = [rng.choice((None, b"", b"key", b"k" * 130)) for _ in range(count)]
    values = [rng.choice((None, b"", b"v", b"v" * 70, b"v" * 8300)) for _ in range(count)]
    timestamps = [rng.choice((-1, 0, 1_700_000_000_000, 2**63 - 1, -(2**63))) for _ in range(count)]
    headers = [[(rng.choice(("", "name")), rng.choice((None, b"", b"x" * 90))) for _ in range(rng.choice((0, 0, 1, 3)))] for _ in keys]
    return RecordColumns.from_lists(keys, values, timestamps, headers)


def damage(rng: random.Random, data: bytearray, start: int) -> None:
    """Change, take out or put in some bytes behind `start`."""
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(start, len(data) + 1)
        action = rng.randrange(5)
        if action == 0:
            data[at : at + 1] = bytes([rng.choice(EDGES)])
        elif action == 1:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif action == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif action == 3:
            data[at:at] = b"\x80" * rng.randrange(1, 12)
        else:
            del data[at : at + rng.randrange(1, 40)]


def damaged(rng: random.Random) -> bytes:
    """A batch whose records are damaged before they are compressed, or whose bytes are afterwards, or whose count lies."""
    data = encode(some_columns(rng))
    codec = rng.choice(tuple(Compression))
    if rng.random() < 0.7:
        damage(rng, data, HEADER_BYTES)
    data[HEADER_BYTES:] = compress(codec, bytes(data[HEADER_BYTES:]))
    data[22] = codec
    if rng.random() < 0.2:
        data[COUNT_POSITION:HEADER_BYTES] = rng.choice((0, 1, 3, 2**31 - 1, 2**32 - 1)).to_bytes(4, "big")
    if rng.random() < 0.3:
        damage(rng, data, rng.choice((0, HEADER_BYTES)) if len(data) > HEADER_BYTES else 0)
    if len(data) >= 12 and rng.random() < 0.9:
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return bytes(data)


def outcome(data: bytes) -> object:
    """The records and offsets of a batch, or the error; then, for a good batch, that it lost its first record."""
    try:
        columns = decode(data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except RecordsError as error:
        return error
    assert columns.offsets is not None
    rows = [(columns.key(i), columns.value(i), columns.headers(i)) for i in range(len(columns))]
    rest = without_records(data, [0]) if rows else None
    return rows, columns.timestamps.tolist(), columns.offsets.tolist(), rest


def run(seed: int, rounds: int) -> set[str]:
    """Compare the two on `rounds` batches; returns the kinds of outcome met, so that a test can see how deep it went."""
    assert kernels.load()
    compiled = kernels.choose(1)
    rng = random.Random(seed)
    kinds = set()
    for number in range(rounds):
        data = damaged(rng)
        with loops(kernels.REFERENCE):
            expected = outcome(data)
        with loops(compiled):
            found = outcome(data)
        assert found == expected, f"seed {seed}, batch {number}: {data.hex()}: {found!r}, the twin says {expected!r}"
        fault = getattr(expected, "fault", None)
        kinds.add(type(expected).__name__ if fault is None else fault.name)
    return kinds
