"""Check interval of the sender thread while inline sends are enabled: long, but shorter than the time-outs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.producer.inline_send import POLLS_PER_TIMEOUT
from tests.producer.inline import await_fresh_inline, was_sent_inline
from tests.producer.threads import LATEST_S

Make = Callable[..., Producer]
SHORT_INTERVAL_MS = 7


class Sleeps:
    """Records the sleep times that the sender thread requests, in ms."""

    def __init__(self, producer: Producer) -> None:
        self.seen: list[int] = []
        self.is_short = threading.Event()
        self._poll = producer._sender._network.poll
        producer._sender._network.poll = self._record_and_poll  # type: ignore[method-assign]
        producer._sender.wakeup()

    def _record_and_poll(self, timeout_ms: int, **named: Any) -> Any:
        self.seen.append(timeout_ms)
        if timeout_ms == SHORT_INTERVAL_MS:
            self.is_short.set()
        return self._poll(timeout_ms, **named)


def test_sleep_is_not_shortened_without_inline_sends(producer_of: Make, broker: EmbeddedBroker) -> None:
    """The sender thread sleeps as long as without inline sends, once a check has found nothing."""
    with producer_of(broker, linger_ms=0, request_timeout_ms=80, delivery_timeout_ms=80) as producer:
        producer.send("orders", b"v", key=b"k").result(LATEST_S)
        sleeps = Sleeps(producer)
        while not sleeps.seen or sleeps.seen[-1] <= 1000:
            pass
        assert len(sleeps.seen) <= 5


def test_polls_often_after_the_first_inline_response(producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses read by callers do not wake the sender thread. Before the first one it checks only as often as time-outs require."""
    monkeypatch.setattr("chaffinch.producer.inline_send.POLL_INTERVAL_MS", SHORT_INTERVAL_MS)
    check_ms = 59_000
    timeout_ms = check_ms * POLLS_PER_TIMEOUT
    with producer_of(broker, linger_ms=0, request_timeout_ms=timeout_ms, delivery_timeout_ms=timeout_ms) as producer:
        sleeps = Sleeps(producer)
        await_fresh_inline(producer)
        assert check_ms in sleeps.seen
        sleeps.is_short.clear()
        while not was_sent_inline(producer, lambda: producer.send("orders", b"v", key=b"k").result(LATEST_S)):
            pass
        assert sleeps.is_short.wait(check_ms / 2000)
