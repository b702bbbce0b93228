"""Abandoned producers, and futures that can never complete: both are reported, and no wait is endless."""

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


def let_go(held: list[Producer], thread: threading.Thread) -> None:
    """Drop the last that holds a producer, and wait for what its thread makes of it."""
    held.clear()
    thread.join(LATEST_S)


class Closing(ProducerExceptionHandler):
    """Says when it was closed."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def captured_warnings() -> Iterator[logging.Logger]:
    """The logger that warnings go to, with its handlers as they were afterwards."""
    captured = logging.getLogger("py.warnings")
    before = list(captured.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        logging.captureWarnings(True)
        yield captured
        logging.captureWarnings(False)
    captured.handlers[:] = before


class TestDropped:
    def test_what_was_accepted_is_written_and_the_thread_ends(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        handler = Closing()
        producer = producer_of(broker, linger_ms=60_000, client_id="dropped", custom_exception_handler_class=handler)
        thread = thread_of(producer)
        futures = [producer.send("orders", b"v", partition=0) for _ in range(3)]
        held = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="<Producer 'dropped' of .*was not closed"):
            let_go(held, thread)
        assert [future.result(LATEST_S).offset for future in futures] == [0, 1, 2]
        assert not thread.is_alive()
        assert handler.is_closed.is_set()

    def test_its_open_transaction_is_aborted(self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
        producer = producer_of(broker, transactional_id="t", client_id="dropped")
        thread = thread_of(producer)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v").result(LATEST_S)
        held = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="transactional.id 't'"):
            let_go(held, thread)
        assert not thread.is_alive()
        assert "was garbage-collected without close(): its open transaction is aborted" in caplog.text
        assert broker.read("orders").num_rows == 0
        assert broker.read("orders", isolation="read_uncommitted").num_rows == 1

    def test_a_callback_that_holds_it_holds_it_until_it_was_called(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """The last to let go is the sender thread itself."""
        producer = producer_of(broker, client_id="dropped")
        thread, is_told, may_go = thread_of(producer), threading.Event(), threading.Event()

        def tell(*_: object, holds: Producer = producer) -> None:
            may_go.wait(LATEST_S)  # Until somebody listens for the warning.
            is_told.set()

        producer.send("orders", b"v", on_delivery=tell)
        del producer, tell

        def go_on() -> None:
            may_go.set()
            thread.join(LATEST_S)

        with pytest.warns(ResourceWarning, match="was not closed"):
            go_on()
        assert is_told.is_set()
        assert not thread.is_alive()

    def test_the_warning_may_go_through_a_producer_that_is_busy(
        self, producer_of: Make, broker: EmbeddedBroker, captured_warnings: logging.Logger
    ) -> None:
        """It is collected by the thread of the very producer that the warning is sent with, which could only wait for itself."""
        told: Future[object] = Future()

        class BatchSender(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                try:
                    told.set_result(busy.send("orders", record.getMessage().encode(), partition=0).result(LATEST_S))
                except BaseException as error:
                    told.set_exception(error)

        captured_warnings.addHandler(BatchSender())
        held = [producer_of(broker, client_id="dropped")]
        thread = thread_of(held[0])
        with producer_of(broker) as busy:
            busy.send("orders", b"v", partition=0, on_delivery=lambda *_: held.clear())
            told.result(LATEST_S)
        thread.join(LATEST_S)
        assert not thread.is_alive()
        assert [b"was not closed" in value for value in broker.read("orders").column("value").to_pylist()] == [False, True]

    def test_warning_as_error_is_reported_and_records_are_written(
        self, producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[threading.ExceptHookArgs] = []
        monkeypatch.setattr(threading, "excepthook", told.append)
        producer = producer_of(broker, linger_ms=60_000, client_id="dropped")
        thread, future = thread_of(producer), producer.send("orders", b"v", partition=0)
        del producer  # All warnings are errors in these tests.
        assert future.result(LATEST_S).offset == 0
        thread.join(LATEST_S)
        assert [(args.exc_type, args.thread) for args in told] == [(ResourceWarning, thread)]

    @pytest.mark.parametrize(("whose", "name"), [(threading, "excepthook"), (Producer, "__repr__")])
    def test_a_warning_that_cannot_be_given_ends_nothing(
        self,
        producer_of: Make,
        broker: EmbeddedBroker,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        whose: object,
        name: str,
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError(f"{name} cannot")

        producer = producer_of(broker, linger_ms=60_000, client_id="dropped")
        thread, future = thread_of(producer), producer.send("orders", b"v", partition=0)
        monkeypatch.setattr(whose, name, fail)
        del producer
        assert future.result(LATEST_S).offset == 0
        thread.join(LATEST_S)
        assert not thread.is_alive()
        assert "the warning that the producer was not closed failed" in caplog.text
        assert f"{name} cannot" in caplog.text

    def test_closed_producer_logs_nothing_at_exit(
        self, producer_of: Make, broker: EmbeddedBroker, recwarn: pytest.WarningsRecorder
    ) -> None:
        producer = producer_of(broker)
        producer.close()
        del producer
        gc.collect()
        assert not recwarn.list

    def test_nor_does_one_whose_options_are_refused(self, recwarn: pytest.WarningsRecorder) -> None:
        with pytest.raises(Exception, match=r"bootstrap\.servers"):
            Producer(bootstrap_servers="nowhere")
        gc.collect()
        assert not recwarn.list


WAITS: dict[str, Callable[[Any], Any]] = {
    "result": lambda future: future.result(),
    "result for some time": lambda future: future.result(LATEST_S),
    "exception": lambda future: future.exception(),
}


class TestWaitingForItself:
    """The thread that calls back is the one that would bring the outcome."""

    @pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
    @pytest.mark.parametrize("is_table", [False, True])
    def test_is_refused(self, producer_of: Make, broker: EmbeddedBroker, wait: Callable[[Any], Any], is_table: bool) -> None:
        asked: Future[BaseException] = Future()

        def ask(*_: object) -> None:
            # It lingers, and this thread is busy: nobody can have sent it.
            table = pa.table({"value": [b"second"]})
            second = producer.send_table("orders", table) if is_table else producer.send("orders", b"second", partition=0)
            try:
                wait(second)
            except BaseException as error:
                asked.set_result(error)

        with producer_of(broker) as producer:
            producer.send("orders", b"first", on_delivery=ask)
            error = asked.result(LATEST_S)
        assert isinstance(error, IllegalStateException)
        assert "within a callback of the same producer" in str(error)
        assert sorted(broker.read("orders").column("value").to_pylist()) == [b"first", b"second"]

    def test_but_not_of_another_producer_nor_of_what_is_done(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        asked: Future[int] = Future()

        def ask(*_: object) -> None:
            try:
                asked.set_result(other.send("orders", b"second").result(LATEST_S).offset + done.result().offset)
            except BaseException as error:
                asked.set_exception(error)

        with producer_of(broker) as producer, producer_of(broker) as other:
            done = producer.send("orders", b"first", partition=0)
            done.result(LATEST_S)
            producer.send("orders", b"v", on_delivery=ask)
            assert asked.result(LATEST_S) >= 0

    def test_looking_without_waiting_is_allowed(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        asked: Future[object] = Future()

        def ask(*_: object) -> None:
            try:
                asked.set_result(producer.send("orders", b"second").result(0))
            except BaseException as error:
                asked.set_result(error)

        with producer_of(broker) as producer:
            producer.send("orders", b"first", on_delivery=ask)
            assert isinstance(asked.result(LATEST_S), TimeoutError)
