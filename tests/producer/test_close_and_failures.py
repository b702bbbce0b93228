"""Close, crashes of the sender thread, and misuse of futures: no caller waits for ever."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import IllegalStateException, KafkaException, Stored
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import SendRequest
from chaffinch.producer.futures import RecordFuture, complete_all
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from tests.producer.threads import awaited, blocked_sender, in_thread, wrapped

Make = Callable[..., Producer]
TABLE = pa.table({"value": [b"v"]})
LATEST_S = 60
"""Time-out of waits that end sooner unless something hangs."""


def until_call_waits(producer: Producer, call: Future[Any]) -> None:
    transaction = producer._core.transaction
    assert transaction is not None
    while not transaction.callers.has_any:
        assert not call.done(), "the call should wait"


class ExitRequest(BaseException):
    """A BaseException, as SystemExit of `sys.exit()` in a callback is."""


WAIT_S = 3
"""Time-out of waits that would otherwise never end."""

WAITS: tuple[Callable[[Future[Any]], Any], ...] = (
    lambda future: future.result(WAIT_S),
    lambda future: asyncio.run(asyncio.wait_for(awaited(future), WAIT_S)),
    lambda future: asyncio.run(asyncio.wait_for(wrapped(future), WAIT_S)),
    lambda future: concurrent.futures.wait([future], WAIT_S),
    lambda future: list(concurrent.futures.as_completed([future], WAIT_S)),
)


def raised_by_waits_for(future: Future[Any]) -> list[str]:
    """Name of the exception that each way of waiting raises."""
    return [type(in_thread_of_caller(wait, future).exception()).__name__ for wait in WAITS]


def in_thread_of_caller(call: Callable[[Future[Any]], Any], argument: Future[Any]) -> Future[Any]:
    outcome: Future[Any] = Future()
    try:
        outcome.set_result(call(argument))
    except BaseException as error:
        outcome.set_exception(error)
    return outcome


def request_exit(*_: object) -> None:
    raise ExitRequest


def raise_memory_error(*_: object, **__: object) -> NoReturn:
    raise MemoryError("no memory")


class TestCallbacks:
    def test_base_exception_in_a_callback_does_not_end_the_sender_thread(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        with producer_of(broker, linger_ms=50) as producer:
            futures = [producer.send("orders", b"v", partition=0, on_delivery=request_exit) for _ in range(3)]
            futures[1].add_done_callback(request_exit)
            assert [future.result(LATEST_S).offset for future in futures] == [0, 1, 2]
            assert producer.send("orders", b"v", partition=0).result(LATEST_S).offset == 3
        assert "callback" in caplog.text

    def test_waiting_in_a_callback_for_the_own_producer_is_refused(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        outcomes: Future[Any] = Future()
        done: Future[Any] = Future()
        loop = asyncio.new_event_loop()

        def wait_in_callback(_metadata: object, _error: object) -> None:
            try:
                future = producer.send("orders", b"v", partition=0)
                future.add_done_callback(done.set_result)  # This does not wait.
                elsewhere = asyncio.wrap_future(producer.send("orders", b"v", partition=0), loop=loop)  # Nor does this, on this thread.
                outcomes.set_result((raised_by_waits_for(future), raised_by_waits_for(first), elsewhere))
            except BaseException as error:
                outcomes.set_exception(error)

        with producer_of(broker, linger_ms=50) as producer:
            first = producer.send("orders", b"first", partition=0)
            first.add_done_callback(lambda future: wait_in_callback(future.result(), None))
            of_pending, of_done, elsewhere = outcomes.result(LATEST_S)
            assert of_pending == ["IllegalStateException"] * len(WAITS)
            assert of_done == ["NoneType"] * len(WAITS)
            assert done.result(LATEST_S).result().offset == 1
            assert loop.run_until_complete(elsewhere).offset == 2
        loop.close()

    def test_all_futures_of_a_batch_complete_though_callbacks_raise(self) -> None:
        futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(3)]
        for future in futures:
            future.add_done_callback(request_exit)
        complete_all(futures, lambda index: index)
        assert [future.result(0) for future in futures] == [0, 1, 2]

    def test_close_in_a_callback_fails_outstanding_records(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker, max_in_flight_requests_per_connection=1)
        producer.send("orders", b"v", partition=0).result(LATEST_S)
        others_are_there = threading.Event()

        def close(_metadata: object, _error: object) -> None:
            assert others_are_there.wait(LATEST_S)
            producer.close()

        first = producer.send("orders", b"first", partition=0, on_delivery=close)
        others = [producer.send("orders", b"v" * 20_000, partition=0) for _ in range(5)]
        others_are_there.set()
        assert first.result(LATEST_S).offset == 1
        for other in others:
            assert isinstance(other.exception(LATEST_S), KafkaException)

    @pytest.mark.parametrize("transactional_id", [None, "held-up"])
    def test_hanging_callback_delays_close_at_most_its_timeout(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, transactional_id: str | None
    ) -> None:
        """For example because it waits for a lock held by the thread that calls close."""
        producer = producer_of(broker, transactional_id=transactional_id)
        if transactional_id is not None:
            producer.init_transactions()
            producer.begin_transaction()
        is_called, may_return = threading.Event(), threading.Event()

        def block(_metadata: object, _error: object) -> None:
            is_called.set()
            may_return.wait(LATEST_S)

        producer.send("orders", b"first", partition=0, on_delivery=block)
        assert is_called.wait(LATEST_S)
        other = producer.send("orders", b"other", partition=0)
        try:
            producer.close(0)
            assert not other.done()
            assert "a callback or handler blocks the sender thread" in caplog.text
        finally:
            may_return.set()
        assert isinstance(other.exception(LATEST_S), KafkaException)


class TestTableFuture:
    def test_table_future_cannot_be_cancelled(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, linger_ms=0) as producer:
            producer.send("orders", b"v", partition=0).result(LATEST_S)
            broker.faults.add(api="Produce", action="delay", delay_ms=200)
            future = producer.send_table("orders", pa.table({"value": [b"1", b"2"]}))
            assert not future.cancel()
            assert future.result(LATEST_S).written == 2

    def test_timed_out_await_of_a_table_loses_no_rows(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        async def wait_briefly(producer: Producer) -> None:
            broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=1_000_000)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(producer.send_table("orders", pa.table({"value": [b"1"]}))), 0.01)
            broker.faults.clear()

        with producer_of(broker) as producer:
            producer.send("orders", b"v").result(LATEST_S)
            asyncio.run(wait_briefly(producer))
            producer.send("orders", b"v").result(LATEST_S)
        assert broker.read("orders").num_rows == 3


class TestClose:
    def test_close_waits_for_a_commit_of_another_thread(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker, transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v").result(LATEST_S)
        broker.faults.add(api="EndTxn", action="delay", delay_ms=300)
        committed = in_thread(producer.commit_transaction)
        until_call_waits(producer, committed)
        in_thread(producer.close).result(LATEST_S)
        assert committed.exception(LATEST_S) is None
        assert broker.read("orders").num_rows == 1

    @staticmethod
    def closing(producer: Producer, broker: EmbeddedBroker) -> tuple[Future[Any], RecordFuture[Any]]:
        """A close in another thread, and the record that it waits for until the faults are cleared."""
        producer.send("orders", b"v", partition=0).result(LATEST_S)
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=1_000_000)
        last = producer.send("orders", b"last", partition=0)
        closed = in_thread(producer.close)
        ends = time.monotonic() + LATEST_S
        while not producer._core.callers.has_flush_or_close:
            assert time.monotonic() < ends
        return closed, last

    def test_concurrent_close_waits_for_the_same_end(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        producer = producer_of(broker, linger_ms=0)
        closed, last = self.closing(producer, broker)

        def close_again() -> tuple[None, bool]:
            producer.close()
            return None, last.done()

        again = in_thread(close_again)
        with pytest.raises(concurrent.futures.TimeoutError):
            again.result(0.05)
        broker.faults.clear()
        assert again.result(LATEST_S) == (None, True)
        assert closed.exception(LATEST_S) is None
        assert last.result(0).offset == 1
        assert not [record for record in caplog.records if record.name == "chaffinch.producer"]

    def test_second_close_with_a_timeout_ends_the_first(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker, linger_ms=0)
        closed, last = self.closing(producer, broker)
        producer.close(0.05)
        assert isinstance(last.exception(0), KafkaException)
        assert closed.exception(LATEST_S) is None

    def test_close_in_a_signal_handler_of_the_closing_thread(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """For example SIGTERM at the end of a `with` block: the outer close cannot go on before the inner one has returned."""
        producer = producer_of(broker, linger_ms=0)
        producer.send("orders", b"v", partition=0).result(LATEST_S)
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=1_000_000)
        last = producer.send("orders", b"last", partition=0)
        was_done: list[bool] = []

        def handler(_signal: int, _frame: object) -> None:
            producer.close(0.05)
            was_done.append(last.done())

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            main = threading.main_thread().ident
            assert main is not None

            def interrupt() -> None:
                while not producer._core.callers.has_flush_or_close:
                    pass
                with producer._lock:  # The main thread has submitted its call, and waits.
                    pass
                signal.pthread_kill(main, signal.SIGUSR1)

            interrupted = in_thread(interrupt)
            producer.close()
        finally:
            signal.signal(signal.SIGUSR1, before)
        interrupted.result(LATEST_S)
        assert was_done == [True]

    def test_second_close_does_not_wait_for_a_blocked_sender_thread(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker)
        is_called, may_return = threading.Event(), threading.Event()

        def block(_metadata: object, _error: object) -> None:
            is_called.set()
            may_return.wait(LATEST_S)

        producer.send("orders", b"v", on_delivery=block)
        assert is_called.wait(LATEST_S)
        try:
            producer.close(0)
            in_thread(producer.close).result(WAIT_S)
        finally:
            may_return.set()

    def test_close_fails_a_waiting_init_transactions(self) -> None:
        producer = Producer(bootstrap_servers="127.0.0.1:1", transactional_id="t")
        waiting = in_thread(producer.init_transactions)
        until_call_waits(producer, waiting)
        in_thread(lambda: producer.close(0.05)).result(LATEST_S)
        assert isinstance(waiting.exception(LATEST_S), KafkaException)

    def test_flush_that_races_close_fails(self, producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        producer = producer_of(broker)
        check_open = producer._gate.check_open

        def closed_after_the_check(what: str) -> None:
            check_open(what)
            producer.close()

        monkeypatch.setattr(producer._gate, "check_open", closed_after_the_check)
        assert isinstance(in_thread(producer.flush).exception(LATEST_S), KafkaException)


def test_close_timeout_fails_the_commit(producer_of: Make, broker: EmbeddedBroker) -> None:
    producer = producer_of(broker, transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"v").result(LATEST_S)
    broker.faults.add(api="EndTxn", action="delay", delay_ms=100_000)
    committed = in_thread(producer.commit_transaction)
    until_call_waits(producer, committed)
    in_thread(lambda: producer.close(0.05)).result(LATEST_S)
    with pytest.raises(
        IllegalStateException, match="may have happened, EndTxn got no response"
    ) as outcome:  # And it cannot be called again.
        committed.result(LATEST_S)
    assert outcome.value.stored is Stored.POSSIBLY


@pytest.mark.parametrize("where", ["in the core", "in the network"])
def test_finished_call_completes_when_the_sender_thread_dies(
    broker: EmbeddedBroker, producer_of: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The call is done within a round and completed at its end, which the thread does not reach."""
    producer = producer_of(broker, transactional_id="t")
    producer.init_transactions()
    failing: tuple[object, str] = (
        (producer._core.batch_sender, "send_ready") if where == "in the core" else (producer._sender._network, "carry_out")
    )
    with blocked_sender(producer):
        monkeypatch.setattr(*failing, raise_memory_error)
        done = producer._sender.call(lambda call: events.BeginTransactionCalled(call=call))
        refused = producer._sender.call(lambda call: events.BeginTransactionCalled(call=call))
        producer._sender.submit(events.TopicRequested(topic="wanted", is_stale=True))  # This causes a request.
    assert done.result(LATEST_S) is None
    with pytest.raises(IllegalStateException, match="a transaction is open"):
        refused.result(LATEST_S)
    with pytest.raises(KafkaException, match="the producer's thread has died: MemoryError"):
        producer.commit_transaction()
    producer.close()


