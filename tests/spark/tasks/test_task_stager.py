"""A task's half of the sink: rows to encoded batches, bad rows to dead letters."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from chaffinch.errors import codes
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.records.validation import validate_columns
from chaffinch.spark.commit.messages import REASONS_COUNTED_MAX, REJECTIONS_NAMED_MAX, StagedBatch, TaskOutcome
from chaffinch.spark.folders import Folder
from chaffinch.spark.snapshot import TopicSnapshot, changed_topic, topic_snapshot
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks import row_check
from chaffinch.spark.tasks.dead_letter_headers import Origin
from chaffinch.spark.tasks.dead_letters import parquet_name
from chaffinch.spark.tasks.plan import TaskOptions, TaskPlan
from chaffinch.spark.tasks.row_check import reason_of
from chaffinch.spark.tasks.row_codec import check_schema
from chaffinch.spark.tasks.staging import StagedWriter
from chaffinch.spark.tasks.task_stager import TaskStager

LEGAL = "a name has letters, digits, '.', '_' and '-', at most 249 of them"
NOW_MS = 1_700_000_000_000
PLAIN = TopicSnapshot(topic="orders", topic_id=bytes(16), partition_count=4)
COMPACTED = TopicSnapshot(topic="orders", topic_id=bytes(16), partition_count=4, is_compacted=True, batch_bytes_max=1000)
DEAD = TopicSnapshot(topic="dead", topic_id=bytes(16), partition_count=2, batch_bytes_max=2000)


def run(
    columns: Mapping[str, Any],
    *,
    snapshots: Sequence[TopicSnapshot] = (PLAIN,),
    topic: str | None = "orders",
    task: int = 0,
    dead: TopicSnapshot | None = DEAD,
    keeps_dead_rows: bool = False,
    chunks: int = 1,
    **changes: Any,
) -> TaskOutcome:
    """The outcome of a task with these rows (name -> list), and what it looked up."""
    known = {snapshot.topic: snapshot for snapshot in snapshots}
    options: dict[str, Any] = {
        "topic": topic, "compression_type": "none", "compression_level": None, "batch_bytes": 1_000_000,
        "dead_letter_path": "/none" if keeps_dead_rows else None,
    }  # fmt: skip
    options |= {name: changes.pop(name) for name in [field.name for field in fields(TaskOptions)] if name in changes}
    plan = TaskPlan(
        **{
            "options": TaskOptions(**options), "context": TaskContextFacts(task=task),
            "origin": Origin(query="q", batch_id=5, task=task), "dead_letter_target": dead,
            "snapshot_of": lambda name, patience_ms: known.get(name), "wall_ms": NOW_MS, **changes,
        }
    )  # fmt: skip
    data = pa.record_batch(columns)
    size = max(1, -(-data.num_rows // chunks))
    writer = StagedWriter(lambda: Folder("/none", "stagingLocation"), "task", inline_bytes_max=1 << 30)
    return TaskStager(plan, writer).run(data.slice(start, size) for start in range(0, data.num_rows, size))


def records(staged: tuple[StagedBatch, ...]) -> list[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of all records of staged batches."""
    found = []
    for batch in staged:
        columns = batches.decode(batch.bytes.data or b"")
        assert len(columns) == batch.record_count
        found += [(batch.topic_partition.partition, columns.key(i), columns.value(i)) for i in range(len(columns))]
    return found


def headers_of(staged: StagedBatch) -> list[dict[str, bytes | None]]:
    columns = batches.decode(staged.bytes.data or b"")
    return [dict(columns.headers(index)) for index in range(len(columns))]


def keyed(count: int) -> dict[str, Any]:
    return {"key": [f"k{number}" for number in range(count)], "value": [b"v%d" % number for number in range(count)]}


def test_batches_are_transactional_without_producer_id() -> None:
    header = batches.read_header(run(keyed(1)).batches[0].bytes.data or b"")
    assert header.is_transactional
    assert not header.has_producer_id
    assert header.base_sequence == -1


