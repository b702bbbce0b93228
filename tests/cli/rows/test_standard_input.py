"""A signal just before a read takes effect without further input."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch.cli.rows.standard_input import standard_input

TEST_SIGNAL = signal.SIGUSR1


class SignalRaised(Exception):
    pass


@pytest.fixture
def input_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of standard input."""
    out, input_end = os.pipe()
    with open(out) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield input_end


@pytest.fixture
def signal_in_other_thread() -> Iterator[None]:
    """The signal breaks nothing off in this thread, which learns of it all the same."""

    def raise_it(number: int, frame: object) -> None:
        raise SignalRaised

    before = signal.signal(TEST_SIGNAL, raise_it)
    signal.pthread_sigmask(signal.SIG_BLOCK, [TEST_SIGNAL])
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [TEST_SIGNAL])
    signal.signal(TEST_SIGNAL, before)


def is_asleep(thread_id: int) -> bool:
    return Path(f"/proc/self/task/{thread_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def read_one() -> bytes:
    with standard_input() as source:
        return source.read(1)


@pytest.mark.usefixtures("signal_in_other_thread")
def test_signal_without_eintr_ends_the_wait(input_end: int) -> None:
    """As when it comes before the read begins: another thread takes it, and this one sleeps on."""
    main, is_handled = threading.get_native_id(), threading.Event()
    in_time: list[bool] = []

    def send() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [TEST_SIGNAL])
        while not is_asleep(main):
            pass
        signal.raise_signal(TEST_SIGNAL)
        in_time.append(is_handled.wait(20))
        os.close(input_end)  # Without a wakeup the reader reads the end of the input now and handles the signal then.

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(SignalRaised):
            read_one()
    finally:
        is_handled.set()
        sender.join()
    assert in_time == [True]


def test_pipe_is_read_to_its_end(input_end: int) -> None:
    os.write(input_end, b"one\ntwo")
    os.close(input_end)
    with standard_input() as source:
        assert source.read() == b"one\ntwo"
        assert source.read() == b""
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    assert before == -1, "as it was"


def test_file_is_not_wrapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"rows")
    with path.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with standard_input() as source:
            assert source is stdin.buffer
            assert source.seekable()
