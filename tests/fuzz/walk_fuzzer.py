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


def damaged(dice: random.Random) -> tuple[bytes, int]:
    """A few records, then some bytes changed, taken out or put in; and the count that the header claims."""
    payload = bytearray(b"".join(_record(dice, index) for index in range(dice.choice((0, 1, 1, 2, 3, 5, 70)))))
    count = payload.count(b"\x00key") + dice.choice((0, 0, 0, 1, -1))
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        at = dice.randrange(len(payload) + 1)
        action = dice.randrange(4)
        if action == 0:
            payload[at : at + 1] = bytes([dice.choice(EDGES)])
        elif action == 1:
            payload[at : at + 1] = bytes([dice.randrange(256)])
        elif action == 2:
            payload[at:at] = dice.randbytes(dice.randrange(1, 12))
        else:
            del payload[at : at + dice.randrange(1, 40)]
    if dice.random() < 0.3:
        payload += _stub(dice)
        count += 1
    return bytes(payload), dice.choice((count, len(payload) // 14, len(payload) // 7, 2**31 - 1, -1)) if dice.random() < 0.3 else count


def _record(dice: random.Random, index: int) -> bytes:
    key = dice.choice((None, b"", b"key", b"k" * 130))
    value = dice.choice((None, b"", b"v", b"v" * 70, b"v" * 8300))
    headers = [(dice.choice((b"", b"name")), dice.choice((None, b"", b"x" * 90))) for _ in range(dice.choice((0, 0, 0, 1, 3)))]
    offset_delta = index if dice.random() < 0.9 else dice.choice((-1, 0, 63, 64, 8192, 2**31 - 1))
    timestamp_delta = dice.choice((0, 1, -1, 5000, 2_000_000, -(2**40), 2**62))
    return record(offset_delta, key, value, timestamp_delta=timestamp_delta, headers=headers)


def _stub(dice: random.Random) -> bytes:
    """A short last record whose length is right and whose numbers run towards, or over, its end."""
    body = bytes(dice.choice(EDGES) for _ in range(dice.randrange(16)))
    body += dice.choice((b"", varint(dice.randrange(8)), b"\x80" * dice.randrange(1, 5)))
    if dice.random() < 0.5:  # Past the key, with an unfinished value length at the very end.
        key = bytes(dice.randrange(12, 24))
        body = b"\x00\x00" + varint(dice.randrange(2)) + varint(len(key)) + key + b"\x80" * dice.randrange(5)
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
    dice = random.Random(seed)
    faults = set()
    for number in range(rounds):
        payload, count = damaged(dice)
        base = dice.choice(BASES)
        options = (
            base,
            dice.choice((0, 1, NOW_MS, -(2**63))),
            dice.choice((0, NOW_MS, 2**63 - 1)),
            dice.random() < 0.7,
            dice.random() < 0.5,
        )
        room = dice.randrange(ROOM_MAX + 1)
        expected = outcome(reference.walk, payload, count, options, room)
        found = outcome(walk, payload, count, options, room)
        assert found == expected, (
            f"seed {seed}, payload {number}: {payload.hex()} count {count} {options}: {found}, the twin says {expected}"
        )
        faults.update(expected[0])
    return faults
