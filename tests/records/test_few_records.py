"""A batch of a few records has the same bytes, whichever way it is encoded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records.batch import encode
from chaffinch.records.columns import RecordColumns
from chaffinch.records.few_records import encode_few

CONTENT = st.none() | st.binary(max_size=200)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, st.integers(0, 2**63 - 1)), min_size=1, max_size=12)


@given(RECORDS)
def test_the_bytes_are_those_of_columns(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    keys, values, timestamps = (list(column) for column in zip(*records, strict=True))
    assert encode_few(keys, values, timestamps) == encode(RecordColumns.from_lists(keys, values, timestamps))
