"""A topic that is deleted and made again between tasks and commit: no row is written by the partitions of the one before."""

from __future__ import annotations

import json
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from chaffinch.admin.topics import add_partitions, delete_topics
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.operations import SendBatch
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.sink import recreated_topics, writers
from chaffinch.spark.sink.commit_shell import CommitShell
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.target import client_for, forget_client, wall_ms
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.task_sender import forget_producer
from tests.spark.query_driver import QueryDriver
from tests.spark.test_spark_write import values

KEYED: dict[str, list[Any]] = {"key": [f"k{number}" for number in range(20)], "value": [b"%d" % number for number in range(20)]}
NAMED: dict[str, list[Any]] = {**KEYED, "topic": ["orders"] * 20}
FACTS = TaskContextFacts(task=0, query_id="q", run_id="run", batch_id=1, master="local[2]")
OF_A_SINK = {"chaffinch.sink": "one", "chaffinch.batch.id": "1"}


class World:
    """A broker, and one write of some kind; what Spark does around it is played by hand."""

    def __init__(self, broker: EmbeddedBroker, given: Mapping[str, str], *, is_stream: bool) -> None:
        self.broker = broker
        # Without a checkpoint the marker of the batch before is missing.
        has_marker = given.get("deliveryGuarantee", "exactly-once") == "exactly-once" and (is_stream or "chaffinch.sink" in given)
        way = {"onMissingMarker": "write"} if has_marker else {}
        parsed = SinkOptions.parse({"kafka.bootstrap.servers": broker.bootstrap_servers, **way, **given}, is_stream=is_stream)
        self.options, self.is_stream = parsed, is_stream

    def writer(self) -> writers.BatchWriter | writers.StreamWriter:
        return writers.stream_writer(self.options) if self.is_stream else writers.batch_writer(self.options)

    def planned(self) -> writers.BatchWriter | writers.StreamWriter:
        """A writer as it travels to the tasks, and for a batch write to the committing process."""
        writer: writers.BatchWriter | writers.StreamWriter = pickle.loads(pickle.dumps(self.writer()))
        return writer

    def commit(self, writer: writers.BatchWriter | writers.StreamWriter, message: writers.CommitMessage) -> None:
        if isinstance(writer, writers.BatchWriter):
            writer.commit([message])
        else:
            writers.stream_writer(self.options).commit([message], 1)

    def recreate(self, partition_count: int) -> None:
        delete_topics(client_for(self.options.client), ["orders"])
        self.broker.create_topic("orders", partition_count)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[World]:
    monkeypatch.setattr(writers, "task_facts", lambda: FACTS)
    given, is_stream = request.param
    with EmbeddedBroker(topics={"orders": {"partitions": 2}, "markers": {"partitions": 1}}) as broker:
        made = World(broker, given, is_stream=is_stream)
        yield made
        forget_client(made.options.client)


WAYS = {
    "a stream": ({"topic": "orders"}, True),
    "a batch write": ({"topic": "orders"}, False),
    "a batch write with a token": ({"topic": "orders", "idempotencyToken": "t"}, False),
    "a KafkaSink": ({"topic": "orders", **OF_A_SINK}, False),
    "rows of a stream name it": ({"markerTopic": "markers"}, True),
    "rows of a KafkaSink name it": ({"markerTopic": "markers", **OF_A_SINK}, False),
}


@pytest.mark.parametrize("world", WAYS.values(), ids=WAYS, indirect=True)
def test_recreated_topic_is_refused_without_writing(world: World) -> None:
    rows = KEYED if world.options.topic else NAMED
    writer = world.planned()
    message = writer.write(iter([pa.record_batch(rows)]))
    world.recreate(5)
    with pytest.raises(Refusal, match="SNAPSHOT_CHANGED: topic orders was deleted and created again while the batch was") as caught:
        world.commit(writer, message)
    assert caught.value.remedy is Remedy.AGAIN
    assert values(world.broker, "orders") == {}
    again = world.planned()
    world.commit(again, again.write(iter([pa.record_batch(rows)])))
    assert values(world.broker, "orders") == {str(number): 1 for number in range(20)}


@pytest.mark.parametrize("world", [WAYS["a batch write"]], indirect=True)
def test_grown_topic_is_written(world: World) -> None:
    """As between the tasks of a stream and its commit: what is planned goes where it was planned for."""
    writer = world.planned()
    message = writer.write(iter([pa.record_batch(KEYED)]))
    add_partitions(client_for(world.options.client), "orders", 5)
    world.commit(writer, message)
    assert values(world.broker, "orders") == {str(number): 1 for number in range(20)}


