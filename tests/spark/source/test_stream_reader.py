"""The readers of batches and streams with a real broker, in this process: what Spark does around them is played by hand."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from uuid import UUID

import pytest
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from chaffinch import Producer
from chaffinch.admin import offsets
from chaffinch.admin.topics import add_partitions, delete_topics
from chaffinch.client.cluster import TopicState
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import UnknownTopicOrPartitionException, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from chaffinch.runtime.clock import ManualClock
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import writing
from chaffinch.spark.source import stream_reader
from chaffinch.spark.source.batch_reader import planned_reader
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.source.stream_reader import IS_LIMITED, TopicStreamReader, planned_stream_reader
from chaffinch.spark.source.topic_discovery import TopicDiscovery
from tests.spark.source.reader_driver import SCHEMA, begun, latest, plain, rows_of, values, wait_by
from tests.spark.source.source_topics import FIRST_MS, drop_first, numbers

GONE = "b-0 is missing, deleted or no longer subscribed to"
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

Loss: TypeAlias = Callable[[Callable[[], object], dict[str, dict[str, int]]], tuple[str, dict[str, dict[str, int]], dict[str, list[int]]]]


class TestStreams:
    def test_query_starts_with_latest_and_reads_new_records(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 3})
        reader = kafka.stream()
        start = reader.initialOffset()
        assert plain(start) == {"a": {"0": 3, "1": 0}}
        assert latest(reader, start) == start
        kafka.fill("a", {0: 2, 1: 1})
        end = latest(reader, start)
        assert (plain(end), reader.reportLatestOffset()) == ({"a": {"0": 5, "1": 1}},) * 2
        assert values(reader, start, end) == {"a-0": [0, 1], "a-1": [0]}
        assert reader.partitions(end, end) == []

    def test_micro_batch_is_divided_into_tasks(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 30, 1: 10})
        start, end = {"a": {"0": 0, "1": 0}}, {"a": {"0": 30, "1": 10}}
        for given, expected in (({}, 2), ({"minPartitions": "5"}, 5), ({"maxRecordsPerPartition": "10"}, 4)):
            reader = kafka.stream(**given)
            assert len(reader.partitions(start, end)) == expected
            assert values(reader, start, end) == {"a-0": numbers(30), "a-1": numbers(10)}

    def test_open_transaction_is_not_read(self, kafka: SimpleNamespace) -> None:
        reader, everything = kafka.stream(), kafka.stream(**{"kafka.isolation.level": "read_uncommitted"})
        with Producer(bootstrap_servers=kafka.servers, transactional_id="t") as producer:
            producer.init_transactions()
            start = reader.initialOffset()
            for commits in (True, False):
                producer.begin_transaction()
                producer.send("a", b"1", partition=0).result(60)
                assert latest(reader, start) == start
                ahead = latest(everything, start)
                # A query that has read uncommitted records before goes on where it was.
                assert kafka.stream(startingOffsets=ahead).initialOffset() == ahead
                assert kafka.stream(is_batch=True, startingOffsets=ahead).partitions() == []
                (producer.commit_transaction if commits else producer.abort_transaction)()
                kafka.broker.read("a")  # Apache Kafka ends it in the partition a little later, which this waits for.
                end = latest(reader, start)
                assert values(reader, start, end) == ({"a-0": [1]} if commits else {})
                start = end

    def test_records_of_open_transaction_in_batch_are_waited_for(self, kafka: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        """As `replay` does: brokers end a transaction everywhere only after they have said that it is ended."""
        given = {"kafka.bootstrap.servers": kafka.servers, "kafka.default.api.timeout.ms": "5000"}
        clock, pauses = ManualClock(), []

        def pause(client: SyncClient, pause_ms: int) -> None:
            pauses.append(pause_ms)
            clock.advance(1_000)
            if len(pauses) == ended_at:
                producer.commit_transaction()
                kafka.broker.read("a")

        wait_by(clock, monkeypatch)
        monkeypatch.setattr(SyncClient, "pause", pause)
        with Producer(bootstrap_servers=kafka.servers, transactional_id="t") as producer:
            producer.init_transactions()
            for ended_at in (2, 7):
                pauses.clear()
                producer.begin_transaction()
                producer.send("a", b"1", partition=1).result(60)
                if ended_at == 2:
                    writing.wait_for_ends(given, "a")
                    assert len(pauses) == 2
                else:
                    with pytest.raises(Refusal, match="REQUEST_TIMED_OUT: a-1 has had an open transaction for 5000 ms"):
                        writing.wait_for_ends(given, "a")

    def test_wrong_stream_options_are_refused(self, kafka: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        least = {"kafka.bootstrap.servers": kafka.servers, "subscribe": "a"}
        with pytest.raises(Refusal, match=r"KAFKA\[InvalidConfiguration\] CONFIG: give exactly one of"):
            planned_stream_reader({**least, "assign": '{"a":[0]}'}, SCHEMA)
        monkeypatch.setattr(stream_reader, "IS_LIMITED", True)
        assert isinstance(planned_stream_reader({**least, "maxOffsetsPerTrigger": "5"}, SCHEMA), TopicStreamReader)
        monkeypatch.setattr(stream_reader, "IS_LIMITED", False)
        for option in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
            with pytest.raises(Refusal, match=f"{option} needs PySpark 4.2 or newer, this is "):
                planned_stream_reader({**least, option: "5"}, SCHEMA)

    def test_pyspark_without_limits_gets_latest(self, kafka: SimpleNamespace) -> None:
        """4.1 calls `latestOffset()`, with no start and no limit."""
        kafka.fill("a", {0: 3})
        reader = kafka.stream(startingOffsets="earliest")
        start, end = reader.initialOffset(), reader.latestOffset()
        assert values(reader, start, end) == {"a-0": [0, 1, 2]}
        assert reader.latestOffset() == end


@pytest.mark.parametrize("plan", [planned_reader, planned_stream_reader], ids=["batch", "stream"])
def test_user_schema_is_refused(plan: Callable[[dict[str, str], StructType], object]) -> None:
    options = {"kafka.bootstrap.servers": "a:1", "subscribe": "a"}
    with_headers = StructType([*SCHEMA.fields, StructField("headers", HEADERS)])
    plan(options, SCHEMA)
    plan({**options, "includeheaders": "true"}, with_headers)
    for schema in (with_headers, StructType().add("value", "string")):
        with pytest.raises(Refusal, match=r"CONFIG: the source always has the columns key binary, .*; leave out schema\(\), which gave"):
            plan(options, schema)


class TestChoices:
    def test_pattern_finds_new_topics(self, kafka: SimpleNamespace) -> None:
        kafka.broker.create_topic("sold-eu", 1)
        kafka.broker.create_topic("old-sold-eu", 1)
        reader = kafka.stream(subscribePattern="sold-.*")
        start = begun(reader)
        assert plain(start) == {"sold-eu": {"0": 0}}
        kafka.broker.create_topic("sold-us", 1)
        kafka.fill("sold-us", {0: 2})
        end = latest(reader, start)
        assert plain(end) == {"sold-eu": {"0": 0}, "sold-us": {"0": 2}}
        assert values(reader, start, end) == {"sold-us-0": [0, 1]}

    def test_pattern_never_finds_internal_topics(self) -> None:
        partitions = [MetadataResponsePartition(partition_index=0, leader_id=1)]
        answer = MetadataResponse(
            topics=[
                MetadataResponseTopic(name=name, is_internal=name.startswith("__"), partitions=partitions)
                for name in ("a", "__consumer_offsets")
            ]
        )
        options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribePattern": ".*"})
        client = cast(SyncClient, SimpleNamespace(request=lambda *asked, timeout_ms: answer))
        assert TopicDiscovery(client, options).partitions().partitions == (("a", 0),)

    def test_pattern_without_match_is_accepted(self, kafka: SimpleNamespace) -> None:
        assert kafka.stream(subscribePattern="none-.*").initialOffset() == {}

    def test_assigned_partitions_are_read(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 2, 1: 2})
        reader = kafka.stream(assign={"a": [1], "b": [0]}, startingOffsets="earliest")
        assert plain(latest(reader, reader.initialOffset())) == {"a": {"1": 2}, "b": {"0": 0}}

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"subscribe": "a,c"}, r"topic 'c' \(option subscribe\) does not exist on 127.0.0.1:\d+; create it, or correct the option"),
            (
                {"subscribe": "a,b c"},
                r"topic 'b c' \(option subscribe\) is not a legal name: a name has letters, digits, .*; correct the op",
            ),
            ({"assign": {"b/c": [0]}}, r"topic 'b/c' \(option assign\) is not a legal name: a name has letters, digits, .* at most 249"),
            ({"assign": {"c": [0]}}, r"topic 'c' \(option assign\) does not exist"),
            ({"assign": {"a": [0, 9]}}, r"partition 9 of topic 'a' \(option assign\) does not exist: the topic has 2 partitions"),
            ({"startingOffsets": {"a": {"0": 0}}}, "startingOffsets lacks a-1"),
            ({"startingOffsets": {"aa": {"0": 0}}}, "startingOffsets lacks a-0, a-1: it must have every .*; it has aa-0"),
            ({"startingOffsets": {"a": {"0": 0, "1": 0, "2": 0}}}, "startingOffsets has a-2, not among the partitions that are read"),
            ({"startingTimestamp": "1900000000000"}, r"startingTimestamp: a-0 has no record of 1900000000000 \(ms since 1970\) or later"),
        ],
    )
    @pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream"])
    def test_missing_topics_and_partitions_are_refused(
        self, kafka: SimpleNamespace, given: Mapping[str, Any], text: str, is_batch: bool
    ) -> None:
        reader = kafka.stream(is_batch=is_batch, **given)
        with pytest.raises(Refusal, match=rf"KAFKA\[InvalidConfiguration\] \w+: {text}"):
            reader.partitions() if is_batch else latest(reader, reader.initialOffset())


class TestTimes:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"startingTimestamp": str(FIRST_MS + 4)}, {"a-0": numbers(10, 4), "a-1": [4]}),
            ({"startingOffsetsByTimestamp": {"a": {"0": FIRST_MS + 9, "1": 0}}}, {"a-0": [9], "a-1": numbers(5)}),
            ({"endingTimestamp": str(FIRST_MS + 4)}, {"a-0": numbers(4), "a-1": numbers(4)}),
            ({"endingTimestamp": str(FIRST_MS + 7)}, {"a-0": numbers(7), "a-1": numbers(5)}),
            ({"endingOffsetsByTimestamp": {"a": {"0": FIRST_MS + 1, "1": FIRST_MS}}}, {"a-0": [0]}),
            ({"startingTimestamp": str(FIRST_MS + 7), "startingOffsetsByTimestampStrategy": "latest"}, {"a-0": [7, 8, 9]}),
        ],
    )
    def test_batch_read_by_times(self, kafka: SimpleNamespace, given: Mapping[str, Any], expected: Mapping[str, Sequence[int]]) -> None:
        kafka.fill("a", {0: 10, 1: 5})
        reader = kafka.stream(is_batch=True, **given)
        assert rows_of(reader, reader.partitions()) == expected

    def test_stream_starts_at_first_record_of_time(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 10, 1: 5})
        chosen = {"startingTimestamp": str(FIRST_MS + 7), "startingOffsetsByTimestampStrategy": "latest"}
        assert plain(kafka.stream(**chosen).initialOffset()) == {"a": {"0": 7, "1": 5}}

    @pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream"])
    def test_record_after_open_transaction_counts_for_time(self, kafka: SimpleNamespace, is_batch: bool) -> None:
        """A start that was refused for it would be refused until the transaction ends, under a text that is not true."""
        reader = kafka.stream(is_batch=is_batch, startingTimestamp="1")
        with Producer(bootstrap_servers=kafka.servers, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("a", b"1", partition=partition).result(60)
            if is_batch:
                assert rows_of(reader, reader.partitions()) == {}
            else:
                start = reader.initialOffset()
                assert latest(reader, start) == start
                assert plain(start) == {"a": {"0": 0, "1": 0}}
            producer.commit_transaction()
            kafka.broker.read("a")
        if not is_batch:
            assert values(reader, start, latest(reader, start)) == {"a-0": [1], "a-1": [1]}


START = {"a": {"0": 5, "1": 0}, "b": {"0": 5}}


def refused(reader: TopicStreamReader, start: dict[str, dict[str, int]]) -> str:
    """The report of a loss, before the end of the micro-batch is in the checkpoint. With PySpark 4.1 mostly afterwards."""

    def asked() -> None:
        end = latest(reader, start)
        assert not IS_LIMITED, "the end is noted"
        reader.partitions(start, end)

    with pytest.raises(Refusal, match=r"KAFKA\[InvalidConfiguration\] OFFSET_OUT_OF_RANGE") as caught:
        asked()
    return str(caught.value)


class TestChanges:
    """Topics that change while a query runs."""

    def test_new_partitions_are_read_from_start(self, kafka: SimpleNamespace) -> None:
        reader = kafka.stream()
        start = begun(reader)
        add_partitions(kafka.client, "a", 3)
        kafka.fill("a", {2: 4})
        end = latest(reader, start)
        assert values(reader, start, end) == {"a-2": numbers(4)}

    @pytest.fixture
    def loss(self, kafka: SimpleNamespace) -> Loss:
        """A query that has read 5 records of each of topic a and b."""
        kafka.fill("a", {0: 5})
        kafka.fill("b", {0: 5})

        def play(
            change: Callable[[], object], start: dict[str, dict[str, int]]
        ) -> tuple[str, dict[str, dict[str, int]], dict[str, list[int]]]:
            """The texts of what is lost: of the refusal, and, with failOnDataLoss=false, of the log; and where the stream goes on."""
            strict = kafka.stream(subscribe="a,b")
            lenient = kafka.stream(subscribe="a,b", failOnDataLoss="false")
            change()
            text = refused(strict, start)
            end = latest(lenient, start)
            return text, plain(end), values(lenient, start, end)

        return play

    def test_deleted_topic_is_a_loss(self, kafka: SimpleNamespace, loss: Loss, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        text, end, rows = loss(lambda: delete_topics(kafka.client, ["b"]), START)
        said = f"{GONE}: offset 5 came next" if IS_LIMITED else f"topic 'b' (option subscribe) does not exist on {kafka.servers}"
        assert f"{said}; set failOnDataLoss=false to read the remaining records" in text
        assert (end, rows) == ({"a": {"0": 5, "1": 0}}, {})
        assert caplog.text.count("b-0 is missing") == 1, "each loss is said once"

    def test_unsubscribed_topic_is_a_loss(self, kafka: SimpleNamespace, loss: Loss) -> None:
        fewer = kafka.stream(subscribe="a")
        assert f"{GONE}: offset 5 came next; set failOnDataLoss=false" in refused(fewer, START)

    def test_shorter_recreated_topic_is_a_loss(self, kafka: SimpleNamespace, loss: Loss) -> None:
        def change() -> None:
            delete_topics(kafka.client, ["b"])
            kafka.broker.create_topic("b", 1)
            kafka.fill("b", {0: 2})

        text, end, rows = loss(change, START)
        assert "b-0 ends at offset 2, offset 5 came next: it was truncated, or deleted and created again" in text
        assert (end, rows) == ({"a": {"0": 5, "1": 0}, "b": {"0": 2}}, {})

    @pytest.mark.usefixtures("impatient")
    @pytest.mark.parametrize(("count", "left"), [(2, []), (4, [3]), (5, [3, 4])])
    def test_restart_batch_with_recreated_topic_is_a_loss(self, kafka: SimpleNamespace, count: int, left: Sequence[int]) -> None:
        """The batch is of offsets 3 to 7."""
        kafka.fill("b", {0: 8})
        delete_topics(kafka.client, ["b"])
        kafka.broker.create_topic("b", 1)
        kafka.fill("b", {0: count})
        start, end = {"b": {"0": 3}}, {"b": {"0": 8}}
        with pytest.raises(Refusal, match=r"InvalidConfiguration\] OFFSET_OUT_OF_RANGE: b-0 ends .*; set failOnDataLoss=false"):
            values(kafka.stream(subscribe="b"), start, end)
        for _ in range(2):  # Spark plans it once more where the query is started again.
            assert values(kafka.stream(subscribe="b", failOnDataLoss="false"), start, end) == ({"b-0": left} if left else {})

    def test_new_partition_with_removed_records_is_a_loss(self, kafka: SimpleNamespace, loss: Loss) -> None:
        def change() -> None:
            add_partitions(kafka.client, "a", 3)
            kafka.fill("a", {2: 4})
            drop_first(kafka.client, TopicPartition("a", 2), 3)

        text, end, rows = loss(change, START)
        assert "a-2 is new and begins at offset 3, not 0" in text
        assert (end["a"]["2"], rows) == (4, {"a-2": [3]})

    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_restart_batch_with_deleted_topic_is_a_loss(self, kafka: SimpleNamespace, fails: str) -> None:
        """`partitions` is called first then, before any request for offsets."""
        kafka.fill("a", {0: 5})
        kafka.fill("b", {0: 5})
        start, end = {"a": {"0": 0, "1": 0}}, {"a": {"0": 5, "1": 0}, "b": {"0": 5}}
        delete_topics(kafka.client, ["b"])
        reader = kafka.stream(subscribe="a,b", failOnDataLoss=fails)
        if fails == "true":
            with pytest.raises(Refusal, match=f"{GONE}: it was not read"):
                reader.partitions(start, end)
        else:
            assert values(reader, start, end) == {"a-0": numbers(5)}


def test_checkpoint_of_spark_kafka_source_is_continued(kafka: SimpleNamespace) -> None:
    """Its checkpoint has the same form, written without spaces."""
    kafka.fill("a", {0: 5, 1: 5})
    reader = kafka.stream()
    start = json.loads('{"a":{"1":3,"0":4}}')
    assert values(reader, start, latest(reader, start)) == {"a-0": [4], "a-1": [3, 4]}
    assert plain(kafka.stream(startingOffsets='{"a":{"1":3,"0":4}}').initialOffset()) == {"a": {"0": 4, "1": 3}}


@pytest.mark.parametrize("fields", [{"logOffset": 3}, {"a": {"first": 3}}, 17])
def test_checkpoint_of_other_source_is_refused(kafka: SimpleNamespace, fields: int | Mapping[str, Any]) -> None:
    text = "CONFIG: the checkpoint was written by another source: instead of topic offsets it has "
    for asked in (partial(kafka.stream().latestOffset, fields), partial(kafka.stream().partitions, fields, fields)):
        with pytest.raises(Refusal, match=re.escape(text + json.dumps(fields))):
            asked()


def test_unreadable_topic_is_not_treated_as_deleted(kafka: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be skipped with failOnDataLoss=false, and read from its beginning when it is there again."""
    reader = kafka.stream(failOnDataLoss="false")
    start = reader.initialOffset()
    state = TopicState(name="a", topic_id=UUID(int=0), code=codes.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setitem(kafka.client.cluster._topics, "a", state)
    monkeypatch.setattr(kafka.client, "refresh_metadata", lambda names, **_: kafka.client.cluster)
    for asked in (partial(latest, reader, start), partial(reader.partitions, start, start)):
        with pytest.raises(Refusal, match=r"KAFKA\[InvalidConfiguration\] TOPIC_AUTHORIZATION_FAILED: topic 'a'"):
            asked()


@pytest.mark.parametrize("times", [1, 99])
def test_leader_without_new_partition_is_retried(kafka: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    reader, pauses = kafka.stream(startingOffsets="earliest"), list[int]()
    unknown = UnknownTopicOrPartitionException("unknown", api="ListOffsets", topic_partition=TopicPartition("a", 0))
    answers, ask = [unknown] * times, offsets.list_offsets

    def answer(*asked: Any, **given: Any) -> dict[TopicPartition, int]:
        if answers:
            raise answers.pop()
        return ask(*asked, **given)

    monkeypatch.setattr(offsets, "list_offsets", answer)
    monkeypatch.setattr(kafka.client, "pause", pauses.append)
    if times == 1:
        assert plain(reader.initialOffset()) == {"a": {"0": 0, "1": 0}}
        assert len(pauses) == 1
    else:
        with pytest.raises(Refusal, match="UNKNOWN_TOPIC_OR_PARTITION: ListOffsets for a-0: unknown"):
            reader.initialOffset()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_pyspark_without_limits_returns_to_last_stable_offset(kafka: SimpleNamespace, fails: str) -> None:
    """4.1 notes what a reader calls the latest offset, also where it lies before: what was read would be read again."""
    everything = kafka.stream(**{"kafka.isolation.level": "read_uncommitted"})
    reader = kafka.stream(failOnDataLoss=fails)
    with Producer(bootstrap_servers=kafka.servers, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", b"1", partition=0).result(60)
        ahead, stable = everything.latestOffset(), reader.latestOffset()
        if fails == "true":
            with pytest.raises(Refusal, match="OFFSET_OUT_OF_RANGE: a-0 ends at offset 0, offset 1 came next"):
                reader.partitions(ahead, stable)
        else:
            assert reader.partitions(ahead, stable) == []
        producer.commit_transaction()
    kafka.broker.read("a")
    assert values(reader, stable, reader.latestOffset()) == {"a-0": [1]}
