"""A condition whose lock is held exactly within its `with` statement, wherever Ctrl-C comes."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count

import pytest

from chaffinch.client.condition import Condition
from tests.client.interrupts import Interrupt

LATEST_S = 60


def use(condition: Condition, held: list[bool]) -> None:
    with condition:
        try:
            condition.wait(0.0001)
        finally:
            held.append(condition.is_owned())
        condition.notify_all()


def test_interrupt_at_every_moment_leaves_the_lock_consistent() -> None:
    """A wait that is left holds the lock as the rest of the statement expects; the statement that is left does not."""
    condition, held = Condition(), list[bool]()
    for index in count():
        interrupt = Interrupt(index)
        with suppress(KeyboardInterrupt), interrupt:
            use(condition, held)
        assert not condition.is_owned(), interrupt.place
        assert condition.acquire(blocking=False)
        condition.release()
        if not interrupt.has_happened:
            break
    assert index > 10
    assert all(held)


def test_waiting_thread_is_notified() -> None:
    condition, found = Condition(), list[bool]()
    is_waiting = threading.Event()

    def wait() -> None:
        with condition:
            is_waiting.set()
            found.append(condition.wait(LATEST_S))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert is_waiting.wait(LATEST_S)
    with condition:
        condition.notify_all()
    waiter.join(LATEST_S)
    assert found == [True]


def test_wait_without_the_lock_is_rejected() -> None:
    condition = Condition()
    with pytest.raises(RuntimeError, match="un-acquired lock"):
        condition.wait()
    assert not condition.is_owned()
