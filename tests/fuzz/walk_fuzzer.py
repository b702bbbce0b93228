"""Damaged records for the compiled walk and its twin: both must find the same, and the compiled one must stay inside its buffers.

With NUMBA_BOUNDSCHECK=1 numba checks every index, and an access outside a buffer is an IndexError. Not collected by pytest:
`test_records_walk.py` and `test_bounds.py` run it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from chaffinch.records.kernels.walk import walk
from chaffinch.records.kernels_reference import walk as reference
from tests.support.raw_batches import NOW_MS, record, varint

EDGES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
BASES = (NOW_MS, 0, -1, 2**63 - 1, -(2**63))
ROOM_MAX = 3


def damaged(rng: random.Random) -> tuple[bytes, int]:
    """A few records, then some bytes changed, taken out or put in; and the count that the header claims."""
    payload = bytearray(b"".join(_record(rng, index) for index in range(rng.choice((0, 1, 1, 2, 3, 5, 70)))))
    count = payload.count(b"\x00key") + rng.choice((0, 0, 0, 1, -1))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(payload) + 1)
        action = rng.randrange(4)
        if action == 0:
            payload[at : at + 1] = bytes([rng.choice(EDGES)])
        elif action == 1:
            payload[at : at + 1] = bytes([rng.randrange(256)])
        elif action == 2:
            payload[at:at] = rng.randbytes(rng.randrange(1, 12))
        else:
            del payload[at : at + rng.randrange(1, 40)]
    if rng.random() < 0.3:
        payload += _stub(rng)
        count += 1
    return bytes(payload), rng.choice((count, len(payload) // 14, len(payload) // 7, 2**31 - 1, -1)) if rng.random() < 0.3 else count


def _record(rng: random.Random, index: int) -> bytes:
    key = rng.choice((None, b"", b"key", b"k" * 130))
    value = rng.choice((None, b"", b"v", b"v" * 70, b"v" * 8300))
    headers = [(rng.choice((b"", b"name")), rng.choice((None, b"", b"x" * 90))) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    offset_delta = index if rng.random() < 0.9 else rng.choice((-1, 0, 63, 64, 8192, 2**31 - 1))
    timestamp_delta = rng.choice((0, 1, -1, 5000, 2_000_000, -(2**40), 2**62))
    return record(offset_delta, key, value, timestamp_delta=timestamp_delta, headers=headers)


def _stub(rng: random.Random) -> bytes:
    """A short last record whose length is right and whose numbers run towards, or over, its end."""
    body = bytes(rng.choice(EDGES) for _ in range(rng.randrange(16)))
    body += rng.choice((b"", varint(rng.randrange(8)), b"\x80" * rng.randrange(1, 5)))
    if rng.random() < 0.5:  # Past the key, with an unfinished value length at the very end.
        key = bytes(rng.randrange(12, 24))
        body = b"\x00\x00" + varint(rng.randrange(2)) + varint(len(key)) + key + b"\x80" * rng.randrange(5)
    return varint(len(body)) + body


def outcome(
    function: Callable[..., Any], payload: bytes, count: int, options: tuple[int, int, int, bool, bool], room: int
) -> tuple[list[int], ...]:
    """Everything that a walk writes, as lists."""
    indices, seen, reasons = np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.uint8)
    summary = np.zeros(reference.SUMMARY_LENGTH, np.int64)
    fault = function(np.frombuffer(payload, np.uint8), count, *options, indices, reasons, seen, summary)
    return [int(fault)], indices.tolist(), reasons.tolist(), seen.tolist(), summary.tolist()


def run(seed: int, rounds: int) -> set[int]:
    """Compare the two on `rounds` payloads; returns the faults met, so that a test can see how deep it went."""
    rng = random.Random(seed)
    faults = set()
    for number in range(rounds):
        payload, count = damaged(rng)
        base = rng.choice(BASES)
        options = (
            base,
            rng.choice((0, 1, NOW_MS, -(2**63))),
            rng.choice((0, NOW_MS, 2**63 - 1)),
            rng.random() < 0.7,
            rng.random() < 0.5,
        )
        room = rng.randrange(ROOM_MAX + 1)
        expected = outcome(reference.walk, payload, count, options, room)
        found = outcome(walk, payload, count, options, room)
        assert found == expected, (
            f"seed {seed}, payload {number}: {payload.hex()} count {count} {options}: {found}, the twin says {expected}"
        )
        faults.update(expected[0])
    return faults
