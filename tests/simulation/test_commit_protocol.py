"""Spark's commit protocol cut at every step, in every way: after the restart each row is there exactly once.

Everything else is calm, so that what is tested is the cut alone; `test_seeds.py` has queries in rough worlds.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chaffinch.simulation.nemesis import Deeds
from chaffinch.simulation.network import CALM
from chaffinch.simulation.queries import Cut, CutKind
from chaffinch.simulation.scenario import Report, run
from chaffinch.spark.operations import Step

AFTER_A_FAILURE = (Step.ABORT, Step.READ_MARKER_AFTER_FENCING)
"""Steps that no undisturbed commit takes; see the cuts in a row below."""
STEPS = [step for step in Step if step not in AFTER_A_FAILURE]
LOST_PUSH = Cut(kind=CutKind.ANSWER_LOST, step=Step.PUSH)
ZOMBIE = Cut(kind=CutKind.ZOMBIE, step=Step.PUSH)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def query_world(seed: int, *cuts: Cut, **knobs: Any) -> Report:
    """One query in a calm world but for the cuts."""
    calm: dict[str, Any] = {"plain_count": 0, "transactional_count": 0, "query_count": 1, "faults": CALM, "deeds": Deeds(), "node_count": 1}
    calm |= {"version_2_count": 0, "query_rows": 40, "query_has_checkpoint": True, "bad_share": 0.1, "validation_first_share": 0.0}
    return run(seed, cuts=cuts, **{**calm, **knobs})


@pytest.mark.parametrize("kind", CutKind, ids=lambda kind: kind.name.lower())
def test_one_cut(kind: CutKind) -> None:
    """The first and the second operation of each step."""
    for step in STEPS:
        for occurrence in (0, 1):
            report = query_world(occurrence, Cut(kind=kind, step=step, occurrence=occurrence))
            assert report.violations == (), (step, occurrence)
            # The id is fixed once in a query's life.
            is_reached = not (step is Step.FIX_TRANSACTIONAL_ID and occurrence)
            assert report.counters.get(f"cut: {kind.value}", 0) == is_reached, (step, occurrence)


@pytest.mark.parametrize("kind", CutKind, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize(
    ("first", "step"),
    [(ZOMBIE, Step.READ_MARKER_AFTER_FENCING), (LOST_PUSH, Step.ABORT)],
    ids=["fenced", "started again"],
)
def test_a_cut_after_a_failure(first: Cut, step: Step, kind: CutKind) -> None:
    """A driver that was fenced, or has to start its transaction again, is cut once more."""
    reached = 0
    for seed in range(3):
        report = query_world(seed, first, Cut(kind=kind, step=step), bad_share=0.4, query_rows=60)
        assert report.violations == (), seed
        cuts = 1 + (first.kind is kind)
        reached += report.counters.get(f"cut: {kind.value}", 0) == cuts
    assert reached, "no seed came to the second cut"


@pytest.mark.parametrize("kind", [CutKind.DRIVER_DIES_AFTER, CutKind.ANSWER_LOST, CutKind.BROKER_DIES_DURING, CutKind.ZOMBIE])
@pytest.mark.parametrize("step", [Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION])
def test_without_a_known_checkpoint(kind: CutKind, step: Step) -> None:
    """The marker alone must do."""
    report = query_world(5, Cut(kind=kind, step=step), query_has_checkpoint=False)
    assert report.violations == ()


@pytest.mark.parametrize("step", [Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION, Step.NOTE_DONE])
def test_power_is_lost_in_the_middle(step: Step) -> None:
    """With flush.policy=always, by a broker that dies inside its operations again and again."""
    deeds = Deeds(broker_death_ms=60, power_loss_share=1.0, in_operation_share=0.8)
    report = query_world(3, Cut(kind=CutKind.DRIVER_DIES_AFTER, step=step), deeds=deeds, flush_policy="always")
    assert report.violations == ()
    assert report.counters["broker power lost"]


def test_a_batch_that_is_in_kafka_is_skipped() -> None:
    """The driver dies between Kafka's commit and Spark's own: the next one finds the marker."""
    report = query_world(1, Cut(kind=CutKind.DRIVER_DIES_AFTER, step=Step.END_TRANSACTION))
    assert report.violations == ()
    assert report.counters["batches skipped"] == 1
