"""A topic is deleted and created again while a producer writes: the new topic gets all later records, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.admin import topics
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import KafkaException, UnknownTopicOrPartitionException
from chaffinch.protocol import produce_fast_path
from chaffinch.protocol.headers import read_request_prefix

LATEST_S = 60


@pytest.fixture
def client(strict_broker: EmbeddedBroker) -> Iterator[SyncClient]:
    with SyncClient(strict_broker.bootstrap_servers) as client:
        yield client


@pytest.mark.parametrize(("options", "version"), [({}, 13), ({"transactional_id": "t"}, 13)])
def test_produce_version_on_the_wire(
    broker: EmbeddedBroker, producer_of: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], version: int
) -> None:
    """The fast path reads the usual request; a transactional id leaves it to the generated decoder."""
    read, seen = produce_fast_path.RequestReader.read, []

    def recording_read(reader: produce_fast_path.RequestReader, frame: memoryview) -> Any:
        found = read(reader, frame)
        key, version, _ = read_request_prefix(frame)
        if key == produce_fast_path.KEY:
            seen.append((version, found is not None))
        return found

    monkeypatch.setattr(produce_fast_path.RequestReader, "read", recording_read)
    with producer_of(broker, **options) as producer:
        if options:
            producer.init_transactions()
            producer.begin_transaction()
        producer.send("orders", b"a")
        producer.flush()
    assert seen == [(version, not options)]


IN_ORDER_WITHOUT_IDEMPOTENCE = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
"""With more requests in flight, a broker that learns of the new topic in between refuses the first batch and accepts the second."""


@pytest.mark.parametrize(
    "options",
    [{}, IN_ORDER_WITHOUT_IDEMPOTENCE, {**IN_ORDER_WITHOUT_IDEMPOTENCE, "acks": 1}, {"compression_type": "gzip"}],
    ids=["idempotent", "not idempotent", "leader only", "compressed"],
)
def test_later_records_are_in_the_recreated_topic(
    strict_broker: EmbeddedBroker, client: SyncClient, producer_of: Callable[..., Producer], options: dict[str, Any]
) -> None:
    with producer_of(strict_broker, linger_ms=0, batch_size=100, **options) as producer:
        for _ in range(20):
            producer.send("orders", b"old", partition=2).result(LATEST_S)
        topics.delete_topics(client, ["orders"])
        topics.create_topic(client, "orders", partitions=3)
        futures = [producer.send("orders", b"%03d" % number, partition=number % 3) for number in range(300)]
        offsets = [future.result(LATEST_S).offset for future in futures]
    assert offsets == [number // 3 for number in range(300)]
    table = strict_broker.read("orders").sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert table["value"].to_pylist() == [b"%03d" % number for partition in range(3) for number in range(partition, 300, 3)]


def test_recreated_topic_with_fewer_partitions_is_detected(
    strict_broker: EmbeddedBroker, client: SyncClient, producer_of: Callable[..., Producer]
) -> None:
    with producer_of(strict_broker, linger_ms=0, batch_size=100) as producer:
        for number in range(20):
            producer.send("orders", b"old", partition=number % 3).result(LATEST_S)
        topics.delete_topics(client, ["orders"])
        topics.create_topic(client, "orders", partitions=1)
        producer.send("orders", b"first", partition=0).result(LATEST_S)
        assert {producer.send("orders", b"later").result(LATEST_S).partition for _ in range(20)} == {0}
        assert len(producer.partitions_for("orders")) == 1
    assert strict_broker.read("orders")["value"].to_pylist() == [b"first"] + [b"later"] * 20


def by_value(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
    """A partitioner of the application."""
    return (value or b"0")[0] % partition_count


@pytest.mark.parametrize("options", [{}, {"partitioner": by_value}, {"compression_type": "lz4"}], ids=["by key", "own", "compressed"])
def test_waiting_records_go_to_existing_partitions(
    strict_broker: EmbeddedBroker, client: SyncClient, producer_of: Callable[..., Producer], options: dict[str, Any]
) -> None:
    with producer_of(strict_broker, linger_ms=60_000, **options) as producer:
        futures = [producer.send("orders", b"%d" % number, key=b"%d" % number) for number in range(8)]
        named = producer.send("orders", b"named", partition=2)
        topics.delete_topics(client, ["orders"])
        topics.create_topic(client, "orders", partitions=1)
        producer.flush(LATEST_S)
        assert sorted((future.result(0).partition, future.result(0).offset) for future in futures) == [(0, offset) for offset in range(8)]
        assert isinstance(named.exception(0), UnknownTopicOrPartitionException)
    assert sorted(strict_broker.read("orders")["value"].to_pylist()) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize(
    ("partitions", "chosen"),
    [(None, [True]), ([0, 0, 0], [[False] * 3]), ([0, None, 1], [[False, True], [False]])],
    ids=["none named", "all named", "some named"],
)
def test_table_batches_distinguish_given_from_chosen_partitions(
    strict_broker: EmbeddedBroker,
    producer_of: Callable[..., Producer],
    monkeypatch: pytest.MonkeyPatch,
    partitions: list[int | None] | None,
    chosen: list[bool | list[bool]],
) -> None:
    columns = {"value": pa.array([b"a", b"b", b"c"])} | ({} if partitions is None else {"partition": pa.array(partitions, pa.int32())})
    seen: list[Any] = []
    with producer_of(strict_broker, partitioner=lambda *_: 0) as producer:
        append_batch = producer._core.append_batch

        def recording_append(batch: Any, steady_ms: int) -> Any:
            seen.append(batch.chosen)
            return append_batch(batch, steady_ms)

        monkeypatch.setattr(producer._core, "append_batch", recording_append)
        producer.send_table("orders", pa.table(columns)).result(LATEST_S)
    assert [each if isinstance(each, bool) else each.tolist() for each in seen] == chosen


def test_deleted_topic_fails_as_unknown(strict_broker: EmbeddedBroker, client: SyncClient, producer_of: Callable[..., Producer]) -> None:
    with producer_of(strict_broker, linger_ms=0, retry_unknown_topic_partition_ms=200) as producer:
        producer.send("orders", b"old", partition=0).result(LATEST_S)
        topics.delete_topics(client, ["orders"])
        error = producer.send("orders", b"late", partition=0).exception(LATEST_S)
    assert isinstance(error, KafkaException)
    assert (error.name, error.stored.value) == ("UNKNOWN_TOPIC_OR_PARTITION", "no")
