"""The codec for few records writes the same bytes, and reads the same records, as the general codec."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch import BatchView, Compression, CorruptBatch, decode, encode, views
from chaffinch.records.batch_codec import encode_with_attributes
from chaffinch.records.batch_header import HEADER_BYTES
from chaffinch.records.columns import RecordColumns
from chaffinch.records.few_records import PlainRecord, encode_few, plain_records

CONTENT = st.none() | st.binary(max_size=200)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, st.integers(0, 2**63 - 1)), min_size=1, max_size=12)


@given(RECORDS)
def test_encode_few_equals_encode_of_columns(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    keys, values, timestamps = (list(column) for column in zip(*records, strict=True))
    assert encode_few(keys, values, timestamps) == encode(RecordColumns.from_lists(keys, values, timestamps))


def test_header_fields_are_written() -> None:
    identity = ProducerIdentity(7, 3)
    columns = RecordColumns.from_lists([b"k"], [None], [5])
    expected = encode_with_attributes(columns, 0x30, level=None, identity=identity, base_sequence=-1, base_offset=9)
    assert encode_few([b"k"], [None], [5], attributes=0x30, identity=identity, base_offset=9) == expected


@given(RECORDS, st.booleans(), st.sampled_from(Compression))
def test_plain_records_equal_decoded_columns(
    records: list[tuple[bytes | None, bytes | None, int]], has_headers: bool, compression: Compression
) -> None:
    keys, values, timestamps = (list(column) for column in zip(*records, strict=True))
    columns = RecordColumns.from_lists(keys, values, timestamps, [[("h", b"v")]] * len(records) if has_headers else None)
    assert plain_records(_view(encode(columns, compression=compression))) == list(zip(range(len(keys)), keys, values, strict=True))


@given(RECORDS, st.data())
def test_damaged_batch_is_read_or_refused_as_by_decode(records: list[tuple[bytes | None, bytes | None, int]], data: st.DataObject) -> None:
    keys, values, timestamps = (list(column) for column in zip(*records, strict=True))
    batch = encode_few(keys, values, timestamps, base_offset=2**63 - 3)
    place = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[place] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)))
    view = _view(batch)

    def from_columns() -> list[PlainRecord]:
        columns = decode(view)
        assert columns.offsets is not None
        return [(offset, columns.key(index), columns.value(index)) for index, offset in enumerate(columns.offsets.tolist())]

    assert _outcome(lambda: plain_records(view)) == _outcome(from_columns)


def _view(batch: bytearray) -> BatchView:
    return next(views(batch))


def _outcome(read: Callable[[], list[PlainRecord]]) -> list[PlainRecord] | str:
    try:
        return read()
    except CorruptBatch as error:
        return str(error)