def test_unhandled_call_fails_when_the_sender_thread_dies(
    broker: EmbeddedBroker, producer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full batch is encoded before the core handles events."""
    producer = producer_of(broker)
    producer.send("orders", b"first", partition=0).result(LATEST_S)
    with blocked_sender(producer):
        monkeypatch.setattr(producer._core.accumulator, "encode_ahead", raise_memory_error)
        producer.send("orders", bytes(20_000), partition=0)
        flushed = producer._sender.call(lambda call: events.FlushCalled(call=call))
    with pytest.raises(KafkaException, match="the producer's thread has died: MemoryError"):
        flushed.result(LATEST_S)
    producer.close()


@pytest.mark.parametrize("step", ["encoded", "sent"])
def test_failed_encoding_or_sending_fails_every_caller(
    broker: EmbeddedBroker, producer_of: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The thread dies, and every record still gets an outcome, those of the failing batch too."""
    producer = producer_of(broker, compression_type="zstd", linger_ms=0)
    producer.send("orders", b"first").result(LATEST_S)
    failing: tuple[object, str] = (
        (producer._sender.core.accumulator, "encode_rows") if step == "encoded" else (producer._sender._network, "carry_out")
    )
    monkeypatch.setattr(*failing, raise_memory_error)
    with blocked_sender(producer):
        flushed = producer._sender.call(lambda call: events.FlushCalled(call=call))
        futures = [producer.send("orders", b"v", partition=partition) for partition in (0, 1)]
    pending: list[Any] = [flushed, *futures]
    for future in pending:
        with pytest.raises(KafkaException, match="the producer's thread has died: MemoryError"):
            future.result(LATEST_S)
    assert producer.send("orders", b"v").exception() is not producer.send("orders", b"v").exception() is not None
    depths = []
    for _ in range(2):
        with pytest.raises(KafkaException, match="the producer's thread has died: MemoryError") as outcome:
            producer.flush()
        depths.append(len(outcome.traceback))
    assert depths[0] == depths[1]
    producer.close()


class TestLeftOpen:
    """A close that does not wait for the end of a transaction still sends EndTxn, or logs that the broker will abort it."""

    @pytest.fixture(autouse=True, params=[0.0, float(LATEST_S)], ids=["no grace period", "grace period"])
    def grace_s(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Close waits this long for the sender thread, and goes on without it."""
        monkeypatch.setattr("chaffinch.producer.closing.GRACE_S", request.param)

    @staticmethod
    def close(producer: Producer) -> None:
        producer.close(0)
        producer._sender._thread.join(LATEST_S)

    @staticmethod
    def begun(producer: Producer) -> Producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v", partition=0).result(LATEST_S)
        return producer

    @staticmethod
    def until_transaction_ended(broker: EmbeddedBroker) -> None:
        ends = time.monotonic() + LATEST_S
        with SyncClient(broker.bootstrap_servers) as client:
            while True:
                (found,) = client.request(DescribeTransactionsRequest(transactional_ids=["t"])).transaction_states
                if found.transaction_state == "CompleteAbort":
                    return
                assert time.monotonic() < ends, found

    def test_close_in_a_callback_aborts(self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
        producer = self.begun(producer_of(broker, transactional_id="t"))
        producer.send("orders", b"w", on_delivery=lambda _metadata, _error: producer.close())
        self.until_transaction_ended(broker)
        assert "left open" not in caplog.text

    def test_close_with_timeout_0_aborts(self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
        self.close(self.begun(producer_of(broker, transactional_id="t")))
        self.until_transaction_ended(broker)
        assert "left open" not in caplog.text

    def test_aborted_close_logs_its_own_limit(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("chaffinch.producer.closing.GRACE_S", float(LATEST_S))
        self.close(self.begun(producer_of(broker, transactional_id="t")))
        assert "ending the transaction is not done within close's timeout; close does not wait for its response" in caplog.text
        assert "max.block.ms" not in caplog.text

    def test_end_txn_without_connection_is_logged(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producer = self.begun(producer_of(broker, transactional_id="t", transaction_timeout_ms=70_000))
        network = producer._sender._network
        carry_out, is_disconnected = network.carry_out, threading.Event()

        def ends_the_connection(request: SendRequest) -> None:
            if isinstance(request.message, EndTxnRequest):
                is_disconnected.set()
                network.disconnect(request.address, "gone")
            elif not is_disconnected.is_set():
                carry_out(request)

        monkeypatch.setattr(network, "carry_out", ends_the_connection)
        self.close(producer)
        assert is_disconnected.is_set()
        line = "transactional.id 't' may be left open, EndTxn got no response: the broker aborts it after transaction.timeout.ms, 70000 ms"
        assert line in caplog.text

    def test_transaction_left_open_is_logged(self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
        """EndTxn must wait for the responses to records in flight, which could arrive after it."""
        producer = self.begun(producer_of(broker, transactional_id="t", transaction_timeout_ms=70_000))
        broker.faults.add(api="Produce", action="delay", delay_ms=100_000)
        producer.send("orders", b"w", partition=0)
        ends = time.monotonic() + LATEST_S
        while not producer.metrics()["requests-in-flight"]:
            assert time.monotonic() < ends
        self.close(producer)
        line = "the transaction of transactional.id 't' is left open: the broker aborts it after transaction.timeout.ms, 70000 ms"
        assert line in caplog.text
