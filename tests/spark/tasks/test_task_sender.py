"""`at-least-once` and `none`: tasks send to a real broker, in this process; what Spark does around them is played by hand."""

import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch.admin.topics import delete_topics
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors.codes import Group
from chaffinch.records import arrow_columns
from chaffinch.spark.commit.operations import Operation, Step
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.commit_shell import CommitShell
from chaffinch.spark.source.batch_reader import TopicReader
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.target import forget_client
from chaffinch.spark.tasks import row_check
from chaffinch.spark.tasks.task_sender import CHUNKS_IN_FLIGHT_MAX, TaskSender, _InFlight, _producers
from tests.spark.query_driver import QueryDriver
from tests.spark.test_spark_write import alter, values

ROWS = {"key": ["a", None, "c"], "value": [b"1", b"2", b"3"]}
GUARANTEES = pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
LETTERS: dict[str, Any] = {"errors__tolerance": "all", "errors__dead__letter__queue__topic__name": "dead"}


@pytest.fixture(scope="module")
def served() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def kafka(served: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    for name, partitions in {"orders": 2, "dead": 1}.items():
        served.create_topic(name, partitions, 1, {})
    yield served
    served.faults.clear()
    with SyncClient([served.bootstrap_servers]) as client:
        delete_topics(client, ["orders", "dead"])


@pytest.fixture
def query(kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryDriver]:
    played = QueryDriver(monkeypatch, kafka.bootstrap_servers, tmp_path / "checkpoint", deliveryGuarantee="at-least-once")
    yield played
    played.close()


def state_of(query: QueryDriver) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((query.checkpoint / "chaffinch" / "state.json").read_text())
    return state


@GUARANTEES
def test_tasks_send_rows(kafka: EmbeddedBroker, query: QueryDriver, guarantee: str) -> None:
    messages = query.write(ROWS, {"key": ["d"], "value": [b"4"]}, deliveryGuarantee=guarantee)
    if guarantee == "at-least-once":
        assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1, "4": 1}
    query.commit(messages, deliveryGuarantee=guarantee)
    if guarantee == "none":  # Without acknowledgements: the next response of the connection shows that they were read.
        query.run(ROWS, batch_id=1)
        assert set(values(kafka, "orders")) == {"1", "2", "3", "4"}
    assert state_of(query)["totals"]["rows_written"] == (4 if guarantee == "at-least-once" else 7)


def test_rows_get_same_partitions_as_exactly_once(kafka: EmbeddedBroker, query: QueryDriver) -> None:
    table = {"key": [f"k{number}" for number in range(50)], "value": [b"v"] * 50}
    query.run(table)
    direct = {row["key"]: row["partition"] for row in kafka.read("orders").to_pylist()}
    query.run(table, batch_id=1, deliveryGuarantee="exactly-once")
    assert {row["key"]: row["partition"] for row in kafka.read("orders").to_pylist()} == direct
    query.run({"key": ["k1"], "value": [b"given"], "partition": [1 - direct[b"k1"]]}, batch_id=2)
    found = [row["partition"] for row in kafka.read("orders").to_pylist() if row["value"] == b"given"]
    assert found == [1 - direct[b"k1"]]


def test_headers_and_timestamps_arrive(kafka: EmbeddedBroker, query: QueryDriver) -> None:
    headers = pa.array([[{"key": "h", "value": b"x"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    times = pa.array([1_700_000_000_000_000, 1_700_000_000_001_000], pa.timestamp("us", "UTC"))
    query.run(
        pa.table({"value": [b"1", b"2"], "headers": headers, "timestamp": times}).to_batches()[0].to_pydict()
        | {"headers": headers, "timestamp": times}
    )
    rows = sorted(kafka.read("orders").to_pylist(), key=lambda row: row["value"])
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"x"}], []]
    assert [row["timestamp"].timestamp() for row in rows] == [1_700_000_000.0, 1_700_000_000.001]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_header_key_with_invalid_utf_8_is_unchanged(
    kafka: EmbeddedBroker, query: QueryDriver, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """Spark's strings may hold any bytes, and so may Kafka's headers. What shows tables of them would replace some."""
    name = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"h\xff"]).buffers()[1:]])
    header = pa.StructArray.from_arrays([name, pa.array([b"x"])], names=["key", "value"])
    query.run({"value": [b"1"], "headers": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), header)}, deliveryGuarantee=guarantee)
    # Read by our source: confluent-kafka ends the process with a segmentation fault where a header's key is no UTF-8.
    monkeypatch.setattr(arrow_columns, "to_arrow", partial(arrow_columns.to_arrow, has_text_keys=False))
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": "orders", "includeHeaders": "true"}
    reader = TopicReader(SourceOptions.parse(given))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    forget_client(reader._options.client)
    assert [batch["headers"].to_pylist() for batch in batches] == [[[{"key": b"h\xff", "value": b"x"}]]]


