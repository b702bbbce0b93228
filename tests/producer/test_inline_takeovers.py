"""Interrupted inline sends have one outcome: refusals, partial responses, forks and close."""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import IllegalStateException, KafkaException, TimeoutException
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.inline_send import InlineSender
from chaffinch.producer.records import RecordMetadata
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.runtime.sockets import EventFd
from tests.client.scripted_server import ScriptedServer
from tests.producer.inline import await_inline, enable_inline, is_awaited_inline, values, was_sent_inline
from tests.producer.test_inline_send import ALL, acknowledging, plain_producer
from tests.producer.threads import LATEST_S, counting, in_thread, outcome_in_child

Make = Callable[..., Producer]


class ResponseGate:
    """A script that acknowledges all requests, Produce requests only while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self._answer = acknowledging(ALL)

    def __call__(self, server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, ProduceRequest):
            assert self.open.wait(LATEST_S)
        return self._answer(server, message)


@contextmanager
def awaited_inline(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Producer, ResponseGate, RecordFuture[RecordMetadata], Future[Any]]]:
    """A producer, a gate for its responses, and a record that was sent inline, with a thread that waits for it."""
    for name in ("WAIT_MS", "POLL_INTERVAL_MS"):
        monkeypatch.setattr(f"chaffinch.producer.inline_send.{name}", 600_000)
    gate = ResponseGate()
    with ScriptedServer(gate) as server, plain_producer(server, request_timeout_ms=100_000) as producer:
        enable_inline(producer)
        try:
            while True:
                await_inline(producer)
                gate.open.clear()
                future = producer.send("orders", b"v", key=b"k")
                waiting = in_thread(lambda: future.result())  # noqa: B023
                if is_awaited_inline(producer):
                    break
                gate.open.set()  # The sender thread was still awake.
                waiting.result(LATEST_S)
            yield producer, gate, future, waiting
        finally:
            gate.open.set()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_while_a_thread_waits_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record and connection belong to the parent: calls in the child do not affect them."""
    with awaited_inline(monkeypatch) as (producer, gate, future, waiting):
        for call in (future.result, producer.flush, lambda: producer.send("orders", b"child").result()):
            assert outcome_in_child(call) == IllegalStateException.__name__
        assert outcome_in_child(producer.close) == "NoneType"
        assert not waiting.done()
        gate.open.set()
        assert waiting.result(LATEST_S) == future.result(0)
        while not was_sent_inline(producer, lambda: producer.send("orders", b"v", key=b"k").result(LATEST_S)):
            pass


@pytest.mark.parametrize(
    "call",
    [lambda producer: producer._sender.wakeup(), lambda producer: producer._sender._network._event_fd.notify()],
    ids=["the sender thread takes over", "late notification for an earlier waiter"],
)
def test_waiting_thread_is_woken_by_eventfd(monkeypatch: pytest.MonkeyPatch, call: Callable[[Producer], None]) -> None:
    """The waiter is woken without a response, and consumes the notification: it wakes no other thread."""
    read_response, has_left = InlineSender.read_response, threading.Event()
    monkeypatch.setattr(InlineSender, "read_response", lambda *arguments: (read_response(*arguments), has_left.set()))  # type: ignore[func-returns-value]
    with awaited_inline(monkeypatch) as (producer, _, _, waiting):
        has_left.clear()  # Earlier waiters have set it.
        call(producer)
        assert has_left.wait(LATEST_S)
        assert not waiting.done()
        event_fd = producer._sender._network._event_fd
        assert event_fd is not None
        assert not select.select([event_fd], [], [], 0)[0]


def fail() -> None:
    raise ZeroDivisionError


def test_waiting_caller_is_woken_when_the_sender_thread_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the eventfd: closing a connection in this process does not wake a thread that sleeps on it."""
    with awaited_inline(monkeypatch) as (producer, _, _, waiting):
        notified: list[EventFd] = []
        notify = EventFd.notify
        monkeypatch.setattr(EventFd, "notify", lambda event_fd: (notified.append(event_fd), notify(event_fd)))  # type: ignore[func-returns-value]
        producer._sender._network.on_awake = fail
        producer._sender.wakeup()
        with pytest.raises(KafkaException, match="ZeroDivisionError"):
            waiting.result(LATEST_S)
        assert notified


def test_close_fails_a_caller_waiting_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait of the caller times out before the response."""
    with awaited_inline(monkeypatch) as (producer, _, future, waiting):
        producer.close(0)
        error = waiting.exception(LATEST_S)
        assert isinstance(error, TimeoutException)
        assert future.exception(0) is error


