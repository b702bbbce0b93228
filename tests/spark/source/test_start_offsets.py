"""Where a stream begins. Spark asks a query without checkpoint twice, and keeps no answer but the end of the first micro-batch."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chaffinch.admin.topics import add_partitions, delete_topics
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.refusals import Refusal
from tests.spark.source.reader_driver import latest, plain, travelled, values
from tests.spark.source.source_topics import FIRST_MS, drop_first, numbers

NEXT = pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"startingOffsets": {"a": {"0": 0, "1": -1}}},
        {"startingTimestamp": "1900000000000", "startingOffsetsByTimestampStrategy": "latest"},
    ],
    ids=["latest", "latest of one partition", "a time without a record"],
)


@NEXT
def test_records_written_during_planning_are_read(kafka: SimpleNamespace, chosen: Mapping[str, Any]) -> None:
    reader = kafka.stream(**chosen)
    first = reader.initialOffset()
    kafka.fill("a", {1: 2})
    end = latest(reader, first)
    kafka.fill("a", {1: 3})
    start = reader.initialOffset()
    assert (values(reader, start, end), plain(end)) == ({}, {"a": {"0": 0, "1": 0}})
    kafka.fill("a", {1: 1})
    assert values(reader, end, latest(reader, end)) == {"a-1": [0, 1, 0, 1, 2, 0]}


@NEXT
@pytest.mark.parametrize("fails", ["true", "false"])
def test_query_killed_in_first_batch_continues_at_its_start(kafka: SimpleNamespace, chosen: Mapping[str, Any], fails: str) -> None:
    died = kafka.stream(**chosen)
    end = latest(died, died.initialOffset())
    kafka.fill("a", {1: 5})
    add_partitions(kafka.client, "a", 3)
    kafka.fill("a", {2: 3})
    again = {**chosen, "startingOffsets": {"a": {"0": 0, "1": -1, "2": -1}}} if "startingOffsets" in chosen else chosen
    reader = kafka.stream(failOnDataLoss=fails, **again)
    assert values(reader, reader.initialOffset(), end) == {}
    assert values(reader, end, latest(reader, end)) == {"a-1": numbers(5), "a-2": numbers(3)}


def test_records_written_during_restart_batch_are_in_next_batch(kafka: SimpleNamespace) -> None:
    """The batch of the restart was the query's first: the next one is not to end where the query would start now."""
    died = kafka.stream()
    end = latest(died, died.initialOffset())
    kafka.fill("a", {0: 2})
    reader = kafka.stream()
    assert values(reader, reader.initialOffset(), end) == {}
    kafka.fill("a", {0: 1})
    assert values(reader, end, latest(reader, end)) == {"a-0": [0, 1, 0]}


def test_query_from_earliest_repeats_same_first_batch(kafka: SimpleNamespace) -> None:
    """Though partitions have come since, of which that batch knows nothing."""
    kafka.fill("a", {0: 2, 1: 1})
    died = kafka.stream(startingOffsets="earliest")
    end = latest(died, died.initialOffset())
    assert plain(end) == {"a": {"0": 2, "1": 1}}
    add_partitions(kafka.client, "a", 3)
    kafka.fill("a", {0: 1, 2: 3})
    reader = kafka.stream(startingOffsets="earliest")
    assert values(reader, reader.initialOffset(), end) == {"a-0": [0, 1], "a-1": [0]}
    assert values(reader, end, latest(reader, end)) == {"a-0": [0], "a-2": numbers(3)}


@pytest.mark.parametrize(
    ("chosen", "read"),
    [
        ({"startingOffsets": {"a": {"0": 1, "1": -2}}}, {"a-0": [1], "a-1": [0]}),
        ({"startingTimestamp": str(FIRST_MS + 1)}, {"a-0": [1], "a-1": [1]}),
    ],
    ids=["offsets", "a time"],
)
def test_restarted_query_ignores_options_of_new_partition(
    kafka: SimpleNamespace, chosen: Mapping[str, Any], read: Mapping[str, Sequence[int]]
) -> None:
    """The options of a query that restarts itself cannot be edited; the checkpoint has the end of the batch."""
    kafka.fill("a", {0: 2, 1: 1 if "startingOffsets" in chosen else 2})
    died = kafka.stream(**chosen)
    end = latest(died, died.initialOffset())
    add_partitions(kafka.client, "a", 3)
    reader = kafka.stream(**chosen)
    assert values(reader, reader.initialOffset(), end) == read
    kafka.fill("a", {2: 3})
    assert values(reader, end, latest(reader, end)) == {"a-2": numbers(3)}


@pytest.mark.parametrize("goes_on", [False, True], ids=["all that there was", "and the topic goes on"])
def test_first_batch_with_removed_records_is_a_loss(kafka: SimpleNamespace, goes_on: bool) -> None:
    """With a starting time only its end is known: it is reported if a partition has no record of it left."""
    chosen = {"startingTimestamp": str(FIRST_MS + 1)}
    kafka.fill("a", {0: 2, 1: 2})
    died = kafka.stream(**chosen)
    start = died.initialOffset()
    end = latest(died, start)
    assert (plain(start), plain(end)) == ({"a": {"0": 1, "1": 1}}, {"a": {"0": 2, "1": 2}})
    if goes_on:
        kafka.fill("a", {0: 2})
    drop_first(kafka.client, TopicPartition("a", 0), 2)
    reader = kafka.stream(**chosen)
    with pytest.raises(Refusal, match="OFFSET_OUT_OF_RANGE: a-0 begins at offset 2: the first micro-batch ended at 2"):
        values(reader, reader.initialOffset(), end)
    reader = kafka.stream(failOnDataLoss="false", **chosen)
    assert values(reader, reader.initialOffset(), end) == {"a-1": [1]}
    assert values(reader, end, latest(reader, end)) == ({"a-0": [0, 1]} if goes_on else {})


