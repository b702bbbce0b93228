"""What the programs of this folder share: the records of the scenarios, how facts are reported, how a scenario is chosen.

A program is called as `PROGRAM SCENARIO BOOTSTRAP_SERVERS NAME`. NAME is a topic made for this run alone, and the beginning of the
names of its groups and transactional ids. A SCENARIO is `WORD` or `WORD-OPTION` (`produce-gzip`). It prints one JSON object per line;
together they are its facts, which `tests/interop/scenarios.py` describes. It ends with a status other than 0 when the client fails.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

TIMEOUT_S = 60
PAUSE_S = 0.02
COUNT = 100
FIRST_TIMESTAMP_MS = 1_700_000_000_000
"""Of record 0 of scenario `offsets`; each later one is a second younger."""

HEADERS = [("a", b"1"), ("b", b"")]
ROUND = 40
"""Records of one round of scenario `group`, ten per partition."""

CULPRIT_KEYS = [b"k", None, b"k", None, b"k"]

Records = list[tuple[bytes, bytes]]


def records(count: int = COUNT, label: str = "value") -> Records:
    """Keys and values, large enough that a codec has something to do."""
    return [(f"key-{number}".encode(), f"{label}-{number} ".encode() + b"x" * 100) for number in range(count)]


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def until(done: Callable[[], bool]) -> None:
    """Wait for what happens elsewhere."""
    limit = time.monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not done():
        if time.monotonic() > limit:
            raise TimeoutError(f"nothing more within {TIMEOUT_S} s")
        pause.wait(PAUSE_S)


def main(scenarios: Mapping[str, Callable[[str, str, str], None]]) -> None:
    word, _, option = sys.argv[1].partition("-")
    scenarios[word](sys.argv[2], sys.argv[3], option)
