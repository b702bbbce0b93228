"""Batch search finds whole batches at any position in one pass, for any bytes."""

from __future__ import annotations

import random

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch_header import HEADER_BYTES
from chaffinch.records.checksum import crc32c
from chaffinch.storage import batch_search
from chaffinch.storage.batch_search import whole_batch_from
from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.memory_files import MemoryFile
from tests.storage.batches import batch


def file_of(data: bytes | bytearray) -> MemoryFile:
    file = MemoryFileSystem().open("a")
    if data:
        file.append((data,))
    return file


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
@pytest.mark.parametrize("before", [0, 1, 39, 40, 99, 250, 5000])
@pytest.mark.parametrize("after", [0, 1, 300])
def test_batch_is_found_at_any_position(before: int, after: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_search, "CHUNK_BYTES", chunk_bytes)
    whole = batch(3, base_offset=50, identity=ProducerIdentity(7, 1), base_sequence=0, value=noise(500))
    file = file_of(noise(before, 2) + whole + noise(after, 3))
    assert whole_batch_from(file, 0, 50) == before
    assert whole_batch_from(file, before, 50) == before
    assert whole_batch_from(file, before, 10) == before
    assert whole_batch_from(file, before + 1, 50) is None
    assert whole_batch_from(file, 0, 51) is None


def test_first_of_several_batches_is_found() -> None:
    data = noise(70) + batch(base_offset=9) + batch(base_offset=10) + batch(base_offset=11)
    assert whole_batch_from(file_of(data), 0, 5) == 70
    assert whole_batch_from(file_of(data), 0, 10) == 70 + len(batch())


@pytest.mark.parametrize("at", range(len(batch())))
def test_batch_with_one_wrong_bit_is_not_found(at: int) -> None:
    """But for the offset and the leader's epoch, which the CRC does not cover."""
    whole = batch(base_offset=50)
    whole[at] ^= 0x01
    is_covered = not 4 <= at < 8 and not 12 <= at < 16
    assert (whole_batch_from(file_of(whole), 0, 50) is None) == is_covered or at in (0, 1, 2, 3)


@pytest.mark.parametrize("data", [b"", b"\x02", bytes(HEADER_BYTES - 1), bytes(1000), b"\x02" * 3000, noise(100_000)])
def test_no_batch_is_found_in_other_bytes(data: bytes) -> None:
    assert whole_batch_from(file_of(data), 0, 0) is None


def test_overlapping_headers_are_checked_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header every few bytes, each of a batch that reaches far behind the next ones."""
    counted = 0

    def counting(data: memoryview, start: int = 0) -> int:
        nonlocal counted
        counted += len(data)
        return crc32c(data, start)

    monkeypatch.setattr(batch_search, "crc32c", counting)
    header = bytearray(batch(base_offset=3)[:HEADER_BYTES])
    header[8:12] = (60_000).to_bytes(4, "big")
    data = bytes(header) * 2000
    whole = batch(base_offset=70)
    assert whole_batch_from(file_of(data + whole), 0, 3) == len(data)
    assert counted <= len(data) + len(whole)


@pytest.mark.parametrize("seed", range(20))
def test_crc_of_joined_bytes_follows_from_two_crcs(seed: int) -> None:
    rng = random.Random(seed)
    first, second = noise(rng.randrange(2000), seed), noise(rng.choice([0, 1, 2, 255, 256, 70_000]), seed + 1)
    import numpy as np

    advanced = batch_search._shifted_crcs(np.array([crc32c(first)]), np.array([len(second)]))
    assert int(advanced[0]) ^ crc32c(second) == crc32c(first + second)
