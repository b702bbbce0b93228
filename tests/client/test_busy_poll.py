"""Busy polling: brief, and rare after polls without a result."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

import pytest

from chaffinch.client.busy_poll import SKIPPED_WAITS_MAX, SPIN_US, BusyPoll

LOOK_US = 10
ANSWER = ["answer"]


class Selector:
    """Each poll takes `LOOK_US`; a response arrives after the given number of microseconds, or never."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.looks = 0

    def select(self, answer_us: float | None) -> Callable[[], list[str]]:
        started_us = self.now_us

        def look() -> list[str]:
            self.looks += 1
            self.now_us += LOOK_US
            return ANSWER if answer_us is not None and self.now_us - started_us >= answer_us else []

        return look


def waits(answers_us: Sequence[float | None]) -> list[int]:
    """How often was looked in each wait."""
    selector, looks = Selector(), []
    awake = BusyPoll(lambda: selector.now_us)
    for answer_us in answers_us:
        before = selector.looks
        found = awake.poll(selector.select(answer_us))
        looks.append(selector.looks - before)
        assert looks[-1] == 0 or bool(found) == (answer_us is not None and answer_us <= LOOK_US * looks[-1])
    return looks


IN_VAIN = SPIN_US // LOOK_US
HERE = LOOK_US * 3
TABLE: list[tuple[str, list[float | None], list[int]]] = [
    ("one that is there", [0, 0], [1, 1]),
    ("one that comes soon", [HERE, HERE], [3, 3]),
    ("the next 1, 2, 4 sleep", [None] * 8, [IN_VAIN, 0, IN_VAIN, 0, 0, IN_VAIN, 0, 0]),
    ("one that comes too late is none", [SPIN_US + 100, HERE, HERE], [IN_VAIN, 0, 3]),
    ("one that came makes up for all", [None, 0, HERE, None, 0, HERE], [IN_VAIN, 0, 3, IN_VAIN, 0, 3]),
]


@pytest.mark.parametrize(("answers_us", "looks"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_number_of_polls(answers_us: list[float | None], looks: list[int]) -> None:
    assert waits(answers_us) == looks


def test_polling_resumes_after_skipped_waits() -> None:
    looks = waits([None] * 4 * SKIPPED_WAITS_MAX)
    asleep = [len(list(group)) for looked, group in itertools.groupby(looks, key=bool) if not looked]
    assert max(asleep) == SKIPPED_WAITS_MAX
    assert asleep.count(SKIPPED_WAITS_MAX) >= 2


@pytest.mark.parametrize(("answer_us", "times"), [(0, 0), (HERE, 2), (None, IN_VAIN - 1)])
def test_processor_is_yielded_between_polls(answer_us: float | None, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    yielded: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append(1), raising=False)
    waits([answer_us])
    assert len(yielded) == times


def test_polls_without_sched_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_yield", raising=False)
    assert waits([HERE, None]) == [3, IN_VAIN]
