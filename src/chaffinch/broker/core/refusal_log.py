"""The broker's lines about what it refused: one per refusal, but at most one per second for the same client, place and code.

KIP-579's motivation names the fault: a misconfigured producer that retries filled the broker's log. What was left out is counted in the
next line.
"""

from __future__ import annotations

from chaffinch.broker.core.effects import Report

INTERVAL_MS = 1000
KEYS_MAX = 10_000
"""Different refusals remembered; beyond it all are forgotten, which costs at most one line each."""


class RefusalLog:
    """Collects `lines` for the shell. `take` empties it."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._without_effect: set[str] = set()
        self.lines: list[Report] = []

    def refused(self, *, api: str, client: str, place: str, code: str, reason: str, now_ms: int) -> None:
        """One refusal. `place` is a topic-partition, a group or a transactional id."""
        self.say_seldom((client, place, code), f"refused: {api} from client {client!r} for {place}: {code}: {reason}", now_ms)

    def say_seldom(self, key: tuple[str, str, str], text: str, now_ms: int) -> None:
        """A line that may come again and again for the same key."""
        last_ms, omitted = self._last.get(key, (now_ms - INTERVAL_MS, 0))
        if 0 <= now_ms - last_ms < INTERVAL_MS:
            self._last[key] = (last_ms, omitted + 1)
            return
        if len(self._last) >= KEYS_MAX:
            self._last.clear()
        self._last[key] = (now_ms, 0)
        more = f" ({omitted} more like it since the last line)" if omitted else ""
        self.lines.append(Report(text + more))

    def say(self, text: str) -> None:
        """A line that comes once."""
        self.lines.append(Report(text))

    def without_effect(self, option: str, value: object, where: str = "") -> None:
        """An option that Apache Kafka knows was given, and changes nothing here: one line for it, however often it is given."""
        kind = "topic option" if where else "option"
        if (kind + option) not in self._without_effect:
            self._without_effect.add(kind + option)
            self.say(f"{kind} {option}={value}{where} is known to Apache Kafka and without effect here")

    def take(self) -> list[Report]:
        lines, self.lines = self.lines, []
        return lines
