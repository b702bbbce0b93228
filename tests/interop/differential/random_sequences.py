"""Sequences of random requests, each made by its seed; one that is answered differently is cut down to the requests that it takes."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.interop.differential.cases_topics import created
from tests.interop.differential.comparison import Difference
from tests.interop.differential.expected_differences import expected_difference
from tests.interop.differential.peer import Peer
from tests.interop.differential.random_groups import GROUPING
from tests.interop.differential.random_model import TOPICS, Make, Model
from tests.interop.differential.random_options import OPTIONS
from tests.interop.differential.random_steps import WRITING
from tests.interop.differential.requests import request, wall_ms
from tests.interop.differential.sequence import Step, compared, run

LENGTH = 40
KINDS: dict[str, tuple[tuple[int, Make], ...]] = {"writing": WRITING, "groups": GROUPING, "options": OPTIONS}
_SHOWN = 300
_runs = itertools.count(wall_ms())  # An Apache Kafka may have been asked before.


def sequence(seed: int, begun_ms: int) -> list[Step]:
    """The requests of a seed, behind those that create its topics. Neighbouring seeds are of different kinds."""
    model = Model(random.Random(seed), begun_ms)
    table = list(KINDS.values())[seed % len(KINDS)]
    steps = [_topics()]
    while len(steps) < LENGTH:
        made = model.rng.choices([make for _, make in table], [weight for weight, _ in table])[0](model)
        steps += made if isinstance(made, list) else [made]
    return steps


def _topics() -> Step:
    """Kept for ever: cases have old times."""
    options: dict[str, dict[str, Any]] = {"{run}-c": {"cleanup_policy": "compact"}}
    topics = [created(name, count, retention_ms="-1", **options.get(name, {})) for name, count in TOPICS.items() if count]
    return Step(api="CreateTopics", version=7, values={"topics": topics, "timeout_ms": 10_000}, settles=True)


@dataclass
class Tried:
    """What came of all sequences. `used`: the patterns of `expected_differences.py` that something needed."""

    requests: int = 0
    differences: int = 0
    used: set[str] = field(default_factory=set)


def try_all(peers: tuple[Peer, Peer], seeds: Iterable[int]) -> Tried:
    """Prints each sequence that is answered differently, cut down."""
    tried, begun_ms = Tried(), wall_ms()
    for peer, kind in itertools.product(peers, (0, 1)):
        # Apache Kafka creates what coordinators keep their state in when it is first asked for one.
        peer.quietly(request("FindCoordinator", coordinator_keys=["any"], key_type=kind), 4)
    for seed in seeds:
        steps = sequence(seed, begun_ms)
        tried.requests += len(steps)
        found = _differences(peers, steps, tried.used)
        if found is None:
            continue
        tried.differences += 1
        for step, difference in _cut_down(peers, steps, found):
            print(f"seed {seed}: {step!s:.{_SHOWN}}{_told(difference)}", flush=True)
    return tried


Found = tuple[int, Difference]


def _differences(peers: tuple[Peer, Peer], steps: Sequence[Step], used: set[str]) -> Found | None:
    """The first unintended difference: its step, and the difference."""
    name = f"r{next(_runs)}"
    with ThreadPoolExecutor(len(peers)) as pool:
        theirs, ours = pool.map(lambda peer: run(peer, steps, name), peers)
    for index, difference in compared(steps, theirs, ours):
        pattern = expected_difference(_place(steps[index], difference), difference)
        if pattern is None:
            return index, difference
        used.add(pattern)
    return None


def _place(step: Step, difference: Difference) -> str:
    return f"random {step.api} v{step.version}: {difference[0]}"


def _told(difference: Difference | None) -> str:
    if difference is None:
        return ""
    path, one, other = difference
    return f"\n    {path}: Apache Kafka {one!r:.{_SHOWN}}, chaffinch {other!r:.{_SHOWN}}"


def _cut_down(peers: tuple[Peer, Peer], steps: list[Step], found: Found) -> list[tuple[Step, Difference | None]]:
    """Without the requests that are not needed for a difference of the same kind, asked one by one from the last to the first."""
    steps, kind = steps[: found[0] + 1], _kind(steps, found)
    for index in range(len(steps) - 2, 0, -1):
        fewer = steps[:index] + steps[index + 1 :]
        again = _differences(peers, fewer, set())
        if again is not None and _kind(fewer, again) == kind:
            steps, found = fewer[: again[0] + 1], again
    return [(step, found[1] if index == found[0] else None) for index, step in enumerate(steps) if index or not found[0]]


def _kind(steps: Sequence[Step], found: Found) -> tuple[str, str]:
    return steps[found[0]].api, re.sub(r"\[[^\]]*\]", "[]", found[1][0])
