"""Record batches against bytes that another client wrote (see write_batches.py): read whole, behind others, byte by byte; and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaffinch.records.batch import Compression, CorruptBatch, decode, encode, encode_control_batch, views
from chaffinch.records.errors import Fault
from tests.golden.batch_samples import NOW_MS, SAMPLES
from tests.records.record_strategies import columns_of, rows_of

LINES = Path(__file__).with_name("batches.txt").read_text().splitlines()
GOLDEN = {name: bytes.fromhex(digits) for name, _, digits in (line.partition(" ") for line in LINES)}

# KIP-98: the key is version and type, the value version and coordinator epoch; 61 + 17 bytes. Written down by hand.
COMMIT_MARKER = bytes.fromhex(
    "0000000000000000" + "00000042" + "ffffffff" + "02" + "f5f27e9a"  # base offset, length, leader epoch, magic, CRC
    "0030" + "00000000" + "0000018bcfe56800" * 2 + "0000000000001267" + "0003" + "ffffffff" + "00000001"
    "20" + "00" + "00" + "00" + "08" + "00000001" + "0c" + "00000000000c" + "00"
)


def test_every_sample_has_golden_bytes() -> None:
    assert list(GOLDEN) == list(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("before", [b"", GOLDEN["headers"]], ids=["alone", "behind another"])
def test_golden_bytes_are_read(name: str, before: bytes) -> None:
    golden, sample = GOLDEN[name], SAMPLES[name]
    view = list(views(before + golden + GOLDEN["one-value"]))[1 if before else 0]
    assert view.data == golden
    assert view.crc_is_valid()
    assert rows_of(decode(view)) == sample.rows
    header = view.header
    assert (header.compression, header.identity, header.base_sequence) == (sample.codec, sample.identity, sample.base_sequence)
    assert (header.is_transactional, header.is_control, header.count) == (sample.is_transactional, False, len(sample.rows))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_proper_prefix_of_golden_bytes_is_cut_short(name: str) -> None:
    golden = GOLDEN[name]
    for size in range(1, len(golden)):
        with pytest.raises(CorruptBatch) as caught:
            decode(golden[:size])
        assert caught.value.fault is Fault.BATCH_CUT_SHORT


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes_are_written(name: str) -> None:
    sample = SAMPLES[name]
    ours = encode(
        columns_of(sample.rows),
        compression=Compression(sample.codec),
        identity=sample.identity,
        base_sequence=sample.base_sequence,
        is_transactional=sample.is_transactional,
    )
    if sample.codec:  # Compressors differ in their bytes, not in what they mean.
        assert rows_of(decode(ours)) == rows_of(decode(GOLDEN[name]))
    else:
        assert ours == GOLDEN[name]


def test_marker_has_golden_bytes() -> None:
    (view,) = views(COMMIT_MARKER)
    ours = encode_control_batch(True, view.header.identity, 12, NOW_MS)
    assert ours.hex() == COMMIT_MARKER.hex()
    assert view.crc_is_valid()
