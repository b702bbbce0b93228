"""Topics that are deleted or grow, and transactions that the coordinator aborts, while a producer uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.admin.options import connect
from chaffinch.admin.topics import add_partitions, delete_topics
from chaffinch.admin.transactions import describe_transaction
from chaffinch.errors import (
    ApplicationRecoverableException,
    KafkaException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from chaffinch.producer.core import events
from chaffinch.producer.core.partitioner import partition_of_key

LATEST_S = 60
Make = Callable[..., Producer]


def delete_topic_of(broker: EmbeddedBroker, topic: str) -> None:
    with connect(bootstrap_servers=broker.bootstrap_servers) as client:
        delete_topics(client, [topic])


class TestDeletedTopic:
    # fmt: off
    LIMITS = (
        # the option                                                   the error
        ({"retry_unknown_topic_partition_ms": 100},                    UnknownTopicOrPartitionException),
        ({"delivery_timeout_ms": 500, "request_timeout_ms": 400},      TimeoutException),
    )
    # fmt: on

    @pytest.mark.parametrize(("options", "error_class"), LIMITS)
    def test_records_of_a_deleted_topic_fail_in_time(
        self, producer_of: Make, strict_broker: EmbeddedBroker, options: dict[str, Any], error_class: type[Exception]
    ) -> None:
        with producer_of(strict_broker, **options) as producer:
            producer.partitions_for("orders")
            delete_topic_of(strict_broker, "orders")
            error = producer.send("orders", b"after", partition=0).exception(LATEST_S)
            assert type(error) is error_class
            # In several attempts: on a busy machine one may exceed the timeout.
            assert any(producer.send("small", b"others go on").exception(LATEST_S) is None for _ in range(100))

    def test_recreated_topic_gets_the_waiting_records(self, producer_of: Make, strict_broker: EmbeddedBroker) -> None:
        with producer_of(strict_broker) as producer:
            strict_broker.create_topic("recreated", 1)
            producer.send("recreated", b"lost with its topic").result(LATEST_S)
            delete_topic_of(strict_broker, "recreated")
            waiting = producer.send("recreated", b"waits")
            strict_broker.create_topic("recreated", 1)
            assert waiting.result(LATEST_S).offset == 0
            assert producer.send("recreated", b"follows").result(LATEST_S).offset == 1
        assert strict_broker.read("recreated").column("value").to_pylist() == [b"waits", b"follows"]


def test_topic_grows_while_a_record_waits_for_memory(
    producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record goes to the same partition as all later records with its key."""
    strict_broker.create_topic("growing", 1)
    key = next(key for key in map(str.encode, "abcdefgh") if partition_of_key(key, 4) == 3)
    with producer_of(strict_broker) as producer, connect(bootstrap_servers=strict_broker.bootstrap_servers) as client:
        producer.partitions_for("growing")
        core, waits = producer._core, producer._gate.wait_for_memory

        def wait_while_it_grows(size: int, *since: Any, **target: Any) -> KafkaException | None:
            add_partitions(client, "growing", 4)
            ends = time.monotonic() + LATEST_S
            while core.context.cluster.partition_count("growing") != 4:  # Brokers learn of it late: request metadata again.
                assert time.monotonic() < ends
                producer._sender.submit(events.TopicRequested(topic="growing", is_stale=True))
                producer._changed.wait_for(lambda: core.context.cluster.partition_count("growing") == 4, 0.1)
            core.accumulator.memory_free += taken
            return waits(size, *since, **target)

        monkeypatch.setattr(producer._gate, "wait_for_memory", wait_while_it_grows)
        with producer._changed:
            taken, core.accumulator.memory_free = core.accumulator.memory_free, 0
        first = producer.send("growing", b"v", key=key)
        assert producer.send("growing", b"v", key=key).result(LATEST_S).partition == 3
        assert first.result(LATEST_S).partition == 3


def test_transaction_that_exceeds_its_timeout_is_aborted_and_fenced(producer_of: Make, broker: EmbeddedBroker) -> None:
    """The coordinator aborts it and fences its producer, whose next call raises; a new producer goes on."""
    options = {"transactional_id": "slow", "transaction_timeout_ms": 200}
    with producer_of(broker, **options) as slow, connect(bootstrap_servers=broker.bootstrap_servers) as client:
        slow.init_transactions()
        slow.begin_transaction()
        slow.send("orders", b"late").exception(LATEST_S)  # None, unless the machine is slower than that.
        ends = time.monotonic() + LATEST_S
        while "complete" not in str(describe_transaction(client, "slow").state).lower():
            assert time.monotonic() < ends
        with pytest.raises(
            ApplicationRecoverableException, match=r"open for [\d.]+ s, transaction\.timeout\.ms is 200: the broker has aborted it"
        ):
            slow.commit_transaction()
        with pytest.raises(ApplicationRecoverableException):
            slow.begin_transaction()
    with producer_of(broker, transactional_id="slow") as fresh:
        fresh.init_transactions()
        with fresh.transaction():
            fresh.send("orders", b"in time")
    assert broker.read("orders").column("value").to_pylist() == [b"in time"]
