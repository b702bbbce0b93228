"""Inline sends against a real broker: callers that read their own response, all other outcomes, and notifications."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, Literal

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import InvalidCompactionKeyException, KafkaException, NetworkException, RecordTooLargeException
from chaffinch.producer.records import RecordMetadata
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse
from tests.client.scripted_server import HANG_UP, STAY_SILENT, ScriptedServer
from tests.producer.inline import await_inline, counted, enable_inline, values, was_sent_inline
from tests.producer.threads import LATEST_S, awaited, blocked_sender, counting, in_thread

Make = Callable[..., Producer]


class TestAcknowledgements:
    def test_inline_send_needs_no_sender_thread(
        self, inline_producer: Producer, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sender thread still checks now and then, but not for each record."""
        rounds: list[Any] = []
        monkeypatch.setattr(inline_producer._core, "handle_all", counting(rounds, inline_producer._core.handle_all))
        seen = []
        for _ in range(50):
            await_inline(inline_producer)
            before = len(rounds)
            inline_producer.send("orders", b"v", key=b"k").result(LATEST_S)
            seen.append(len(rounds) - before)
        assert 0 in seen
        assert values(broker) == Counter({b"v": 50})

    def test_inline_outcome_equals_batch_outcome(self, producer_of: Make, broker: EmbeddedBroker, inline_producer: Producer) -> None:
        with producer_of(broker, linger_ms=1) as other:
            first = other.send("stamped", b"v", timestamp_ms=5).result(LATEST_S)
        enable_inline(inline_producer, "stamped")
        results: list[RecordMetadata] = []
        while not was_sent_inline(
            inline_producer, lambda: results.append(inline_producer.send("stamped", b"v", timestamp_ms=6).result(LATEST_S))
        ):
            pass
        second = results[-1]
        assert (second.topic, second.partition, second.dropped) == (first.topic, first.partition, first.dropped)
        assert second.offset > first.offset
        assert second.timestamp_ms >= first.timestamp_ms > 6  # Both are broker timestamps.

    def test_inline_metrics_equal_those_of_a_batch(self, inline_producer: Producer) -> None:
        def counts_of(call: Callable[[], object]) -> dict[str, float]:
            before = inline_producer.metrics()
            call()
            after = inline_producer.metrics()
            return {name: after[name] - before[name] for name in after if name.endswith("-total")}

        await_inline(inline_producer)
        inline_counts = counts_of(lambda: inline_producer.send("orders", b"v", key=b"k").result(LATEST_S))
        batch_counts = counts_of(lambda: inline_producer.send("orders", b"v", key=b"k", headers=[("n", None)]).result(LATEST_S))
        batch_counts["outgoing-byte-total"] = inline_counts["outgoing-byte-total"]  # The header adds bytes.
        assert inline_counts == batch_counts
        assert inline_counts["record-written-total"] == 1

    def test_2000_inline_sends_are_stored_once_in_order(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """Nearly all of them are sent inline."""
        with producer_of(broker, linger_ms=0) as producer, counted("written") as written:
            offsets = [producer.send("latest", b"%d" % number, key=b"k%d" % number).result(LATEST_S).offset for number in range(2000)]
            assert offsets == list(range(2000))
            assert producer._core.accumulator.memory_free == producer._core.accumulator.memory_bytes
        assert written[0] > 1000
        assert values(broker, "latest") == Counter(b"%d" % number for number in range(2000))

    def test_several_threads_send_each_record_once(self, inline_producer: Producer, broker: EmbeddedBroker) -> None:
        def run(name: int) -> None:
            for number in range(300):
                inline_producer.send("orders", b"%d-%d" % (name, number)).result(LATEST_S)

        for done in [in_thread(lambda name=name: run(name)) for name in range(4)]:  # type: ignore[misc]
            done.result(LATEST_S)
        assert values(broker) == Counter(b"%d-%d" % (name, number) for name in range(4) for number in range(300))

    def test_many_threads_wait_for_one_future(self, inline_producer: Producer, broker: EmbeddedBroker) -> None:
        for _ in range(50):
            await_inline(inline_producer)
            future = inline_producer.send("orders", b"v")
            waiting = [in_thread(future.result) for _ in range(4)]
            results = {one.result(LATEST_S) for one in [*waiting, in_thread(future.result)]}
            assert len(results) == 1
        assert values(broker) == Counter({b"v": 50})


def polled(future: Any) -> bool:
    while not future.done():
        pass
    return True


class TestOtherWaiters:
    """Outcomes that no caller reads inline are completed by the sender thread."""

    @pytest.mark.parametrize(
        "check",
        [
            polled,
            lambda future: wait([future], LATEST_S).done,
            lambda future: asyncio.run(awaited(future)),
            lambda future: future.exception(LATEST_S) is None,
        ],
        ids=["done", "wait", "await", "exception"],
    )
    def test_every_way_of_waiting_gets_the_outcome(self, inline_producer: Producer, check: Callable[[Any], object]) -> None:
        await_inline(inline_producer)
        future = inline_producer.send("orders", b"v")
        assert check(future)
        assert future.result(0).offset >= 0

    def test_callback_of_an_inline_future_is_called(self, inline_producer: Producer) -> None:
        await_inline(inline_producer)
        is_called = threading.Event()
        inline_producer.send("orders", b"v").add_done_callback(lambda _: is_called.set())
        assert is_called.wait(LATEST_S)

    def test_unread_inline_future_completes(self, inline_producer: Producer) -> None:
        await_inline(inline_producer)
        inline_producer.send("orders", b"v")
        while inline_producer.metrics()["records-outstanding"]:
            pass

    @pytest.mark.parametrize("call", [Producer.flush, Producer.close], ids=["flush", "close"])
    def test_flush_and_close_complete_an_inline_record(self, inline_producer: Producer, call: Callable[[Producer], None]) -> None:
        await_inline(inline_producer)
        future = inline_producer.send("orders", b"v")
        call(inline_producer)
        assert future.done()

    def test_records_behind_an_inline_record_keep_the_order(self, inline_producer: Producer, broker: EmbeddedBroker) -> None:
        for number in range(50):
            await_inline(inline_producer)
            futures = [inline_producer.send("latest", b"%d-%d" % (number, position), key=b"k") for position in range(3)]
            assert [future.result(LATEST_S).offset for future in futures] == [3 * number + position for position in range(3)]

    def test_table_behind_an_inline_record_keeps_the_order(self, inline_producer: Producer) -> None:
        import pyarrow as pa

        await_inline(inline_producer)
        future = inline_producer.send("latest", b"v", key=b"k")
        result = inline_producer.send_table("latest", pa.table({"value": [b"t"], "key": [b"k"]})).result(LATEST_S)
        assert (future.result(LATEST_S).offset, result.written) == (0, 1)

    def test_blocked_sender_thread_disables_inline_sends(self, inline_producer: Producer) -> None:
        """For example in a callback: nothing is sent inline, and nothing is lost."""
        await_inline(inline_producer)
        with blocked_sender(inline_producer):
            future = inline_producer.send("orders", b"v")
            assert not future.done()
        assert future.result(LATEST_S).offset >= 0


ALL = 1 << 30
FEW = 5


def acknowledging(records: int, then: Any = None) -> Callable[[ScriptedServer, Any], Any]:
    """A script that acknowledges this many Produce requests, and returns `then` for the others."""
    left = [records]

    def script(_: ScriptedServer, message: Any) -> Any:
        if isinstance(message, InitProducerIdRequest):
            return InitProducerIdResponse(producer_id=1, producer_epoch=0)
        if not isinstance(message, ProduceRequest):
            return None
        left[0] -= 1
        if left[0] < 0:
            return then
        topics = [
            TopicProduceResponse(name=topic.name, partition_responses=[PartitionProduceResponse(index=p.index) for p in topic.partitions])
            for topic in message.topics
        ]
        return ProduceResponse(responses=topics)

    return script


def plain_producer(server: ScriptedServer, **options: Any) -> Producer:
    usual = {"linger_ms": 0, "retry_backoff_ms": 1}
    return Producer(bootstrap_servers=server.bootstrap_servers, **{**usual, **options})


def test_waiting_caller_gets_memory_of_an_inline_send(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0, buffer_memory=3000, max_block_ms=60_000) as producer:
        for _ in range(30):
            enable_inline(producer)
            await_inline(producer)
            first = producer.send("orders", bytes(2000), key=b"k")
            second = in_thread(lambda: producer.send("orders", bytes(2000), key=b"k").result(LATEST_S))
            assert first.result(LATEST_S).offset < second.result(LATEST_S).offset


class TestErrorResponses:
    def test_culprit_sent_inline_is_rejected(self, inline_producer: Producer, broker: EmbeddedBroker) -> None:
        enable_inline(inline_producer, "latest")
        await_inline(inline_producer)
        with pytest.raises(InvalidCompactionKeyException, match="latest-0"):
            inline_producer.send("latest", b"no key").result(LATEST_S)
        assert inline_producer.send("latest", b"v", key=b"k").result(LATEST_S).offset > 0
        assert values(broker, "latest") == Counter([b"v"])

    def test_too_large_record_sent_inline_is_rejected(self, inline_producer: Producer) -> None:
        enable_inline(inline_producer, "small")
        await_inline(inline_producer)
        with pytest.raises(RecordTooLargeException):
            inline_producer.send("small", bytes(3000)).result(LATEST_S)
        assert inline_producer.send("small", b"v").result(LATEST_S).offset > 0

    @pytest.mark.parametrize(
        "error", ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_SERVER_ERROR"]
    )
    def test_error_response_is_handled_by_the_sender_thread(self, inline_producer: Producer, broker: EmbeddedBroker, error: str) -> None:
        await_inline(inline_producer)
        broker.faults.add(api="Produce", error=error, count=1)
        try:
            inline_producer.send("orders", b"v", key=b"k").result(LATEST_S)
        except KafkaException:
            inline_producer.send("orders", b"v", key=b"k").result(LATEST_S)
        inline_producer.send("orders", b"w", key=b"k").result(LATEST_S)
        assert values(broker) == Counter([b"v", b"w"])

    @pytest.mark.parametrize("action", ["drop_before", "drop_after"])
    def test_lost_connection_loses_and_duplicates_nothing(
        self, inline_producer: Producer, broker: EmbeddedBroker, action: Literal["drop_before", "drop_after"]
    ) -> None:
        for _ in range(20):
            await_inline(inline_producer)
            broker.faults.add(api="Produce", action=action, count=1)
            inline_producer.send("orders", b"v", key=b"k").result(LATEST_S)
            inline_producer.send("orders", b"w", key=b"k").result(LATEST_S)
        assert values(broker) == Counter({b"v": 20, b"w": 20})

    def test_connection_closed_between_two_records_is_replaced(self) -> None:
        with ScriptedServer(acknowledging(ALL)) as server, plain_producer(server) as producer:
            enable_inline(producer)
            for _ in range(20):
                await_inline(producer)
                server.close_connections()
                assert producer.send("orders", b"v", key=b"k").result(LATEST_S)

    def test_connection_closed_instead_of_a_response_fails_as_possibly_stored(self) -> None:
        with ScriptedServer(acknowledging(FEW, HANG_UP)) as server, plain_producer(server, retries=1) as producer:
            for _ in range(FEW):
                producer.send("orders", b"v", key=b"k").result(LATEST_S)
            await_inline(producer)
            with pytest.raises(NetworkException, match="possibly stored"):
                producer.send("orders", b"v", key=b"k").result(LATEST_S)

    def test_silent_broker(self) -> None:
        """The request's own time-out holds, and a shorter wait of the caller times out."""
        options = {"request_timeout_ms": 300, "delivery_timeout_ms": 700}
        with ScriptedServer(acknowledging(FEW, STAY_SILENT)) as server, plain_producer(server, **options) as producer:
            for _ in range(FEW):
                producer.send("orders", b"v", key=b"k").result(LATEST_S)
            await_inline(producer)
            future = producer.send("orders", b"v", key=b"k")
            with pytest.raises(TimeoutError):
                future.result(0.01)
            assert isinstance(future.exception(LATEST_S), KafkaException)

    def test_response_in_single_bytes_is_read(self) -> None:
        """A caller reads only whole responses inline; the sender thread assembles partial ones."""
        with ScriptedServer(acknowledging(ALL)) as server, plain_producer(server) as producer:
            enable_inline(producer)
            server.bytes_per_write = 1
            for _ in range(20):
                await_inline(producer)
                assert producer.send("orders", b"v", key=b"k").result(LATEST_S)


@pytest.mark.parametrize(
    "options",
    [{"linger_ms": 1}, {"compression_type": "lz4"}, {"acks": "1", "enable_idempotence": False}, {"acks": "0", "enable_idempotence": False}],
    ids=str,
)
def test_producers_without_inline_send(producer_of: Make, broker: EmbeddedBroker, options: dict[str, Any]) -> None:
    with producer_of(broker, **{"linger_ms": 0, **options}) as producer:
        for _ in range(20):
            producer.send("orders", b"v").result(LATEST_S)
            assert not producer._inline_sender.is_free


def test_round_robin_counts_each_record_once(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0, partitioner="round_robin") as producer:
        chosen = Counter(producer.send("orders", b"v").result(LATEST_S).partition for _ in range(30))
    assert chosen == Counter({0: 10, 1: 10, 2: 10})


def test_timeout_covers_inline_wait_and_later_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAIT_MS", "POLL_INTERVAL_MS"):
        monkeypatch.setattr(f"chaffinch.producer.inline_send.{name}", 600_000)
    timeouts = {"request_timeout_ms": 2_000_000, "delivery_timeout_ms": 4_000_000}
    with ScriptedServer(acknowledging(FEW, STAY_SILENT)) as server, plain_producer(server, **timeouts) as producer:
        for _ in range(FEW):
            producer.send("orders", b"v", key=b"k").result(LATEST_S)
        await_inline(producer)
        future, waits = producer.send("orders", b"v", key=b"k"), []
        lock_of = threading.Lock

        class Watched:
            def __init__(self) -> None:
                self.lock = lock_of()
                self.release = self.lock.release

            def acquire(self, timeout: float = -1) -> bool:
                waits.append(timeout)
                return self.lock.acquire(timeout=timeout)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("chaffinch.producer.futures.threading.Lock", Watched)
            with pytest.raises(TimeoutError):
                future.result(0.02)
        assert max(waits) < 0.02
        producer.close(0)


def test_inline_sends_keep_the_connection_active(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0) as producer:
        enable_inline(producer)
        transports = producer._sender._network._transports

        def send_past_the_network() -> None:
            for transport in list(transports.values()):
                transport.active_ms = 0
            producer.send("orders", b"v", key=b"k").result(LATEST_S)

        while not was_sent_inline(producer, send_past_the_network):
            pass
        producer.flush()
        assert max(transport.active_ms for transport in list(transports.values())) > 0


def test_closed_sender_is_freed_without_the_collector(producer_of: Make, broker: EmbeddedBroker) -> None:
    """Reference counting frees it: the garbage collector may run much later."""
    producer = producer_of(broker, linger_ms=0)
    enable_inline(producer)
    gone = weakref.ref(producer._sender)
    gc.collect()
    gc.disable()
    try:
        producer.close()
        del producer
        assert gone() is None
    finally:
        gc.enable()
