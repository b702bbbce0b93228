"""A process that writes a table is killed at each step of the commit; the next run with the same token leaves each row there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.commit.operations import Step
from chaffinch.spark.sink.pause_at_step import FILE_VARIABLE, STEP_VARIABLE
from tests.simulation.commit_cuts import STEPS_WITH_CHECKPOINT
from tests.table_writes.table_program import BAD_EVERY, DEAD, TOPIC, table_of, write

ROOT = Path(__file__).parents[2]
ROWS = 100
ONLY_AFTER_FAILURES = {Step.ABORT, Step.READ_MARKER_AFTER_FENCING}
STEPS = [step for step in Step if step not in STEPS_WITH_CHECKPOINT | ONLY_AFTER_FAILURES]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={TOPIC: {"partitions": 3, "cleanup.policy": "compact"}, DEAD: 2}) as running:
        yield running


def killed_at(step: Step, servers: str, token: str, folder: Path, events: Path) -> None:
    """Run the program until it has done a step, and kill it there."""
    os.mkfifo(events)
    variables = {**os.environ, STEP_VARIABLE: step.value, FILE_VARIABLE: str(events), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.table_writes.table_program", servers, token, str(ROWS), str(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with events.open() as lines:  # Opening a FIFO waits for its writer.
            assert lines.readline() == f"{step.value}@0 {process.pid}\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.value)
def test_write_killed_at_step_is_completed_once(broker: EmbeddedBroker, step: Step, tmp_path: Path) -> None:
    broker.reset_topic(TOPIC)
    broker.reset_topic(DEAD)
    killed_at(step, broker.bootstrap_servers, f"run-{step.value}", tmp_path / "letters", tmp_path / "events")
    is_committed = step in (Step.END_TRANSACTION, Step.NAME_DEAD_LETTERS)
    assert broker.read(TOPIC).num_rows == (ROWS - ROWS // BAD_EVERY if is_committed else 0)
    again = [write(broker.bootstrap_servers, f"run-{step.value}", ROWS, str(tmp_path / "letters")) for _ in range(2)]
    assert again == ["skipped 0" if is_committed else "written 90", "skipped 0"]
    values = table_of(ROWS).column("value").to_pylist()
    assert Counter(broker.read(TOPIC).column("value").to_pylist()) == Counter(
        value.encode() for number, value in enumerate(values) if number % BAD_EVERY
    )
    bad = Counter(value.encode() for value in values[::BAD_EVERY])
    assert Counter(broker.read(DEAD).column("value").to_pylist()) == bad
    (file,) = (tmp_path / "letters").glob("*.parquet")
    assert Counter(pq.read_table(file).column("value").to_pylist()) == bad
