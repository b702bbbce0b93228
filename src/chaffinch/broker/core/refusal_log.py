"""The broker's lines about what it refused: one per refusal, but a client that is refused again and again is counted and not repeated.

KIP-579's motivation names the fault: a misconfigured producer that retries filled the broker's log. So the first refusal of a client at a
topic (or group, or transactional id) is a line with its reason; what follows within a second is counted, and the counts are said when the
second is over: refusals by code, other lines with the last of them, and a single one is said itself, so that another fault of the same
origin is explained too. While there is something to count the intervals double, up to a minute. Whoever comes under ever new names meets a
limit of lines per second for all together. No count is lost: what is left is said when the broker ends.

What a line quotes comes from outside: control characters are escaped, and long texts cut.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace

from chaffinch.broker.core.events import LogLine

INTERVAL_MS = 1000
INTERVAL_MS_MAX = 60_000
QUIET_MS = 10_000
"""After an interval without anything to count, so much quiet makes an end of it; a refusal before is a line, and the interval is longer."""
LINES_PER_INTERVAL_MAX = 50
WINDOWS_MAX = 10_000
"""Clients and topics that are counted at a time; others are only counted all together."""
TEXT_LENGTH_MAX = 1000
NAME_LENGTH_MAX = 100
LAST_LENGTH_MAX = 300
"""Of the line that stands for those that were counted."""


@dataclass(slots=True)
class _Window:
    """What was left out of one kind since its last line, and the last of it. `prefix` begins the line that says so. `is_quiet`: the
    next one is a line again."""

    prefix: str
    length_ms: int = INTERVAL_MS
    ends_at_ms: int = 0
    is_quiet: bool = False
    omitted: Counter[str] = field(default_factory=Counter)
    last: str = ""


class RefusalLog:
    """Collects `lines` for the shell; `take` empties it. A chore: counts are due when their interval is over."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self._windows: dict[tuple[str, str], _Window] = {}
        self._ends: list[tuple[int, tuple[str, str]]] = []  # A heap; of a window's entries the one at its `ends_at_ms` counts.
        self._interval_end_ms = 0
        self._interval_lines = 0
        self._suppressed = 0
        self._without_effect: set[str] = set()

    def log_refused(
        self, *, api: str, client: str, subject: str, within: str, code: str, reason: str, steady_ms: int, host: str = ""
    ) -> None:
        """One refusal. `subject`: a topic-partition, a group, a transactional id; `within`: the topic, or the place again; `host`:
        where the client is, if that is known."""
        client, within = f"'{_cut(client, NAME_LENGTH_MAX)}'", _cut(within, NAME_LENGTH_MAX)
        origin = f"client {client} at {host}" if host else f"client {client}"
        text = f"refused: {api} from {origin} for {_cut(subject, NAME_LENGTH_MAX)}: {code}: {reason.removeprefix(f'{code}: ')}"
        self._log_rate_limited((client, within), f"refused: client {client} at {within}", code, text, steady_ms)

    def log_rate_limited(self, kind: str, origin: str, text: str, steady_ms: int) -> None:
        """A line of this kind that may come again and again from the same origin."""
        self._log_rate_limited((kind, origin), f"{kind} from {_cut(origin, NAME_LENGTH_MAX)}", "", text, steady_ms)

    def log(self, line: str | LogLine) -> None:
        """A line that comes once."""
        report = line if isinstance(line, LogLine) else LogLine(line)
        self.lines.append(replace(report, text=_cut(report.text, TEXT_LENGTH_MAX)))

    def log_within_limit(self, line: str | LogLine, steady_ms: int) -> None:
        """A line that clients can bring about as often as they like, each time for something else: transactions that time out."""
        if self._is_within_limit(steady_ms):
            self.log(line)
        else:
            self._suppressed += 1

    def log_without_effect(self, option: str, value: object, where: str = "", instead: str | None = None) -> None:
        """An option that Apache Kafka knows was given, and changes nothing here: one line for it, however often it is given. `instead`:
        what has its effect here."""
        kind = "topic option" if where else "option"
        if (kind + option) not in self._without_effect:
            self._without_effect.add(kind + option)
            remedy = f": use {instead}" if instead else ""
            self.log(f"{kind} {option}={value}{where} is known to Apache Kafka and without effect here{remedy}")

    def take(self) -> list[LogLine]:
        lines, self.lines = self.lines, []
        return lines

    # As a chore -----------------------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        if self._suppressed:
            return min(self._interval_end_ms, self._ends[0][0]) if self._ends else self._interval_end_ms
        return self._ends[0][0] if self._ends else None

    def expire(self, steady_ms: int) -> list[str]:
        lines = []
        while self._ends and self._ends[0][0] <= steady_ms:
            ends_at_ms, key = heapq.heappop(self._ends)
            window = self._windows.get(key)
            if window is None or window.ends_at_ms != ends_at_ms:
                continue  # It was given another end since.
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
        """All that was counted and not said yet: the broker ends."""
        for window in self._windows.values():
            if window.omitted:
                self.log(_counted(window))
        self._windows.clear()
        self._ends.clear()
        if self._suppressed:
            self.log(self._take_suppressed())
        return self.take()

    # Inside ---------------------------------------------------------------------------------------------------------------------------

    def _log_rate_limited(self, key: tuple[str, str], prefix: str, label: str, text: str, steady_ms: int) -> None:
        window = self._windows.get(key)
        if window is not None and not window.is_quiet:
            window.omitted[label] += 1
            window.last = text[: TEXT_LENGTH_MAX + 1]  # One more than is said, so that it is seen to be cut.
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
        """Whether one more line may be said in this interval; it is counted if so."""
        if steady_ms >= self._interval_end_ms:
            self._interval_end_ms = steady_ms + INTERVAL_MS
            self._interval_lines = 0
        if self._interval_lines >= LINES_PER_INTERVAL_MAX:
            return False
        self._interval_lines += 1
        return True

    def _lengthen(self, key: tuple[str, str], window: _Window, steady_ms: int) -> None:
        """Once more, and longer."""
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
        return f"{count} more lines left out: there were too many at once"


def _counted(window: _Window) -> str:
    total = window.omitted.total()
    if total == 1:
        return _cut(window.last, TEXT_LENGTH_MAX)
    counts = ", ".join(f"{label} {count}" for label, count in sorted(window.omitted.items()) if label)
    details = f": {counts}" if counts else f", the last: {_cut(window.last, LAST_LENGTH_MAX)}"
    return f"{window.prefix}: {total} more since the last line{details}"


def _cut(text: str, length_max: int) -> str:
    """One line of printable characters."""
    cut = text if len(text) <= length_max else f"{text[:length_max]}..."
    if cut.isprintable():
        return cut
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in cut)
