"""A real query and a real broker process, killed at named steps; every row is counted by a client of others. `make soak` has all steps."""

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaffinch.spark.commit.operations import Step
from tests.soak.killed_broker import KilledBroker
from tests.soak.spark import BROKER_CONFIG, TOPICS, Event, Kind, Run
from tests.soak.spark_query import gate_name, opened_path, started

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

EVENTS = [
    Event(kind=Kind.COMMITTER, step=Step.PUSH),
    Event(kind=Kind.BROKER, step=Step.COMMIT_MARKER),
    Event(kind=Kind.DRIVER, step=Step.END_TRANSACTION),
]


def test_killed_query_writes_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """The committing worker dies in the middle of the push, the broker before the commit, the driver when Kafka has committed."""
    with KilledBroker(tmp_path / "broker", flush_policy="os", topics=TOPICS, config=BROKER_CONFIG) as broker:
        run = Run(tmp_path, broker, random.Random(1))
        try:
            run.live(EVENTS)
        finally:
            run.close()
        checkpoint = run.query_folder / "checkpoint"
        assert not (checkpoint / "commits" / "2").exists()
        query = started(spark, run.query_folder / "input", checkpoint, run.options)
        assert query.awaitTermination(240)
        assert run.verdict() == []
        assert len(run.good) == len(EVENTS) * 285


def test_query_stopped_in_task_continues_from_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with KilledBroker(tmp_path / "broker", flush_policy="os", topics=TOPICS, config=BROKER_CONFIG) as broker:
        run = Run(tmp_path, broker, random.Random(1))
        try:
            run.add(has_gate=True)
            query_folder = run.query_folder
            os.mkfifo(query_folder / "events")
            given = spark, query_folder / "input", query_folder / "checkpoint", run.options, query_folder
            query = started(*given)
            assert (query_folder / "events").read_text().startswith(gate_name(0)), "a task runs"
            query.stop()
            assert (query.isActive, query.exception()) == (False, None)
            opened_path(query_folder, gate_name(0)).touch()
            assert started(*given).awaitTermination(240)
        finally:
            run.close()
        assert run.verdict() == []
        assert len(run.good) == 285
