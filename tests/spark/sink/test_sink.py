"""The sink's writers with a real broker and real files, in this process: what Spark does around them is played by hand."""

import json
import logging
import pickle
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors.codes import Group
from chaffinch.spark.commit.operations import Operation, SendBatch, Step
from chaffinch.spark.options import ClientOptions, parse
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import writers
from chaffinch.spark.sink.commit_shell import CommitShell
from chaffinch.spark.sink.option_tables import TABLES
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.paths import SinkPaths
from chaffinch.spark.source.options import SOURCE
from chaffinch.spark.target import client_for, forget_client
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.replay_notes import ReplayNotes
from tests.spark.query_driver import QueryDriver
from tests.spark.test_spark_write import alter, values

ROWS: dict[str, list[Any]] = {"key": ["a", None, "c"], "value": [b"1", b"2", b"3"]}
NO_ROWS = {"key": pa.array([], pa.string()), "value": pa.array([], pa.binary())}


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 2}, "dead": {"partitions": 1}}) as broker:
        yield broker
        forget_client(ClientOptions.of(parse(SOURCE, {"kafka.bootstrap.servers": broker.bootstrap_servers})))


@pytest.fixture
def query(kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stream `q` with a checkpoint in which batches 0 to 9 are noted, and dead letters in both places."""
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"q"}')
    for batch_id in range(10):
        (offsets / str(batch_id)).write_text(f"v1\n{batch_id}")
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": "orders", "checkpointlocation": f"file:{tmp_path}/checkpoint",
        "errors.tolerance": "all", "errors.dead.letter.queue.topic.name": "dead", "errors.dead.letter.path": str(tmp_path / "dead"),
        "kafka.max.block.ms": "60000",
    }  # fmt: skip

    def writer(**changes: str) -> writers.StreamWriter:
        return writers.stream_writer(SinkOptions.parse({**options, **changes}, is_stream=True))

    def write(*tables: Mapping[str, Any], batch_id: int = 0, **changes: Any) -> list[writers.CommitMessage]:
        """What planner and tasks do: the messages."""
        messages = []
        for task, table in enumerate(tables):
            facts = TaskContextFacts(task=task, query_id="q", run_id="run", batch_id=batch_id, master="local[2]")
            monkeypatch.setattr(writers, "task_facts", lambda facts=facts: facts)
            travelled = pickle.loads(pickle.dumps(writer(**changes)))
            messages.append(pickle.loads(pickle.dumps(travelled.write(iter([pa.record_batch(table)])))))
        return messages

    def commit(messages: list[WriterCommitMessage | None], batch_id: int = 0, **changes: Any) -> None:
        writer(**changes).commit(messages, batch_id)

    return SimpleNamespace(write=write, commit=commit, writer=writer, folder=tmp_path)


def test_a_batch_of_two_tasks(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    query.commit(query.write(ROWS, {"key": ["d"], "value": [b"4"]}))
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1, "4": 1}


def test_missing_certificate_file_is_reported_as_option(query: SimpleNamespace) -> None:
    with pytest.raises(
        Refusal, match=r"KAFKA\[InvalidConfiguration\] CONFIG: option kafka.ssl.truststore.location: /nowhere: No such file"
    ):
        query.writer(**{"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nowhere"})


def test_the_same_batch_again_is_skipped(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    for _ in range(2):
        query.commit(query.write(ROWS))
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1}


def test_a_topic_that_changes_between_tasks_and_commit(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    messages = query.write(ROWS)
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.commit(messages)
    assert values(kafka, "orders") == {"1": 1, "3": 1}
    letter = kafka.read("dead").to_pylist()[0]
    reasons = {header["key"]: header["value"] for header in letter["headers"]}
    assert letter["value"] == b"2"
    assert reasons["chaffinch.error.name"] == b"INVALID_COMPACTION_KEY"
    # In the words of the broker: ours, and Apache Kafka.
    expected = rb"null key, the topic is compacted and needs one|Compacted topic cannot accept message without key in .* orders-[01]\.?"
    assert re.fullmatch(expected, reasons["chaffinch.error.message"])
    row = pq.read_table(query.folder / "dead").to_pylist()[0]
    assert (row["value"], row["error_name"], row["query"], row["batch"], row["task"]) == (b"2", "INVALID_COMPACTION_KEY", "q", 0, None)


def test_dead_letters_of_broker_have_their_own_numbers(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    """The same in the topic and in the file, whatever batch they were in: by it a replay knows them."""
    messages = query.write(
        {"key": [None] * 40, "value": [b"%d" % number for number in range(40)]},
        {"key": [None], "value": [b"x"]},
        **{"kafka.batch.size": "200"},
    )
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.commit(messages)
    in_file = {row["value"]: row["row"] for row in pq.read_table(query.folder / "dead").to_pylist()}
    in_topic = {
        letter["value"]: int({header["key"]: header["value"] for header in letter["headers"]}["chaffinch.error.row"])
        for letter in kafka.read("dead").to_pylist()
    }
    assert in_file == in_topic
    assert sorted(in_file.values()) == list(range(41))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_broker_found_culprits_in_compressed_batches(kafka: EmbeddedBroker, query: SimpleNamespace, codec: str) -> None:
    messages = query.write(ROWS, **{"kafka.compression.type": codec})
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.commit(messages)
    assert (values(kafka, "orders"), values(kafka, "dead")) == ({"1": 1, "3": 1}, {"2": 1})


@pytest.mark.parametrize("repaired", [{"key": ["a"], "value": [b"1"]}, NO_ROWS], ids=["a row", "no row"])
def test_a_batch_repeated_with_fewer_dead_letters_replaces_its_file(
    kafka: EmbeddedBroker, query: SimpleNamespace, repaired: Mapping[str, Any]
) -> None:
    """The commit fails after the file was written; before the next attempt the rows were repaired."""
    alter(kafka, "orders", "cleanup.policy", "compact")
    kafka.faults.add(api="TxnOffsetCommit", error="GROUP_AUTHORIZATION_FAILED", count=1)
    with pytest.raises(Refusal):
        query.commit(query.write(ROWS))
    assert len(list((query.folder / "dead").iterdir())) == 1
    query.commit(query.write(repaired))
    assert list((query.folder / "dead").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [".chaffinch-{}-000000000.parquet.0a1b2c3d.tmp", "..chaffinch-{}-000000000.parquet.run.pending.0a1b2c3d.tmp"],
    ids=["of the batch", "of its writer"],
)
def test_half_written_dead_letters_are_removed_with_first_batch(kafka: EmbeddedBroker, query: SimpleNamespace, name: str) -> None:
    """While a file is written it has a dot before its name; that of one writer alone has one already."""
    half, foreign = (query.folder / "dead" / name.format(owner) for owner in ("q", "q2"))
    half.parent.mkdir()
    half.write_bytes(b"PAR1")
    foreign.write_bytes(b"PAR1")
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.commit(query.write(ROWS))
    assert sorted(path.name for path in half.parent.iterdir()) == [foreign.name, "chaffinch-q-000000000.parquet"]
    assert (values(kafka, "orders"), values(kafka, "dead")) == ({"1": 1, "3": 1}, {"2": 1})


@pytest.mark.parametrize(
    "api", ["Produce", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "OffsetFetch"]
)
@pytest.mark.parametrize("action", ["drop_before", "drop_after"])
def test_a_connection_cut_before_or_after_the_work(
    kafka: EmbeddedBroker, query: SimpleNamespace, api: str, action: Literal["drop_before", "drop_after"]
) -> None:
    messages = query.write(ROWS)
    kafka.faults.add(api=api, action=action, count=1)
    query.commit(messages)
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1}


def test_a_broker_killed_between_tasks_and_commit(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    for topic in ("orders", "dead"):  # Else Apache Kafka, started again, may give them the policy of an earlier topic of that name.
        alter(kafka, topic, "cleanup.policy", "delete")
    messages = query.write(ROWS)
    kafka.restart(kill=True)
    query.commit(messages)
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1}


def test_unavailable_broker_is_reported_with_one_time(query: SimpleNamespace, kafka: EmbeddedBroker) -> None:
    """In the planner, and in a commit that has begun."""
    changes = {"kafka.max.block.ms": "1000", "kafka.socket.connection.setup.timeout.ms": "100"}
    writer, messages = query.writer(**changes), query.write(ROWS, **changes)
    kafka.close()
    again: tuple[Callable[[], object], ...] = (lambda: writer.commit(messages, 0), lambda: query.writer(**changes))
    for asked in again:
        with pytest.raises(Refusal, match=r"no broker reachable at 127\.0\.0\.1:\d+ .*; start the query again") as caught:
            asked()
        assert len(re.findall(r"\d+ ms\b", caught.value.text)) == 1


def test_failed_commit_closes_connections(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    """What they know of leaders and coordinators may be why it failed."""
    kafka.faults.add(api="TxnOffsetCommit", error="GROUP_AUTHORIZATION_FAILED", count=1)
    writer, messages = query.writer(), query.write(ROWS)
    before = client_for(writer._options.client)
    with pytest.raises(Refusal, match="GROUP_AUTHORIZATION_FAILED"):
        writer.commit(messages, 0)
    after = client_for(writer._options.client)
    assert after is not before
    query.commit(query.write(ROWS))
    assert client_for(writer._options.client) is after


def test_notes_of_a_replay_are_not_counted_as_rows(
    kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is any of the options about rows theirs."""
    given = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": "orders", "idempotencyToken": "replay-d",
        "errors.tolerance": "all", "errors.dead.letter.queue.topic.name": "dead",
        "chaffinch.notes": ReplayNotes(ends={0: 23}, run="r").to_option(), "kafka.max.request.size": "100",
    }  # fmt: skip
    writer = writers.batch_writer(SinkOptions.parse(given, is_stream=False))
    monkeypatch.setattr(writers, "task_facts", lambda: TaskContextFacts(task=0, master="local[2]"))
    with caplog.at_level(logging.INFO, "chaffinch.spark"):
        writer.commit([writer.write(iter([pa.record_batch(ROWS)]))])
    assert caplog.messages[-1].startswith("query replay-d, batch 0: 3 rows written, 0 rejected, ")
    assert kafka.read("orders").num_rows == 3
    (note,) = kafka.read("dead").to_pylist()
    assert (note["key"], note["value"]) == (None, b"r")
    assert [(header["key"], header["value"]) for header in note["headers"]] == [
        ("chaffinch.replayed", b'{"0":23}'), ("chaffinch.replayed.by", b"replay-d"),
    ]  # fmt: skip


