"""Handlers for a while; and signals that wait for the end of a block, once each, of which none is lost."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chaffinch.signals import deferred_signals, handled


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The signals that a handler was called for: SIGTERM and SIGUSR1 are noted here, Ctrl-C raises, too."""
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signal_is_deferred_to_the_end_of_the_block(received: list[int]) -> None:
    def interrupted() -> None:
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert received == []

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert received == [signal.SIGINT, signal.SIGTERM]


def test_second_signal_is_not_deferred(received: list[int]) -> None:
    def interrupted_twice() -> None:
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it has waited")

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    assert received == [signal.SIGINT, signal.SIGTERM]


def test_nested_blocks_defer_to_the_end_of_the_outer_one(received: list[int]) -> None:
    with deferred_signals():
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
        assert received == []
    assert received == [signal.SIGTERM]


def test_handlers_are_restored(received: list[int]) -> None:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        signal.raise_signal(signal.SIGINT)
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_handler_that_raises_leaves_no_deferred_signal(received: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C has its own handler again, SIGTERM has not."""
    set_handler = signal.signal

    def cut(number: int, handler: Any) -> Any:
        if number == signal.SIGTERM:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
        return set_handler(number, handler)

    def interrupted() -> None:
        with deferred_signals():
            monkeypatch.setattr(signal, "signal", cut)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGINT, signal.SIGTERM]


def test_event_loop_receives_a_signal_once() -> None:
    received: list[int] = []

    async def interrupted() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, received.append, 1)
        with deferred_signals():
            signal.raise_signal(signal.SIGUSR1)
        signalled = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, signalled.set)
        signal.raise_signal(signal.SIGUSR2)
        await signalled.wait()

    asyncio.run(interrupted())
    assert received == [1]


def test_no_effect_on_other_threads(received: list[int]) -> None:
    found = []

    def look() -> None:
        with deferred_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_handler_set_within_the_block_stays(received: list[int]) -> None:
    """As PySpark sets its own."""
    with handled([signal.SIGTERM, signal.SIGUSR1], lambda before: lambda number, frame: received.append(-number)):
        signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    signal.raise_signal(signal.SIGUSR1)
    assert received == [-signal.SIGUSR1, signal.SIGUSR1]


def test_signal_without_handler_gets_none(received: list[int]) -> None:
    """A signal that is ignored, or ends the process, does so within the block."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with handled([signal.SIGUSR1, signal.SIGTERM], lambda before: signal.default_int_handler):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
