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
from tests.producer.inline import await_inline, counted, values, warm, was_sent_inline
from tests.producer.threads import LATEST_S, awaited, held_up, in_thread, noting

Make = Callable[..., Producer]


class TestAcknowledgements:
    def test_a_record_and_its_acknowledgement_need_no_sender_thread(
        self, quiet: Producer, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which looks up now and then: not for one record after the other."""
        rounds: list[Any] = []
        monkeypatch.setattr(quiet._core, "handle_all", noting(rounds, quiet._core.handle_all))
        seen = []
        for _ in range(50):
            await_inline(quiet)
            before = len(rounds)
            quiet.send("orders", b"v", key=b"k").result(LATEST_S)
            seen.append(len(rounds) - before)
        assert 0 in seen
        assert values(broker) == Counter({b"v": 50})

    def test_inline_outcome_equals_batch_outcome(self, producer_of: Make, broker: EmbeddedBroker, quiet: Producer) -> None:
        with producer_of(broker, linger_ms=1) as other:
            first = other.send("stamped", b"v", timestamp_ms=5).result(LATEST_S)
        warm(quiet, "stamped")
        told: list[RecordMetadata] = []
        while not was_sent_inline(quiet, lambda: told.append(quiet.send("stamped", b"v", timestamp_ms=6).result(LATEST_S))):
            pass
        second = told[-1]
        assert (second.topic, second.partition, second.dropped) == (first.topic, first.partition, first.dropped)
        assert second.offset > first.offset
        assert second.timestamp_ms >= first.timestamp_ms > 6  # Both the broker's.

    def test_counts_are_those_of_the_ordinary_way(self, quiet: Producer) -> None:
        def moved(call: Callable[[], object]) -> dict[str, float]:
            before = quiet.metrics()
            call()
            after = quiet.metrics()
            return {name: after[name] - before[name] for name in after if name.endswith("-total")}

        await_inline(quiet)
        by_lane = moved(lambda: quiet.send("orders", b"v", key=b"k").result(LATEST_S))
        by_sender = moved(lambda: quiet.send("orders", b"v", key=b"k", headers=[("n", None)]).result(LATEST_S))
        by_sender["outgoing-byte-total"] = by_lane["outgoing-byte-total"]  # A header has some.
        assert by_lane == by_sender
        assert by_lane["record-written-total"] == 1

    def test_thousands_one_after_the_other(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """In order, and each once. Nearly all of them are sent inline."""
        with producer_of(broker, linger_ms=0) as producer, counted("written") as written:
            offsets = [producer.send("latest", b"%d" % number, key=b"k%d" % number).result(LATEST_S).offset for number in range(2000)]
            assert offsets == list(range(2000))
            assert producer._core.accumulator.memory_free == producer._core.accumulator.memory_bytes
        assert written[0] > 1000
        assert values(broker, "latest") == Counter(b"%d" % number for number in range(2000))

    def test_several_threads(self, quiet: Producer, broker: EmbeddedBroker) -> None:
        def run(name: int) -> None:
            for number in range(300):
                quiet.send("orders", b"%d-%d" % (name, number)).result(LATEST_S)

        for done in [in_thread(lambda name=name: run(name)) for name in range(4)]:  # type: ignore[misc]
            done.result(LATEST_S)
        assert values(broker) == Counter(b"%d-%d" % (name, number) for name in range(4) for number in range(300))

    def test_many_wait_for_one(self, quiet: Producer, broker: EmbeddedBroker) -> None:
        for _ in range(50):
            await_inline(quiet)
            future = quiet.send("orders", b"v")
            waiting = [in_thread(future.result) for _ in range(4)]
            told = {one.result(LATEST_S) for one in [*waiting, in_thread(future.result)]}
            assert len(told) == 1
        assert values(broker) == Counter({b"v": 50})


def polled(future: Any) -> bool:
    while not future.done():
        pass
    return True


class TestWhoeverElseHears:
    """The sender thread, of what nobody fetches."""

    @pytest.mark.parametrize(
        "look",
        [
            polled,
            lambda future: wait([future], LATEST_S).done,
            lambda future: asyncio.run(awaited(future)),
            lambda future: future.exception(LATEST_S) is None,
        ],
        ids=["done", "wait", "await", "exception"],
    )
    def test_ways_to_look(self, quiet: Producer, look: Callable[[Any], object]) -> None:
        await_inline(quiet)
        future = quiet.send("orders", b"v")
        assert look(future)
        assert future.result(0).offset >= 0

    def test_a_callback_of_the_future(self, quiet: Producer) -> None:
        await_inline(quiet)
        heard = threading.Event()
        quiet.send("orders", b"v").add_done_callback(lambda _: heard.set())
        assert heard.wait(LATEST_S)

    def test_one_that_nobody_looks_at(self, quiet: Producer) -> None:
        await_inline(quiet)
        quiet.send("orders", b"v")
        while quiet.metrics()["records-outstanding"]:
            pass

    @pytest.mark.parametrize("call", [Producer.flush, Producer.close], ids=["flush", "close"])
    def test_what_waits_for_all(self, quiet: Producer, call: Callable[[Producer], None]) -> None:
        await_inline(quiet)
        future = quiet.send("orders", b"v")
        call(quiet)
        assert future.done()

    def test_what_comes_behind_goes_behind(self, quiet: Producer, broker: EmbeddedBroker) -> None:
        for number in range(50):
            await_inline(quiet)
            futures = [quiet.send("latest", b"%d-%d" % (number, place), key=b"k") for place in range(3)]
            assert [future.result(LATEST_S).offset for future in futures] == [3 * number + place for place in range(3)]

    def test_a_table_behind_it(self, quiet: Producer) -> None:
        import pyarrow as pa

        await_inline(quiet)
        future = quiet.send("latest", b"v", key=b"k")
        result = quiet.send_table("latest", pa.table({"value": [b"t"], "key": [b"k"]})).result(LATEST_S)
        assert (future.result(LATEST_S).offset, result.written) == (0, 1)

    def test_while_the_sender_thread_is_held_up(self, quiet: Producer) -> None:
        """In a callback: nothing is sent inline, and nothing is lost."""
        await_inline(quiet)
        with held_up(quiet):
            future = quiet.send("orders", b"v")
            assert not future.done()
        assert future.result(LATEST_S).offset >= 0


ALL = 1 << 30
FEW = 5


def taking(records: int, then: Any = None) -> Callable[[ScriptedServer, Any], Any]:
    """A script that acknowledges so many Produce requests, and does something else with the others."""
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
            warm(producer)
            await_inline(producer)
            first = producer.send("orders", bytes(2000), key=b"k")
            second = in_thread(lambda: producer.send("orders", bytes(2000), key=b"k").result(LATEST_S))
            assert first.result(LATEST_S).offset < second.result(LATEST_S).offset


class TestOtherAnswers:
    def test_a_culprit(self, quiet: Producer, broker: EmbeddedBroker) -> None:
        warm(quiet, "latest")
        await_inline(quiet)
        with pytest.raises(InvalidCompactionKeyException, match="latest-0"):
            quiet.send("latest", b"no key").result(LATEST_S)
        assert quiet.send("latest", b"v", key=b"k").result(LATEST_S).offset > 0
        assert values(broker, "latest") == Counter([b"v"])

    def test_too_large_for_the_topic(self, quiet: Producer) -> None:
        warm(quiet, "small")
        await_inline(quiet)
        with pytest.raises(RecordTooLargeException):
            quiet.send("small", bytes(3000)).result(LATEST_S)
        assert quiet.send("small", b"v").result(LATEST_S).offset > 0

    @pytest.mark.parametrize(
        "error", ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_SERVER_ERROR"]
    )
    def test_a_fault_goes_the_ordinary_way(self, quiet: Producer, broker: EmbeddedBroker, error: str) -> None:
        await_inline(quiet)
        broker.faults.add(api="Produce", error=error, count=1)
        try:
            quiet.send("orders", b"v", key=b"k").result(LATEST_S)
        except KafkaException:
            quiet.send("orders", b"v", key=b"k").result(LATEST_S)
        quiet.send("orders", b"w", key=b"k").result(LATEST_S)
        assert values(broker) == Counter([b"v", b"w"])

    @pytest.mark.parametrize("action", ["drop_before", "drop_after"])
    def test_a_connection_that_is_lost(self, quiet: Producer, broker: EmbeddedBroker, action: Literal["drop_before", "drop_after"]) -> None:
        for _ in range(20):
            await_inline(quiet)
            broker.faults.add(api="Produce", action=action, count=1)
            quiet.send("orders", b"v", key=b"k").result(LATEST_S)
            quiet.send("orders", b"w", key=b"k").result(LATEST_S)
        assert values(broker) == Counter({b"v": 20, b"w": 20})

    def test_a_broker_that_hangs_up_between_two_records(self) -> None:
        with ScriptedServer(taking(ALL)) as server, plain_producer(server) as producer:
            warm(producer)
            for _ in range(20):
                await_inline(producer)
                server.hang_up()
                assert producer.send("orders", b"v", key=b"k").result(LATEST_S)

    def test_a_broker_that_hangs_up_in_place_of_an_answer(self) -> None:
        with ScriptedServer(taking(FEW, HANG_UP)) as server, plain_producer(server, retries=1) as producer:
            for _ in range(FEW):
                producer.send("orders", b"v", key=b"k").result(LATEST_S)
            await_inline(producer)
            with pytest.raises(NetworkException, match="possibly stored"):
                producer.send("orders", b"v", key=b"k").result(LATEST_S)

    def test_silent_broker(self) -> None:
        """The request's own time-out holds, and a shorter wait of the caller times out."""
        options = {"request_timeout_ms": 300, "delivery_timeout_ms": 700}
        with ScriptedServer(taking(FEW, STAY_SILENT)) as server, plain_producer(server, **options) as producer:
            for _ in range(FEW):
                producer.send("orders", b"v", key=b"k").result(LATEST_S)
            await_inline(producer)
            future = producer.send("orders", b"v", key=b"k")
            with pytest.raises(TimeoutError):
                future.result(0.01)
            assert isinstance(future.exception(LATEST_S), KafkaException)

    def test_an_answer_in_pieces(self) -> None:
        """Each byte by itself: the lane takes what is whole, the sender thread puts together what is not."""
        with ScriptedServer(taking(ALL)) as server, plain_producer(server) as producer:
            warm(producer)
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


def test_turns_are_taken_by_each_record_once(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0, partitioner="round_robin") as producer:
        chosen = Counter(producer.send("orders", b"v").result(LATEST_S).partition for _ in range(30))
    assert chosen == Counter({0: 10, 1: 10, 2: 10})


def test_timeout_covers_inline_wait_and_later_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAIT_MS", "POLL_INTERVAL_MS"):
        monkeypatch.setattr(f"chaffinch.producer.inline_send.{name}", 600_000)
    timeouts = {"request_timeout_ms": 2_000_000, "delivery_timeout_ms": 4_000_000}
    with ScriptedServer(taking(FEW, STAY_SILENT)) as server, plain_producer(server, **timeouts) as producer:
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


def test_a_connection_in_use_is_not_idle(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0) as producer:
        warm(producer)
        transports = producer._sender._network._transports

        def send_past_the_network() -> None:
            for transport in list(transports.values()):
                transport.active_ms = 0
            producer.send("orders", b"v", key=b"k").result(LATEST_S)

        while not was_sent_inline(producer, send_past_the_network):
            pass
        producer.flush()
        assert max(transport.active_ms for transport in list(transports.values())) > 0


def test_an_ended_sender_is_freed_at_once(producer_of: Make, broker: EmbeddedBroker) -> None:
    """By no collector, whose time nobody knows."""
    producer = producer_of(broker, linger_ms=0)
    warm(producer)
    gone = weakref.ref(producer._sender)
    gc.collect()
    gc.disable()
    try:
        producer.close()
        del producer
        assert gone() is None
    finally:
        gc.enable()
