"""Partitions of keys: the same as in kafka-python and in the Java client."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from chaffinch.records.columns import RecordColumns


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.integers(1, 2**31 - 1))
def test_partitions_are_those_of_another_client(keys: list[bytes | None], partition_count: int) -> None:
    columns = RecordColumns.from_lists(keys, [b""] * len(keys), [0] * len(keys))
    expected = [-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count for key in keys]
    assert columns.murmur2_partitions(partition_count).tolist() == expected