def test_keys_are_partitioned_like_kafka_clients() -> None:
    outcome = run(keyed(200))
    expected = batches.decode(
        run(keyed(200), snapshots=[topic_snapshot("orders", bytes(16), 1, {})]).batches[0].bytes.data or b""
    ).murmur2_partitions(4)
    assert {(key, partition) for partition, key, _ in records(outcome.batches)} == {
        (b"k%d" % number, int(partition)) for number, partition in enumerate(expected)
    }
    assert outcome.row_count == 200


def test_order_in_partition_is_order_of_rows() -> None:
    found = records(run(keyed(500), batch_bytes=300, chunks=7).batches)
    for partition in range(4):
        numbers = [int(value[1:]) for where, _, value in found if where == partition and value is not None]
        assert numbers == sorted(numbers)
        assert len(numbers) > 50


def test_batches_respect_size_limits() -> None:
    outcome = run(keyed(500), snapshots=[COMPACTED])
    assert all(batch.bytes.byte_count <= 1000 for batch in outcome.batches)
    assert len(records(outcome.batches)) == 500


@pytest.mark.parametrize("task", [0, 1, 5])
def test_null_keys_stick_to_partition_for_about_one_batch(task: int) -> None:
    rows = {"value": [b"x" * 100 for _ in range(1000)]}
    first, again = (records(run(rows, batch_bytes=5000, task=task).batches) for _ in range(2))
    assert first == again
    counts = Counter(partition for partition, _, _ in first)
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) - min(counts.values()) < 60


