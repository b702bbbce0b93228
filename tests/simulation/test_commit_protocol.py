"""Spark's commit protocol cut where the checkpoint is unknown, where power is lost, and in a batch write with a token.

`test_commit_cuts.py` has every step of a stream with a checkpoint; `test_seeds.py` has queries in rough worlds.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chaffinch.spark.commit.operations import Step
from simulation.nemesis import FaultSchedule
from simulation.network import CALM
from simulation.queries.cuts import Cut, CutKind
from simulation.report import Report
from simulation.scenario import run


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def query_world(seed: int, *cuts: Cut, **knobs: Any) -> Report:
    """One query in a calm world but for the cuts."""
    calm: dict[str, Any] = {
        "plain_count": 0,
        "transactional_count": 0,
        "query_count": 1,
        "faults": CALM,
        "fault_schedule": FaultSchedule(),
        "node_count": 1,
    }
    calm |= {"version_2_count": 0, "query_rows": 40, "query_has_checkpoint": True, "bad_share": 0.1, "validation_first_share": 0.0}
    calm |= {"reader_count": 0, "transformer_count": 0, "lost_response_at": 0}
    return run(seed, cuts=cuts, **{**calm, **knobs})


@pytest.mark.parametrize("kind", [CutKind.DRIVER_DIES_AFTER, CutKind.RESPONSE_LOST, CutKind.BROKER_DIES_DURING, CutKind.ZOMBIE])
@pytest.mark.parametrize("step", [Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION])
def test_commit_without_known_checkpoint_has_no_violations(kind: CutKind, step: Step) -> None:
    """The marker alone must do."""
    report = query_world(5, Cut(kind=kind, step=step), query_has_checkpoint=False)
    assert report.violations == ()


@pytest.mark.parametrize("step", [Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION, Step.NOTE_DONE])
def test_power_loss_during_commit_keeps_rows_once(step: Step) -> None:
    """With flush.policy=always, by a broker that repeatedly dies inside its disk operations."""
    fault_schedule = FaultSchedule(broker_death_ms=60, power_loss_share=1.0, in_operation_share=0.8)
    report = query_world(3, Cut(kind=CutKind.DRIVER_DIES_AFTER, step=step), fault_schedule=fault_schedule, flush_policy="always")
    assert report.violations == ()
    assert report.counters["broker power lost"]


def test_batch_already_in_kafka_is_skipped() -> None:
    """The driver dies between Kafka's commit and Spark's own: the next one finds the marker."""
    report = query_world(1, Cut(kind=CutKind.DRIVER_DIES_AFTER, step=Step.END_TRANSACTION))
    assert report.violations == ()
    assert report.counters["batches skipped"] == 1


@pytest.mark.parametrize("kind", CutKind, ids=lambda kind: kind.name.lower())
def test_write_with_token_is_stored_once(kind: CutKind) -> None:
    """It is one batch without a checkpoint, repeated until it succeeds: the token's marker shows whether it is written."""
    for step in (Step.READ_MARKER, Step.INIT_PRODUCER, Step.ADD_PARTITIONS, Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION):
        for first in (None, CutKind.ZOMBIE):
            cut = Cut(kind=kind, step=step, first=first)
            report = query_world(2, cut, query_is_stream=False, query_may_be_empty=False)
            assert report.violations == (), cut
            assert report.counters.keys() & {"batches written", "batches skipped"}, cut


def test_token_already_in_kafka_is_skipped() -> None:
    report = query_world(2, Cut(kind=CutKind.DRIVER_DIES_AFTER, step=Step.END_TRANSACTION), query_is_stream=False, query_may_be_empty=False)
    assert report.violations == ()
    assert report.counters["batches skipped"] == 1


@pytest.mark.parametrize("kind", [CutKind.DRIVER_DIES_BEFORE, CutKind.DRIVER_DIES_AFTER, CutKind.RESPONSE_LOST, CutKind.ZOMBIE])
def test_rows_swallowed_by_the_handler_are_not_stored(kind: CutKind) -> None:
    """Each driver calls the handler again; its decision takes effect once."""
    left_out = 0
    for step in (Step.PUSH, Step.END_TRANSACTION):
        for occurrence in (0, 4):
            cut = Cut(kind=kind, step=step, occurrence=occurrence if step is Step.PUSH else 0)
            report = query_world(4, cut, query_has_handler=True, bad_share=0.3)
            assert report.violations == (), cut
            left_out += report.counters["rows swallowed"]
    assert left_out
