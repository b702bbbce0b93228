"""Abandoned producers, and futures that cannot complete: both are reported, and no wait is endless."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer, ProducerExceptionHandler
from chaffinch.errors import IllegalStateException

Make = Callable[..., Producer]
LATEST_S = 60


def thread_of(producer: Producer) -> threading.Thread:
    [found] = [thread for thread in threading.enumerate() if thread.name == f"{producer.settings['client.id']}-sender"]
    return found


def drop_last_reference(held: list[Producer], thread: threading.Thread) -> None:
    """Drop the last reference to a producer, and wait for its thread to end."""
    held.clear()
    thread.join(LATEST_S)


class Closing(ProducerExceptionHandler):
    """Records that it was closed."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def captured_warnings() -> Iterator[logging.Logger]:
    """The logger that receives warnings. Its handlers are restored afterwards."""
    captured = logging.getLogger("py.warnings")
    before = list(captured.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        logging.captureWarnings(True)
        yield captured
        logging.captureWarnings(False)
    captured.handlers[:] = before


class TestDroppedProducer:
    def test_dropped_producer_writes_its_records_and_its_thread_ends(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        handler = Closing()
        producer = producer_of(broker, linger_ms=60_000, client_id="dropped", custom_exception_handler_class=handler)
        thread = thread_of(producer)
        futures = [producer.send("orders", b"v", partition=0) for _ in range(3)]
        held = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="<Producer 'dropped' of .*was not closed"):
            drop_last_reference(held, thread)
        assert [future.result(LATEST_S).offset for future in futures] == [0, 1, 2]
        assert not thread.is_alive()
        assert handler.is_closed.is_set()

    def test_open_transaction_of_a_dropped_producer_is_aborted(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        producer = producer_of(broker, transactional_id="t", client_id="dropped")
        thread = thread_of(producer)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v").result(LATEST_S)
        held = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="transactional.id 't'"):
            drop_last_reference(held, thread)
        assert not thread.is_alive()
        assert "was garbage-collected without close(): its open transaction is aborted" in caplog.text
        assert broker.read("orders").num_rows == 0
        assert broker.read("orders", isolation="read_uncommitted").num_rows == 1

    def test_callback_keeps_the_producer_alive_until_it_is_called(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """The sender thread itself drops the last reference."""
        producer = producer_of(broker, client_id="dropped")
        thread, is_called, may_go = thread_of(producer), threading.Event(), threading.Event()

        def callback(*_: object, holds: Producer = producer) -> None:
            may_go.wait(LATEST_S)  # Until pytest.warns records warnings.
            is_called.set()

        producer.send("orders", b"v", on_delivery=callback)
        del producer, callback

        def go_on() -> None:
            may_go.set()
            thread.join(LATEST_S)

        with pytest.warns(ResourceWarning, match="was not closed"):
            go_on()
        assert is_called.is_set()
        assert not thread.is_alive()

    def test_warning_can_be_sent_with_a_busy_producer(
        self, producer_of: Make, broker: EmbeddedBroker, captured_warnings: logging.Logger
    ) -> None:
        """The producer is collected on the sender thread of the producer that sends the warning: that thread would wait for itself."""
        warned: Future[object] = Future()

        class SendingHandler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                try:
                    warned.set_result(busy.send("orders", record.getMessage().encode(), partition=0).result(LATEST_S))
                except BaseException as error:
                    warned.set_exception(error)

        captured_warnings.addHandler(SendingHandler())
        held = [producer_of(broker, client_id="dropped")]
        thread = thread_of(held[0])
        with producer_of(broker) as busy:
            busy.send("orders", b"v", partition=0, on_delivery=lambda *_: held.clear())
            warned.result(LATEST_S)
        thread.join(LATEST_S)
        assert not thread.is_alive()
        assert [b"was not closed" in value for value in broker.read("orders").column("value").to_pylist()] == [False, True]

    def test_warning_as_error_is_reported_and_records_are_written(
        self, producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warned: list[threading.ExceptHookArgs] = []
        monkeypatch.setattr(threading, "excepthook", warned.append)
        producer = producer_of(broker, linger_ms=60_000, client_id="dropped")
        thread, future = thread_of(producer), producer.send("orders", b"v", partition=0)
        del producer  # All warnings are errors in these tests.
        assert future.result(LATEST_S).offset == 0
        thread.join(LATEST_S)
        assert [(args.exc_type, args.thread) for args in warned] == [(ResourceWarning, thread)]

    @pytest.mark.parametrize(("owner", "name"), [(threading, "excepthook"), (Producer, "__repr__")])
    def test_failed_warning_does_not_end_the_sender_thread(
        self,
        producer_of: Make,
        broker: EmbeddedBroker,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        owner: object,
        name: str,
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError(f"{name} cannot")

        producer = producer_of(broker, linger_ms=60_000, client_id="dropped")
        thread, future = thread_of(producer), producer.send("orders", b"v", partition=0)
        monkeypatch.setattr(owner, name, fail)
        del producer
        assert future.result(LATEST_S).offset == 0
        thread.join(LATEST_S)
        assert not thread.is_alive()
        assert "cannot issue the warning that the producer was not closed" in caplog.text
        assert f"{name} cannot" in caplog.text

    def test_closed_producer_logs_nothing_at_exit(
        self, producer_of: Make, broker: EmbeddedBroker, recwarn: pytest.WarningsRecorder
    ) -> None:
        producer = producer_of(broker)
        producer.close()
        del producer
        gc.collect()
        assert not recwarn.list

    def test_producer_with_refused_options_warns_nothing(self, recwarn: pytest.WarningsRecorder) -> None:
        with pytest.raises(Exception, match=r"bootstrap\.servers"):
            Producer(bootstrap_servers="nowhere")
        gc.collect()
        assert not recwarn.list


WAITS: dict[str, Callable[[Any], Any]] = {
    "result": lambda future: future.result(),
    "result for some time": lambda future: future.result(LATEST_S),
    "exception": lambda future: future.exception(),
}


class TestWaitInACallback:
    """Callbacks run on the sender thread, which is the one that would complete the future."""

    @pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
    @pytest.mark.parametrize("is_table", [False, True])
    def test_waiting_in_a_callback_of_the_same_producer_is_refused(
        self, producer_of: Make, broker: EmbeddedBroker, wait: Callable[[Any], Any], is_table: bool
    ) -> None:
        outcome: Future[BaseException] = Future()

        def callback(*_: object) -> None:
            # The record lingers, and this thread is busy: it cannot have been sent.
            table = pa.table({"value": [b"second"]})
            second = producer.send_table("orders", table) if is_table else producer.send("orders", b"second", partition=0)
            try:
                wait(second)
            except BaseException as error:
                outcome.set_result(error)

        with producer_of(broker) as producer:
            producer.send("orders", b"first", on_delivery=callback)
            error = outcome.result(LATEST_S)
        assert isinstance(error, IllegalStateException)
        assert "within a callback of the same producer" in str(error)
        assert sorted(broker.read("orders").column("value").to_pylist()) == [b"first", b"second"]

    def test_waiting_in_a_callback_for_another_producer_or_a_done_future_works(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        outcome: Future[int] = Future()

        def callback(*_: object) -> None:
            try:
                outcome.set_result(other.send("orders", b"second").result(LATEST_S).offset + done.result().offset)
            except BaseException as error:
                outcome.set_exception(error)

        with producer_of(broker) as producer, producer_of(broker) as other:
            done = producer.send("orders", b"first", partition=0)
            done.result(LATEST_S)
            producer.send("orders", b"v", on_delivery=callback)
            assert outcome.result(LATEST_S) >= 0

    def test_result_without_wait_in_a_callback_times_out(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        outcome: Future[object] = Future()

        def callback(*_: object) -> None:
            try:
                outcome.set_result(producer.send("orders", b"second").result(0))
            except BaseException as error:
                outcome.set_result(error)

        with producer_of(broker) as producer:
            producer.send("orders", b"first", on_delivery=callback)
            assert isinstance(outcome.result(LATEST_S), TimeoutError)