def test_null_keys_of_chunks_rotate_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little each has: else all rows of a long task would lie on one."""
    monkeypatch.setattr(row_check, "CHUNK_ROWS", 10)
    outcome = run({"value": [b"x"] * 40}, chunks=4)
    assert sorted(partition for partition, _, _ in records(outcome.batches)) == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10


def test_small_tasks_of_null_keys_spread_over_partitions() -> None:
    """Tasks beside each other, micro-batches one after the other, and queries: else few tasks would fill few partitions for ever."""

    def partition(task: int = 0, batch_id: int = 0, query: str = "q") -> int:
        outcome = run({"value": [b"x"] * 10}, task=task, origin=Origin(query=query, batch_id=batch_id, task=task))
        (found,) = {partition for partition, _, _ in records(outcome.batches)}
        return found

    assert {partition(task=task) for task in range(4)} == {0, 1, 2, 3}
    assert {partition(batch_id=batch_id) for batch_id in range(4)} == {0, 1, 2, 3}
    assert {partition(query=f"write-{number}") for number in range(50)} == {0, 1, 2, 3}
    assert partition(task=2, batch_id=3) == partition(task=2, batch_id=3)


def test_compression_level_has_effect() -> None:
    sizes = [
        sum(batch.bytes.byte_count for batch in run(keyed(3000), compression_type="zstd", compression_level=level).batches)
        for level in (1, 19)
    ]
    assert sizes[0] > sizes[1]


def test_partition_column_overrides_key() -> None:
    outcome = run({"key": ["a", "b", None], "value": [b"1", b"2", b"3"], "partition": pa.array([3, None, 2], pa.int32())})
    found = {value: partition for partition, _, value in records(outcome.batches)}
    assert (found[b"1"], found[b"3"]) == (3, 2)
    assert found[b"2"] == records(run({"key": ["b"], "value": [b"2"]}).batches)[0][0]


@pytest.mark.parametrize(("codec", "smaller"), [("none", False), ("gzip", True), ("snappy", True), ("lz4", True), ("zstd", True)])
def test_every_codec_is_readable(codec: str, smaller: bool) -> None:
    rows = {"key": ["k"] * 200, "value": [b"the same again and again"] * 200}
    outcome = run(rows, compression_type=codec)
    assert len(records(outcome.batches)) == 200
    assert (outcome.byte_count < 200 * 24) is smaller


class TestRejected:
    def test_each_rejection_has_code_and_reason(self) -> None:
        rows = {
            "key": ["good", None, "late", "large", "elsewhere", "below"],
            "value": [b"1", b"2", b"3", b"4" * 1000, b"5", b"6"],
            "timestamp": pa.array([NOW_MS, NOW_MS, NOW_MS + 7_200_000, NOW_MS, NOW_MS, NOW_MS], pa.timestamp("ms", "UTC")),
            "partition": pa.array([None, None, None, None, 9, -2], pa.int32()),
        }
        outcome = run(rows, snapshots=[COMPACTED])
        assert [(found.row, found.code.name) for found in outcome.rejections] == [
            (1, "INVALID_COMPACTION_KEY"), (2, "INVALID_TIMESTAMP"), (3, "MESSAGE_TOO_LARGE"),
            (4, "UNKNOWN_TOPIC_OR_PARTITION"), (5, "UNKNOWN_TOPIC_OR_PARTITION"),
        ]  # fmt: skip
        messages = [found.message for found in outcome.rejections]
        assert messages[0] == "null key, the topic is compacted and needs one"
        assert messages[1].startswith("timestamp 1700007200000 ms is 7200000 ms ahead")
        assert "max.message.bytes allows 1000 bytes" in messages[2]
        assert messages[3:] == ["partition 9 of topic 'orders', which has 4", "a negative partition of topic 'orders', which has 4"]
        assert [key for _, key, _ in records(outcome.batches)] == [b"good"]
        assert outcome.row_count == 6
        assert sum(outcome.rejected_by_code.values()) == 5

    def test_row_numbers_continue_over_chunks(self) -> None:
        rows = {"key": [None if number % 10 == 9 else "k" for number in range(100)], "value": [b"v"] * 100}
        outcome = run(rows, snapshots=[COMPACTED], chunks=5)
        assert [found.row for found in outcome.rejections] == list(range(9, 100, 10))[:REJECTIONS_NAMED_MAX]

    def test_null_header_rejects_only_its_row(self) -> None:
        """Also behind a null list that has pairs all the same, as Arrow allows."""
        pairs = pa.array(
            [("a", b"1"), ("b", b"2"), None, (None, b"3"), ("c", b"4")], pa.struct([("key", pa.string()), ("value", pa.binary())])
        )
        headers = pa.ListArray.from_arrays(
            pa.array([0, 1, 2, 3, 4, 5], pa.int32()), pairs, mask=pa.array([False, True, False, False, False])
        )
        outcome = run({"value": [b"v"] * 5, "headers": headers}, snapshots=[PLAIN])
        assert [found.row for found in outcome.rejections] == [2, 3]
        assert sum(outcome.rejected_by_code.values()) == 2

    def test_dead_letters_have_content_and_reason(self) -> None:
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        rows = {
            "key": pa.array([None], pa.binary()), "value": [b"v"], "headers": pa.array([[{"key": "mine", "value": b"1"}]], pa.list_(pair)),
        }  # fmt: skip
        outcome = run(rows, snapshots=[COMPACTED], task=3)
        assert outcome.dead_batches[0].topic_partition.topic == "dead"
        assert [(key, value) for _, key, value in records(outcome.dead_batches)] == [(None, b"v")]
        found = headers_of(outcome.dead_batches[0])[0]
        assert found["mine"] == b"1"
        assert found["__connect.errors.topic"] == b"orders"
        assert found["__connect.errors.stage"] == b"KAFKA_PRODUCE"
        assert found["__connect.errors.exception.class.name"] == b"org.apache.kafka.common.errors.InvalidCompactionKeyException"
        assert (found["chaffinch.error.code"], found["chaffinch.error.name"]) == (b"87", b"INVALID_COMPACTION_KEY")
        assert found["chaffinch.error.group"] == b"InvalidConfiguration"
        assert (found["chaffinch.error.query"], found["chaffinch.error.batch"], found["__connect.errors.task.id"]) == (b"q", b"5", b"3")

    @pytest.mark.parametrize(
        ("key", "value", "header", "expected"),
        [
            (b"k", b"v" * 3000, b"h", (b"k", None, True)),
            (b"k", b"v", b"h" * 3000, (b"k", None, False)),
            (b"k" * 3000, b"v" * 3000, b"h" * 3000, (None, None, False)),
        ],
    )
    def test_too_large_dead_letter_has_digests(
        self, key: bytes, value: bytes, header: bytes, expected: tuple[bytes | None, None, bool]
    ) -> None:
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        rows = {
            "key": pa.array([key]), "value": [value], "headers": pa.array([[{"key": "mine", "value": header}]], pa.list_(pair)),
            "timestamp": pa.array([0], pa.timestamp("ms")),
        }  # fmt: skip
        outcome = run(rows, snapshots=[TopicSnapshot(topic="orders", topic_id=bytes(16), partition_count=1, timestamp_before_max_ms=1000)])
        assert all(batch.bytes.byte_count <= 2000 for batch in outcome.dead_batches)
        _, found_key, found_value = records(outcome.dead_batches)[0]
        headers = headers_of(outcome.dead_batches[0])[0]
        assert (found_key, found_value, "mine" in headers) == expected
        assert headers["chaffinch.error.value.bytes"] == str(len(value)).encode()
        assert headers["chaffinch.error.value.sha256"] == hashlib.sha256(value).hexdigest().encode()
        assert ("chaffinch.error.key.sha256" in headers) is (found_key is None)

    def test_timestamp_refused_by_dead_letter_topic_becomes_header(self) -> None:
        late = NOW_MS + 7_200_000
        outcome = run({"value": [b"v"], "timestamp": pa.array([late], pa.timestamp("ms"))})
        columns = batches.decode(outcome.dead_batches[0].bytes.data or b"")
        assert columns.timestamps.tolist() == [NOW_MS]
        assert headers_of(outcome.dead_batches[0])[0]["chaffinch.error.timestamp"] == str(late).encode()

    @pytest.mark.parametrize("timestamp_ms", [-1, -315_619_200_000])
    def test_timestamp_before_1970_is_rejected_and_becomes_header(self, timestamp_ms: int) -> None:
        outcome = run({"value": [b"v", b"w"], "timestamp": pa.array([timestamp_ms, 0], pa.timestamp("ms"))})
        (found,) = outcome.rejections
        assert (found.row, found.code.name, found.message) == (0, "INVALID_TIMESTAMP", f"timestamp {timestamp_ms} ms is before 1970")
        assert headers_of(outcome.dead_batches[0])[0]["chaffinch.error.timestamp"] == str(timestamp_ms).encode()
        assert [value for _, _, value in records(outcome.batches)] == [b"w"]

    def test_parquet_rows_have_whole_value(self) -> None:
        outcome = run({"key": ["k"], "value": [b"v" * 3000]}, snapshots=[COMPACTED], keeps_dead_rows=True)
        row = pa.ipc.open_stream(outcome.dead_rows[0].data or b"").read_all().to_pylist()[0]
        assert (row["key"], row["value"], row["topic"], row["row"], row["task"]) == (b"k", b"v" * 3000, "orders", 0, 0)
        assert (row["error_code"], row["error_name"], row["error_group"]) == (10, "MESSAGE_TOO_LARGE", "InvalidConfiguration")
        assert (row["query"], row["batch"]) == ("q", 5)
        assert row["timestamp"].timestamp() * 1000 == NOW_MS

    def test_many_bad_rows_become_dead_letters_in_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else those of a whole chunk would be in memory at once; what becomes of them is the same."""
        rows = {"key": [None] * 5, "value": [b"%d" % number for number in range(4)] + [b"x" * 1500]}
        at_once = run(rows, snapshots=[COMPACTED], keeps_dead_rows=True)
        monkeypatch.setattr(row_check, "BAD_ROWS_PER_STEP", 2)
        in_parts = run(rows, snapshots=[COMPACTED], keeps_dead_rows=True)
        assert (len(at_once.dead_rows), len(in_parts.dead_rows)) == (1, 3)
        assert records(in_parts.dead_batches) == records(at_once.dead_batches)
        assert [headers for part in in_parts.dead_batches for headers in headers_of(part)] == [
            headers for part in at_once.dead_batches for headers in headers_of(part)
        ]
        found = [pa.ipc.open_stream(part.data or b"").read_all() for part in (*at_once.dead_rows, *in_parts.dead_rows)]
        assert pa.concat_tables(found[1:]).equals(found[0])
        assert (in_parts.rejections, in_parts.rejected_by_code) == (at_once.rejections, at_once.rejected_by_code)

    def test_short_rows_are_chunked_by_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 16 MiB of them a million may be bad, each with its reason."""
        chunks = []
        validate = validate_columns

        def noted(columns: RecordColumns, *arguments: Any, **options: Any) -> object:
            chunks.append(len(columns))
            return validate(columns, *arguments, **options)

        monkeypatch.setattr(row_check, "validate_columns", noted)
        monkeypatch.setattr(row_check, "CHUNK_ROWS", 25)
        outcome = run({"value": [b"v"] * 100}, chunks=10)
        assert chunks == [30, 30, 30, 10]
        assert sum(batch.record_count for batch in outcome.batches) == 100

    def test_bad_rows_without_target_are_counted(self) -> None:
        outcome = run({"value": [b"v"] * 20}, snapshots=[COMPACTED], dead=None)
        assert (outcome.dead_batches, outcome.dead_rows, outcome.rejected_by_code) == ((), (), {"INVALID_COMPACTION_KEY": 20})
        assert len(outcome.rejections) == REJECTIONS_NAMED_MAX


class TestTopicColumn:
    def test_topic_column_selects_topic(self) -> None:
        other = topic_snapshot("other", bytes(16), 1, {"cleanup.policy": "compact,delete"})
        rows = {"key": ["a", None, "c", None], "value": [b"1", b"2", b"3", b"4"], "topic": ["orders", "orders", "other", "other"]}
        outcome = run(rows, snapshots=[PLAIN, other], topic=None)
        found = {batch.topic_partition.topic: batch.record_count for batch in outcome.batches}
        assert found["other"] == 1
        assert outcome.rejections[0].topic_partition.topic == "other"
        assert outcome.rejections[0].row == 3
        assert {snapshot.topic for snapshot in outcome.snapshots} == {"orders", "other"}

    def test_unknown_and_null_topics_reject_rows(self) -> None:
        outcome = run({"value": [b"1", b"2", b"3"], "topic": ["orders", "nowhere", None]}, topic=None)
        assert [(found.row, found.code) for found in outcome.rejections] == [
            (2, codes.INVALID_TOPIC_EXCEPTION), (1, codes.UNKNOWN_TOPIC_OR_PARTITION),
        ]  # fmt: skip
        no_topic = "the row has no topic and the option topic is not set; set it in a replay with --to or --repair topic=..."
        assert [found.message for found in outcome.rejections] == [no_topic, "there is no topic 'nowhere'"]

    def test_illegal_topic_name_is_not_looked_up(self) -> None:
        looked_for = []
        names = ["a b/c", "", "..", "n" * 250]
        outcome = run({"value": [b"1"] * 4, "topic": names}, topic=None, snapshot_of=lambda *asked: looked_for.append(asked))
        assert {found.code for found in outcome.rejections} == {codes.INVALID_TOPIC_EXCEPTION}
        assert [found.topic_partition.topic for found in outcome.rejections] == [*names[:3], "n" * 200 + "..."]
        assert outcome.rejections[0].message == f"topic 'a b/c' is not a legal name: {LEGAL}"
        assert looked_for == []

    def test_illegal_topic_name_can_have_any_length(self) -> None:
        """As if topic and value were swapped: its letter fits, and messages contain the start of the name."""
        text = "n" * 3000
        outcome = run({"key": ["k"], "value": ["orders"], "topic": [text]}, topic=None, keeps_dead_rows=True)
        assert all(batch.bytes.byte_count <= 2000 for batch in outcome.dead_batches)
        assert [(key, value) for _, key, value in records(outcome.dead_batches)] == [(None, None)]
        headers = headers_of(outcome.dead_batches[0])[0]
        assert headers["__connect.errors.topic"] == b"n" * 200 + b"..."
        assert headers["chaffinch.error.topic.bytes"] == b"3000"
        assert headers["chaffinch.error.topic.sha256"] == hashlib.sha256(text.encode()).hexdigest().encode()
        assert headers["chaffinch.error.key.sha256"] == hashlib.sha256(b"k").hexdigest().encode()
        assert len(str(outcome.rejections[0])) < 700
        row = pa.ipc.open_stream(outcome.dead_rows[0].data or b"").read_all().to_pylist()[0]
        assert (row["key"], row["value"], row["topic"]) == (b"k", b"orders", text)

    def test_dead_letter_that_fits_has_whole_topic(self) -> None:
        text = "n" * 300
        outcome = run({"value": ["v"], "topic": [text]}, topic=None)
        assert headers_of(outcome.dead_batches[0])[0]["__connect.errors.topic"] == text.encode()

    @pytest.mark.parametrize(("chunks", "waits"), [(1, 1), (2, 2), (3, 3)])
    def test_unknown_topics_of_chunk_share_one_wait(self, monkeypatch: pytest.MonkeyPatch, chunks: int, waits: int) -> None:
        """A column of wrong names may hold thousands, each of which would have its second."""
        monkeypatch.setattr(row_check, "CHUNK_ROWS", 1)
        looked_for = []
        outcome = run(
            {"value": [b"v"] * 6, "topic": [f"nowhere-{number}" for number in range(6)]}, topic=None, chunks=chunks, topic_wait_ms=1000,
            snapshot_of=lambda *asked: looked_for.append(asked),
        )  # fmt: skip
        assert outcome.rejected_by_code == {"UNKNOWN_TOPIC_OR_PARTITION": 6}
        assert [name for name, patience_ms in looked_for if not patience_ms] == [f"nowhere-{number}" for number in range(6)]
        assert [name for name, patience_ms in looked_for if patience_ms] == [f"nowhere-{number}" for number in range(0, 6, 6 // waits)]

    def test_successful_wait_does_not_shorten_next_wait(self) -> None:
        found = {"late": topic_snapshot("late", bytes(16), 1, {}), "later": topic_snapshot("later", bytes(16), 1, {})}
        outcome = run(
            {"value": [b"1", b"2"], "topic": ["late", "later"]}, topic=None, topic_wait_ms=1000,
            snapshot_of=lambda name, patience_ms: found[name] if patience_ms else None,
        )  # fmt: skip
        assert {batch.topic_partition.topic for batch in outcome.batches} == {"late", "later"}

    def test_topic_with_invalid_utf_8_rejects_only_its_row(self) -> None:
        """Strings of Spark hold whatever bytes they were cast from."""
        names = pa.Array.from_buffers(pa.string(), 3, [None, *pa.array([b"orders", b"\xffA", b"\xfeA"]).buffers()[1:]])
        outcome = run({"value": [b"1", b"2", b"3"], "topic": names}, topic=None)
        assert [(found.row, str(found)) for found in outcome.rejections] == [
            (row, f"row {row} for \ufffdA: INVALID_TOPIC_EXCEPTION: topic '\ufffdA' is not a legal name: {LEGAL}") for row in (1, 2)
        ]
        assert [value for _, _, value in records(outcome.batches)] == [b"1"]

    def test_topic_option_overrides_column(self) -> None:
        outcome = run({"value": [b"1"], "topic": ["nowhere"]}, topic="orders")
        assert outcome.batches[0].topic_partition.topic == "orders"


class TestReasonColumn:
    def test_row_with_text_is_rejected_for_that_reason(self) -> None:
        """Null and the empty text, which concat_ws makes of no reasons, are none."""
        outcome = run(
            {"value": [b"a", b"b", b"c", b"d"], "why": ["too old", None, "", "no customer\n"]},
            reason_column="why", task=7, keeps_dead_rows=True, chunks=2,
        )  # fmt: skip
        assert [value for _, _, value in records(outcome.batches)] == [b"b", b"c"]
        assert [(found.row, found.code, found.message) for found in outcome.rejections] == [
            (0, codes.INVALID_RECORD, "too old"), (3, codes.INVALID_RECORD, "no customer\\n"),
        ]  # fmt: skip
        assert outcome.rejected_by_code == {"INVALID_RECORD: too old": 1, "INVALID_RECORD: no customer\\n": 1}
        letters = [letter for staged in outcome.dead_batches for letter in headers_of(staged)]
        assert [(letter["chaffinch.error.message"], letter["__connect.errors.topic"]) for letter in letters] == [
            (b"too old", b"orders"), (b"no customer\\n", b"orders"),
        ]  # fmt: skip
        rows = [row for part in outcome.dead_rows for row in pa.ipc.open_stream(part.data or b"").read_all().to_pylist()]
        assert [(row["error_name"], row["error_message"], row["row"]) for row in rows] == [
            ("INVALID_RECORD", "too old", 0), ("INVALID_RECORD", "no customer\\n", 3),
        ]  # fmt: skip

    def test_reason_of_the_row_precedes_all_others(self) -> None:
        """Nothing is looked up for such rows, and the user's handler is not asked about them."""

        def no_lookup(name: str, wait_ms: int) -> TopicSnapshot | None:
            raise AssertionError(name)

        rows = {"value": [b"x" * 9000] * 3, "topic": ["nowhere", None, "?"], "why": ["judged"] * 3}
        outcome = run(rows, topic=None, reason_column="why", snapshot_of=no_lookup)
        assert outcome.rejected_by_code == {"INVALID_RECORD: judged": 3}
        assert [found.topic_partition.topic for found in outcome.rejections] == ["nowhere", "", "?"]
        assert not outcome.snapshots
        assert not outcome.batches

    def test_other_faults_are_found_as_without_the_column(self) -> None:
        rows = {"value": [b"1", b"2", b"3"], "partition": [0, 9, 9], "why": ["judged", None, None]}
        outcome = run(rows, reason_column="why")
        assert outcome.rejected_by_code == {"INVALID_RECORD: judged": 1, "UNKNOWN_TOPIC_OR_PARTITION": 2}
        assert [found.row for found in outcome.rejections] == [0, 1, 2]

    def test_long_reasons_are_cut(self) -> None:
        outcome = run({"value": [b"1"], "why": ["a" * 5000]}, reason_column="why", keeps_dead_rows=True)
        assert outcome.rejected_by_code == {f"INVALID_RECORD: {'a' * 200}...": 1}
        assert outcome.rejections[0].message == "a" * 200 + "..."
        (letter,) = headers_of(outcome.dead_batches[0])
        assert letter["chaffinch.error.message"] == b"a" * 1000

    def test_different_reasons_counted_separately_are_limited(self) -> None:
        outcome = run({"value": [b"1"] * 300, "why": [f"amount {number}" for number in range(300)]}, reason_column="why", chunks=3)
        assert len(outcome.rejected_by_code) == REASONS_COUNTED_MAX + 1
        assert outcome.rejected_by_code["INVALID_RECORD"] == 300 - REASONS_COUNTED_MAX
        assert len(records(outcome.dead_batches)) == 300

    def test_reason_with_invalid_utf_8_is_readable(self) -> None:
        texts = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xffA"]).buffers()[1:]])
        assert run({"value": [b"1"], "why": texts}, reason_column="why").rejections[0].message == "\ufffdA"


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_header_without_key_rejects_only_its_row(chunks: int) -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    good, bad = [{"key": "h", "value": b"1"}], [{"key": "h", "value": b"1"}, {"key": None, "value": b"2"}]
    rows = {"value": [b"a", b"b", b"c", b"d", b"e"], "headers": pa.array([good, bad, None, [], bad], pa.list_(pair))}
    outcome = run(rows, chunks=chunks)
    assert [(found.row, found.code) for found in outcome.rejections] == [(1, codes.INVALID_RECORD), (4, codes.INVALID_RECORD)]
    assert outcome.rejections[0].message == "a header without a key; the dead letter has none of the row's headers"
    assert sorted(value or b"" for _, _, value in records(outcome.batches)) == [b"a", b"c", b"d"]
    assert sorted(value or b"" for _, _, value in records(outcome.dead_batches)) == [b"b", b"e"]
    assert [dict(headers) for batch in outcome.batches for headers in headers_of(batch)].count({"h": b"1"}) == 1