@pytest.mark.parametrize(
    ("world", "asked"), [(WAYS["a stream"], 0), (WAYS["a batch write"], 1), (WAYS["a KafkaSink"], 1)], indirect=["world"]
)
def test_current_snapshot_needs_no_request(world: World, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who does not asks once, for a batch that has rows."""
    from chaffinch.spark import target

    seen, ask = [], target.refresh_snapshot

    def noted(*given: Any) -> object:
        seen.append(given)
        return ask(*given)

    monkeypatch.setattr(target, "refresh_snapshot", noted)
    for rows in (KEYED, pa.table(KEYED).slice(0, 0).to_pydict()):
        writer = world.planned()
        world.commit(writer, writer.write(iter([pa.record_batch(rows, schema=pa.table(KEYED).schema)])))
    assert len(seen) == asked


class TestMarkers:
    """The topic that carries the marker is deleted, and the marker with it."""

    @pytest.fixture
    def broker(self) -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker(topics={"orders": {"partitions": 4}, "markers": {"partitions": 1}}) as broker:
            yield broker

    @pytest.fixture
    def query(self, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueryDriver]]:
        def begin(**given: Any) -> QueryDriver:
            checkpoint = (
                tmp_path / "checkpoint"
            )  # Its query has an id of its own: a broker remembers how the last transaction of an id ended.
            queries.append(QueryDriver(monkeypatch, broker.bootstrap_servers, checkpoint, query_id=tmp_path.name, **given))
            return queries[-1]

        queries: list[QueryDriver] = []
        yield begin
        for played in queries:
            played.close()

    @staticmethod
    def recreate(broker: EmbeddedBroker, topic: str, partitions: int) -> None:
        with SyncClient(broker.bootstrap_servers) as client:
            delete_topics(client, [topic])
        broker.create_topic(topic, partitions)

    @staticmethod
    def died_before_its_note(query: QueryDriver, batch_id: int) -> None:
        """The transaction is committed, and the checkpoint does not say so."""
        path = query.checkpoint / "chaffinch" / "state.json"
        state = json.loads(path.read_text())
        assert state["batch"]["id"] == batch_id
        state["batch"] |= {"stage": "ending", "noted_ms": wall_ms()}
        path.write_text(json.dumps(state))

    @pytest.mark.parametrize("topic", ["orders", "markers"])
    def test_next_batch_is_written_at_once(self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], topic: str) -> None:
        """Partitions of the last batch that are gone with their topic are not waited for."""
        played = query(markerTopic="markers")
        played.run(KEYED, batch_id=0)
        self.recreate(broker, topic, 1)
        before_s = time.monotonic()
        played.run(KEYED, batch_id=1)
        assert time.monotonic() - before_s < 30, "kafka.max.block.ms is 60 s"
        again = 1 if topic == "orders" else 2
        assert values(broker, "orders") == {str(number): again for number in range(20)}
        played.run(KEYED, batch_id=1)
        assert values(broker, "orders") == {str(number): again for number in range(20)}

    def test_ending_batch_is_refused_if_its_rows_may_exist(self, broker: EmbeddedBroker, query: Callable[..., QueryDriver]) -> None:
        query(markerTopic="markers").run(KEYED)
        self.died_before_its_note(query(markerTopic="markers"), 0)
        self.recreate(broker, "markers", 1)
        with pytest.raises(
            Refusal, match=r"MARKER_MISSING: .*'markers' was deleted and created again: the marker belonged to the topic with id"
        ):
            query(markerTopic="markers").run(KEYED)
        assert values(broker, "orders") == {str(number): 1 for number in range(20)}
        query(markerTopic="markers", onMissingMarker="write").run(KEYED)
        assert values(broker, "orders") == {str(number): 2 for number in range(20)}

    def test_ending_batch_is_written_if_its_rows_were_deleted_with_marker(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver]
    ) -> None:
        query().run(KEYED)
        self.died_before_its_note(query(), 0)
        self.recreate(broker, "orders", 2)
        query().run(KEYED)
        assert values(broker, "orders") == {str(number): 1 for number in range(20)}

    @pytest.mark.parametrize("is_first", [True, False], ids=["the token's topic", "another topic of the token"])
    def test_token_with_deleted_marker_is_refused(self, broker: EmbeddedBroker, is_first: bool, tmp_path: Path) -> None:
        """The coordinator knows that its transaction was committed. A marker on another topic may be that transaction's."""
        broker.create_topic("others", 1)

        def write(marker_topic: str) -> None:
            given = {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "idempotencyToken": tmp_path.name,
                "topic": "orders",
                "markerTopic": marker_topic,
            }
            world = World(broker, given, is_stream=False)
            try:
                writer = world.planned()
                world.commit(writer, writer.write(iter([pa.record_batch(KEYED)])))
            finally:
                forget_client(world.options.client)

        write("markers")
        write("markers")
        assert values(broker, "orders") == {str(number): 1 for number in range(20)}
        if is_first:
            self.recreate(broker, "markers", 1)
            with pytest.raises(
                Refusal,
                match=r"MARKER_MISSING: .* last transaction of chaffinch-[^ ]+ is committed: its marker has since been lost, .*'markers'",
            ):
                write("markers")
        else:
            write("others")
        assert values(broker, "orders") == {str(number): 1 if is_first else 2 for number in range(20)}

    @pytest.mark.parametrize("partitions", [1, 4])
    def test_topic_recreated_during_push(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], monkeypatch: pytest.MonkeyPatch, partitions: int
    ) -> None:
        """Partitions that are gone are not waited for; the next attempt partitions the rows again."""
        played, send = query(markerTopic="markers"), CommitShell._send

        def deleting(shell: CommitShell, operation: SendBatch) -> None:
            monkeypatch.setattr(CommitShell, "_send", send)
            send(shell, operation)
            self.recreate(broker, "orders", partitions)
            shell._client.cluster.forget("orders")

        messages = played.write(KEYED)
        monkeypatch.setattr(CommitShell, "_send", deleting)
        with pytest.raises(
            Refusal, match=r"SNAPSHOT_CHANGED: topic 'orders' was deleted and created again: the rows were staged for"
        ) as caught:
            played.commit(messages)
        assert caught.value.remedy is Remedy.AGAIN
        played.run(KEYED)
        assert values(broker, "orders") == {str(number): 1 for number in range(20)}

    @pytest.mark.parametrize("partitions", [1, 4, 6])
    @pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
    def test_rows_of_direct_batch_are_sent_again(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], guarantee: str, partitions: int
    ) -> None:
        """They are lost with the deleted topic, or lie where the new one has other keys."""
        played = query(deliveryGuarantee=guarantee)
        messages = played.write(KEYED)
        self.recreate(broker, "orders", partitions)
        with pytest.raises(
            Refusal, match="SNAPSHOT_CHANGED: topic orders was deleted and created again while its rows were sent"
        ) as caught:
            played.commit(messages)
        assert caught.value.remedy is Remedy.AGAIN
        played.run(KEYED)
        assert set(values(broker, "orders")) == {str(number) for number in range(20)}


