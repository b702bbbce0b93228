"""What the Spark part of `make soak` would find: one line for each thing that can be wrong; and what its rounds are."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from chaffinch.spark.commit.operations import Step
from tests.soak.spark import AFTER_A_FAILURE, LAST, ON_A_CLUSTER, SPARK_ROUNDS, Kind, events_of, lives_of
from tests.soak.spark_checker import doubled, lost, miscounted
from tests.soak.spark_memory import APPLICATION, COMMITTER, JVM, PLANNER, TASK, Peaks
from tests.soak.spark_query import essence
from tests.soak.spark_variants import DIRECT_STEPS, PARTS


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (["a", "b"], []),
        (["a"], ["t: 1 of 2 keys are missing, for example ['b']"]),
        (["a", "b", "b"], ["t: 1 of 2 keys are there more than once, for example ['b']"]),
        (["a", "b", "c"], ["t: 1 of 2 keys are there, but ought not to be, for example ['c']"]),
    ],
)
def test_miscounts_are_reported(found: list[str], says: list[str]) -> None:
    assert list(miscounted("t", Counter(found), {"a", "b"})) == says


@pytest.mark.parametrize("seed", range(5))
def test_rounds_cover_every_kind_and_every_step(seed: int) -> None:
    events = events_of(SPARK_ROUNDS, random.Random(seed))
    assert len(events) == SPARK_ROUNDS
    assert {event.kind for event in events} == set(Kind) - set(ON_A_CLUSTER)
    assert {event.step for event in events if event.kind is Kind.DRIVER} == set(Step) - set(AFTER_A_FAILURE)


@pytest.mark.parametrize("rounds", [1, 2, 7, SPARK_ROUNDS, 200])
def test_lives_contain_all_events_and_end_with_their_driver(rounds: int) -> None:
    events = events_of(rounds, random.Random(1))
    lives = list(lives_of(events))
    assert [event for life in lives for event in life] == events
    for life in lives:
        assert all(event.kind not in LAST for event in life[:-1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "kinds", "steps"),
    [
        ("executors", {Kind.EXECUTOR, Kind.EXECUTORS, Kind.DRIVER}, None),
        ("foreachBatch", {Kind.STOP_TASKS, Kind.DRIVER}, {None, *Step} - set(AFTER_A_FAILURE)),
        ("at-least-once", {Kind.STOP_TASKS, Kind.TASK_WORKER, Kind.DRIVER}, {None, *DIRECT_STEPS}),
    ],
)
def test_rounds_of_each_variant_cover_their_events(name: str, kinds: set[Kind], steps: set[Step | None] | None, seed: int) -> None:
    (part,) = (part for part in PARTS if part.name == name)
    events = part.events(part.rounds, random.Random(seed))
    assert len(events) == part.rounds
    assert {event.kind for event in events} == kinds
    assert steps is None or {event.step for event in events if event.kind is Kind.DRIVER} == steps


def test_duplicates_are_counted_and_losses_reported() -> None:
    found = Counter({"a": 3, "b": 1, "d": 1})
    assert doubled(found) == "1 of 3 more than once, at most 3 times"
    assert lost("t", found, {"a", "b", "c"}) == [
        "t: 1 of 3 keys are missing, for example ['c']",
        "t: 1 of 3 keys are there, but ought not to be, for example ['d']",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("frames\n  KAFKA[x] ANOTHER_WRITER: stop\n one SQLSTATE: 38000\n\tat java", "KAFKA[x] ANOTHER_WRITER: stop one"),
        ("f" * 300 + "\nNameError: name 'x' is not defined SQLSTATE: 1", ("f" * 300 + " NameError: name 'x' is not defined")[-240:]),
    ],
)
def test_failure_is_reduced_to_its_essence(text: str, says: str) -> None:
    assert essence(Exception(text)) == says


def test_driver_memory_excludes_task_processes() -> None:
    sizes = {JVM: 1, APPLICATION: 10, COMMITTER: 100, PLANNER: 1_000, TASK: 10_000}
    assert Peaks(of={pid: (role, size) for pid, (role, size) in enumerate(sizes.items())}).driver == 1_111
