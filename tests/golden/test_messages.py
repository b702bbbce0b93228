"""Every message in every version against bytes that another implementation wrote (see write_messages.py), both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaffinch.protocol.schema import Message
from tests.protocol.instances import CASES, name_of, sample

LINES = Path(__file__).with_name("messages.txt").read_text().splitlines()
GOLDEN = {name: bytes.fromhex(digits) for name, _, digits in (line.partition(" ") for line in LINES)}


def test_every_message_and_version_has_golden_bytes() -> None:
    assert list(GOLDEN) == [name_of(case) for case in CASES]


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
def test_golden_bytes_are_read_and_written(cls: type[Message], version: int) -> None:
    golden, message = GOLDEN[name_of((cls, version))], sample(cls, version)
    assert b"".join(message.encode(version)) == golden
    assert cls.decode_from(memoryview(golden), 0, version) == (message, len(golden))


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
def test_golden_bytes_within_a_longer_buffer_are_read(cls: type[Message], version: int) -> None:
    golden, message = GOLDEN[name_of((cls, version))], sample(cls, version)
    buffer = memoryview(b"before" + golden + b"after")
    assert cls.decode_from(buffer, 6, version) == (message, 6 + len(golden))
