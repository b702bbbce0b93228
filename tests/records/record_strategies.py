"""Hypothesis strategies for records, as Python lists and as columns, sliced or not; and how to read columns back as rows."""

from collections.abc import Sequence

from hypothesis import strategies as st

from chaffinch.records.columns import RecordColumns

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]
"""Key, value, timestamp, headers."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

byte_strings = st.one_of(st.binary(max_size=12), st.sampled_from([63, 64, 127, 128, 300]).map(lambda size: b"x" * size))
nullable_bytes = st.none() | byte_strings
timestamps = st.one_of(
    st.just(-1),
    st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.integers(INT64_MIN, INT64_MAX),
    st.sampled_from([INT64_MIN, INT64_MAX]),
)
headers: st.SearchStrategy[list[tuple[str, bytes | None]]] = st.lists(st.tuples(st.text(max_size=5), nullable_bytes), max_size=3)
rows: st.SearchStrategy[Row] = st.tuples(nullable_bytes, nullable_bytes, timestamps, st.just([]) | headers)
row_lists = st.lists(rows, max_size=12)


def columns_of(row_list: Sequence[tuple[bytes | None, bytes | None, int, Sequence[tuple[str, bytes | None]]]]) -> RecordColumns:
    keys, values, stamps, header_lists = zip(*row_list, strict=True) if row_list else ([], [], [], [])
    return RecordColumns.from_lists(list(keys), list(values), list(stamps), header_lists)


def rows_of(columns: RecordColumns) -> list[Row]:
    return [(columns.key(i), columns.value(i), int(columns.timestamps[i]), columns.headers(i)) for i in range(len(columns))]


def offsets_of(columns: RecordColumns) -> list[int]:
    assert columns.offsets is not None
    return [int(offset) for offset in columns.offsets]


@st.composite
def columns_and_rows(draw: st.DrawFn, *, min_size: int = 0) -> tuple[RecordColumns, list[Row]]:
    """Columns, and the rows they hold: cut out of longer columns half of the time, so that no offset begins at 0."""
    row_list = draw(st.lists(rows, min_size=min_size, max_size=12))
    before, after = draw(st.just(([], [])) | st.tuples(st.lists(rows, max_size=3), st.lists(rows, max_size=3)))
    whole = columns_of([*before, *row_list, *after])
    return whole.slice(len(before), len(before) + len(row_list)), row_list
