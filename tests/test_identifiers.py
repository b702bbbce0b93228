"""Identifiers: how they print, compare and wrap."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import (
    EPOCH_MAX,
    NO_PRODUCER,
    SEQUENCE_MODULUS,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
    sequence_add,
)

LAST = 2**31 - 1


def test_a_partition_prints_as_kafka_names_its_directory() -> None:
    assert str(TopicPartition("orders", 0)) == "orders-0"
    assert f"{TopicPartition('a-b', 11)}" == "a-b-11"
    assert str(TopicPartition("orders", -1)) == "orders"


@pytest.mark.parametrize(
    ("topic", "partition", "text"), [("o", "0", "o-0"), ("o", None, "o-None"), (7, -1, "7"), (None, -1, "None"), ("o", -2, "o--2")]
)
def test_invalid_partition_can_be_printed(topic: Any, partition: Any, text: str) -> None:
    """An error says what it was given."""
    place = TopicPartition(topic, partition)
    assert str(place) == f"{place}" == text
    assert repr(place) == f"TopicPartition(topic={topic!r}, partition={partition!r})"


@pytest.mark.parametrize("value", [TopicPartition("orders", 1), ProducerIdentity(7, 0), OffsetAndMetadata(5, "why"), NO_PRODUCER])
def test_identifiers_are_values(value: OffsetAndMetadata | ProducerIdentity | TopicPartition) -> None:
    copied = pickle.loads(pickle.dumps(value))
    assert copied == value
    assert {value: 1}[copied] == 1
    with pytest.raises(AttributeError):
        value.topic = "other"  # type: ignore[misc,union-attr]


def test_partitions_sort_by_topic_then_index() -> None:
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]) == [("a", 2), ("a", 10), ("b", 0)]


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (0, 1, 1),
        (LAST, 0, LAST),
        (LAST, 1, 0),  # KIP-98: after the largest int32 comes zero, not a negative number.
        (LAST - 1, 5, 3),
        (0, -1, LAST),
        (2, -5, LAST - 2),
    ],
)
def test_sequences_wrap(sequence: int, count: int, expected: int) -> None:
    assert sequence_add(sequence, count) == expected


@given(st.integers(0, LAST), st.integers(-LAST, LAST))
def test_sequence_add_is_reversible(sequence: int, count: int) -> None:
    assert sequence_add(sequence_add(sequence, count), -count) == sequence
    assert 0 <= sequence_add(sequence, count) < SEQUENCE_MODULUS


def test_the_largest_epoch_fits_the_wire() -> None:
    assert EPOCH_MAX.bit_length() == 15
