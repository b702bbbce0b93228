"""Framed snappy in one loop: the compiled one, its plain twin and the codec itself agree on any bytes."""

import importlib
import random
import struct
from types import ModuleType

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records import compression
from chaffinch.records.compression import Compression, PayloadTooLarge, PayloadUnreadable, decompress
from chaffinch.records.kernels_reference import snappy as reference

compiled = importlib.import_module("chaffinch.records.kernels.snappy")
HEADER = reference.MAGIC + struct.pack(">ii", 1, 1)


def framed(*blocks: bytes) -> bytes:
    return HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def unframed(loops: ModuleType, data: bytes, size: int = 4096) -> tuple[int, bytes]:
    out = np.full(size, 0xEE, np.uint8)
    written = loops.unframe_snappy(np.frombuffer(data, np.uint8), out)
    return written, out[: max(written, 0)].tobytes()


@pytest.fixture(params=[reference, compiled], ids=["twin", "compiled"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = request.param
    return chosen


TEXTS = [b"", b"a", b"ab" * 40, bytes(range(256)) * 2, b"x" * 300, random.Random(5).randbytes(500), b"abcdefgh" * 20 + bytes(100)]


def test_blocks_written_by_the_codec_are_read(loops: ModuleType) -> None:
    blocks = [raw(text) for text in TEXTS]
    expected = b"".join(TEXTS)
    assert unframed(loops, framed(*blocks)) == (len(expected), expected)
    assert unframed(loops, framed(*blocks) + framed(raw(b"more"))) == (len(expected) + 4, expected + b"more")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (HEADER[:12], reference.HEADER_CUT_SHORT),
        (HEADER + b"\x00\x00\x00", reference.TRAILING_BYTES),
        (HEADER + struct.pack(">i", 0), reference.BLOCK_SIZE_WRONG),
        (HEADER + struct.pack(">i", -1) + b"x", reference.BLOCK_SIZE_WRONG),
        (HEADER + struct.pack(">i", 3) + b"xx", reference.BLOCK_SIZE_WRONG),
        (framed(b"\x80\x80\x80\x80\x80\x01"), reference.NO_SIZE),
        (framed(b"\x80\x80"), reference.NO_SIZE),
        (framed(b"\xff\xff\xff\xff\x7f"), reference.NO_SIZE),
        (framed(b"\xff\xff\xff\xff\x0f"), reference.OUTPUT_FULL),
        (framed(raw(bytes(5000))), reference.OUTPUT_FULL),
        (framed(b"\x01"), reference.DAMAGED),
        (framed(b"\x02\x00a"), reference.DAMAGED),
        (framed(b"\x01\x00ab"), reference.DAMAGED),
        (framed(b"\x01\xf0"), reference.DAMAGED),
        (framed(b"\x05\x00a\x01\x00"), reference.DAMAGED),  # A copy from distance 0,
        (framed(b"\x05\x00a\x01\x02"), reference.DAMAGED),  # from before the block,
        (framed(b"\x04\x00a\x01\x01"), reference.DAMAGED),  # and of more than the block holds.
        (framed(b"\x05\x00a\x01"), reference.DAMAGED),
    ],
)
def test_damaged_frames_are_refused(loops: ModuleType, data: bytes, problem: int) -> None:
    assert unframed(loops, data) == (problem, b"")


def test_copies_do_not_reach_into_the_block_before(loops: ModuleType) -> None:
    assert unframed(loops, framed(raw(b"abcd"), b"\x04\x01\x04"))[0] == reference.DAMAGED


mutations = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)
pieces = st.sampled_from(TEXTS) | st.binary(max_size=40) | st.lists(st.sampled_from([b"ab", b"abc", b"a" * 9]), max_size=9).map(b"".join)


@given(pieces, mutations)
def test_both_agree_with_the_codec_on_mutated_blocks(text: bytes, changes: list[tuple[int, int]]) -> None:
    block = bytearray(raw(text))
    for at, value in changes:
        block[at % len(block)] = value
    found = unframed(reference, framed(bytes(block)))
    assert unframed(compiled, framed(bytes(block))) == found
    try:
        expected = bytes(cramjam.snappy.decompress_raw(bytes(block)))
    except cramjam.DecompressionError:
        assert found[0] < 0
    else:
        assert found == ((len(expected), expected) if len(expected) <= 4096 else (reference.OUTPUT_FULL, b""))


@given(st.binary(max_size=60), st.booleans())
def test_both_agree_on_any_bytes(data: bytes, has_header: bool) -> None:
    data = HEADER + data if has_header else data
    assert unframed(compiled, data) == unframed(reference, data)


@pytest.mark.parametrize("text", [b"", b"a", b"ab" * 16])
def test_streams_of_many_blocks_use_the_loop(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_BLOCKS_MAX_BASE", 3)
    block = raw(text)
    for count in (2, 3, 4, 40):
        assert bytes(decompress(Compression.SNAPPY, framed(*[block] * count), 10_000)) == text * count


def test_streams_of_many_blocks_are_bounded_and_checked() -> None:
    block = raw(b"ab" * 16)
    many = framed(*[block] * 200)
    assert len(decompress(Compression.SNAPPY, many, 6400)) == 6400
    with pytest.raises(PayloadTooLarge):
        decompress(Compression.SNAPPY, many, 6399)
    with pytest.raises(PayloadUnreadable, match="damaged"):
        decompress(Compression.SNAPPY, many[:-1] + b"\xff", 6400)
    with pytest.raises(PayloadUnreadable, match="claims more than its bytes can hold"):
        decompress(Compression.SNAPPY, framed(*[b"\x00"] * 200, b"\xff\xff\xff\x7f"), 2**30)