def test_header_field_names_are_case_insensitive() -> None:
    """As in Spark's own sink, which compares types so."""
    of_spark = types.StructType().add("Key", "string").add("VALUE", "binary")
    check_schema(types.StructType().add("value", "binary").add("headers", types.ArrayType(of_spark)), has_topic=True)
    pair = pa.struct([("Key", pa.string()), ("VALUE", pa.binary())])
    good, bad = [{"Key": "h", "VALUE": b"1"}], [{"Key": None, "VALUE": b"2"}]
    outcome = run({"value": [b"a", b"b", b"c"], "headers": pa.array([good, bad, None], pa.list_(pair))})
    assert [found.row for found in outcome.rejections] == [1]
    assert [headers for staged in outcome.batches for headers in headers_of(staged) if headers] == [{"h": b"1"}]


def test_collation_does_not_matter() -> None:
    collated = types.StringType("UTF8_LCASE")
    pair = types.StructType().add("key", collated).add("value", collated)
    schema = types.StructType().add("value", collated).add("key", collated).add("topic", collated).add("headers", types.ArrayType(pair))
    assert "collate" in schema.simpleString().lower()
    check_schema(schema, has_topic=False)


def test_task_without_rows() -> None:
    outcome = run({"value": pa.array([], pa.binary())})
    assert (outcome.row_count, outcome.batches) == (0, ())


