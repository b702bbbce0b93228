"""Our clients beside Apache Kafka's own command line tools and librdkafka. Only `our_clients` runs this: it needs Java."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from chaffinch import Consumer, EmbeddedBroker, Producer, TopicPartition
from chaffinch.records.batch import Compression
from tests.consumer.conftest import CONFIG
from tests.consumer.polling import poll_until, read, write
from tests.interop.apache_kafka import TOOLS, java_command, run_tool
from tests.interop.scenarios import CODEC_BITS, read_stored

CODECS = [codec.name.lower() for codec in Compression]
COUNT = 1_000
LATEST_S = 60
LEFT_OUT = ("topic", "timestampType")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=CONFIG) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"java-{next(_numbers)}"


def consumer_of(broker: EmbeddedBroker, **options: Any) -> Consumer:
    return Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", **options)


def whole_table(broker: EmbeddedBroker, topic: str, isolation: str = "read_committed") -> pa.Table:
    """Everything up to the end, through `poll_table`."""
    parts = []
    with consumer_of(broker, isolation_level=isolation) as consumer:
        tps = consumer.partitions_for(topic)
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            parts.append(consumer.poll_table(1.0))
    return pa.concat_tables(part for part in parts if part.num_rows)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """In the order of the log, without what `ExternalBroker.read` lacks; no headers are None, as librdkafka has them."""
    ordered = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [{column: None if value == [] else value for column, value in row.items() if column not in LEFT_OUT} for row in ordered]


@pytest.mark.parametrize("codec", CODECS)
def test_consumer_reads_records_written_by_java(broker: EmbeddedBroker, topic: str, codec: str) -> None:
    broker.create_topic(topic, 2)
    lines = [f"key-{number}\t{number} {'x' * 50}" for number in range(COUNT)]
    given = ["--topic", topic, "--compression-codec", codec, "--reader-property", "parse.key=true"]
    done = run_tool("console-producer", "--bootstrap-server", broker.bootstrap_servers, *given, stdin="\n".join(lines))
    assert done.succeeded, done.errors
    stored = read_stored(broker.bootstrap_servers, topic, 2)
    assert {Compression(header.attributes & CODEC_BITS).name.lower() for partition in stored for header in partition} == {codec}
    with consumer_of(broker, group_id=topic) as consumer:
        consumer.subscribe([topic])
        records = read(consumer, COUNT)
    assert sorted(f"{(record.key or b'').decode()}\t{(record.value or b'').decode()}" for record in records) == sorted(lines)
    assert rows(whole_table(broker, topic)) == rows(broker.read(topic))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_table_equals_records_of_librdkafka(broker: EmbeddedBroker, topic: str, isolation: Any) -> None:
    """Every codec, headers, null keys and values, committed and aborted transactions of another client."""
    broker.create_topic(topic, 1)
    for codec in CODECS:
        with Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec}) as producer:
            producer.send(topic, None, key=b"tombstone")
            for number in range(50):
                producer.send(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + number, headers=[("h", b"1"), ("n", None)])
        options = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "transactional.id": f"{topic}-{codec}"}
        theirs = confluent_kafka.Producer(options)
        theirs.init_transactions(LATEST_S)
        for end in (theirs.commit_transaction, theirs.abort_transaction):
            theirs.begin_transaction()
            for number in range(50):
                theirs.produce(topic, b"%d" % number, headers=[("t", b"x")])
            theirs.flush(LATEST_S)
            end(LATEST_S)
    expected = rows(broker.read(topic, isolation))
    assert len(expected) == len(CODECS) * (151 if isolation == "read_uncommitted" else 101)
    assert rows(whole_table(broker, topic, isolation)) == expected


def test_group_with_console_consumer_reads_each_record_once(broker: EmbeddedBroker, topic: str) -> None:
    """Java joins, takes half, and leaves: every record is read once by one of the two."""
    broker.create_topic(topic, 4)
    tps = [TopicPartition(topic, index) for index in range(4)]
    group = ["--group", topic, "--max-messages", "20", "--timeout-ms", "30000"]
    command = java_command(TOOLS["console-consumer"], "--bootstrap-server", broker.bootstrap_servers, "--topic", topic, *group)
    with consumer_of(broker, group_id=topic, partition_assignment_strategy="range", heartbeat_interval_ms=20) as ours:
        ours.subscribe([topic])
        poll_until(lambda: len(ours.assignment()) == 4, ours)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as java:
            poll_until(lambda: len(ours.assignment()) == 2, ours)
            for tp in tps:
                write(broker, topic, [b"%d-%d" % (tp.partition, number) for number in range(10)], tp.partition)
            mine = poll_until(lambda: all(ours.position(tp) == 10 for tp in ours.assignment()), ours)
            printed, _ = java.communicate(timeout=LATEST_S)
        mine += poll_until(lambda: len(ours.assignment()) == 4, ours)
        mine += poll_until(lambda: all(ours.position(tp) == 10 for tp in tps), ours)
    seen = sorted([*((record.value or b"").decode() for record in mine), *printed.split()])
    assert seen == sorted(f"{partition}-{number}" for partition in range(4) for number in range(10))


def test_java_reads_committed_records_of_our_producer(broker: EmbeddedBroker, topic: str) -> None:
    """Committed records of a producer of ours, without those of a transaction that was aborted."""
    broker.create_topic(topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for round_number, end in enumerate((producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)):
            producer.begin_transaction()
            for number in range(10):
                producer.send(topic, f"{round_number}-{number}")
            producer.flush()
            end()
    reading = ["--from-beginning", "--isolation-level", "read_committed", "--max-messages", "20", "--timeout-ms", "30000"]
    done = run_tool("console-consumer", "--bootstrap-server", broker.bootstrap_servers, "--topic", topic, *reading)
    assert done.output.split() == [f"{round_number}-{number}" for round_number in (0, 2) for number in range(10)]
