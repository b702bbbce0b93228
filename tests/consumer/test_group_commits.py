"""Members of one group: commits by polls, calls and close, and their error codes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress

import confluent_kafka
import pytest

from chaffinch import Consumer, EmbeddedBroker, OffsetAndMetadata, TopicPartition, errors
from chaffinch.admin import groups
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import KafkaException
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import LIMIT_S, committed, partition_counts, poll_until, read, values_of, write


class TestCommits:
    def test_explicit_commits_are_stored(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"0", b"1", b"2"])
        tp = TopicPartition(topic, 0)
        consumer = consumer_of(broker, enable_auto_commit=False)
        consumer.subscribe([topic])
        read(consumer, 3)
        assert consumer.committed([tp]) == {tp: None}
        consumer.commit({tp: OffsetAndMetadata(1, "half")})
        assert committed(consumer, tp)[:2] == (1, "half")
        outcomes = []
        consumer.commit(asynchronous=True, on_commit=lambda offsets, error: outcomes.append((offsets[tp].offset, error)))
        poll_until(lambda: bool(outcomes), consumer)
        assert outcomes == [(3, None)]
        assert committed(consumer, tp).offset == 3

    def test_assigned_consumer_commits(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        tp = TopicPartition(topic, 0)
        write(broker, topic, [b"0", b"1"])
        consumer = consumer_of(broker)
        consumer.assign([tp])
        read(consumer, 2)
        consumer.close()
        again = consumer_of(broker)
        again.assign([tp])
        assert again.position(tp) == 2

    def test_poll_commits_records_of_earlier_polls(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"0", b"1", b"2"])
        tp = TopicPartition(topic, 0)
        consumer, other = consumer_of(broker, auto_commit_interval_ms=0, max_poll_records=1), consumer_of(broker)
        consumer.subscribe([topic])
        for number in range(3):
            assert values_of(read(consumer, 1)) == [b"%d" % number]
            found = other.committed([tp])[tp]
            assert (0 if found is None else found.offset) <= number
        poll_until(lambda: other.committed([tp])[tp] is not None and committed(other, tp).offset == 3, consumer)

    def test_close_commits(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"0", b"1"])
        consumer = consumer_of(broker, auto_commit_interval_ms=100_000)
        consumer.subscribe([topic])
        read(consumer, 2)
        consumer.close()
        assert committed(consumer_of(broker), TopicPartition(topic, 0)).offset == 2

    @pytest.mark.parametrize("reads", [lambda consumer: read(consumer, 2), lambda consumer: next(iter(consumer))], ids=["poll", "iterator"])
    def test_exception_in_with_statement_prevents_the_commit(
        self,
        broker: EmbeddedBroker,
        topic: str,
        consumer_of: ConsumerOf,
        caplog: pytest.LogCaptureFixture,
        reads: Callable[[Consumer], object],
    ) -> None:
        """Otherwise the record whose processing failed would never be read again."""
        write(broker, topic, [b"0", b"1"])
        with suppress(RuntimeError), consumer_of(broker, auto_commit_interval_ms=100_000) as consumer:
            consumer.subscribe([topic])
            reads(consumer)
            raise RuntimeError
        assert "close: RuntimeError ended the with statement: records read since the last commit are not committed" in caplog.text
        with consumer_of(broker) as again:  # Which has left the group, and ends in peace.
            again.subscribe([topic])
            assert values_of(read(again, 2)) == [b"0", b"1"]
        assert committed(consumer_of(broker), TopicPartition(topic, 0)).offset == 2

    def test_wakeup_in_with_statement_still_commits(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"0", b"1"])
        with suppress(errors.WakeupException), consumer_of(broker, auto_commit_interval_ms=100_000) as consumer:
            consumer.subscribe([topic])
            read(consumer, 2)
            consumer.wakeup()
            consumer.poll()
        assert committed(consumer_of(broker), TopicPartition(topic, 0)).offset == 2

    def test_close_with_zero_timeout_leaves_the_group(
        self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if the last commit fails: otherwise the others wait for the end of its session. The thread is stopped at once."""
        write(broker, topic, [b"0"])
        consumer = consumer_of(broker, session_timeout_ms=600_000, heartbeat_interval_ms=60_000)
        consumer.subscribe([topic])
        read(consumer, 1)
        thread = consumer._thread
        wakeup = thread._network.wakeup
        monkeypatch.setattr(thread._network, "wakeup", lambda: wakeup() if thread.is_stopping else None)
        consumer.close(0)
        with SyncClient(broker.bootstrap_servers) as client:
            ends = time.monotonic() + LIMIT_S
            while groups.describe_groups(client, [topic])[0].members:
                assert time.monotonic() < ends

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            ("COORDINATOR_LOAD_IN_PROGRESS", None),
            ("NOT_COORDINATOR", None),
            ("COORDINATOR_NOT_AVAILABLE", None),
            ("REQUEST_TIMED_OUT", None),
            ("UNKNOWN_TOPIC_OR_PARTITION", None),
            ("REBALANCE_IN_PROGRESS", errors.RebalanceInProgressException),
            ("UNKNOWN_MEMBER_ID", errors.CommitFailedException),
            ("ILLEGAL_GENERATION", errors.CommitFailedException),
            ("FENCED_INSTANCE_ID", errors.FencedInstanceIdException),
            ("GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
            ("OFFSET_METADATA_TOO_LARGE", errors.OffsetMetadataTooLarge),
        ],
    )
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_error_codes_of_offset_commit(
        self,
        broker: EmbeddedBroker,
        name: str,
        consumer_of: ConsumerOf,
        error: str,
        outcome: type[KafkaException] | None,
        asynchronous: bool,
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        tp = TopicPartition(topic, 0)
        consumer = consumer_of(broker, client_id=name, enable_auto_commit=False)
        consumer.subscribe([topic])
        poll_until(lambda: partition_counts(consumer) == [1], consumer)
        broker.faults.add(api="OffsetCommit", error=error, count=1, client_id=name)
        outcomes = []
        if asynchronous:
            consumer.commit({tp: 1}, asynchronous=True, on_commit=lambda _, refusal: outcomes.append(refusal))
            with pytest.raises(errors.FencedInstanceIdException) if error == "FENCED_INSTANCE_ID" else nullcontext():
                poll_until(lambda: bool(outcomes), consumer)
                consumer.poll(0)
            assert len(outcomes) == 1
            assert isinstance(outcomes[0], errors.KafkaException)  # One attempt, whatever stands in its way.
        elif outcome is None:
            consumer.commit({tp: 1})
            assert committed(consumer, tp).offset == 1
        else:
            with pytest.raises(outcome):
                consumer.commit({tp: 1})

    def test_commit_for_a_missing_topic_fails(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        consumer = consumer_of(broker, enable_auto_commit=False)

        def is_said() -> bool:
            with pytest.raises(errors.TimeoutException) as caught:
                consumer.commit({TopicPartition("nowhere", 0): 1}, timeout=0.1)
            return "UNKNOWN_TOPIC_OR_PARTITION" in str(caught.value)

        poll_until(is_said)  # Not at once, where the broker's answer takes longer than the call.


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_of_another_client_are_read(broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, codec: str) -> None:
    topic = f"{name}-t"
    broker.create_topic(topic, 1)
    writer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 20})
    for number in range(300):
        writer.produce(topic, value=b"value %d" % number, key=b"key" * (number % 3), headers=[("n", b"%d" % number)])
    assert writer.flush(30) == 0
    consumer = consumer_of(broker)
    consumer.subscribe([topic])
    found = read(consumer, 300)
    assert [(record.value, record.key, record.headers) for record in found] == [
        (b"value %d" % number, b"key" * (number % 3) or b"", [("n", b"%d" % number)]) for number in range(300)
    ]