def test_close_with_time_completes_a_caller_waiting_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    with awaited_inline(monkeypatch) as (producer, gate, future, waiting):
        closing = in_thread(producer.close)
        while producer._core.inline_request is not None:
            pass
        gate.open.set()
        closing.result(LATEST_S)
        assert waiting.result(LATEST_S) == future.result(0)


def test_second_reader_leaves_a_partial_response() -> None:
    """The sender thread, which is slow here, assembles the response."""
    with ScriptedServer(acknowledging(ALL)) as server, plain_producer(server) as producer:
        enable_inline(producer)
        server.bytes_per_write = 1
        wakeups: list[None] = []
        for _ in range(20):
            await_inline(producer)
            producer._inline_sender._wakeup = lambda: wakeups.append(None)
            future = producer.send("orders", b"v", key=b"k")
            for _ in range(3):
                producer._inline_sender.read_response(future.batch, None)  # type: ignore[arg-type]
            producer._inline_sender._wakeup = producer._sender.wakeup
            producer._sender.wakeup()
            assert future.result(LATEST_S)
        assert wakeups


def test_partly_written_request_goes_to_the_sender_thread_at_once(producer_of: Make, broker: EmbeddedBroker) -> None:
    """By itself the sender thread would check too late: time-outs are longer than this test may take."""
    timeouts = {"request_timeout_ms": 1_000_000, "delivery_timeout_ms": 2_000_000}
    with producer_of(broker, linger_ms=0, send_buffer_bytes=4096, **timeouts) as producer:
        is_in_part = False
        while not is_in_part:
            enable_inline(producer)
            await_inline(producer)
            wakeups: list[None] = []
            producer._inline_sender._wakeup = counting(wakeups, producer._sender.wakeup)
            future = producer.send("orders", bytes(900_000), key=b"k")
            inline_request = producer._core.inline_request
            is_in_part = inline_request is not None and inline_request.written != len(inline_request.frame)
            assert wakeups or not is_in_part
            assert future.result(LATEST_S)


@pytest.mark.parametrize(
    "check",
    [RecordFuture.done, lambda future: wait([future], 0), lambda future: future.add_done_callback(lambda _: None)],
    ids=["done", "wait", "callback"],
)
def test_checking_a_future_wakes_the_sender_thread(monkeypatch: pytest.MonkeyPatch, check: Callable[[RecordFuture[Any]], object]) -> None:
    """The sender thread does not see the response, and by itself would check too late: intervals are longer than this test may take."""
    monkeypatch.setattr("chaffinch.producer.inline_send.POLL_INTERVAL_MS", 600_000)
    with ScriptedServer(acknowledging(ALL)) as server, plain_producer(server, request_timeout_ms=1_000_000) as producer:
        is_suspended = False
        while not is_suspended:
            enable_inline(producer)
            await_inline(producer)
            future = producer.send("orders", b"v", key=b"k")
            is_suspended = producer._inline_sender._has_suspended and producer._core.inline_request is not None
            wakeups: list[None] = []
            producer._inline_sender._wakeup = counting(wakeups, producer._sender.wakeup)
            check(future)
            assert wakeups or not is_suspended
            assert future.result(LATEST_S)


def test_failed_socket_write_counts_as_no_attempt(producer_of: Make, broker: EmbeddedBroker) -> None:
    """The failed write is no attempt: the next connection is lost too, and there is only one retry."""
    with producer_of(broker, linger_ms=0, retries=1) as producer:
        for _ in range(20):
            enable_inline(producer)
            await_inline(producer)
            broker.faults.add(api="Produce", action="drop_before", count=1)
            for transport in list(producer._sender._network._transports.values()):
                transport.opened.shutdown(socket.SHUT_WR)
            assert producer.send("orders", b"v", key=b"k").result(LATEST_S).offset >= 0
    assert values(broker) == Counter({b"v": 20})
