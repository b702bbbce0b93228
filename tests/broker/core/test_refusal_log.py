"""The refusal log: what is said at once, what is counted, and that no count is lost however the refusals come."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.broker.core import refusal_log
from chaffinch.broker.core.refusal_log import INTERVAL_MS_MAX, LINES_PER_INTERVAL_MAX, RefusalLog

NOW_MS = 1_700_000_000_000


class LogRecorder:
    """A refusal log, its clock and everything it said."""

    def __init__(self) -> None:
        self.log = RefusalLog()
        self.steady_ms = NOW_MS
        self.lines: list[str] = []

    def log_refusal(
        self, client: str = "app", topic: str = "orders", partition: int = 0, code: str = "INVALID_RECORD", why: str = "why"
    ) -> None:
        self.log.log_refused(
            api="Produce", client=client, subject=f"{topic}-{partition}", within=topic, code=code, reason=why, steady_ms=self.steady_ms
        )
        self.lines += [line.text for line in self.log.take()]

    def advance(self, by_ms: int) -> None:
        until_ms = self.steady_ms + by_ms
        while (deadline_ms := self.log.next_deadline_ms) is not None and deadline_ms <= until_ms:
            self.steady_ms = max(self.steady_ms, deadline_ms)
            self.lines += self.log.run_due(self.steady_ms)
        self.steady_ms = until_ms

    def end(self) -> None:
        self.lines += [line.text for line in self.log.end()]

    def refusals_logged(self) -> int:
        """How many refusals the lines stand for."""
        more = [re.search(r"(\d+) more (?:since|lines)", line) for line in self.lines]  # None: a line that stands for itself.
        return sum(1 if found is None else int(found[1]) for found in more)


def test_first_refusal_is_one_line() -> None:
    recorder = LogRecorder()
    recorder.log_refusal()
    assert recorder.lines == ["refused: Produce from client 'app' for orders-0: INVALID_RECORD: why"]
    recorder.advance(11_000)
    assert len(recorder.lines) == 1
    assert recorder.log.next_deadline_ms is None


def test_repetitions_are_counted_by_code_and_logged_after_a_second() -> None:
    recorder = LogRecorder()
    for code, count in (("INVALID_RECORD", 3), ("MESSAGE_TOO_LARGE", 2)):
        for _ in range(count):
            recorder.log_refusal(code=code)
    recorder.advance(999)
    assert len(recorder.lines) == 1
    recorder.advance(1)
    assert recorder.lines[1] == "refused: client 'app' at orders: 4 more since the last line: INVALID_RECORD 2, MESSAGE_TOO_LARGE 2"


def test_refusals_of_many_partitions_are_counted_by_topic() -> None:
    """A misconfigured producer must not fill the disk."""
    recorder = LogRecorder()
    for partition in range(10_000):
        recorder.log_refusal(partition=partition)
    recorder.advance(1000)
    assert len(recorder.lines) == 2
    assert "9999 more" in recorder.lines[1]


def test_every_topic_and_every_client_has_its_own_line() -> None:
    recorder = LogRecorder()
    for client in ("a", "b"):
        for topic in ("orders", "payments"):
            recorder.log_refusal(client, topic)
    assert len(set(recorder.lines)) == 4


def test_intervals_double_up_to_a_minute() -> None:
    """Intervals double up to a minute while there is something to count, and begin small again after a pause."""
    recorder = LogRecorder()
    for _ in range(24 * 3600):
        recorder.log_refusal()
        recorder.advance(1000)
    assert len(recorder.lines) < 24 * 60 + 20
    recorder.advance(2 * INTERVAL_MS_MAX)
    count = len(recorder.lines)
    recorder.log_refusal()
    assert recorder.lines[count:] == ["refused: Produce from client 'app' for orders-0: INVALID_RECORD: why"]


def test_refusal_soon_after_a_quiet_interval_starts_a_longer_one() -> None:
    recorder = LogRecorder()
    recorder.log_refusal()
    recorder.advance(1500)
    for _ in range(3):
        recorder.log_refusal()
    recorder.advance(1999)
    assert len(recorder.lines) == 2
    recorder.advance(1)
    assert len(recorder.lines) == 3
    assert "2 more since" in recorder.lines[2]


def test_lines_of_scheduled_tasks_share_the_limit() -> None:
    recorder = LogRecorder()
    for number in range(200):
        recorder.log.log_within_limit(f"transaction {number} aborted", recorder.steady_ms)
    recorder.lines += [line.text for line in recorder.log.take()]
    assert len(recorder.lines) == LINES_PER_INTERVAL_MAX
    recorder.advance(1000)
    assert recorder.lines[-1] == f"{200 - LINES_PER_INTERVAL_MAX} more lines suppressed: there were too many at once"


def test_lines_of_ever_new_clients_are_counted_together() -> None:
    recorder = LogRecorder()
    for number in range(1000):
        recorder.log_refusal(client=f"client-{number}")
    assert len(recorder.lines) == LINES_PER_INTERVAL_MAX
    recorder.advance(1000)
    assert recorder.lines[-1] == f"{1000 - LINES_PER_INTERVAL_MAX} more lines suppressed: there were too many at once"
    recorder.log_refusal(client="another")
    assert "another" in recorder.lines[-1]


def test_number_of_windows_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_log, "WINDOWS_MAX", 10)
    recorder = LogRecorder()
    for number in range(100):
        recorder.log_refusal(client=f"client-{number}")
    assert len(recorder.log._windows) == 10
    recorder.advance(11_000)
    assert not recorder.log._windows
    assert recorder.refusals_logged() == 100


def test_counts_are_logged_at_the_end() -> None:
    recorder = LogRecorder()
    for _ in range(9):
        recorder.log.log_rate_limited("broken requests", "127.0.0.1", "connection from 127.0.0.1:4711 closed", recorder.steady_ms)
    for _ in range(3):
        recorder.log_refusal()
    recorder.end()
    assert recorder.lines == [
        "connection from 127.0.0.1:4711 closed",
        "refused: Produce from client 'app' for orders-0: INVALID_RECORD: why",
        "broken requests from 127.0.0.1: 8 more since the last line, the last: connection from 127.0.0.1:4711 closed",
        "refused: client 'app' at orders: 2 more since the last line: INVALID_RECORD 2",
    ]
    assert recorder.log.next_deadline_ms is None


def test_other_reasons_of_the_same_origin_are_logged() -> None:
    """A single line left out is said itself; of several the last stands for all."""
    recorder = LogRecorder()
    for port, reason in ((1, "HTTP"), (2, "a frame of -5 bytes")):
        recorder.log.log_rate_limited(
            "broken requests", "10.0.0.1", f"connection from 10.0.0.1:{port} closed: {reason}", recorder.steady_ms
        )
    recorder.advance(1)
    recorder.log_refusal()
    recorder.log_refusal(partition=1, code="MESSAGE_TOO_LARGE")
    recorder.advance(1000)
    for port, reason in ((3, "TLS"), (4, "API 999"), (5, "x" * 1000)):
        recorder.log.log_rate_limited(
            "broken requests", "10.0.0.1", f"connection from 10.0.0.1:{port} closed: {reason}\n", recorder.steady_ms
        )
    recorder.advance(2000)
    assert recorder.lines == [
        "connection from 10.0.0.1:1 closed: HTTP",
        "refused: Produce from client 'app' for orders-0: INVALID_RECORD: why",
        "connection from 10.0.0.1:2 closed: a frame of -5 bytes",
        "refused: Produce from client 'app' for orders-1: MESSAGE_TOO_LARGE: why",
        f"broken requests from 10.0.0.1: 3 more since the last line, the last: connection from 10.0.0.1:5 closed: {'x' * 265}...",
    ]


def test_reason_starting_with_its_code_names_it_once() -> None:
    """Reasons of codes that clients get under another number start so (KIP-579)."""
    recorder = LogRecorder()
    recorder.log_refusal(code="INVALID_RECORD", why="INVALID_RECORD: why")
    assert recorder.lines == ["refused: Produce from client 'app' for orders-0: INVALID_RECORD: why"]


def test_length_of_a_remembered_line_is_limited() -> None:
    recorder = LogRecorder()
    recorder.log_refusal()
    recorder.log_refusal(why="\n" * 100_000)
    (window,) = recorder.log._windows.values()
    assert len(window.last) <= refusal_log.TEXT_LENGTH_MAX + 1


def test_refusal_names_the_address_of_the_client() -> None:
    """Every program of librdkafka's is called 'rdkafka'. The address makes no lines of its own: it is still one client and one topic."""
    log = RefusalLog()
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        log.log_refused(api="Produce", client="rdkafka", subject="t-0", within="t", code="NOT", reason="why", steady_ms=NOW_MS, host=host)
    assert [line.text for line in log.take()] == ["refused: Produce from client 'rdkafka' at 10.0.0.1 for t-0: NOT: why"]
    assert log.run_due(NOW_MS + 1000) == ["refused: client 'rdkafka' at t: 2 more since the last line: NOT 2"]


def test_control_characters_are_escaped_into_one_line() -> None:
    recorder = LogRecorder()
    recorder.log_refusal(client="evil\nERROR disk full\x1b[31m\r", topic="or\x00ders", why="say\n" + "x" * 100_000)
    recorder.log_refusal(client="evil\nERROR disk full\x1b[31m\r", topic="or\x00ders")
    recorder.advance(1000)
    assert len(recorder.lines) == 2
    assert r"'evil\nERROR disk full\x1b[31m\r'" in recorder.lines[0]
    assert all(line.isprintable() and len(line) < 1100 for line in recorder.lines)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 3), st.integers(0, 1500)), max_size=200))
def test_no_count_is_lost(refusals: list[tuple[int, int, int]]) -> None:
    recorder = LogRecorder()
    for client, topic, pause_ms in refusals:
        recorder.log_refusal(client=str(client), topic=str(topic))
        recorder.advance(pause_ms)
    recorder.end()
    assert recorder.refusals_logged() == len(refusals)
