"""Every world has its required events: records, a broker crash and a lost response.

The seeds are those whose random events alone would not be enough."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from simulation.nemesis import FaultSchedule
from simulation.network import CALM
from simulation.report import CRASHES_UNDER_FAULTS, PRODUCE_RESPONSES_LOST
from simulation.scenario import run

ONE_PRODUCER: dict[str, Any] = {
    "plain_count": 1,
    "transactional_count": 0,
    "version_2_count": 0,
    "query_count": 0,
    "reader_count": 0,
    "transformer_count": 0,
}
NEVER = 10_000


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("records", [3, 250])
def test_answer_is_lost_even_with_few_requests(records: int) -> None:
    report = run(3, **ONE_PRODUCER, producer_records=records, faults=CALM, lost_response_at=NEVER)
    assert (report.violations, report.missing) == ((), ())
    assert report.counters[PRODUCE_RESPONSES_LOST] == 1


def test_broker_crashes_later_if_it_is_down() -> None:
    """The broker is stopped cleanly again and again, and the producers could be done before."""
    fault_schedule = FaultSchedule(
        broker_death_ms=20, in_operation_share=0.0, clean_stop_share=1.0, dies_starting_share=0.0, first_death_ms=300
    )
    reports = [run(seed, **ONE_PRODUCER, faults=CALM, fault_schedule=fault_schedule) for seed in range(6)]
    assert [(report.violations, report.missing) for report in reports] == [((), ())] * len(reports)
    assert [report.counters[CRASHES_UNDER_FAULTS] for report in reports] == [1] * len(reports)


def test_world_waits_for_its_crash() -> None:
    report = run(3, **ONE_PRODUCER, producer_records=3, required_records=0, faults=CALM, fault_schedule=FaultSchedule(first_death_ms=5_000))
    assert report.violations == ()
    assert report.counters[CRASHES_UNDER_FAULTS] == 1