def test_many_batches_in_flight_to_several_partitions(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    table = {"key": [str(number) for number in range(3000)], "value": [b"%d" % number for number in range(3000)]}
    query.commit(query.write(table, table, **{"kafka.batch.size": "500"}))
    assert set(values(kafka, "orders").values()) == {2}
    assert len(values(kafka, "orders")) == 3000


class TestStaging:
    LARGE = {"key": [f"k{number}" for number in range(200)], "value": [b"x" * 10_000] * 200}  # noqa: RUF012 - never changed.

    def files(self, query: SimpleNamespace) -> list[Path]:
        return [path for path in (query.folder / "checkpoint" / "chaffinch" / "staging").rglob("*") if path.is_file()]

    def test_large_tasks_stage_below_the_checkpoint_and_are_cleaned_up(
        self, kafka: EmbeddedBroker, query: SimpleNamespace, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = query.write(self.LARGE, ROWS)
        (size,) = (path.stat().st_size for path in self.files(query))
        with caplog.at_level(logging.INFO, "chaffinch.spark"):
            query.commit(messages)
        assert caplog.messages[-1].startswith("query q, batch 0: 203 rows written, 0 rejected, ")
        assert f", {size} of them in 1 staging files, " in caplog.messages[-1]
        assert self.files(query) == []
        assert kafka.read("orders").num_rows == 203

    def test_rows_that_become_dead_letters_are_not_counted_as_staged_bytes_of_the_batch(
        self, kafka: EmbeddedBroker, query: SimpleNamespace, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Both kinds of rows are in the same staging file: rows for Parquet are no record batches."""
        large = {"key": [f"k{number}" if number < 150 else None for number in range(200)], "value": [b"x" * 10_000] * 200}
        alter(kafka, "orders", "cleanup.policy", "compact")
        messages = query.write(large, **{"errors.dead.letter.queue.topic.name": "dead"})
        (outcome,) = (message.outcome for message in messages)
        (staged,) = {part.file for part in outcome.dead_rows}
        in_batches = sum(batch.bytes.byte_count for batch in (*outcome.batches, *outcome.dead_batches))
        assert sum(part.byte_count for part in outcome.dead_rows) > 500_000
        assert staged in outcome.files()
        with caplog.at_level(logging.INFO, "chaffinch.spark"):
            query.commit(messages)
        assert (
            f"150 rows written, 50 rejected (50 INVALID_COMPACTION_KEY), {in_batches} bytes, {in_batches} of them in 1 staging files"
            in (caplog.messages[-1])
        )
        counts = json.loads((query.folder / "checkpoint" / "chaffinch" / "state.json").read_text())["totals"]
        assert (counts["byte_count"], counts["staged_bytes"], counts["staging_files"]) == (in_batches, in_batches, 1)

    def test_staged_files_of_older_batches_are_removed(self, query: SimpleNamespace) -> None:
        query.write(self.LARGE, batch_id=0)
        query.commit(query.write(ROWS, batch_id=0))
        assert len(self.files(query)) == 1
        query.commit(query.write(self.LARGE, batch_id=1), batch_id=1)
        assert self.files(query) == []

    @pytest.mark.parametrize("is_known", [True, False], ids=["in the checkpoint", "no folder is known"])
    def test_large_dead_letters_of_broker_are_staged(
        self, kafka: EmbeddedBroker, query: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_known: bool
    ) -> None:
        if not is_known:
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "machine"))
            monkeypatch.setattr(SinkPaths, "staging", lambda *_: None)
        tasks = [{"key": [None] * 50, "value": [b"x" * 10_000] * 50}] * 4
        messages = query.write(*tasks, {"key": ["k"], "value": [b"v"]})
        alter(kafka, "orders", "cleanup.policy", "compact")
        inline = []
        send = CommitShell._send

        def watched(shell: CommitShell, operation: SendBatch) -> None:
            if operation.step is Step.PUSH_DEAD_LETTERS:
                inline.append(operation.batch.bytes.data is not None)
            send(shell, operation)

        monkeypatch.setattr(CommitShell, "_send", watched)
        query.commit(messages)
        assert (kafka.read("orders").num_rows, kafka.read("dead").num_rows) == (1, 200)
        assert set(inline) == {True, False}
        assert pq.read_table(query.folder / "dead").num_rows == 200
        assert not (query.folder / "checkpoint" / "chaffinch" / "staging" / "q").exists()
        assert (tmp_path / "machine").exists() is not is_known
        assert not list((tmp_path / "machine").rglob("broker-*"))

    def test_dead_letters_of_broker_for_file_only_are_staged(
        self, kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is pushed behind them that would have them written."""
        options = {"errors__tolerance": "all", "errors__dead__letter__path": str(tmp_path / "dead")}
        query = QueryDriver(monkeypatch, kafka.bootstrap_servers, tmp_path / "checkpoint", **options)
        messages = query.write(*[{"key": [None] * 50, "value": [b"x" * 10_000] * 50}] * 4, {"key": ["k"], "value": [b"v"]})
        alter(kafka, "orders", "cleanup.policy", "compact")
        query.commit(messages)
        assert (kafka.read("orders").num_rows, pq.read_table(tmp_path / "dead").num_rows) == (1, 200)
        query.close()

    def test_small_dead_letters_of_broker_are_read_from_memory(
        self, kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each task's are more than half of what stays in memory: the second's go into a file, which is written when they are pushed."""
        options = {"errors__tolerance": "all", "errors__dead__letter__queue__topic__name": "dead"}
        query = QueryDriver(monkeypatch, kafka.bootstrap_servers, tmp_path / "checkpoint", **options)
        messages = query.write(*[{"key": [None] * 60, "value": [b"x" * 10_000] * 60}] * 2)
        alter(kafka, "orders", "cleanup.policy", "compact")
        query.commit(messages)
        assert (kafka.read("orders").num_rows, kafka.read("dead").num_rows) == (0, 120)
        query.close()

    def test_staged_files_of_later_batches_stay(self, kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
        """From one checkpoint: it has found this batch in Kafka, and is at the next, when this one removes what older ones have left."""
        mine, ahead = query.write(self.LARGE), query.write(self.LARGE, batch_id=1)
        query.commit(mine)
        assert len(self.files(query)) == 1
        query.commit(ahead, batch_id=1)
        assert (kafka.read("orders").num_rows, self.files(query)) == (400, [])

    def test_an_abort_removes_the_files_and_never_raises(self, query: SimpleNamespace) -> None:
        messages = query.write(self.LARGE)
        query.writer().abort([*messages, None], 0)
        assert self.files(query) == []
        query.writer().abort([*messages, None], 0)

    def test_abort_leaves_staged_files_of_another_driver(self, kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
        mine, others = query.write(self.LARGE), query.write(self.LARGE)
        assert len(self.files(query)) == 2
        query.writer().abort(mine, 0)
        query.commit(others)
        assert kafka.read("orders").num_rows == 200
        assert self.files(query) == []

    def test_driver_overtaken_on_its_checkpoint_reports_another_writer(
        self, kafka: EmbeddedBroker, query: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That one has removed what both had staged, so no request that would be fenced comes before."""
        mine, others = query.write(self.LARGE), query.write(self.LARGE)
        perform = CommitShell._perform

        def overtaken(shell: CommitShell, operation: Operation) -> object:
            value = perform(shell, operation)
            if operation.step is Step.ADD_PARTITIONS:
                with monkeypatch.context() as patch:
                    patch.setattr(CommitShell, "_perform", perform)
                    query.commit(others)
                assert self.files(query) == []
            return value

        monkeypatch.setattr(CommitShell, "_perform", overtaken)
        with pytest.raises(Refusal, match=r"ANOTHER_WRITER: .*two queries run from one checkpoint"):
            query.commit(mine)
        assert kafka.read("orders").num_rows == 200

    def test_lost_staged_files_abort_the_transaction(self, kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
        messages = query.write(self.LARGE)
        for path in self.files(query):
            path.unlink()
        with pytest.raises(Refusal, match="STAGING_LOST") as caught:
            query.commit(messages)
        assert caught.value.group is Group.APPLICATION_RECOVERABLE
        query.commit(query.write(ROWS))
        assert kafka.read("orders").num_rows == 3


class TestRefusals:
    def test_failure_of_a_task_is_raised_in_the_commit(self, query: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", "no room")

        monkeypatch.setattr("chaffinch.spark.tasks.staging.StagedWriter.append", fail)
        messages = query.write(ROWS)
        with pytest.raises(Refusal, match="task 0: no room"):
            query.commit(messages)

    def test_damaged_state_is_refused(self, query: SimpleNamespace) -> None:
        query.commit(query.write(ROWS))
        (query.folder / "checkpoint" / "chaffinch" / "state.json").write_text('{"version": 1')
        text = r"checkpointLocation=.*chaffinch has a file state\.json that is damaged: .*; restore it, or remove it: "
        with pytest.raises(Refusal, match=text):
            query.commit(query.write(ROWS, batch_id=1), batch_id=1)

    def test_a_state_of_a_later_format_is_refused_by_name(self, query: SimpleNamespace) -> None:
        query.commit(query.write(ROWS))
        (query.folder / "checkpoint" / "chaffinch" / "state.json").write_text('{"version": 9, "batches": []}')
        text = (
            r"FORMAT_NEWER: the file state\.json in checkpointLocation=.*chaffinch cannot be read: it has format version 9, "
            "this Chaffinch supports versions up to 1; use the version of Chaffinch that wrote it, or a newer one"
        )
        with pytest.raises(Refusal, match=text):
            query.commit(query.write(ROWS, batch_id=1), batch_id=1)

    def test_stream_without_query_id_is_refused(self, query: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        messages = query.write(ROWS)
        outcome = messages[0].outcome
        nameless = writers.CommitMessage(replace(outcome, context=replace(outcome.context, query_id=None)))
        with pytest.raises(Refusal, match="QUERY_UNKNOWN: Spark gave the tasks no query id"):
            query.commit([nameless])

    @pytest.mark.parametrize("guarantee", TABLES)
    def test_stream_without_outcomes_is_refused(self, query: SimpleNamespace, guarantee: str) -> None:
        """As with trigger(continuous=...): Spark asks for a commit, and has given no row to Python."""
        with pytest.raises(Refusal, match=r"QUERY_UNKNOWN: no task has sent a message: trigger\(continuous=\.\.\.\) gives no rows"):
            query.commit([None], deliveryGuarantee=guarantee)

    def test_a_compacted_dead_letter_topic(self, kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
        alter(kafka, "dead", "cleanup.policy", "compact")
        with pytest.raises(Refusal, match=r"errors\.dead\.letter\.queue\.topic\.name=dead is compacted"):
            query.writer()

    def test_a_changed_transactional_id(self, query: SimpleNamespace) -> None:
        query.commit(query.write(ROWS))
        with pytest.raises(Refusal, match=r"kafka\.transactional\.id is mine, this checkpoint was started with chaffinch-q"):
            query.commit(query.write(ROWS, batch_id=1), batch_id=1, **{"kafka.transactional.id": "mine"})

    def test_a_time_out_above_the_broker_s(self, query: SimpleNamespace) -> None:
        text = r"kafka\.transaction\.timeout\.ms=100000000 is more than the broker's transaction\.max\.timeout\.ms of 900000"
        with pytest.raises(Refusal, match=text):
            query.writer(**{"kafka.transaction.timeout.ms": "100000000"})


def test_rows_written_equal_committed_records(kafka: EmbeddedBroker, query: SimpleNamespace) -> None:
    """A commit that fails at its end leaves nothing visible, and everything is visible after the next."""
    kafka.faults.add(api="AddOffsetsToTxn", error="GROUP_AUTHORIZATION_FAILED", count=1)
    with pytest.raises(Refusal):
        query.commit(query.write(ROWS))
    assert values(kafka, "orders") == Counter()
    query.commit(query.write(ROWS))
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1}
