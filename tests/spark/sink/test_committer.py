"""What surrounds a commit in the sink, without Spark: rates, folders, names, and what is left behind by what fails."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import BatchCounts, StagedBatch, StagedBytes, TaskOutcome
from chaffinch.spark.commit.plan import CommitResult
from chaffinch.spark.commit.protocol import _check_outcomes
from chaffinch.spark.commit.timeout import transaction_timeout_ms
from chaffinch.spark.refusals import Refusal, refusal_for
from chaffinch.spark.sink import committer, writers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.row_check import GoodRows
from tests.spark.commit.commit_world import TOPIC

SNAPSHOT = TargetSnapshot(topics=(TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),))
FACTS = TaskContextFacts(task=0, query_id="11111111-2222", run_id="r", batch_id=3, master="spark://cluster")
LOCAL_FACTS = replace(FACTS, master="local[2]")
MIB = 1 << 20


@pytest.fixture
def forget_push_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was measured by this process yet."""
    monkeypatch.setattr(committer, "_push_bytes_per_s", {})


def stream(**options: str) -> writers.StreamWriter:
    given = {"kafka.bootstrap.servers": "a:1", "topic": TOPIC, **options}
    return writers.StreamWriter(SinkOptions.parse(given, is_stream=True), SNAPSHOT, None)


def sized(byte_count: int) -> tuple[TaskOutcome]:
    part = StagedBatch(topic_partition=TopicPartition(TOPIC, 0), record_count=1, bytes=StagedBytes(file="f", byte_count=byte_count))
    return (TaskOutcome(context=FACTS, row_count=1, batches=(part,)),)


def written(byte_count: int, push_ms: int) -> CommitResult:
    return CommitResult(outcome="written", counts=BatchCounts(rows_written=1, byte_count=byte_count, push_ms=push_ms))


@pytest.mark.usefixtures("forget_push_rates")
class TestRates:
    @pytest.mark.parametrize(
        "before",
        [
            [written(2 * MIB, 600)] * 20,  # Round trips, not the network, took the time.
            [written(64 * MIB, 60_000)],  # The broker was restarted during it.
        ],
    )
    def test_push_rate_of_earlier_batches_allows_a_large_one(self, before: Sequence[CommitResult]) -> None:
        writer = stream()
        for result in before:
            writer.committer.update_push_rate(result)
        assert transaction_timeout_ms(writer.committer.plan(sized(5_000_000_000), FACTS, 3)) <= 900_000

    def test_push_rate_follows_a_slow_network(self) -> None:
        writer = stream()
        for _ in range(10):
            writer.committer.update_push_rate(written(64 * MIB, 64_000))
        assert transaction_timeout_ms(writer.committer.plan(sized(100 * MIB), FACTS, 3)) > 300_000
        with pytest.raises(Refusal, match="may last 900000 ms"):
            transaction_timeout_ms(writer.committer.plan(sized(5_000_000_000), FACTS, 3))


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_group_of_a_stream_for_each_guarantee(guarantee: str) -> None:
    """Where tasks send, too: the marker of a batch before may have to be finished."""
    given = {} if guarantee == "exactly-once" else {"deliveryGuarantee": guarantee}
    assert stream(**given).committer.plan(sized(MIB), FACTS, 3).group_id == f"chaffinch-{FACTS.query_id}"


def test_retry_policy_uses_client_backoff() -> None:
    """kafka.retry.backoff.ms, doubled up to kafka.retry.backoff.max.ms, a fifth more or less."""
    writer = stream(**{"kafka.retry.backoff.ms": "40", "kafka.retry.backoff.max.ms": "100", "kafka.max.block.ms": "7000"})
    retry_policy = writer.committer.plan(sized(MIB), FACTS, 3).retry_policy
    assert retry_policy.block_max_ms == 7_000
    for failures, nominal_ms in enumerate((40, 80, 100, 100), 1):
        waited = {retry_policy.wait_ms(failures) for _ in range(50)}
        assert len(waited) > 1, "those who fail together do not come back together"
        assert 0.8 * nominal_ms - 1 <= min(waited) <= max(waited) <= 1.2 * nominal_ms


def large_task(rows: int = 30, value: bytes = b"x" * 100_000) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array([b"k"] * rows), "value": pa.array([value] * rows)})


