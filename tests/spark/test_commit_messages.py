"""What tasks tell, and what of a batch is counted."""

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit_messages import BatchCounts, StagedBatch, StagedBytes, TaskOutcome
from chaffinch.spark.task_facts import TaskContextFacts


def batch(**fields):
    return StagedBatch(topic_partition=TopicPartition("orders", 0), record_count=1, bytes=StagedBytes(**fields))


def test_bytes_in_files_are_those_of_rows_and_letters_outside_the_message():
    outcome = TaskOutcome(
        context=TaskContextFacts(task=0),
        batches=(batch(file="a", byte_count=100), batch(data=b"xyz", byte_count=3)),
        dead_batches=(batch(file="a", position=100, byte_count=20),),
        dead_rows=(StagedBytes(file="b", byte_count=7),),
    )
    assert (outcome.files(), outcome.file_bytes, outcome.byte_count) == ({"a", "b"}, 127, 123)


def test_the_line_of_a_batch():
    counts = BatchCounts(
        rows_written=5,
        rejected={"MESSAGE_TOO_LARGE": 2, "INVALID_TIMESTAMP": 1},
        byte_count=900,
        staged_bytes=800,
        staging_files=2,
        push_ms=7,
    )
    assert counts.rejected_count == 3
    assert counts.line(4, "written") == (
        "batch 4 written: 5 rows, 3 rejected (1 INVALID_TIMESTAMP, 2 MESSAGE_TOO_LARGE), 900 bytes, 800 bytes staged in 2 files, 7 ms"
    )
    assert BatchCounts().line(5, "skipped") == "batch 5 skipped: 0 rows, 0 rejected, 0 bytes, 0 bytes staged in 0 files, 0 ms"
