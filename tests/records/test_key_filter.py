"""Record filter for compaction: remaining records are unchanged and keep their offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records import key_filter
from chaffinch.records.batch import TimestampType, decode, encode, patch_log_append_time, patch_max_timestamp, read_header, views
from chaffinch.records.batch_header import ATTRIBUTE_DELETE_HORIZON, HEADER_BYTES, BatchView
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.errors import BatchTooLarge, CorruptBatch
from chaffinch.records.key_filter import emptied, read_keys, retained
from tests.records.record_strategies import Row, columns_of, offsets_of, row_lists, rows_of

BYTES_MAX = 1 << 20
COUNT_POSITION = 57
HORIZON = 1_800_000_000_000


def view_of(batch: bytearray) -> BatchView:
    (view,) = views(batch)
    return view


def kept(batch: bytearray, keeps: list[int], horizon: int | None = None) -> bytearray:
    import numpy as np

    view = view_of(batch)
    return retained(view, read_keys(view, BYTES_MAX), np.array(keeps, np.uint8), horizon)


@given(row_lists.filter(bool), st.data(), st.sampled_from(list(Compression)), st.none() | st.just(HORIZON))
def test_remaining_records_are_unchanged(rows: list[Row], data: st.DataObject, codec: Compression, horizon: int | None) -> None:
    batch = encode(
        columns_of(rows), compression=codec, identity=ProducerIdentity(7, 3), base_sequence=40, is_transactional=True, base_offset=1000
    )
    keeps = data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows)).filter(any))
    thinned = kept(batch, keeps, horizon)
    before, after = read_header(batch), read_header(thinned)
    assert view_of(thinned).crc_is_valid()
    columns = decode(thinned)
    assert rows_of(columns) == [row for row, keep in zip(rows_of(decode(batch)), keeps, strict=True) if keep]
    assert offsets_of(columns) == [1000 + index for index, keep in enumerate(keeps) if keep]
    assert after.max_timestamp == columns.timestamps.max()
    assert (after.base_offset, after.last_offset, after.last_sequence, after.identity) == (
        before.base_offset,
        before.last_offset,
        before.last_sequence,
        before.identity,
    )
    assert after.count == sum(keeps)
    assert after.attributes == before.attributes | (ATTRIBUTE_DELETE_HORIZON if horizon else 0)
    assert after.base_timestamp == (horizon or before.base_timestamp)


def test_read_keys_finds_keys_and_tombstones() -> None:
    columns = RecordColumns.from_lists([b"a", None, b""], [b"x", b"y", None], [5, 6, 7])
    found = read_keys(view_of(encode(columns, base_offset=10)), BYTES_MAX)
    assert found.keys == [b"a", None, b""]
    assert (found.offsets.tolist(), found.timestamps.tolist(), found.has_value.tolist()) == ([10, 11, 12], [5, 6, 7], [1, 1, 0])


def test_log_append_time_is_kept() -> None:
    batch = encode(columns_of([(b"a", b"1", 5, []), (b"b", b"2", 6, [])]))
    patch_log_append_time(batch, 0, 900)
    thinned = kept(batch, [1, 0], HORIZON)
    assert decode(thinned).timestamps.tolist() == [900]
    assert read_header(thinned).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert read_keys(view_of(batch), BYTES_MAX).timestamps.tolist() == [900, 900]


def test_delete_horizon_is_kept_by_the_next_pass() -> None:
    batch = kept(encode(columns_of([(b"a", None, 5, []), (b"b", b"2", 6, [])])), [1, 1], HORIZON)
    again = kept(batch, [0, 1], None)
    assert read_header(again).base_timestamp == HORIZON
    assert decode(again).timestamps.tolist() == [6]


@pytest.mark.parametrize("codec", list(Compression))
def test_emptied_batch_keeps_offsets_sequences_and_producer(codec: Compression) -> None:
    batch = encode(
        columns_of([(b"a", b"1", 5, [])] * 3), compression=codec, identity=ProducerIdentity(7, 3), base_sequence=40, base_offset=9
    )
    patch_max_timestamp(batch, 0, TimestampType.LOG_APPEND_TIME, 77)
    empty = emptied(view_of(batch))
    header = read_header(empty)
    assert len(empty) == HEADER_BYTES
    assert view_of(empty).crc_is_valid()
    assert (header.base_offset, header.last_offset, header.base_sequence, header.last_sequence) == (9, 11, 40, 42)
    assert (header.count, header.identity, header.max_timestamp) == (0, ProducerIdentity(7, 3), 77)
    assert decode(empty).count == 0
    assert read_keys(view_of(empty), BYTES_MAX).keys == []


def test_unreadable_records_are_corrupt() -> None:
    batch = encode(columns_of([(b"a", b"1", 5, [])]))
    batch[-1] = 9
    with pytest.raises(CorruptBatch):
        read_keys(view_of(batch), BYTES_MAX)


def test_count_above_the_bytes_is_corrupt() -> None:
    batch = encode(columns_of([(b"a", b"1", 5, [])]))
    batch[COUNT_POSITION] = 1
    with pytest.raises(CorruptBatch, match="16777217 records in"):
        read_keys(view_of(batch), BYTES_MAX)


def test_remaining_records_above_the_format_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "BATCH_BYTES_MAX", HEADER_BYTES)
    with pytest.raises(BatchTooLarge):
        kept(encode(columns_of([(b"a", b"1", 5, [])])), [1])
