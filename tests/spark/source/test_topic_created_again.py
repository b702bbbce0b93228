"""A topic that is deleted and created again under the source: the old offsets are lost, the new topic is read from its beginning."""

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from uuid import UUID

import pytest

from chaffinch.admin.topics import delete_topics, find_topics
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.source import fetching
from chaffinch.spark.source.stream_reader import IS_LIMITED, TopicStreamReader
from chaffinch.spark.source.topic_discovery import TopicDiscovery
from chaffinch.spark.topic_ids import shown
from tests.spark.source.reader_driver import latest, plain, rows_of, travelled, values
from tests.spark.source.source_topics import numbers

LENIENT = {"failOnDataLoss": "false"}


def topic_id(kafka: SimpleNamespace) -> UUID:
    return find_topics(kafka.client, ["a"])[0].topic_id


@pytest.fixture
def create_again(kafka: SimpleNamespace) -> Callable[..., str]:
    """Deletes topic a and creates it with records; gives what an error says of the two ids."""

    def create_again(counts: Mapping[int, int], partitions: int = 2) -> str:
        old = topic_id(kafka)
        delete_topics(kafka.client, ["a"])
        kafka.broker.create_topic("a", partitions)
        kafka.fill("a", counts)
        belong = f"topic 'a' was deleted and created again: its offsets belong to the topic with id {shown(old)}"
        return f"{belong}, the topic of this name now has id {shown(topic_id(kafka))}"

    return create_again


def read_on(reader: TopicStreamReader, start: dict[str, dict[str, int]]) -> tuple[dict[str, dict[str, int]], dict[str, list[int]]]:
    end = latest(reader, travelled(start))
    return end, values(reader, start, end)


@pytest.fixture
def five(kafka: SimpleNamespace) -> dict[str, dict[str, int]]:
    """Where a query is that has read 5 records of a-0."""
    kafka.fill("a", {0: 5})
    reader = kafka.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    end, rows = read_on(reader, start)
    assert rows == {"a-0": numbers(5)}
    return end


