"""confluent-kafka (librdkafka) against an EmbeddedBroker: every codec, idempotence, transactions, errors with culprits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from chaffinch import EmbeddedBroker

TIMEOUT_SECONDS = 60
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"compacted": {"cleanup.policy": "compact"}, "held": {"min.insync.replicas": 2}}, brokers=2) as broker:
        yield broker


def producer(broker: EmbeddedBroker, **config: Any) -> confluent_kafka.Producer:
    named = {name.replace("_", "."): value for name, value in config.items()}
    return confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **named})


def send(client: confluent_kafka.Producer, topic: str, *rows: tuple[bytes | None, bytes], **more: Any) -> list[str | None]:
    """The name of each record's error, None for success, in order of the rows."""
    fates: dict[int, str | None] = {}

    def note(number: int, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        fates[number] = error.name() if error else None

    for number, (key, value) in enumerate(rows):
        client.produce(
            topic,
            key=key,
            value=value,
            on_delivery=partial(note, number),
            **more,
        )
    assert client.flush(TIMEOUT_SECONDS) == 0
    return [fates[number] for number in range(len(rows))]


def consume(broker: EmbeddedBroker, topic: str, partitions: int = 2, isolation: str = "read_committed") -> list[confluent_kafka.Message]:
    """Everything up to the end of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # An empty answer means the end of a partition.
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, confluent_kafka.OFFSET_BEGINNING) for index in range(partitions)])
        messages, ended = list[confluent_kafka.Message](), set[int | None]()
        while len(ended) < partitions:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None, f"nothing came for {TIMEOUT_SECONDS} s; {len(messages)} messages so far"
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
        return messages
    finally:
        consumer.close()


ROWS = [(b"key-%d" % number, b"value-%d" % number) for number in range(200)]


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(broker: EmbeddedBroker, topic: str, codec: str, idempotent: bool) -> None:
    client = producer(broker, compression_type=codec, enable_idempotence=idempotent)
    assert set(send(client, topic, *ROWS, headers=[("h", b"1"), ("n", None)])) == {None}
    messages = consume(broker, topic)
    assert sorted((message.key(), message.value()) for message in messages) == sorted(ROWS)
    assert all(message.headers() == [("h", b"1"), ("n", None)] for message in messages)
    assert broker.read(topic).num_rows == len(ROWS)


def test_transactions(broker: EmbeddedBroker, topic: str) -> None:
    """Committed, aborted with records on the broker, committed again with offsets."""
    client = producer(broker, transactional_id=f"id-{topic}")
    client.init_transactions(TIMEOUT_SECONDS)
    for round_number, commit in enumerate((True, False, True)):
        client.begin_transaction()
        rows = [(b"k%d" % number, b"round %d" % round_number) for number in range(10)]
        assert set(send(client, topic, *rows)) == {None}
        if commit:
            client.commit_transaction(TIMEOUT_SECONDS)
        else:
            client.abort_transaction(TIMEOUT_SECONDS)
    committed = sorted(message.value() or b"" for message in consume(broker, topic))
    assert committed == [b"round 0"] * 10 + [b"round 2"] * 10
    assert len(consume(broker, topic, isolation="read_uncommitted")) == 30
    assert broker.read(topic).num_rows == 20
    assert broker.read(topic, "read_uncommitted").num_rows == 30


def test_offsets_in_a_transaction(broker: EmbeddedBroker, topic: str) -> None:
    client = producer(broker, transactional_id=f"id-{topic}")
    client.init_transactions(TIMEOUT_SECONDS)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"g-{topic}", "log_level": 0})
    tp = confluent_kafka.TopicPartition(topic, 0)
    try:
        for offset, commit in ((5, True), (9, False)):
            client.begin_transaction()
            send(client, topic, (b"k", b"v"))
            offsets = [confluent_kafka.TopicPartition(topic, 0, offset)]
            client.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_SECONDS)
            if commit:
                client.commit_transaction(TIMEOUT_SECONDS)
            else:
                client.abort_transaction(TIMEOUT_SECONDS)
            assert consumer.committed([tp], timeout=TIMEOUT_SECONDS)[0].offset == 5
    finally:
        consumer.close()


def test_newer_producer_fences_older(broker: EmbeddedBroker, topic: str) -> None:
    old = producer(broker, transactional_id=f"id-{topic}")
    old.init_transactions(TIMEOUT_SECONDS)
    old.begin_transaction()
    send(old, topic, (b"k", b"old"))
    new = producer(broker, transactional_id=f"id-{topic}")
    new.init_transactions(TIMEOUT_SECONDS)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        old.commit_transaction(TIMEOUT_SECONDS)
    assert caught.value.args[0].fatal()
    assert consume(broker, topic) == []


@pytest.mark.parametrize("is_flushed", [False, True], ids=["at once", "flushed"])
def test_abort_before_coordinator_knows_transaction_succeeds(broker: EmbeddedBroker, topic: str, is_flushed: bool) -> None:
    """Fatal for librdkafka, on Apache Kafka too: docs/reference/transactions.md says what to do. With a `flush` before, it is not."""
    client = producer(broker, transactional_id=topic)
    client.init_transactions(TIMEOUT_SECONDS)
    broker.faults.add(api="AddPartitionsToTxn", action="drop_before", count=1 if is_flushed else 1000)
    client.begin_transaction()
    client.produce(topic, b"aborted", partition=0)
    if is_flushed:
        assert client.flush(TIMEOUT_SECONDS) == 0
        client.abort_transaction(TIMEOUT_SECONDS)
    else:
        while broker.faults.list()[0]["count"] == 1000:
            client.poll(0.01)
        with pytest.raises(confluent_kafka.KafkaException) as failed:
            client.abort_transaction(TIMEOUT_SECONDS)
        assert failed.value.args[0].fatal()
        assert failed.value.args[0].code() == confluent_kafka.KafkaError.INVALID_TXN_STATE
        broker.faults.clear()
        client = producer(broker, transactional_id=topic)
        client.init_transactions(TIMEOUT_SECONDS)
    client.begin_transaction()
    client.produce(topic, b"committed", partition=0)
    client.commit_transaction(TIMEOUT_SECONDS)
    assert [message.value() for message in consume(broker, topic)] == [b"committed"]


def test_culprits_and_innocents(broker: EmbeddedBroker) -> None:
    """Two culprits of five: librdkafka reads them in one ascending pass and gives innocents its own local error."""
    client = producer(broker, linger_ms=1000, enable_idempotence=False)
    rows = [(b"k", b"0"), (None, b"1"), (b"k", b"2"), (None, b"3"), (b"k", b"4")]
    fates = send(client, "compacted", *rows)
    assert fates == ["_INVALID_DIFFERENT_RECORD", "INVALID_RECORD"] * 2 + ["_INVALID_DIFFERENT_RECORD"]
    assert broker.read("compacted").num_rows == 0


def test_min_insync_replicas_above_the_replication_factor_fails_at_once(broker: EmbeddedBroker) -> None:
    """KIP-579: no retries until the timeout."""
    before = broker.counters("held")["TotalProduceRequestsPerSec"]
    assert send(producer(broker), "held", (b"k", b"v")) == ["INVALID_CONFIG"]
    assert broker.counters("held")["TotalProduceRequestsPerSec"] == before + 1
    assert send(producer(broker, acks=1), "held", (b"k", b"v")) == [None]


def test_lost_response_does_not_duplicate_record(broker: EmbeddedBroker, topic: str) -> None:
    """The connection is cut after the append; the idempotent producer sends the batch again, and the broker knows it."""
    client = producer(broker, enable_idempotence=True)
    assert send(client, topic, (b"k", b"first")) == [None]
    broker.faults.add(topic=topic, action="drop_after")
    assert send(client, topic, (b"k", b"second")) == [None]
    assert sorted(broker.read(topic)["value"].to_pylist()) == [b"first", b"second"]
    assert broker.counters(topic)["DuplicateBatchesPerSec"] == 1


def test_producer_continues_after_broker_restart(topic: str, broker: EmbeddedBroker) -> None:
    client = producer(broker, enable_idempotence=True)
    assert send(client, topic, (b"k", b"before")) == [None]
    broker.restart(kill=True)
    assert send(client, topic, (b"k", b"after")) == [None]
    assert sorted(broker.read(topic)["value"].to_pylist()) == [b"after", b"before"]


def test_admin_requests_succeed(broker: EmbeddedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})

    def result(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_SECONDS)

    result(admin.create_topics([NewTopic("made", 3, 2, config={"cleanup.policy": "compact"})]))
    with pytest.raises(confluent_kafka.KafkaException, match="already exists"):
        result(admin.create_topics([NewTopic("made", 3, 2)]))
    listed = admin.list_topics(timeout=TIMEOUT_SECONDS)
    assert len(listed.topics["made"].partitions) == 3
    assert len(listed.brokers) == 2
    configs = result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "made")]))
    assert configs["cleanup.policy"].value == "compact"
    assert admin.describe_cluster().result(TIMEOUT_SECONDS).cluster_id == listed.cluster_id
    send(producer(broker), topic, (b"k", b"v"), partition=1)
    tp = confluent_kafka.TopicPartition(topic, 1)
    assert result(admin.list_offsets({tp: OffsetSpec.latest()})).offset == 1
    result(admin.delete_topics(["made"]))
    assert "made" not in broker.topics()


def test_unknown_topics_are_created_on_demand(broker: EmbeddedBroker) -> None:
    assert send(producer(broker), "on-demand", (b"k", b"v")) == [None]
    assert broker.topics()["on-demand"] == 1


def test_user_script_exits_cleanly(broker: EmbeddedBroker, topic: str) -> None:
    """A whole process: what a user of confluent-kafka types, from start to exit."""
    script = (
        "import json, sys, confluent_kafka\n"
        "servers, topic = sys.argv[1:]\n"
        "p = confluent_kafka.Producer({'bootstrap.servers': servers})\n"
        "p.produce(topic, b'v', b'k'); left = p.flush(20)\n"
        "print(json.dumps(left))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, broker.bootstrap_servers, topic], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == 0
    assert broker.read(topic)["value"].to_pylist() == [b"v"]