def test_different_topic_snapshots_are_detected() -> None:
    assert changed_topic((PLAIN, DEAD, PLAIN)) is None
    assert changed_topic((PLAIN, DEAD, COMPACTED)) == (PLAIN, COMPACTED)


def test_reasons_omit_batch_position() -> None:
    assert reason_of("record 3 of 9 for orders-0 rejected: null key") == "null key"
    assert reason_of("anything else") == "anything else"


def test_batch_has_its_own_parquet_file() -> None:
    assert parquet_name(Origin(query="q", batch_id=7, task=1)) == parquet_name(Origin(query="q", batch_id=7, task=-1))


@pytest.mark.parametrize(
    ("text", "binary"),
    [(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary()), (pa.string_view(), pa.binary_view())],
    ids=["string", "large_string", "string_view"],
)
def test_all_arrow_string_and_binary_types_are_accepted(text: pa.DataType, binary: pa.DataType) -> None:
    """Spark's `spark.sql.execution.arrow.useLargeVarTypes`."""
    headers = pa.list_(pa.struct([("key", text), ("value", binary)]))
    columns = {
        "key": pa.array(["a", None], text), "value": pa.array([b"1", b"2"], binary),
        "headers": pa.array([[{"key": "h", "value": b"x"}], None], headers), "topic": pa.array(["orders", "orders"], text),
    }  # fmt: skip
    outcome = run(columns, topic=None)
    assert sorted((key or b"", value) for _, key, value in records(outcome.batches)) == [(b"", b"2"), (b"a", b"1")]
    assert [headers for staged in outcome.batches for headers in headers_of(staged) if headers] == [{"h": b"x"}]