class TestStagedFilesAfterFailure:
    def test_failed_task_removes_its_staged_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writers, "task_facts", lambda: LOCAL_FACTS)
        writer = stream(stagingLocation=str(tmp_path))

        def rows() -> Iterator[pa.RecordBatch]:
            for _ in range(10):
                yield large_task()
            assert [path for path in tmp_path.rglob("*") if path.is_file()]
            raise RuntimeError("Spark's side broke")

        with pytest.raises(RuntimeError):
            writer.write(rows())
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_task_failed_by_kafka_removes_its_staged_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writers, "task_facts", lambda: LOCAL_FACTS)
        writer = stream(stagingLocation=str(tmp_path))
        calls = iter(range(100))
        stage = "chaffinch.spark.tasks.task_stager.TaskStager._stage_rows"
        from chaffinch.spark.tasks.task_stager import TaskStager

        original = TaskStager._stage_rows

        def breaks(self: TaskStager, *arguments: GoodRows) -> None:
            if next(calls) == 3:
                raise Refusal(Group.INVALID_CONFIGURATION, "X", "no more")
            return original(self, *arguments)

        monkeypatch.setattr(stage, breaks)
        outcome = writer.write(iter([large_task(200)] * 10)).outcome
        assert outcome.failure is not None
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize("token", ["sales/2026-11-21", "..", "../../elsewhere", "ä" * 200])
    def test_token_folder_is_below_staging_location(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
        monkeypatch.setattr(writers, "task_facts", lambda: TaskContextFacts(task=0, master="local[2]"))
        options = {
            "kafka.bootstrap.servers": "a:1",
            "topic": TOPIC,
            "stagingLocation": str(tmp_path / "a" / "b"),
            "idempotencyToken": token,
        }
        writer = writers.BatchWriter(SinkOptions.parse(options, is_stream=False), SNAPSHOT, token)
        outcome = writer.write(iter([large_task(200)])).outcome
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
        assert file.relative_to(tmp_path).parts[:2] == ("a", "b")
        assert len(file.relative_to(tmp_path).parts) == 5
        writer.committer.clean_up([outcome], 0)
        assert list((tmp_path / "a" / "b").iterdir()) == []


OF_KAFKA_SINK = {"chaffinch.sink": "s", "chaffinch.batch.id": "3"}


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({}, "run it again"),
        ({"idempotencyToken": "t"}, "run it again"),
        (OF_KAFKA_SINK, "start the query again"),
    ],
    ids=["batch", "token", "foreachBatch"],
)
def test_advice_in_batch_write_errors(monkeypatch: pytest.MonkeyPatch, given: Mapping[str, str], advice: str) -> None:
    """In the planner and in the commit; of a task's failure too."""

    def fails(*_: object) -> None:
        raise refusal_for(codes.COORDINATOR_LOAD_IN_PROGRESS, "no answer")

    options = {"kafka.bootstrap.servers": "a:1", "topic": TOPIC, **given}
    schema = StructType().add("value", "string")
    monkeypatch.setattr(writers, "_planned", fails)
    with pytest.raises(Refusal) as planned:
        writers.planned_batch_writer(options, schema, overwrite=False)
    monkeypatch.setattr(writers, "_planned", lambda _: SNAPSHOT)
    writer = writers.planned_batch_writer(options, schema, overwrite=False)
    failed = TaskOutcome(context=FACTS, failure=writers.failure_of(refusal_for(codes.COORDINATOR_LOAD_IN_PROGRESS, "no answer")))
    monkeypatch.setattr(committer.Committer, "run", lambda self, outcomes, batch_id: _check_outcomes(self.plan(outcomes, FACTS, batch_id)))
    with pytest.raises(Refusal) as committed:
        writer.commit([writers.CommitMessage(failed)])
    assert planned.value.text == f"no answer; {advice}"
    assert committed.value.text == f"task 0: no answer; {advice}"


@pytest.mark.parametrize(
    ("given", "task_batch_id", "batch_id"),
    [(OF_KAFKA_SINK, None, 3), (OF_KAFKA_SINK, 5, 3), ({}, 5, 5), ({}, None, 0)],
    ids=["KafkaSink on Spark Connect", "KafkaSink", "a stream", "a batch write"],
)
def test_dead_letters_have_their_batch_id(given: Mapping[str, str], task_batch_id: int | None, batch_id: int) -> None:
    """On Spark Connect, Spark does not give it to tasks."""
    options = SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "topic": TOPIC, **given}, is_stream=False)
    plan = writers.task_plan(options, SNAPSHOT, replace(FACTS, batch_id=task_batch_id), "q")
    assert (plan.origin.query, plan.origin.batch_id, plan.origin.task) == ("q", batch_id, FACTS.task)