@pytest.mark.parametrize("count", [3, 5, 8], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("chosen", [{}, {"subscribePattern": "a"}, {"assign": '{"a":[0,1]}'}], ids=["name", "pattern", "assign"])
def test_new_topic_is_read_from_start_or_query_fails(
    kafka: SimpleNamespace,
    five: dict[str, dict[str, int]],
    create_again: Callable[..., str],
    chosen: Mapping[str, str],
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    said = create_again({0: count, 1: 1})
    strict = kafka.stream(**chosen)
    with pytest.raises(Refusal, match="OFFSET_OUT_OF_RANGE") as caught:
        read_on(strict, five)
    assert f"{said}; set failOnDataLoss=false to read the new topic from its beginning" in str(caught.value)
    reader = kafka.stream(**chosen, **LENIENT)
    end, rows = read_on(reader, five)
    assert rows == {"a-0": numbers(count), "a-1": [0]}
    assert caplog.text.count(f"{said}; reading the new topic from its beginning") == 1
    kafka.fill("a", {0: 1})
    assert read_on(reader, end)[1] == {"a-0": [0]}, "from then on its own offsets count"
    assert read_on(kafka.stream(**chosen), end)[1] == {"a-0": [0]}, "after a restart, too"


def test_running_query_detects_recreated_topic(kafka: SimpleNamespace, create_again: Callable[..., str]) -> None:
    reader = kafka.stream(startingOffsets="earliest", **LENIENT)
    kafka.fill("a", {0: 2})
    end, _ = read_on(reader, reader.initialOffset())
    create_again({0: 4})
    assert read_on(reader, end)[1] == {"a-0": numbers(4)}


def test_recreated_topic_with_fewer_partitions(kafka: SimpleNamespace, create_again: Callable[..., str]) -> None:
    reader = kafka.stream(startingOffsets="earliest", **LENIENT)
    kafka.fill("a", {0: 2, 1: 2})
    end, _ = read_on(reader, reader.initialOffset())
    create_again({0: 3}, partitions=1)
    end, rows = read_on(reader, end)
    assert (plain(end), rows) == ({"a": {"0": 3}}, {"a-0": numbers(3)})


def test_batch_planned_before_recreation_reads_nothing_of_new_topic(
    kafka: SimpleNamespace, five: dict[str, dict[str, int]], create_again: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """As after a restart in the middle of the batch. The log has one reason for it."""
    kafka.fill("a", {0: 3})
    planned = latest(kafka.stream(), travelled(five))
    said = create_again({0: 9})
    with pytest.raises(Refusal, match="deleted and created again") as caught:
        values(kafka.stream(), five, planned)
    assert said in str(caught.value)
    reader = kafka.stream(**LENIENT)
    assert values(reader, five, planned) == {}
    assert said in caplog.text
    assert "is gone" not in caplog.text
    assert read_on(reader, planned)[1] == {"a-0": numbers(9)}


def test_first_batch_repeated_after_recreation(kafka: SimpleNamespace, create_again: Callable[..., str]) -> None:
    """Spark asks for the beginning again then, which is the new topic's."""
    kafka.fill("a", {0: 3})
    died = kafka.stream(startingOffsets="earliest")
    planned = latest(died, died.initialOffset())
    create_again({0: 9})
    strict, reader = (kafka.stream(startingOffsets="earliest", **given) for given in ({}, LENIENT))
    with pytest.raises(Refusal, match="deleted and created again"):
        values(strict, strict.initialOffset(), planned)
    assert values(reader, reader.initialOffset(), planned) == {}
    assert read_on(reader, planned)[1] == {"a-0": numbers(9)}


@pytest.mark.parametrize("version", [fetching.LAST_VERSION, 12], ids=["by id", "by name, as brokers before 3.1 take it"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["stream", "batch"])
def test_task_after_recreation_reads_nothing_of_new_topic(
    kafka: SimpleNamespace, create_again: Callable[..., str], version: int, is_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LAST_VERSION", version)
    kafka.fill("a", {0: 3})
    begin = {} if is_batch else {"startingOffsets": "earliest"}
    readers = [kafka.stream(is_batch=is_batch, **begin, **given) for given in ({}, LENIENT)]
    if is_batch:
        plans = [reader.partitions() for reader in readers]
    else:
        start, end = readers[0].initialOffset(), latest(readers[0], readers[0].initialOffset())
        plans = [reader.partitions(travelled(start), travelled(end)) for reader in readers]
    said = create_again({0: 9})
    with pytest.raises(Refusal, match="deleted and created again") as caught:
        rows_of(readers[0], plans[0])
    assert f"{said}; offsets up to 2 of a-0 were to be read; set failOnDataLoss=false" in str(caught.value)
    left = rows_of(readers[1], plans[1])
    assert left == ({} if version > 12 else {"a-0": [0, 1, 2]}), "records that were fetched by name are Spark's already"
    if not is_batch:
        assert read_on(readers[1], end)[1] == {"a-0": numbers(9)}


@pytest.mark.skipif(not IS_LIMITED, reason="PySpark 4.1 has no trigger that ends")
def test_available_now_query_with_recreated_topic(
    kafka: SimpleNamespace, five: dict[str, dict[str, int]], create_again: Callable[..., str]
) -> None:
    """The new topic came after the query began, so the next start reads it."""
    kafka.fill("a", {0: 1})
    reader = kafka.stream(**LENIENT)
    reader.prepareForTriggerAvailableNow()
    end, rows = read_on(reader, five)
    assert rows == {"a-0": [0]}
    create_again({0: 9})
    assert latest(reader, end) == end
    assert read_on(kafka.stream(**LENIENT), end)[1] == {"a-0": numbers(9)}


def test_checkpoint_without_ids_gets_them_by_empty_batch(
    kafka: SimpleNamespace, five: dict[str, dict[str, int]], create_again: Callable[..., str]
) -> None:
    """One of an earlier version, of the Kafka source of Spark, or of a broker before 2.8: no new record is needed."""
    start = plain(five)
    end, rows = read_on(kafka.stream(), start)
    assert (plain(end), rows) == (start, {})
    assert end.keys() - start.keys() == {f"a@{shown(topic_id(kafka))}"}
    assert latest(kafka.stream(), travelled(end)) == end, "one batch is enough"
    said = create_again({0: 8})
    with pytest.raises(Refusal, match="deleted and created again") as caught:
        read_on(kafka.stream(), end)
    assert said in str(caught.value)
    assert read_on(kafka.stream(**LENIENT), end)[1] == {"a-0": numbers(8)}


def test_checkpoint_without_ids_continues_at_its_offsets(kafka: SimpleNamespace, five: dict[str, dict[str, int]]) -> None:
    kafka.fill("a", {1: 2})
    end, rows = read_on(kafka.stream(), plain(five))
    assert rows == {"a-1": [0, 1]}
    assert end.keys() - plain(end).keys() == {f"a@{shown(topic_id(kafka))}"}


def test_brokers_without_topic_ids(kafka: SimpleNamespace, five: dict[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.8: the checkpoint's offsets count, and ids that it has do no harm."""
    monkeypatch.setattr("chaffinch.client.cluster.ClusterState.topic_id", lambda self, name: ZERO_UUID)
    kafka.fill("a", {0: 1})
    reader = kafka.stream()
    end, rows = read_on(reader, plain(five))
    assert (end, rows) == ({"a": {"0": 6, "1": 0}}, {"a-0": [0]})
    assert read_on(kafka.stream(), five)[1] == {"a-0": [0]}
    assert TopicPartition("a", 0) in TopicDiscovery(kafka.client, reader._options).existing([TopicPartition("a", 0)])
