"""Test data and time of an EmbeddedBroker: seed, read with filters, wait_for, reset_topic, delete_topic, advance."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from chaffinch import Consumer, EmbeddedBroker, OffsetAndMetadata, Producer, TopicPartition, errors
from chaffinch.errors import ConfigException
from chaffinch.producer.core.partitioner import partition_of_key
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.socket_client import SocketClient

DAY_S = 24 * 3600


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 3}, "compacted": {"cleanup.policy": "compact"}}) as broker:
        yield broker


def rows(broker: EmbeddedBroker, topic: str = "orders", **filters: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
    table = broker.read(topic, **filters)
    return [(row["partition"], row["offset"], row["key"], row["value"]) for row in table.to_pylist()]


def test_seeded_rows_of_every_form_are_read_back(broker: EmbeddedBroker) -> None:
    broker.seed("orders", ["tea", ("k", b"v"), {"key": b"k", "value": None, "headers": {"h": "1"}, "timestamp": 5, "partition": 0}])
    keyed = partition_of_key(b"k", 3)
    assert sorted(rows(broker)) == sorted([(0, 0, None, b"tea"), (0, 1, b"k", None), (keyed, 0, b"k", b"v")])
    last = broker.read("orders", partition=0, from_offset=1).to_pylist()[0]
    assert last["headers"] == [{"key": "h", "value": b"1"}]
    assert last["timestamp"].timestamp() == 0.005


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"key": ["a", "b"], "value": ["1", "2"]}),
        pl.DataFrame({"key": ["a", "b"], "value": ["1", "2"]}),
        pd.DataFrame({"key": ["a", "b"], "value": ["1", "2"]}),
    ],
    ids=["pyarrow", "polars", "pandas"],
)
def test_seeded_tables_are_read_back(broker: EmbeddedBroker, table: Any) -> None:
    broker.seed("compacted", table)
    assert rows(broker, "compacted") == [(0, 0, b"a", b"1"), (0, 1, b"b", b"2")]


def test_keys_go_where_a_producer_sends_them(broker: EmbeddedBroker) -> None:
    keys = [b"key-%d" % number for number in range(100)]
    broker.seed("orders", [(key, b"seeded") for key in keys])
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        sent = {key: producer.send("orders", b"sent", key=key) for key in keys}
    assert {row[2]: row[0] for row in rows(broker) if row[3] == b"seeded"} == {key: sent[key].result().partition for key in keys}


def test_large_seed_becomes_several_batches(broker: EmbeddedBroker) -> None:
    broker.seed("orders", pa.table({"value": [b"x" * 1000] * 5000}))
    assert broker.read("orders").num_rows == 5000
    assert {row[0] for row in rows(broker)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("seeded", "said"),
    [
        ("tea", "expected a table or a list of rows"),
        (7, "expected a table or a list of rows"),
        ([1], "row 0 is a int"),
        ([("a", "b", "c")], "row 0 is a tuple"),
        ([{"value": b"x"}, {"body": b"x"}], "row 1 has the unknown field 'body'"),
        ([{"value": b"x", "partition": 3}], "row 0 has partition 3; the topic has the partitions 0 to 2"),
        ([{"value": b"x", "partition": -2}], "row 0 has partition -2"),
        ([{"value": b"x"}, {"value": 7}], "row 1, field value: 7; expected bytes, a string or None"),
        ([{"key": 1.5, "value": b"x"}], "row 0, field key: 1.5; expected"),
        ([{"value": b"x", "partition": "a"}], "row 0, field partition: 'a'; expected the number of a partition"),
        ([{"value": b"x", "timestamp": "yesterday"}], "row 0, field timestamp: 'yesterday'; expected milliseconds"),
        ([{"value": b"x", "headers": {"a": 3}}], "row 0, field headers: .*; expected a mapping"),
        ([{"value": b"x", "headers": "a"}], "row 0, field headers: .*; expected a mapping"),
        ([{"value": b"x", "headers": ["a"]}], "row 0, field headers: .*; expected a mapping"),
        (pa.table({"val": [b"x"]}), "val"),
        (pa.table({"value": [1.5]}), "value"),
    ],
)
def test_wrong_rows_are_refused_and_nothing_is_written(broker: EmbeddedBroker, seeded: Any, said: str) -> None:
    with pytest.raises(ConfigException, match="rows: .*" + said):
        broker.seed("orders", seeded)
    assert rows(broker) == []


def test_refused_row_is_named_and_nothing_is_written(broker: EmbeddedBroker) -> None:
    broker.create_topic("two", 2, config={"cleanup.policy": "compact"})
    seeded = [{"key": "a", "value": "1", "partition": 0}, {"value": "2", "partition": 1}]
    with pytest.raises(errors.InvalidCompactionKeyException, match=r"no row is written: row 1: .*null key"):
        broker.seed("two", seeded)
    assert rows(broker, "two") == []


def test_row_above_the_size_limit_is_refused(broker: EmbeddedBroker) -> None:
    broker.create_topic("small", config={"max.message.bytes": 200})
    with pytest.raises(errors.RecordTooLargeException):
        broker.seed("small", [b"x", b"x" * 300])
    assert rows(broker, "small") == []


@pytest.mark.parametrize("call", [partial(EmbeddedBroker.seed, rows=["x"]), EmbeddedBroker.delete_topic, EmbeddedBroker.reset_topic])
def test_unknown_topics_are_named(broker: EmbeddedBroker, call: Callable[[EmbeddedBroker, str], None]) -> None:
    with pytest.raises(errors.UnknownTopicOrPartitionException, match="the nearest is 'orders'"):
        call(broker, "order")


def test_filters_of_read_restrict_the_records(broker: EmbeddedBroker) -> None:
    broker.seed("orders", [{"key": key, "value": value, "partition": 1} for key, value in [("a", "1"), ("b", "2"), ("a", "3")]])
    broker.seed("orders", [{"key": "a", "value": "4", "partition": 2}])
    assert [row[3] for row in rows(broker, key="a")] == [b"1", b"3", b"4"]
    assert [row[3] for row in rows(broker, key=b"a", partition=1)] == [b"1", b"3"]
    assert [row[3] for row in rows(broker, partition=1, from_offset=1)] == [b"2", b"3"]
    assert rows(broker, partition=9) == []


def test_wait_for_returns_when_the_records_are_there(broker: EmbeddedBroker) -> None:
    started, seeded = threading.Event(), threading.Event()

    def seed() -> None:
        started.wait()
        broker.seed("orders", ["a", "b"])
        seeded.set()

    thread = threading.Thread(target=seed)
    thread.start()
    started.set()
    assert broker.wait_for("orders", 2, timeout=60).num_rows == 2
    thread.join()
    assert seeded.is_set()


def test_wait_for_says_what_is_missing(broker: EmbeddedBroker) -> None:
    broker.seed("orders", ["a"])
    with pytest.raises(TimeoutError, match=r"topic 'orders' has 1 of 2 records after 0 s"):
        broker.wait_for("orders", 2, timeout=0)
    with pytest.raises(TimeoutError, match=r"topic 'missing' does not exist after 0 s"):
        broker.wait_for("missing", 1, timeout=0)


@pytest.mark.parametrize("wrong", [{"count": -1}, {"count": "1"}, {"timeout": -1}, {"timeout": float("nan")}, {"timeout": True}], ids=str)
def test_wrong_arguments_of_wait_for_are_refused(broker: EmbeddedBroker, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigException, match=next(iter(wrong))):
        broker.wait_for("orders", **{"count": 1, **wrong})


def test_reset_topic_is_empty_with_the_same_options(broker: EmbeddedBroker) -> None:
    broker.seed("compacted", [("a", "1")])
    broker.reset_topic("compacted")
    assert rows(broker, "compacted") == []
    with pytest.raises(errors.InvalidCompactionKeyException):
        broker.seed("compacted", ["no key"])
    broker.seed("compacted", [("a", "2")])
    assert rows(broker, "compacted") == [(0, 0, b"a", b"2")]


def test_deleted_topic_is_gone_and_its_offsets_too(broker: EmbeddedBroker) -> None:
    tp = TopicPartition("orders", 0)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as consumer:
        consumer.assign([tp])
        consumer.commit({tp: OffsetAndMetadata(5)})
        assert consumer.committed([tp])[tp] is not None
        broker.delete_topic("orders")
        assert "orders" not in broker.topics()
        broker.create_topic("orders", 3)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as consumer:
        assert consumer.committed([tp])[tp] is None


def test_advanced_clock_aborts_an_old_transaction(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t", transaction_timeout_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"open").result()
        broker.advance(59)
        assert broker.read("orders", "read_uncommitted").num_rows == 1
        broker.seed("orders", [{"value": "later", "partition": 0}])
        broker.advance(60)
        with pytest.raises(errors.KafkaException):
            producer.commit_transaction()
    assert b"open" not in [row[3] for row in rows(broker)]


def test_advanced_clock_deletes_expired_segments(broker: EmbeddedBroker) -> None:
    config = {"retention.ms": 3600_000, "segment.ms": 60_000}
    broker.create_topic("short", config=config)
    broker.seed("short", ["old"])
    broker.advance(2 * 3600)
    broker.seed("short", ["new"])
    broker.advance(600)
    assert [row[3] for row in rows(broker, "short")] == [b"new"]


def test_advanced_clock_stamps_records(broker: EmbeddedBroker) -> None:
    broker.seed("orders", [("a", "before")])
    broker.advance(DAY_S)
    broker.seed("orders", [("a", "after")])
    before, after = (row["timestamp"] for row in broker.read("orders").to_pylist())
    assert DAY_S <= (after - before).total_seconds() < DAY_S + 300


def test_advanced_clock_completes_a_waiting_request(broker: EmbeddedBroker) -> None:
    """A fetch that waits for an hour is answered as soon as the hour has passed."""
    broker.faults.add("Metadata", action="delay", delay_ms=3_600_000)
    answered = threading.Event()

    def ask() -> None:
        with SocketClient(broker.bootstrap_servers) as client:
            client.ask(MetadataRequest(topics=None))
            answered.set()

    thread = threading.Thread(target=ask)
    thread.start()
    while broker.faults.list():
        pass
    assert not answered.is_set()
    broker.advance(3600)
    thread.join(timeout=60)
    assert answered.is_set()


@pytest.mark.parametrize("seconds", [-1, "1", None, float("inf"), True])
def test_time_moves_forward_only(broker: EmbeddedBroker, seconds: Any) -> None:
    with pytest.raises(ConfigException, match="seconds"):
        broker.advance(seconds)
