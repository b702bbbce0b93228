"""Messages of tasks, and counts of a batch."""

from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import REASONS_COUNTED_MAX, BatchCounts, Rejection, StagedBatch, StagedBytes, TaskOutcome
from chaffinch.spark.task_facts import TaskContextFacts


def batch(**fields: Any) -> StagedBatch:
    return StagedBatch(topic_partition=TopicPartition("orders", 0), record_count=1, bytes=StagedBytes(**fields))


def test_files_of_a_task_include_rows_and_dead_letters() -> None:
    outcome = TaskOutcome(
        context=TaskContextFacts(task=0),
        batches=(batch(file="a", byte_count=100), batch(data=b"xyz", byte_count=3)),
        dead_batches=(batch(file="a", position=100, byte_count=20),),
        dead_rows=(StagedBytes(file="b", byte_count=7),),
    )
    assert (outcome.files(), outcome.byte_count) == ({"a", "b"}, 123)


@pytest.mark.parametrize(
    ("topic", "partition", "task", "text"),
    [
        ("orders", 2, None, "row 7 for orders-2: INVALID_RECORD: why"),
        ("orders", 2, 3, "row 7 of task 3 for orders-2: INVALID_RECORD: why"),
        ("orders", -2, 0, "row 7 of task 0 for orders: INVALID_RECORD: why"),
        ("", -1, 0, "row 7 of task 0: INVALID_RECORD: why"),
    ],
)
def test_text_of_rejection(topic: str, partition: int, task: int | None, text: str) -> None:
    rejection = Rejection(row=7, topic_partition=TopicPartition(topic, partition), code=codes.INVALID_RECORD, message="why")
    assert str(rejection if task is None else rejection.with_task(task)) == text


def test_log_line_of_a_batch() -> None:
    counts = BatchCounts(
        rows_written=5,
        rejected={"MESSAGE_TOO_LARGE": 2, "INVALID_TIMESTAMP": 1},
        byte_count=900,
        staged_bytes=800,
        staging_files=2,
        push_ms=7,
        commit_ms=3,
    )
    assert sum(counts.rejected.values()) == 3
    assert counts.line(4, "written") == (
        "batch 4: 5 rows written, 3 rejected (1 INVALID_TIMESTAMP, 2 MESSAGE_TOO_LARGE), 900 bytes, "
        "800 of them in 2 staging files, push 7 ms, commit 3 ms"
    )
    assert (
        BatchCounts(dropped={"INVALID_RECORD": 2})
        .line(5, "written")
        .startswith("batch 5: 0 rows written, 0 rejected, 2 dropped (2 INVALID_RECORD), 0 bytes")
    )
    assert counts.line(5, "skipped") == "batch 5: skipped, it is in Kafka already"
    assert counts.line(5, "empty") == "batch 5: without rows"


ALL = BatchCounts(
    rows_written=1, rejected={"A": 2}, dropped={"B": 3}, byte_count=4, staged_bytes=5, staging_files=6, push_ms=7, commit_ms=8
)


def test_counts_add_up_field_by_field() -> None:
    other = BatchCounts(
        rows_written=10, rejected={"A": 20, "C": 1}, dropped={"D": 30}, byte_count=40, staged_bytes=50, staging_files=60, push_ms=70,
        commit_ms=80,
    )  # fmt: skip
    assert ALL + other == BatchCounts(
        rows_written=11, rejected={"A": 22, "C": 1}, dropped={"B": 3, "D": 30}, byte_count=44, staged_bytes=55, staging_files=66,
        push_ms=77, commit_ms=88,
    )  # fmt: skip


def test_sums_keep_a_limited_number_of_reasons() -> None:
    total = BatchCounts(rejected={"CORRUPT_MESSAGE": 1, "INVALID_RECORD: first": 1})
    for number in range(3):
        total += BatchCounts(rejected={"INVALID_RECORD: first": 1} | {f"INVALID_RECORD: {number}.{reason}": 1 for reason in range(40)})
    reasons = [name for name in total.rejected if ": " in name]
    assert len(reasons) == REASONS_COUNTED_MAX
    assert sum(total.rejected.values()) == 2 + 3 * 41
    assert (total.rejected["INVALID_RECORD: first"], total.rejected["CORRUPT_MESSAGE"]) == (4, 1)


def test_counts_survive_as_fields() -> None:
    assert BatchCounts.from_fields(ALL.to_fields()) == ALL
    assert BatchCounts.from_fields({}) == BatchCounts()