@GUARANTEES
def test_bad_rows_found_before_sending_become_dead_letters(
    kafka: EmbeddedBroker, query: QueryDriver, tmp_path: Path, guarantee: str
) -> None:
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.run(ROWS, deliveryGuarantee=guarantee, errors__dead__letter__path=str(tmp_path / "dead"), **LETTERS)
    query.run({"key": ["z"], "value": [b"9"]}, batch_id=1)
    assert set(values(kafka, "orders")) == {"1", "3", "9"}
    letter = kafka.read("dead").to_pylist()[0]
    assert (letter["value"], {header["key"]: header["value"] for header in letter["headers"]}["chaffinch.error.name"]) == (
        b"2", b"INVALID_COMPACTION_KEY",
    )  # fmt: skip
    row = pq.read_table(tmp_path / "dead").to_pylist()[0]
    assert (row["value"], row["error_name"], row["task"], row["row"]) == (b"2", "INVALID_COMPACTION_KEY", 0, 1)


def test_rows_rejected_by_broker_become_dead_letters(kafka: EmbeddedBroker, query: QueryDriver, tmp_path: Path) -> None:
    """The topic changes between the plan and the task."""
    writer = query.writer(errors__dead__letter__path=str(tmp_path / "dead"), **LETTERS)
    query._monkeypatch.setattr(query, "writer", lambda **_: writer)
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.run(ROWS)
    assert values(kafka, "orders") == {"1": 1, "3": 1}
    assert values(kafka, "dead") == {"2": 1}
    row = pq.read_table(tmp_path / "dead").to_pylist()[0]
    assert (row["value"], row["error_name"], row["row"]) == (b"2", "INVALID_COMPACTION_KEY", 1)
    assert state_of(query)["batch"]["counts"]["rejected"] == {"INVALID_COMPACTION_KEY": 1}


def test_bytes_of_rejected_rows_are_not_counted(kafka: EmbeddedBroker, query: QueryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither in the topic nor, with Parquet alone, among the letters."""

    def counted() -> int:
        return int(state_of(query)["batch"]["counts"]["byte_count"])

    parquet: dict[str, Any] = {"errors__tolerance": "all", "errors__dead__letter__path": str(query.checkpoint / "dead")}
    query.run({"key": ["a", "c"], "value": [b"1", b"3"]}, **parquet)
    good = counted()
    writer = query.writer(**parquet)
    monkeypatch.setattr(query, "writer", lambda **_: writer)
    alter(kafka, "orders", "cleanup.policy", "compact")
    query.run(ROWS, batch_id=1)
    assert counted() == good


def test_dead_letters_in_flight_are_limited(kafka: EmbeddedBroker, query: QueryDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose rows are all bad has many more of them than it can hold."""
    alter(kafka, "orders", "cleanup.policy", "compact")
    monkeypatch.setattr(row_check, "BAD_ROWS_PER_STEP", 1)
    kept = []
    settle = TaskSender._settle

    def noted(task: TaskSender, sent: _InFlight) -> None:
        kept.append(len(task._dead_letters))
        settle(task, sent)

    monkeypatch.setattr(TaskSender, "_settle", noted)
    query.run({"key": [None] * 20, "value": [b"%d" % number for number in range(20)]}, **LETTERS)
    assert (max(kept), len(kept)) == (CHUNKS_IN_FLIGHT_MAX, 20)
    assert values(kafka, "dead") == {str(number): 1 for number in range(20)}


def test_error_without_tolerance_says_that_rows_stay(kafka: EmbeddedBroker, query: QueryDriver) -> None:
    alter(kafka, "orders", "cleanup.policy", "compact")
    messages = query.write(ROWS, {"key": ["d"], "value": [b"4"]})
    with pytest.raises(
        Refusal, match=r"1 of 4 rows are rejected .* rows that are already written remain, and the next attempt writes them again"
    ):
        query.commit(messages)
    # The first task sent nothing, for it met the bad row before.
    assert values(kafka, "orders") == {"4": 1}
    assert not (query.checkpoint / "chaffinch").exists()


@pytest.mark.parametrize(
    ("error", "group"),
    [("TOPIC_AUTHORIZATION_FAILED", Group.INVALID_CONFIGURATION), ("UNSUPPORTED_FOR_MESSAGE_FORMAT", Group.INVALID_CONFIGURATION)],
)
def test_cluster_error_fails_batch_and_closes_producer(kafka: EmbeddedBroker, query: QueryDriver, error: str, group: Group) -> None:
    kafka.faults.add(api="Produce", error=error, count=1)
    rows = {**ROWS, "key": ["a"] * 3}  # In one request: others would be written all the same.
    messages = query.write(rows)
    assert not _producers
    with pytest.raises(Refusal, match=rf"{error}: task 0: .*rows that are already written remain") as caught:
        query.commit(messages)
    assert caught.value.group is group
    query.run(rows)
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("action", ["drop_before", "drop_after"])
def test_lost_connection_writes_each_row_once(
    kafka: EmbeddedBroker, query: QueryDriver, action: Literal["drop_before", "drop_after"]
) -> None:
    kafka.faults.add(api="Produce", action=action, count=1)
    query.run(ROWS)
    assert values(kafka, "orders") == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("given", [{}, LETTERS], ids=["no row may be bad", "letters"])
def test_topic_deleted_during_send_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Mapping[str, str]) -> None:
    topics = {"orders": {"partitions": 2}, "dead": {"partitions": 1}}
    with EmbeddedBroker(topics=topics, config={"auto.create.topics.enable": False}) as broker:
        servers = broker.bootstrap_servers
        query = QueryDriver(monkeypatch, servers, tmp_path, deliveryGuarantee="at-least-once", kafka__max__block__ms="300", **given)
        writer = query.writer()
        monkeypatch.setattr(query, "writer", lambda **_: writer)
        with SyncClient([servers]) as client:
            delete_topics(client, ["orders"])
        with pytest.raises(Refusal) as caught:
            query.run(ROWS, ROWS)
        assert caught.value.text.startswith(
            "task 0: topic 'orders' (option topic) was deleted, or created again with fewer partitions, while"
        )
        assert caught.value.text.count("orders") == 1
        assert values(broker, "dead") == {}
        query.close()