def test_deleted_topic_of_first_batch_is_a_loss(kafka: SimpleNamespace) -> None:
    chosen = {"subscribePattern": "a|b", "startingTimestamp": str(FIRST_MS), "failOnDataLoss": "false"}
    kafka.fill("a", {0: 2, 1: 1})
    kafka.fill("b", {0: 2})
    died = kafka.stream(**chosen)
    end = latest(died, died.initialOffset())
    delete_topics(kafka.client, ["b"])
    reader = kafka.stream(**chosen)
    assert values(reader, reader.initialOffset(), end) == {"a-0": [0, 1], "a-1": [0]}


@pytest.mark.parametrize("dropped", [2, 3])
def test_empty_first_batch_has_no_loss(kafka: SimpleNamespace, dropped: int) -> None:
    """It ends where it starts, which may be where a partition begins."""
    chosen = {"startingTimestamp": str(FIRST_MS), "startingOffsetsByTimestampStrategy": "latest"}
    kafka.fill("a", {0: 3, 1: 3})
    drop_first(kafka.client, TopicPartition("a", 0), dropped)
    died = kafka.stream(**chosen)
    start = died.initialOffset()
    end = latest(died, start)
    assert values(died, start, end) == {}
    reader = kafka.stream(**chosen)
    assert values(reader, reader.initialOffset(), end) == {}
    assert values(reader, end, latest(reader, end)) == {"a-0": [2], "a-1": [0, 1, 2]} if dropped == 2 else {"a-1": [0, 1, 2]}


def test_first_batch_of_one_run_has_no_loss(kafka: SimpleNamespace) -> None:
    """Nor where a partition of it, as one that an open transaction closes, has nothing to read."""
    kafka.fill("a", {0: 3, 1: 3})
    drop_first(kafka.client, TopicPartition("a", 0), 2)
    reader = kafka.stream(startingTimestamp=str(FIRST_MS))
    start = reader.initialOffset()
    end = {"a": {**latest(reader, start)["a"], "0": 2}}
    assert values(reader, start, end) == {"a-1": [0, 1, 2]}


@pytest.mark.parametrize("count", [0, 1])
def test_partition_created_during_planning_is_not_a_loss(kafka: SimpleNamespace, count: int) -> None:
    """It is read from its beginning, though it has no record of the starting time."""
    chosen = {"startingTimestamp": str(FIRST_MS + 1)}
    kafka.fill("a", {0: 2, 1: 2})
    died = kafka.stream(**chosen)
    start = died.initialOffset()
    add_partitions(kafka.client, "a", 3)
    kafka.fill("a", {2: count})
    end = latest(died, start)
    reader = kafka.stream(**chosen)
    assert values(reader, reader.initialOffset(), end) == {"a-0": [1], "a-1": [1]} | ({"a-2": [0]} if count else {})


@pytest.mark.parametrize("asks_first", [False, True], ids=["for the beginning first", "for the end first, as PySpark 4.1"])
def test_new_query_with_wrong_options_is_refused(kafka: SimpleNamespace, asks_first: bool) -> None:
    reader = kafka.stream(startingOffsets={"a": {"0": 0}})
    if asks_first:
        reader.latestOffset()
    with pytest.raises(Refusal, match="startingOffsets lacks a-1"):
        latest(reader, reader.initialOffset())


def test_batch_after_empty_first_batch_reports_loss(kafka: SimpleNamespace) -> None:
    """It has the same start. PySpark 4.1 calls in this order, and reports losses when ranges are planned."""
    kafka.fill("b", {0: 3})
    reader = kafka.stream(subscribe="b")
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert end == start
    assert reader.partitions(travelled(start), travelled(end)) == []
    delete_topics(kafka.client, ["b"])
    kafka.broker.create_topic("b", 1)
    kafka.fill("b", {0: 1})
    with pytest.raises(Refusal, match="OFFSET_OUT_OF_RANGE: topic 'b' was deleted and created again: its offsets belong to"):
        values(reader, end, reader.latestOffset())


def test_latest_offset_before_initial_offset(kafka: SimpleNamespace) -> None:
    """As 4.1 does."""
    reader = kafka.stream()
    end = reader.latestOffset()
    kafka.fill("a", {0: 2})
    assert values(reader, reader.initialOffset(), end) == {}
    assert values(reader, end, reader.latestOffset()) == {"a-0": [0, 1]}


@pytest.mark.usefixtures("impatient")
def test_loss_before_first_batch_is_reported(kafka: SimpleNamespace) -> None:
    kafka.fill("b", {0: 3})
    died = kafka.stream(subscribe="b", startingOffsets="earliest")
    end = latest(died, died.initialOffset())
    delete_topics(kafka.client, ["b"])
    kafka.broker.create_topic("b", 1)
    given = {"subscribe": "b", "startingOffsets": "earliest"}
    with pytest.raises(Refusal, match="OFFSET_OUT_OF_RANGE: topic 'b' was deleted and created again"):
        values(kafka.stream(**given), kafka.stream(**given).initialOffset(), end)
