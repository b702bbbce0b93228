"""Connections that are slow on purpose, with timers that a test lets go off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from chaffinch.broker.throttle import ThrottledRequests, ThrottledResponses
from chaffinch.protocol.primitives import Buffer


class Timers:
    """Time that passes when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None], Timers.Handle]] = []

    class Handle:
        is_cancelled = False

        def cancel(self) -> None:
            self.is_cancelled = True

    def later(self, seconds: float, function: Callable[[], None]) -> Timers.Handle:
        handle = Timers.Handle()
        self._due.append((self.now + seconds, function, handle))
        return handle

    def run(self, until: float) -> None:
        while self._due and min(entry[0] for entry in self._due) <= until:
            entry = min(self._due, key=lambda due: due[0])
            self._due.remove(entry)
            self.now = entry[0]
            if not entry[2].is_cancelled:
                entry[1]()
        self.now = until

    @property
    def waiting(self) -> int:
        return sum(not handle.is_cancelled for _, _, handle in self._due)


class Line:
    """Slow answers and what came out of them."""

    def __init__(self, bytes_per_second: int) -> None:
        self.timers = Timers()
        self.sent = b""
        self.drained = 0
        self.answers = ThrottledResponses(bytes_per_second, self.write, self.note, self.timers.later)

    def write(self, parts: Sequence[Buffer]) -> None:
        self.sent += b"".join(parts)

    def note(self) -> None:
        self.drained += 1


@pytest.mark.parametrize("bytes_per_second", [1, 10, 1000, 1_000_000])
def test_responses_are_sent_at_the_given_rate(bytes_per_second: int) -> None:
    line = Line(bytes_per_second)
    data = bytes(number % 251 for number in range(10 * bytes_per_second))
    line.answers.add([data[:3], data[3:]])
    for second in range(1, 10):
        line.timers.run(second)
        assert abs(len(line.sent) - second * bytes_per_second) <= bytes_per_second / 20 + 1.01
        assert line.answers.bytes_waiting == len(data) - len(line.sent)
    line.timers.run(11)
    assert line.sent == data
    assert line.drained == 1
    assert line.timers.waiting == 0


def test_later_parts_are_sent_in_order() -> None:
    line = Line(20)
    line.answers.add([b"abc"])
    line.answers.add([b"", b"def"])
    line.timers.run(1)
    assert line.sent == b"abcdef"
    line.answers.add([b"g"])
    assert line.sent == b"abcdefg"


def test_closed_responses_drop_pending_bytes() -> None:
    line = Line(1)
    line.answers.add([b"abc"])
    line.answers.close()
    line.timers.run(10)
    assert (line.sent, line.answers.bytes_waiting, line.timers.waiting) == (b"a", 0, 0)


def test_reading_pauses_for_the_time_of_the_rate() -> None:
    timers, resumed = Timers(), []
    requests = ThrottledRequests(100, lambda: resumed.append(timers.now), timers.later)
    assert not requests.must_pause
    requests.read(250)
    assert requests.must_pause
    timers.run(2.4)
    assert requests.must_pause
    timers.run(2.5)
    assert not requests.must_pause
    assert resumed == [2.5]
    requests.read(100)
    requests.close()
    assert timers.waiting == 0
