"""Refusal log: one line per refused request, rate-limited. Repeated refusals of the same client are counted instead.

KIP-579's motivation names the problem: a misconfigured producer that retries filled the broker's log. The first refusal of a client for a
topic (or group, or transactional id) is logged with its reason. Further ones within a second are counted, and the counts are logged when
the second is over: refusals by code, other lines with the last of them. A single further line is logged as it is, so that another error of
the same origin is explained too.

While there is something to count, the intervals double, up to a minute. Clients that use ever new names are bounded by a limit of lines per
second for all together. No count is lost: the rest is logged when the broker stops.

Quoted text comes from clients: control characters are escaped, and long texts are cut.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace

from chaffinch.broker.core.events import LogLine

INTERVAL_MS = 1000
INTERVAL_MS_MAX = 60_000
QUIET_MS = 10_000
"""After an interval without further lines, this quiet time ends the series. Until then a refusal is logged, and
lengthens the next interval."""
LINES_PER_INTERVAL_MAX = 50
WINDOWS_MAX = 10_000
"""Number of clients and topics that are counted separately; all others are counted together."""
TEXT_LENGTH_MAX = 1000
NAME_LENGTH_MAX = 100
LAST_LENGTH_MAX = 300
"""Length limit of the last line in a summary."""


@dataclass(slots=True)
class _Window:
    """Suppressed lines of one kind since its last line, and the last of them. `prefix` begins the summary. `is_quiet`: the next line is
    logged.
    """

    prefix: str
    length_ms: int = INTERVAL_MS
    ends_at_ms: int = 0
    is_quiet: bool = False
    omitted: Counter[str] = field(default_factory=Counter)
    last: str = ""


class RefusalLog:
    """Collects `lines` for the shell; `take` empties it. A scheduled task: summaries are due when their interval is over."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self._windows: dict[tuple[str, str], _Window] = {}
        self._ends: list[tuple[int, tuple[str, str]]] = []  # A heap; an entry is valid if it equals its window's `ends_at_ms`.
        self._interval_end_ms = 0
        self._interval_lines = 0
        self._suppressed = 0
        self._without_effect: set[str] = set()

    def log_refused(
        self, *, api: str, client: str, subject: str, within: str, code: str, reason: str, steady_ms: int, host: str = ""
    ) -> None:
        """Log a refusal. `subject`: a topic-partition, a group, a transactional id; `within`: its topic, or the subject itself; `host`: the
        client's host, if known.
        """
        client, within = f"'{_cut(client, NAME_LENGTH_MAX)}'", _cut(within, NAME_LENGTH_MAX)
        origin = f"client {client} at {host}" if host else f"client {client}"
        text = f"refused: {api} from {origin} for {_cut(subject, NAME_LENGTH_MAX)}: {code}: {reason.removeprefix(f'{code}: ')}"
        self._log_rate_limited((client, within), f"refused: client {client} at {within}", code, text, steady_ms)

    def log_rate_limited(self, kind: str, origin: str, text: str, steady_ms: int) -> None:
        """Log a line of a kind that may repeat often from the same origin."""
        self._log_rate_limited((kind, origin), f"{kind} from {_cut(origin, NAME_LENGTH_MAX)}", "", text, steady_ms)

    def log(self, line: str | LogLine) -> None:
        """Log a line without a limit."""
        report = line if isinstance(line, LogLine) else LogLine(line)
        self.lines.append(replace(report, text=_cut(report.text, TEXT_LENGTH_MAX)))

    def log_within_limit(self, line: str | LogLine, steady_ms: int) -> None:
        """Log a line that clients can cause as often as they like, each time for a different subject, for example transactions that
        time out.
        """
        if self._is_within_limit(steady_ms):
            self.log(line)
        else:
            self._suppressed += 1

    def log_without_effect(self, option: str, value: object, where: str = "", instead: str | None = None) -> None:
        """Log once that a given option is known to Apache Kafka and has no effect here. `instead`: the replacement."""
        kind = "topic option" if where else "option"
        if (kind + option) not in self._without_effect:
            self._without_effect.add(kind + option)
            remedy = f": use {instead}" if instead else ""
            self.log(f"{kind} {option}={value}{where} is known to Apache Kafka and without effect here{remedy}")

    def take(self) -> list[LogLine]:
        lines, self.lines = self.lines, []
        return lines

    # Scheduled task -------------------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        if self._suppressed:
            return min(self._interval_end_ms, self._ends[0][0]) if self._ends else self._interval_end_ms
        return self._ends[0][0] if self._ends else None

    def run_due(self, steady_ms: int) -> list[str]:
        lines = []
        while self._ends and self._ends[0][0] <= steady_ms:
            ends_at_ms, key = heapq.heappop(self._ends)
            window = self._windows.get(key)
            if window is None or window.ends_at_ms != ends_at_ms:
                continue  # Its end has been changed since then.
            if window.omitted:
                lines.append(_counted(window))
                self._lengthen(key, window, steady_ms)
            elif window.is_quiet:
                del self._windows[key]
            else:
                window.is_quiet = True
                self._end_at(key, window, steady_ms + QUIET_MS)
        if self._suppressed and steady_ms >= self._interval_end_ms:
            lines.append(self._take_suppressed())
        return lines

    def end(self) -> list[LogLine]:
        """Log all remaining counts when the broker stops."""
        for window in self._windows.values():
            if window.omitted:
                self.log(_counted(window))
        self._windows.clear()
        self._ends.clear()
        if self._suppressed:
            self.log(self._take_suppressed())
        return self.take()

    # Internal -------------------------------------------------------------------------------------------------------------------------

    def _log_rate_limited(self, key: tuple[str, str], prefix: str, label: str, text: str, steady_ms: int) -> None:
        window = self._windows.get(key)
        if window is not None and not window.is_quiet:
            window.omitted[label] += 1
            window.last = text[: TEXT_LENGTH_MAX + 1]  # One more character, so that it is recognized as cut.
            return
        if (window is None and len(self._windows) >= WINDOWS_MAX) or not self._is_within_limit(steady_ms):
            self._suppressed += 1
            return
        self.log(text)
        if window is None:
            window = self._windows[key] = _Window(prefix)
            self._end_at(key, window, steady_ms + window.length_ms)
        else:
            self._lengthen(key, window, steady_ms)

    def _is_within_limit(self, steady_ms: int) -> bool:
        """Whether one more line may be logged in this interval; if so, it is counted."""
        if steady_ms >= self._interval_end_ms:
            self._interval_end_ms = steady_ms + INTERVAL_MS
            self._interval_lines = 0
        if self._interval_lines >= LINES_PER_INTERVAL_MAX:
            return False
        self._interval_lines += 1
        return True

    def _lengthen(self, key: tuple[str, str], window: _Window, steady_ms: int) -> None:
        """Start a new, longer interval."""
        window.omitted.clear()
        window.last = ""
        window.is_quiet = False
        window.length_ms = min(2 * window.length_ms, INTERVAL_MS_MAX)
        self._end_at(key, window, steady_ms + window.length_ms)

    def _end_at(self, key: tuple[str, str], window: _Window, ends_at_ms: int) -> None:
        window.ends_at_ms = ends_at_ms
        heapq.heappush(self._ends, (ends_at_ms, key))

    def _take_suppressed(self) -> str:
        count, self._suppressed = self._suppressed, 0
        return f"{count} more lines suppressed: there were too many at once"


def _counted(window: _Window) -> str:
    total = window.omitted.total()
    if total == 1:
        return _cut(window.last, TEXT_LENGTH_MAX)
    counts = ", ".join(f"{label} {count}" for label, count in sorted(window.omitted.items()) if label)
    details = f": {counts}" if counts else f", the last: {_cut(window.last, LAST_LENGTH_MAX)}"
    return f"{window.prefix}: {total} more since the last line{details}"


def _cut(text: str, length_max: int) -> str:
    """One line of printable characters, cut to a length."""
    cut = text if len(text) <= length_max else f"{text[:length_max]}..."
    if cut.isprintable():
        return cut
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in cut)