def test_rejected_dead_letters_fail_batch(kafka: EmbeddedBroker, query: QueryDriver) -> None:
    alter(kafka, "orders", "cleanup.policy", "compact")
    writer = query.writer(**LETTERS)
    query._monkeypatch.setattr(query, "writer", lambda **_: writer)
    alter(kafka, "dead", "max.message.bytes", "100")
    with pytest.raises(Refusal, match="the dead letter topic itself refuses 1 of 1 dead letters"):
        query.run(ROWS)


def test_one_producer_serves_all_tasks_of_a_process(query: QueryDriver) -> None:
    query.run(ROWS, ROWS)
    query.run(ROWS, batch_id=1)
    assert len(_producers) == 1
    query.run(ROWS, batch_id=2, kafka__linger__ms="1")
    assert len(_producers) == 2


def test_producer_options_have_effect(query: QueryDriver) -> None:
    query.run(ROWS, kafka__linger__ms="3", kafka__buffer__memory="5000000", kafka__compression__type="zstd")
    (producer,) = _producers._entries.values()
    found = {
        name: producer.settings[name] for name in ("linger.ms", "buffer.memory", "compression.type", "acks", "batch.size", "client.id")
    }
    assert found == {
        "linger.ms": 3, "buffer.memory": 5_000_000, "compression.type": "zstd", "acks": "all", "batch.size": 1_000_000,
        "client.id": "chaffinch-spark",
    }  # fmt: skip


def test_rows_above_the_largest_request_are_bad(kafka: EmbeddedBroker, query: QueryDriver) -> None:
    query.run({"key": ["a", "b"], "value": [b"x" * 5000, b"y"]}, kafka__max__request__size="4000", **LETTERS)
    assert values(kafka, "orders") == {"y": 1}
    letter = kafka.read("dead").to_pylist()[0]  # It has to fit into a request, too.
    headers = {header["key"]: header["value"] for header in letter["headers"]}
    assert (letter["key"], letter["value"], headers["chaffinch.error.value.bytes"]) == (b"a", None, b"5000")
    assert headers["chaffinch.error.message"].endswith(b"bytes, kafka.max.request.size allows 4000")


