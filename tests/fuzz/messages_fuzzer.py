"""Damaged messages of formats 0 and 1, and damaged snappy streams, for the compiled loops and their twins: the same results, and no index
outside a buffer.

Not collected by pytest: `test_records_messages.py` and, with bounds checks, `test_bounds.py` run it.
"""

from __future__ import annotations

import random

import numpy as np

from chaffinch.records.compression import Compression, compress
from chaffinch.records.errors import Fault
from chaffinch.records.kernels import messages, snappy
from chaffinch.records.kernels_reference import messages as messages_twin
from chaffinch.records.kernels_reference import snappy as snappy_twin
from tests.support.raw_batches import NOW_MS
from tests.support.raw_messages import message

EDGES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF)
LENGTHS = (None, None, None, None, -2, -1, 0, 1, 5, 6, 2**31 - 1, -(2**31))
TIMES = (NOW_MS, NOW_MS + 1, -1, 0, 2**63 - 1, -(2**63))
OUT_BYTES_MAX = 4096


def run(seed: int, rounds: int) -> set[str]:
    """Compare on `rounds` inputs of each kind; returns what was met, so that a test can see how deep it went."""
    rng = random.Random(seed)
    met = set()
    for number in range(rounds):
        for compare, data in ((_messages, _damaged_messages(rng)), (_snappy, _damaged_snappy(rng))):
            expected, found, outcome = compare(rng, data)
            assert found == expected, f"seed {seed}, input {number}: {data.hex()}: {found}, the twin says {expected}"
            met.add(outcome)
    return met


def _damaged_messages(rng: random.Random) -> bytes:
    data = b"".join(_message(rng, index) for index in range(rng.choice((0, 1, 2, 3, 5))))
    return _mutated(rng, bytearray(data), rng.choice((0, 0, 1, 2)))


def _message(rng: random.Random, index: int) -> bytes:
    return message(
        rng.choice((None, b"", b"key")),
        rng.choice((None, b"", b"value", bytes(300))),
        magic=rng.choice((0, 0, 1, 1, 1, 2, 9)),
        offset=rng.choice((index, index, index, 0, -1, 2**63 - 1)),
        attributes=rng.choice((0, 0, 0, 0, 1, 8, 127)),
        timestamp=rng.choice(TIMES),
        crc=rng.choice((None, None, None, 7)),
        size_off_by=rng.choice((0, 0, 0, 0, 0, 1, -1, 100, -(2**31))),
        key_length=rng.choice(LENGTHS),
        value_length=rng.choice(LENGTHS),
    )


def _messages(rng: random.Random, data: bytes) -> tuple[object, object, str]:
    magic, room = rng.randrange(2), rng.randrange(4)
    options = (magic, rng.random() < 0.5, rng.random() < 0.2, 0, NOW_MS, rng.random() < 0.5, rng.choice((50, 10**6)))
    array = np.frombuffer(data, np.uint8)
    outcomes = []
    for loops in (messages_twin, messages):
        indices, seen, reasons = np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.uint8)
        summary = np.zeros(messages_twin.SUMMARY_LENGTH, np.int64)
        fault = loops.walk_messages(array, *options, indices, reasons, seen, summary)
        converted = int(summary[messages_twin.CONVERTED_BYTES])
        out = np.zeros(min(max(converted, 0), OUT_BYTES_MAX), np.uint8)
        end = loops.convert_messages(array, magic, int(summary[messages_twin.BASE_TIMESTAMP]), out, 0)
        written = out.tobytes() if not fault and end >= 0 else b""
        outcomes.append((int(fault), indices.tolist(), reasons.tolist(), seen.tolist(), summary.tolist(), end, written))
    return outcomes[0], outcomes[1], Fault(outcomes[0][0]).name


def _damaged_snappy(rng: random.Random) -> bytes:
    pieces = (b"", b"a", b"ab" * 40, bytes(300), rng.randbytes(50))
    streams = b"".join(bytes(compress(Compression.SNAPPY, rng.choice(pieces))) for _ in range(rng.randrange(1, 4)))
    return _mutated(rng, bytearray(streams), rng.choice((0, 1, 1, 2)))


def _snappy(rng: random.Random, data: bytes) -> tuple[object, object, str]:
    size = rng.choice((0, 10, OUT_BYTES_MAX))
    outcomes = []
    for loops in (snappy_twin, snappy):
        out = np.zeros(size, np.uint8)
        written = loops.unframe_snappy(np.frombuffer(data, np.uint8), out)
        outcomes.append((written, out[: max(written, 0)].tobytes()))
    return outcomes[0], outcomes[1], f"snappy {min(outcomes[0][0], 0)}"


def _mutated(rng: random.Random, data: bytearray, count: int) -> bytes:
    for _ in range(count):
        at = rng.randrange(len(data) + 1)
        action = rng.randrange(4)
        if action == 0:
            data[at : at + 1] = bytes([rng.choice(EDGES)])
        elif action == 1:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif action == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 12))
        else:
            del data[at : at + rng.randrange(1, 40)]
    return bytes(data)
