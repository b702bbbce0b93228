"""The public producer against the real broker, over sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer, ProducerRecord, RecordMetadata, TopicPartition
from chaffinch.errors import (
    BufferExhaustedException,
    ConfigException,
    IllegalStateException,
    InconsistentReplicationFactorException,
    InvalidCompactionKeyException,
    InvalidRecordException,
    InvalidTimestampException,
    InvalidTopicException,
    NetworkException,
    RecordTooLargeException,
    Stored,
    TimeoutException,
    UnknownTopicOrPartitionException,
)

Make = Callable[..., Producer]


def values(broker: EmbeddedBroker, topic: str, **more: Any) -> list[bytes]:
    return broker.read(topic, **more).column("value").to_pylist()


class TestSend:
    def test_record_is_stored_with_all_fields(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            metadata = producer.send("orders", b"v", key=b"k", partition=1, timestamp_ms=1_700_000_000_000, headers=[("h", b"1")]).result(
                10
            )
        assert metadata == RecordMetadata("orders", 1, 0, 1_700_000_000_000)
        assert metadata.topic_partition == TopicPartition("orders", 1)
        (row,) = broker.read("orders").to_pylist()
        assert (row["partition"], row["offset"], row["key"], row["value"]) == (1, 0, b"k", b"v")
        assert row["headers"] == [{"key": "h", "value": b"1"}]

    def test_producer_record_is_sent_like_arguments(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            metadata = producer.send(ProducerRecord("orders", value="v", key="k", partition=2)).result(60)
        assert (metadata.partition, metadata.offset) == (2, 0)

    def test_keys_choose_partitions_as_in_java(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """The hashes are those of Kafka's own UtilsTest."""
        hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
        with producer_of(broker) as producer:
            found = {key: producer.send("orders", b"v", key=key).result(60).partition for key in hashes}
        assert found == {key: (number & 0x7FFFFFFF) % 3 for key, number in hashes.items()}

    def test_records_of_a_partition_stay_in_order(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, batch_size=200) as producer:
            futures = [producer.send("latest", b"%d" % i, key=b"%d" % i) for i in range(500)]
            producer.flush(60)
            assert [future.result(0).offset for future in futures] == list(range(500))
        assert values(broker, "latest") == [b"%d" % i for i in range(500)]

    def test_records_of_many_threads_are_all_stored(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                futures = list(pool.map(lambda i: producer.send("orders", b"%d" % i, key=b"%d" % i), range(2000)))
            producer.flush(60)
            assert all(future.done() for future in futures)
        assert sorted(values(broker, "orders")) == sorted(b"%d" % i for i in range(2000))

    def test_one_culprit_of_100_records_fails_alone(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """KIP-135 and KIP-467 together: other clients lose all 100 records, here one fails."""
        with producer_of(broker, linger_ms=60_000) as producer:
            futures = [producer.send("latest", b"%d" % i, key=None if i == 50 else b"%d" % i) for i in range(100)]
            producer.flush(60)
            errors = [future.exception(0) for future in futures]
        assert [i for i, error in enumerate(errors) if error is not None] == [50]
        assert isinstance(errors[50], InvalidCompactionKeyException)
        assert isinstance(errors[50], InvalidRecordException)
        assert errors[50].stored is Stored.NO
        assert [future.result(0).offset for i, future in enumerate(futures) if i != 50] == list(range(99))
        assert values(broker, "latest") == [b"%d" % i for i in range(100) if i != 50]
        assert broker.counters("latest")["NoKeyCompactedTopicRecordsPerSec"] == 1

    def test_timestamps_out_of_range_and_null_keys_in_one_batch_each_get_their_own_error(
        self, producer_of: Make, broker: EmbeddedBroker
    ) -> None:
        future_ms = 4_000_000_000_000
        with producer_of(broker, linger_ms=60_000) as producer:
            late = producer.send("latest", b"late", key=b"k", timestamp_ms=future_ms)
            keyless = producer.send("latest", b"keyless")
            good = producer.send("latest", b"good", key=b"k")
            producer.flush(60)
        assert isinstance(late.exception(0), InvalidTimestampException)
        assert isinstance(keyless.exception(0), InvalidCompactionKeyException)
        assert good.result(0).offset == 0

    def test_too_large_batch_is_split_until_it_fits(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, linger_ms=60_000) as producer:
            futures = [producer.send("small", b"%04d" % i * 50) for i in range(40)]
            giant = producer.send("small", bytes(3000))
            producer.flush(60)
            assert producer.metrics()["batch-split-total"] > 0
        assert all(future.exception(0) is None for future in futures)
        assert isinstance(giant.exception(0), RecordTooLargeException)
        assert values(broker, "small") == [b"%04d" % i * 50 for i in range(40)]

    def test_min_insync_above_the_replicas_fails(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            assert isinstance(producer.send("doomed", b"v").exception(60), InconsistentReplicationFactorException)

    def test_log_append_time_is_in_the_metadata(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            metadata = producer.send("stamped", b"v", timestamp_ms=1).result(60)
        assert metadata.timestamp_ms > 1_600_000_000_000

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compressed_records_are_stored_and_culprits_found(self, producer_of: Make, broker: EmbeddedBroker, codec: str) -> None:
        with producer_of(broker, compression_type=codec, linger_ms=60_000) as producer:
            futures = [producer.send("latest", b"x" * 100, key=None if i == 3 else b"%d" % i) for i in range(50)]
            producer.flush(60)
        assert [i for i, future in enumerate(futures) if future.exception(0)] == [3]
        assert len(values(broker, "latest")) == 49

    def test_others_can_send_while_a_full_batch_is_encoded(
        self, producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with producer_of(broker, linger_ms=60_000, batch_size=1000) as producer:
            producer.send("latest", b"known", key=b"k")
            producer.flush()
            encode_ahead, concurrent = producer._core.accumulator.encode_ahead, []

            def encode_while_others_send(full: Any) -> None:
                other = threading.Thread(target=lambda: concurrent.append(producer.send("latest", b"concurrent", key=b"k")))
                other.start()
                other.join()
                encode_ahead(full)

            monkeypatch.setattr(producer._core.accumulator, "encode_ahead", encode_while_others_send)
            futures = [producer.send("latest", bytes(100), key=b"k") for _ in range(7)]
            futures[0].result(60)
            producer.flush()
        assert sorted(future.result().offset for future in (*futures, *concurrent)) == [*range(1, 9)]

    def test_acks_0_has_no_offset(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, acks="0") as producer:
            assert producer.send("orders", b"v", partition=0).result(60).offset == -1
            assert len(producer.partitions_for("orders")) == 3

    def test_callbacks_are_in_order_with_metadata_or_error(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        called: list[Any] = []

        def on_delivery(i: int, metadata: Any, error: Any) -> None:
            called.append((i, metadata, error))

        with producer_of(broker, linger_ms=60_000) as producer:
            for i in range(10):
                key = None if i == 4 else b"k"
                producer.send("latest", b"v", key=key, on_delivery=partial(on_delivery, i))
            producer.flush(60)
        good = [(i, metadata) for i, metadata, error in called if error is None]
        assert [i for i, _ in good] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert [metadata.offset for _, metadata in good] == list(range(9))
        assert [(i, metadata) for i, metadata, error in called if error is not None] == [(4, None)]

    def test_callback_can_send_and_raise(self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
        sent_in_callback: list[Any] = []
        done = threading.Event()
        with producer_of(broker) as producer:

            def send_and_raise(metadata: Any, error: Any) -> None:
                sent_in_callback.append(producer.send("orders", b"second"))
                done.set()
                raise ZeroDivisionError("callback")

            with caplog.at_level(logging.CRITICAL):
                producer.send("orders", b"first", on_delivery=send_and_raise).result(60)
                assert done.wait(60)
                assert sent_in_callback[0].result(60).offset >= 0

    def test_futures_can_be_awaited(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        async def send(producer: Producer) -> RecordMetadata:
            return await asyncio.wrap_future(producer.send("orders", b"v", partition=0))

        with producer_of(broker) as producer:
            assert asyncio.run(send(producer)).offset == 0

    def test_sender_polls_while_a_caller_waits(self, producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        with producer_of(broker, linger_ms=60_000) as producer:
            producer.partitions_for("orders")
            network, seen = producer._sender._network, []
            poll = network.poll

            def recording_poll(timeout_ms: int, *, is_awaited: bool = False) -> Any:
                seen.append(is_awaited)
                return poll(timeout_ms, is_awaited=is_awaited)

            monkeypatch.setattr(network, "poll", recording_poll)
            producer.send("orders", b"v")
            assert not any(seen), "no caller waits yet"
            producer.flush(60)
            assert any(seen)


class TestFaults:
    def test_lost_response_does_not_store_twice(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            producer.send("latest", b"0", key=b"k").result(60)
            broker.faults.add(api="Produce", topic="latest", action="drop_after")
            assert producer.send("latest", b"1", key=b"k").result(60).offset == 1
            assert producer.metrics()["batch-retry-total"] >= 1
        assert values(broker, "latest") == [b"0", b"1"]

    @pytest.mark.parametrize("action", ["drop_before", "drop_after"])
    def test_lost_connections_lose_and_duplicate_nothing(
        self, producer_of: Make, broker: EmbeddedBroker, action: Literal["drop_before", "drop_after"]
    ) -> None:
        with producer_of(broker, batch_size=200) as producer:
            for _ in range(5):
                broker.faults.add(api="Produce", action=action)
                futures = [producer.send("latest", b"v", key=b"k") for _ in range(50)]
                producer.flush(60)
                assert all(future.exception(0) is None for future in futures)
        assert broker.read("latest").column("offset").to_pylist() == list(range(250))

    @pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "OUT_OF_ORDER_SEQUENCE_NUMBER"])
    def test_retriable_codes_are_retried(self, producer_of: Make, broker: EmbeddedBroker, code: str) -> None:
        with producer_of(broker) as producer:
            broker.faults.add(api="Produce", error=code, count=2)
            assert producer.send("orders", b"v", partition=0).result(60).offset >= 0
        assert values(broker, "orders") == [b"v"]

    def test_producer_continues_after_broker_restart(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            producer.send("latest", b"0", key=b"k").result(60)
            broker.restart(kill=True)
            assert producer.send("latest", b"1", key=b"k").result(60).offset == 1
        assert values(broker, "latest") == [b"0", b"1"]

    def test_time_out_has_the_last_broker_error_as_cause(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS_AFTER_APPEND", count=1000)
        with producer_of(broker, delivery_timeout_ms=400, request_timeout_ms=300) as producer:
            # A busy machine may take all that time to connect.
            errors = (producer.send("orders", b"v").exception(60) for _ in range(100))
            error = next(error for error in errors if error is not None and error.__cause__ is not None)
        assert isinstance(error, TimeoutException)
        assert error.stored is Stored.POSSIBLY
        assert "NOT_ENOUGH_REPLICAS_AFTER_APPEND" in str(error.__cause__)


@pytest.fixture
def impatient_producer_of(producer_of: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Factory of producers that know a topic and then do not wait for metadata: no test depends on how fast metadata arrived."""

    def make(broker: EmbeddedBroker, topic: str, **options: Any) -> Producer:
        producer = producer_of(broker, **options)
        producer.partitions_for(topic)
        monkeypatch.setattr(producer._gate, "_block_ms", 1)
        return producer

    return make


class TestErrors:
    def test_refused_connection_is_the_cause_of_the_time_out(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with Producer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=100) as producer:
            # On a busy machine even the refusal may take all that time.
            errors = (producer.send("orders", b"v").exception(60) for _ in range(100))
            error = next(error for error in errors if error is not None and error.__cause__ is not None)
        assert isinstance(error, TimeoutException)
        assert f"no metadata for topic 'orders': no broker reachable at 127.0.0.1:{port} (refused); tried for" in str(error)
        assert isinstance(error.__cause__, NetworkException)
        assert error.__cause__.message == f"127.0.0.1:{port}: refused"

    def test_silent_broker_times_out_without_cause(self) -> None:
        """The error has no cause, which would only repeat its text."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with Producer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=100) as producer:
                error = producer.send("orders", b"v").exception(60)
        assert isinstance(error, TimeoutException)
        assert f"no broker reachable at 127.0.0.1:{port} (no response yet)" in str(error)
        assert error.__cause__ is None

    def test_missing_partition_of_a_one_partition_topic_is_named(self, impatient_producer_of: Make, broker: EmbeddedBroker) -> None:
        with impatient_producer_of(broker, "latest") as producer:
            error = producer.send("latest", b"v", key=b"k", partition=1).exception(60)
        assert "topic 'latest' has 1 partition, there is no partition 1; waited for" in str(error)

    def test_unknown_topic_times_out_with_cause(self, impatient_producer_of: Make, strict_broker: EmbeddedBroker) -> None:
        with impatient_producer_of(strict_broker, "orders") as producer:
            error = producer.send("ordres", b"v").exception(60)
            with pytest.raises(TimeoutException):
                producer.partitions_for("ordres")
        assert isinstance(error, TimeoutException)
        assert "'ordres'" in str(error)
        assert isinstance(error.__cause__, UnknownTopicOrPartitionException)

    def test_topic_created_during_the_wait_gets_the_record(self, producer_of: Make, strict_broker: EmbeddedBroker) -> None:
        with producer_of(strict_broker) as producer, concurrent.futures.ThreadPoolExecutor(1) as pool:
            sent = pool.submit(producer.send, "new", b"v")
            strict_broker.create_topic("new", 1)
            assert sent.result(60).result(60).offset == 0

    def test_missing_partition_is_named(self, impatient_producer_of: Make, strict_broker: EmbeddedBroker) -> None:
        with impatient_producer_of(strict_broker, "orders") as producer:
            error = producer.send("orders", b"v", partition=3).exception(60)
        assert "has 3 partitions, there is no partition 3" in str(error)

    def test_illegal_topic_name_fails_the_future(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            assert isinstance(producer.send("or ders", b"v").exception(0), InvalidTopicException)

    def test_too_large_record_fails_the_future(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, max_request_size=1000) as producer:
            error = producer.send("orders", bytes(1000)).exception(0)
        assert isinstance(error, RecordTooLargeException)
        assert "max.request.size" in str(error)

    def test_exhausted_buffer_memory_fails_with_sizes(self, impatient_producer_of: Make, broker: EmbeddedBroker) -> None:
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=1_000_000)
        with impatient_producer_of(broker, "orders", buffer_memory=5000, batch_size=1000) as producer:
            futures = [producer.send("orders", bytes(900), partition=0) for _ in range(20)]
            errors = [error for future in futures if future.done() and (error := future.exception())]
            table = producer.send_table("orders", pa.table({"value": [bytes(900)], "partition": [0]})).result(60)
            broker.faults.clear()
        assert errors
        assert table.rejected_count == 1
        for error in [*errors, *table.errors().values()]:
            assert isinstance(error, BufferExhaustedException)
            pattern = r"orders-0: REQUEST_TIMED_OUT \(7\): \d+ bytes do not fit: buffer.memory is 5000, \d+ free; waited for \d+ ms; "
            assert re.search(pattern, str(error))

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"topic": 5}, TypeError, "topic"),
            ({"value": 5}, TypeError, "value"),
            ({"key": 1.5}, TypeError, "key"),
            ({"partition": -1}, ValueError, "partition"),
            ({"partition": "1"}, TypeError, "partition"),
            ({"timestamp_ms": -5}, ValueError, "timestamp_ms"),
            ({"headers": {"a": b"1"}}, TypeError, "headers"),
            ({"headers": [(None, b"1")]}, TypeError, "headers"),
            ({"headers": [("a", 1)]}, TypeError, "headers"),
            ({"on_delivery": 1}, TypeError, "on_delivery"),
        ],
    )
    def test_wrong_arguments_raise_at_the_call(
        self, producer_of: Make, broker: EmbeddedBroker, arguments: dict[str, Any], error: type[Exception], text: str
    ) -> None:
        with producer_of(broker) as producer, pytest.raises(error, match=text):
            producer.send(**{"topic": "orders", "value": b"v", **arguments})

    def test_producer_record_with_other_arguments_raises(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer, pytest.raises(TypeError, match="key"):
            producer.send(ProducerRecord("orders"), key=b"k")

    def test_calls_after_close_raise(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker)
        producer.close()
        producer.close()
        for call in (lambda: producer.send("orders", b"v"), producer.flush, lambda: producer.partitions_for("orders")):
            with pytest.raises(IllegalStateException, match="closed"):
                call()

    def test_unknown_option_offers_the_nearest(self) -> None:
        with pytest.raises(ConfigException, match=r"linger\.ms"):
            Producer({"bootstrap.servers": "localhost:1", "lingr.ms": 5})

    def test_options_without_effect_are_logged_once(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "chaffinch.producer"), producer_of(broker, interceptor_classes="a.b.C"):
            pass
        assert [record.message for record in caplog.records if "interceptor.classes" in record.message]

    @pytest.mark.parametrize(("is_adaptive", "timeout_ms", "times"), [(False, 100, 1), (False, 0, 0), (True, 100, 0)])
    def test_option_without_effect_because_of_another_is_logged(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, is_adaptive: bool, timeout_ms: int, times: int
    ) -> None:
        options = {"partitioner_adaptive_partitioning_enable": is_adaptive, "partitioner_availability_timeout_ms": timeout_ms}
        with caplog.at_level(logging.WARNING, "chaffinch.producer"), producer_of(broker, **options):
            pass
        text = "option partitioner.availability.timeout.ms is without effect because of partitioner.adaptive.partitioning.enable=false"
        assert [record.message.startswith(text) for record in caplog.records] == [True] * times


class TestClose:
    def test_close_sends_lingering_records(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker, linger_ms=20_000)
        future = producer.send("orders", b"v")
        producer.close()
        assert future.result(0).offset == 0

    def test_close_fails_records_without_outcome(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        broker.faults.add(api="Produce", action="delay", delay_ms=100_000)
        producer = producer_of(broker)
        future = producer.send("orders", b"v")
        ends = time.monotonic() + 60
        while not producer.metrics()["requests-in-flight"]:
            assert time.monotonic() < ends
        producer.close(timeout=0.1)
        error = future.exception(0)
        assert isinstance(error, TimeoutException)
        assert error.stored is Stored.POSSIBLY

    def test_flush_times_out_and_can_be_repeated(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=1_000_000)
        with producer_of(broker) as producer:
            producer.send("orders", b"v")
            with pytest.raises(TimeoutException, match="flush"):
                producer.flush(timeout=0.05)
            with pytest.raises(TimeoutException, match="flush"):
                producer.flush(0)
            broker.faults.clear()
            producer.flush()
            for _ in range(100):
                producer.flush(0)  # Nothing is outstanding: the result does not depend on the sender thread.