class TestAnotherGuarantee:
    """One checkpoint, first under one guarantee, then under another."""

    def test_batches_sent_without_transactions_are_known_to_exactly_once(self, kafka: EmbeddedBroker, query: QueryDriver) -> None:
        query.run({"key": ["a"], "value": [b"0"]}, batch_id=0, deliveryGuarantee="exactly-once")
        query.run({"key": ["a"], "value": [b"1"]}, batch_id=1)
        query.run({"key": ["a"], "value": [b"1"]}, batch_id=1, deliveryGuarantee="exactly-once")
        query.run({"key": ["a"], "value": [b"2"]}, batch_id=2, deliveryGuarantee="exactly-once")
        assert values(kafka, "orders") == {"0": 1, "1": 1, "2": 1}
        assert state_of(query)["transactional.id"] == "chaffinch-q"
        assert state_of(query)["totals"]["rows_written"] == 3

    def test_earlier_committed_batch_is_remembered(self, query: QueryDriver) -> None:
        query.run({"key": ["a"], "value": [b"0"]}, batch_id=0, deliveryGuarantee="exactly-once")
        query.run({"key": ["a"], "value": [b"1"]}, batch_id=1)
        assert state_of(query)["acknowledged"] == {"id": 0, "marker": "orders-0"}

    def test_open_transaction_of_killed_driver_is_ended(
        self, kafka: EmbeddedBroker, query: QueryDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else readers would wait behind it until it times out."""
        perform = CommitShell._perform

        def dies(shell: CommitShell, operation: Operation) -> object:
            if operation.step is Step.ADD_OFFSETS:
                raise KeyboardInterrupt
            return perform(shell, operation)

        query.run({"key": ["a"], "value": [b"0"]}, batch_id=0, deliveryGuarantee="exactly-once")
        with monkeypatch.context() as patch:
            patch.setattr(CommitShell, "_perform", dies)
            with pytest.raises(KeyboardInterrupt):
                query.run({"key": ["a"], "value": [b"1"]}, batch_id=1, deliveryGuarantee="exactly-once")
        query.run({"key": ["a"], "value": [b"1"]}, batch_id=1)
        assert values(kafka, "orders") == {"0": 1, "1": 1}
        kafka.faults.add(api="InitProducerId", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", count=1)
        query.run({"key": ["a"], "value": [b"2"]}, batch_id=2)
        kafka.faults.clear()
        assert values(kafka, "orders") == {"0": 1, "1": 1, "2": 1}

    def test_failure_to_end_open_transaction_does_not_fail_batch(self, kafka: EmbeddedBroker, query: QueryDriver) -> None:
        query.run({"key": ["a"], "value": [b"0"]}, batch_id=0, deliveryGuarantee="exactly-once")
        messages = query.write({"key": ["a"], "value": [b"1"]}, batch_id=1)
        kafka.faults.add(api="InitProducerId", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", count=1)
        query.commit(messages, batch_id=1)
        assert values(kafka, "orders") == {"0": 1, "1": 1}

    def test_older_checkpoint_is_refused(self, query: QueryDriver) -> None:
        query.run({"key": ["a"], "value": [b"0"]}, batch_id=0, deliveryGuarantee="exactly-once")
        query.run({"key": ["a"], "value": [b"5"]}, batch_id=5)
        with pytest.raises(Refusal, match="CHECKPOINT_RESTORED: batch 3 is older than batch 5"):
            query.run({"key": ["a"], "value": [b"3"]}, batch_id=3, deliveryGuarantee="exactly-once")

    def test_checkpoint_without_note_is_refused(self, query: QueryDriver) -> None:
        query.run({"key": ["a"], "value": [b"1"]}, batch_id=1)
        (query.checkpoint / "chaffinch" / "state.json").unlink()
        with pytest.raises(Refusal, match="MARKER_MISSING"):
            query.run({"key": ["a"], "value": [b"2"]}, batch_id=2, deliveryGuarantee="exactly-once")


@GUARANTEES
def test_batch_is_logged_in_one_line(query: QueryDriver, caplog: pytest.LogCaptureFixture, guarantee: str) -> None:
    query.query_id = f"q-{guarantee}"
    with caplog.at_level(logging.INFO, "chaffinch.spark"):
        for batch_id in range(2):
            query.run(ROWS, batch_id=batch_id, deliveryGuarantee=guarantee)
    found = [record.message for record in caplog.records if record.levelname == "WARNING" and "deliveryGuarantee" in record.message]
    assert len(found) == (guarantee == "none")
    assert caplog.messages[-1].startswith(f"query q-{guarantee}, batch 1: 3 rows written, 0 rejected, ")