GUARANTEES = ["exactly-once", "at-least-once", "none"]


class TestWarning:
    """A topic is created again between two batches: the batch that is written to the new one says so, and no other."""

    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recreated_topics, "_written", {})

    @pytest.fixture
    def broker(self) -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker(topics={"orders": {"partitions": 4}, "others": {"partitions": 1}}) as broker:
            yield broker

    @pytest.fixture
    def query(self, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueryDriver]]:
        queries: list[QueryDriver] = []

        def begin(**given: Any) -> QueryDriver:
            queries.append(QueryDriver(monkeypatch, broker.bootstrap_servers, tmp_path / "checkpoint", **given))
            return queries[-1]

        yield begin
        for played in queries:
            played.close()

    @staticmethod
    def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
        """The sink's; a task's producer may have its own."""
        ours = [record for record in caplog.records if record.name.startswith("chaffinch.spark")]
        found = [record for record in ours if "deleted and created again" in record.getMessage()]
        assert all(record.levelname == "WARNING" for record in found)
        return [record.getMessage() for record in found]

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("restarts", [False, True])
    def test_stream(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], caplog: pytest.LogCaptureFixture, guarantee: str, restarts: bool
    ) -> None:
        played = query(deliveryGuarantee=guarantee)
        played.run(KEYED, batch_id=0)
        played.run(KEYED, batch_id=1)
        assert self.lines(caplog) == []
        TestMarkers.recreate(broker, "orders", 1)
        if restarts:
            played.close()
            played = query(deliveryGuarantee=guarantee)
        for batch_id in (2, 3):
            played.run(KEYED, batch_id=batch_id)
            (line,) = self.lines(caplog)
        assert re.fullmatch(
            r"query q, batch 2: topic 'orders' was deleted and created again \(id \S{22}, was \S{22}; 1 partition, were 4\): "
            "rows written before are lost; the order per key starts again",
            line,
        )

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("has_checkpoint", [True, False])
    def test_kafka_sink(
        self,
        broker: EmbeddedBroker,
        query: Callable[..., QueryDriver],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        guarantee: str,
        has_checkpoint: bool,
    ) -> None:
        query()
        where = {"checkpointLocation": str(tmp_path / "checkpoint")} if has_checkpoint else {}
        for batch_id in range(4):
            if batch_id == 2:
                TestMarkers.recreate(broker, "orders", 6)
            given = {"topic": "orders", "deliveryGuarantee": guarantee, **where, **OF_A_SINK, "chaffinch.batch.id": str(batch_id)}
            world = World(broker, given, is_stream=False)
            monkeypatch.setattr(writers, "task_facts", lambda batch_id=batch_id: replace(FACTS, batch_id=batch_id))
            writer = world.planned()
            world.commit(writer, writer.write(iter([pa.record_batch(KEYED)])))
            forget_client(world.options.client)
            assert len(self.lines(caplog)) == (batch_id > 1)
        forget_producer(world.options.producer)

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    def test_no_warning_for_topic_not_written_before(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], caplog: pytest.LogCaptureFixture, guarantee: str
    ) -> None:
        """Another one is remembered over batches without rows for it."""
        played = query(deliveryGuarantee=guarantee, **({"markerTopic": "others"} if guarantee == "exactly-once" else {}))
        del played.options["topic"]
        played.run({**KEYED, "topic": ["others"] * 20}, batch_id=0)
        TestMarkers.recreate(broker, "orders", 2)
        played.run(NAMED, batch_id=1)
        assert self.lines(caplog) == []
        played.run({**KEYED, "topic": ["others"] * 20}, batch_id=2)
        TestMarkers.recreate(broker, "orders", 2)
        played.run({**KEYED, "topic": ["others"] * 20}, batch_id=3)
        assert self.lines(caplog) == []
        played.run(NAMED, batch_id=4)
        (line,) = self.lines(caplog)
        assert "topic 'orders'" in line
        assert "2 partitions, were 2)" in line

    def test_no_warning_for_marker_topic(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], caplog: pytest.LogCaptureFixture
    ) -> None:
        """No rows were written to it. That its marker is gone is said elsewhere."""
        played = query(markerTopic="others", onMissingMarker="write")
        played.run(KEYED, batch_id=0)
        TestMarkers.recreate(broker, "others", 2)
        played.run(KEYED, batch_id=1)
        assert self.lines(caplog) == []
        del played.options["topic"]
        played.run({**KEYED, "topic": ["others"] * 20}, batch_id=2)
        TestMarkers.recreate(broker, "others", 3)
        played.run(NAMED, batch_id=3)
        (line,) = self.lines(caplog)
        assert "batch 3: topic 'others'" in line
        assert "3 partitions, were 2)" in line

    def test_warning_after_changed_guarantee(
        self, broker: EmbeddedBroker, query: Callable[..., QueryDriver], caplog: pytest.LogCaptureFixture
    ) -> None:
        query().run(KEYED, batch_id=0)
        TestMarkers.recreate(broker, "orders", 2)
        changed = query(deliveryGuarantee="at-least-once")
        changed.run(KEYED, batch_id=1)
        state = json.loads((changed.checkpoint / "chaffinch" / "state.json").read_text())
        assert state["written_to"] == {}, "those were partitions of the deleted topic"
        query().run(KEYED, batch_id=2)
        assert len(self.lines(caplog)) == 1


@pytest.mark.parametrize(
    ("before", "now", "said"), [(1, 3, "3 partitions, was 1"), (3, 1, "1 partition, were 3"), (None, 2, "2 partitions")]
)
def test_warning_has_former_partition_count_if_known(caplog: pytest.LogCaptureFixture, before: int | None, now: int, said: str) -> None:
    old = CheckpointState(topic_ids={"t": UUID(int=1)}, partition_counts={} if before is None else {"t": before})
    recreated_topics.warn_recreated_topics("q", 5, old, CheckpointState(topic_ids={"t": UUID(int=2)}, partition_counts={"t": now}))
    assert [f"; {said}): rows written before are lost" in record.getMessage() for record in caplog.records] == [True]
