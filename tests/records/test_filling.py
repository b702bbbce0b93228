"""Batches encoded in one pass over the records: of measured records, or of as many as fit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records import batch_codec
from chaffinch.records.batch import HEADER_BYTES, BatchTooLarge, Compression, encode, encode_filling, encode_measured
from chaffinch.records.columns import RecordColumns
from tests.records.record_strategies import Row, columns_and_rows, columns_of


@given(columns_and_rows(), st.integers(0, 9), st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_encode_measured_writes_what_encode_does(drawn: tuple[RecordColumns, list[Row]], spare: int, codec: Compression) -> None:
    columns, row_list = drawn
    if not row_list:
        with pytest.raises(ValueError, match="at least one record"):
            encode_measured(columns, 0)
        return
    assert encode_measured(columns, int(columns.sizes().sum()) + spare, compression=codec) == encode(columns, compression=codec)


@given(columns_and_rows(min_size=1), st.data(), st.sampled_from([Compression.NONE, Compression.ZSTD]), st.booleans())
def test_encode_measured_writes_picked_rows_as_if_they_were_all(
    drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, codec: Compression, is_transactional: bool
) -> None:
    columns, _ = drawn
    rows = np.array(data.draw(st.lists(st.integers(0, columns.count - 1), min_size=1, max_size=12)), np.int64)
    kind: dict[str, Any] = {"compression": codec, "is_transactional": is_transactional}
    size = int(columns.sizes()[rows].sum()) + 5 * len(rows)  # As often as a row is there, further from the first one.
    assert encode_measured(columns, size, rows=rows, **kind) == encode(columns.take(rows), **kind)


def test_encode_measured_above_the_format_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columns_of([(b"key", b"value", 7, [])] * 3)
    size = len(encode(columns))
    monkeypatch.setattr(batch_codec, "BATCH_BYTES_MAX", size - 1)
    with pytest.raises(BatchTooLarge):
        encode_measured(columns, size)


def test_encode_measured_needs_exactly_the_measured_size() -> None:
    columns = columns_of([(b"k", b"v", 0, [])])
    size = len(encode(columns)) - HEADER_BYTES
    assert len(encode_measured(columns, size)) == HEADER_BYTES + size
    with pytest.raises(AssertionError, match=f"more than {size - 1} bytes"):
        encode_measured(columns, size - 1)


@given(columns_and_rows(min_size=1), st.data(), st.sampled_from(list(Compression)))
def test_encode_filling_takes_as_many_records_as_fit(
    drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, codec: Compression
) -> None:
    columns, _ = drawn
    size_max = data.draw(st.integers(0, columns.size_max()))
    filled, count = encode_filling(columns, size_max, compression=codec)
    if count:
        assert filled == encode(columns.slice(0, count), compression=codec)
        assert len(encode(columns.slice(0, count))) <= HEADER_BYTES + size_max
    assert count == columns.count or len(encode(columns.slice(0, count + 1))) > HEADER_BYTES + size_max


@given(columns_and_rows(min_size=1))
def test_size_max_of_columns_is_an_upper_bound(drawn: tuple[RecordColumns, list[Row]]) -> None:
    columns, _ = drawn
    assert encode_filling(columns, columns.size_max())[1] == columns.count


@pytest.mark.parametrize("value_bytes", [10, 600, 5000, 6000, 9000])
def test_batch_allocates_little_more_than_its_size(value_bytes: int) -> None:
    """It counts in `buffer.memory` by its length in bytes."""
    columns = columns_of([(None, bytes(value_bytes), 0, [])] * 2000)
    for made in (encode_filling(columns, 10_000)[0], encode_measured(columns.slice(0, 1), 2 * value_bytes)):
        assert made.__alloc__() <= len(made) * 8 // 7 + 2


def test_encode_filling_names_the_record_with_wrong_offsets() -> None:
    columns = columns_of([(b"k", b"v", 0, []), (b"l", b"w", 0, []), (b"m", b"x", 0, [])])
    columns.value_offsets[3] = 9
    with pytest.raises(ValueError, match="the offsets of record 2 do not ascend within the data"):
        encode_filling(columns, 1000)
    assert encode_filling(columns, 10)[1] == 1, "that one is not looked at"
    columns.value_offsets[3] = -1000
    with pytest.raises(ValueError, match="the offsets of record 2 do not ascend within the data"):
        encode_filling(columns, columns.size_max())
    with pytest.raises(ValueError, match="at least one record"):
        encode_filling(columns.slice(0, 0), 1000)
