"""A consumer and a broker: what is read, from where, and what stands in the way."""

from __future__ import annotations

import re
import threading
import time
from typing import Literal

import pyarrow as pa
import pytest

from chaffinch import Consumer, ConsumerRecord, EmbeddedBroker, Producer, TopicPartition, errors
from tests.consumer.conftest import CONFIG, ConsumerOf, ProducerOf
from tests.consumer.polling import LIMIT_S, committed, poll_until, read, values_of, write


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def consumer_of_topic(consumer: Consumer, topic: str) -> Consumer:
    consumer.subscribe([topic])
    return consumer


class TestRecords:
    def test_record_has_every_field(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, producer_of: ProducerOf) -> None:
        sent = producer_of(broker).send(topic, b"v", key=b"k", timestamp_ms=123, headers=[("h", b"1"), ("n", None)]).result(60)
        producer_of(broker).send(topic, None, timestamp_ms=124).result(60)
        consumer = consumer_of(broker)
        consumer.subscribe([topic])
        first, second = read(consumer, 2)
        assert first == (topic, 0, sent.offset, 123, 0, b"k", b"v", [("h", b"1"), ("n", None)], 0)
        assert (second.key, second.value, list(second.headers), second.topic_partition) == (None, None, [], TopicPartition(topic, 0))

    def test_table_has_the_same_records(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, producer_of: ProducerOf) -> None:
        rows = pa.table(
            {"value": [b"a", None, b"c"], "key": [None, b"k", b""], "timestamp": pa.array([1, 2, 3], pa.timestamp("ms", "UTC"))}
        )
        producer_of(broker).send_table(topic, rows).result(60)
        consumer = consumer_of(broker)
        consumer.subscribe([topic])
        table = consumer.poll_table(10)
        assert table.column_names == ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
        assert table.select(["topic", "partition", "offset"]).to_pylist() == [
            {"topic": topic, "partition": 0, "offset": number} for number in range(3)
        ]
        assert table.select(["value", "key", "timestamp"]).equals(rows)
        assert consumer.poll_table(0).num_rows == 0

    def test_poll_returns_at_most_max_poll_records(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, numbered(25))
        consumer = consumer_of(broker, max_poll_records=10)
        consumer.subscribe([topic])
        read(consumer, 1)
        assert [len(consumer.poll(LIMIT_S)), consumer.poll_table(LIMIT_S).num_rows] == [10, 5]
        assert consumer.position(TopicPartition(topic, 0)) == 25

    def test_iteration_yields_single_records(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, numbered(3))
        consumer = consumer_of(broker, enable_auto_commit=False)
        consumer.subscribe([topic])
        for record in consumer:
            consumer.commit()
            if record.offset == 1:
                break
        assert committed(consumer, TopicPartition(topic, 0)).offset == 2

    def test_records_a_loop_did_not_reach_are_read_again(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, numbered(6))
        tp = TopicPartition(topic, 0)
        consumer = consumer_of(broker, group_id=None)
        consumer.assign([tp])
        for record in consumer:
            assert consumer.position(tp) == record.offset + 1
            if record.offset == 1:
                break
        assert values_of(read(consumer, 4)) == numbered(4, 2)

    def test_loop_follows_seek_pause_and_poll(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, numbered(6))
        tp = TopicPartition(topic, 0)
        consumer = consumer_of(broker, group_id=None)
        consumer.assign([tp])
        records = iter(consumer)
        assert next(records).offset == 0
        consumer.seek(tp, 3)
        assert next(records).offset == 3
        assert [record.offset for record in read(consumer, 2)] == [4, 5]
        consumer.seek(tp, 1)
        assert [next(records).offset for _ in range(2)] == [1, 2]
        consumer.pause([tp])
        threading.Timer(0.1, consumer.wakeup).start()
        with pytest.raises(errors.WakeupException):
            next(records)
        consumer.resume([tp])
        assert [record.offset for record in read(consumer, 3)] == [3, 4, 5]

    def test_deserializers_convert_keys_and_values(
        self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, producer_of: ProducerOf
    ) -> None:
        producer_of(broker).send(topic, b"7", key=b"k").result(60)
        producer_of(broker).send(topic, None).result(60)
        consumer = consumer_of(broker, value_deserializer=int, key_deserializer=bytes.decode)
        consumer.subscribe([topic])
        assert [(record.key, record.value) for record in read(consumer, 2)] == [("k", 7), (None, None)]

    def test_undeserializable_record_is_named_and_can_be_skipped(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"1", b"x", b"3"])
        consumer = consumer_of(broker, value_deserializer=int)
        consumer.subscribe([topic])
        assert values_of(read(consumer, 1)) == [1]
        for _ in range(2):
            with pytest.raises(errors.RecordDeserializationException, match=r"the value at offset 1 .* cannot be deserialized") as caught:
                consumer.poll(LIMIT_S)
        assert caught.value.topic_partition is not None
        consumer.seek(caught.value.topic_partition, 2)
        assert values_of(read(consumer, 1)) == [3]

    def test_undeserializable_record_is_named_while_another_partition_has_records(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf
    ) -> None:
        broker.create_topic(name, 2)
        write(broker, name, [b"1", b"x"], partition=1)
        with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=1000) as producer:
            for _ in range(2_000):
                producer.send(name, b"7" * 100, partition=0)
        consumer = consumer_of(broker, value_deserializer=int, max_partition_fetch_bytes=1_000)
        consumer.subscribe([name])
        found: list[ConsumerRecord] = []
        while 1 not in [record.partition for record in found]:
            found += consumer.poll(LIMIT_S)
        with pytest.raises(errors.RecordDeserializationException, match="the value at offset 1 of"):
            consumer.poll(LIMIT_S)
        assert len(found) < 2_001
        consumer.seek(TopicPartition(name, 1), 2)
        assert len(found + read(consumer, 2_001 - len(found))) == 2_001

    def test_records_of_an_interrupted_poll_are_read_again_and_not_committed(
        self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf
    ) -> None:
        """KeyboardInterrupt can occur when a poll has records and has not returned them."""

        def interrupt(value: bytes) -> bytes:
            if value == b"2":
                raise KeyboardInterrupt
            return value

        write(broker, topic, numbered(4))
        consumer = consumer_of(broker, value_deserializer=interrupt)
        consumer.subscribe([topic])
        with pytest.raises(KeyboardInterrupt):
            read(consumer, 4)
        assert consumer.position(TopicPartition(topic, 0)) == 0
        consumer.close()
        assert values_of(read(consumer_of_topic(consumer_of(broker), topic), 4)) == numbered(4)


class TestPositions:
    @pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 3), ("by_duration:PT1H", 2), ("by_duration:PT0.001S", 3)])
    def test_auto_offset_reset(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, producer_of: ProducerOf, reset: str, expected: int
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        steady_ms = int(time.time() * 1000)
        for ago_ms in (7_200_000, 3_700_000, 60_000):
            producer_of(broker).send(topic, b"", timestamp_ms=steady_ms - ago_ms).result(60)
        consumer = consumer_of(broker, auto_offset_reset=reset, group_id=None)
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.position(TopicPartition(topic, 0)) == expected

    @pytest.mark.parametrize("has_group", [True, False])
    def test_reset_none_raises(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, has_group: bool) -> None:
        consumer = consumer_of(broker, auto_offset_reset="none", **({} if has_group else {"group_id": None}))
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(errors.NoOffsetForPartitionException, match=r"auto\.offset\.reset is none"):
            consumer.poll(LIMIT_S)

    def test_seek(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, numbered(10))
        tp = TopicPartition(topic, 0)
        consumer = consumer_of(broker, group_id=None)
        consumer.assign([tp])
        assert len(read(consumer, 10)) == 10
        consumer.seek(tp, 4)
        assert consumer.position(tp) == 4
        assert values_of(consumer.poll(LIMIT_S))[0] == b"4"
        consumer.seek_to_beginning()
        assert values_of(consumer.poll(LIMIT_S))[0] == b"0"
        consumer.seek_to_end([tp])
        assert (consumer.position(tp), consumer.poll(0)) == (10, [])

    @pytest.mark.parametrize(("reset", "outcome"), [("earliest", 0), ("latest", 3), ("none", errors.OffsetOutOfRangeException)])
    def test_offset_out_of_range(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, reset: str, outcome: int | type[errors.OffsetOutOfRangeException]
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        write(broker, topic, numbered(3))
        tp = TopicPartition(topic, 0)
        consumer = consumer_of(broker, group_id=None, auto_offset_reset=reset)
        consumer.assign([tp])
        consumer.seek(tp, 99)
        if not isinstance(outcome, int):
            with pytest.raises(outcome, match="offset 99 is out of range"):
                consumer.poll(LIMIT_S)
            consumer.seek(tp, 1)
            assert values_of(read(consumer, 2)) == [b"1", b"2"]
            return
        found = poll_until(lambda: consumer.metrics()["offset-reset-total"] == 1, consumer)
        write(broker, topic, [b"new"])
        found += read(consumer, 4 - outcome - len(found))
        assert values_of(found) == [*numbered(3)[outcome:], b"new"]

    def test_pause_retains_fetched_records(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
        broker.create_topic(name, 2)
        tps = [TopicPartition(name, 0), TopicPartition(name, 1)]
        for tp in tps:
            write(broker, name, numbered(20), tp.partition)
        consumer = consumer_of(broker, group_id=None, max_poll_records=5)
        consumer.assign(tps)
        paused = read(consumer, 1)[0].topic_partition
        consumer.pause([paused])
        assert consumer.paused() == {paused}
        others = poll_until(lambda: consumer.position(next(tp for tp in tps if tp != paused)) == 20, consumer)
        assert {record.topic_partition for record in others} == set(tps) - {paused}
        sent = consumer.metrics()["fetch-total"]
        consumer.resume([paused])
        assert [record.offset for record in consumer.poll(0)] == list(range(5, 10))
        assert consumer.metrics()["fetch-total"] <= sent + 1
        assert not consumer.paused()

    def test_offset_queries(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, producer_of: ProducerOf) -> None:
        tp = TopicPartition(topic, 0)
        for timestamp in (1000, 2000, 3000):
            producer_of(broker).send(topic, b"", timestamp_ms=timestamp).result(60)
        consumer = consumer_of(broker, group_id=None)
        assert consumer.partitions_for(topic) == [tp]
        assert (consumer.beginning_offsets([tp]), consumer.end_offsets([tp])) == ({tp: 0}, {tp: 3})
        later = consumer.offsets_for_times({tp: 1500})[tp]
        assert later is not None
        assert later[:2] == (1, 2000)
        assert consumer.offsets_for_times({tp: 9999}) == {tp: None}
        assert consumer.end_offsets([]) == {}

    def test_missing_topic_raises(self, broker: EmbeddedBroker, consumer_of: ConsumerOf) -> None:
        consumer = consumer_of(broker, group_id=None)

        def is_logged() -> bool:
            with pytest.raises((errors.UnknownTopicOrPartitionException, errors.TimeoutException), match="nowhere") as caught:
                consumer.partitions_for("nowhere", timeout=0.1)
            return caught.type is errors.UnknownTopicOrPartitionException

        poll_until(is_logged)  # Not at once, where the broker's answer takes longer than the call.
        with pytest.raises(errors.TimeoutException, match="nowhere-3"):
            consumer.end_offsets([TopicPartition("nowhere", 3)], timeout=0.2)


class TestTransactions:
    @pytest.mark.parametrize(("isolation", "expected"), [("read_committed", [b"c1", b"c2", b"plain"]), ("read_uncommitted", None)])
    def test_read_committed_skips_aborted_records(
        self,
        broker: EmbeddedBroker,
        name: str,
        consumer_of: ConsumerOf,
        producer_of: ProducerOf,
        isolation: str,
        expected: list[bytes] | None,
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        producer = producer_of(broker, transactional_id=name)
        producer.init_transactions()
        for value, commits in ((b"a1", False), (b"c1", True), (b"a2", False), (b"c2", True)):
            producer.begin_transaction()
            producer.send(topic, value).result(60)
            producer.commit_transaction() if commits else producer.abort_transaction()
        write(broker, topic, [b"plain"])
        producer.begin_transaction()
        producer.send(topic, b"open").result(60)
        consumer = consumer_of(broker, isolation_level=isolation)
        consumer.subscribe([topic])
        expected = expected or [b"a1", b"c1", b"a2", b"c2", b"plain", b"open"]
        assert values_of(read(consumer, len(expected))) == expected
        tp = TopicPartition(topic, 0)
        assert consumer.end_offsets([tp]) == {tp: consumer.position(tp)}
        producer.abort_transaction()

    def test_offsets_are_committed_in_a_transaction(
        self, broker: EmbeddedBroker, topic: str, name: str, consumer_of: ConsumerOf, producer_of: ProducerOf
    ) -> None:
        write(broker, topic, numbered(3))
        consumer = consumer_of(broker, enable_auto_commit=False, isolation_level="read_committed")
        consumer.subscribe([topic])
        read(consumer, 3)
        tp = TopicPartition(topic, 0)
        producer = producer_of(broker, transactional_id=name)
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({tp: consumer.position(tp)}, consumer.group_metadata())
        assert committed(consumer, tp).offset == 3


class TestFaults:
    def test_broker_is_killed_and_restarted(self, consumer_of: ConsumerOf, name: str) -> None:
        with EmbeddedBroker(topics={name: {"partitions": 2}}, config=CONFIG) as broker:
            write(broker, name, numbered(5))
            consumer = consumer_of(broker)
            consumer.subscribe([name])
            found = read(consumer, 5)
            broker.restart(kill=True)
            write(broker, name, numbered(5, 5))
            found += read(consumer, 5)
            consumer.commit()
            consumer.close()
        assert values_of(found) == numbered(10)

    def test_leader_moves(self, consumer_of: ConsumerOf, name: str) -> None:
        with EmbeddedBroker(topics={name: {"partitions": 3, "replication": 3}}, brokers=3, config=CONFIG) as broker:
            consumer = consumer_of(broker)
            consumer.subscribe([name])
            for node in (0, 1, 2):
                for partition in range(3):
                    write(broker, name, [b"%d" % node], partition)
                assert sorted((record.partition, record.value) for record in read(consumer, 3)) == [
                    (number, b"%d" % node) for number in range(3)
                ]
                broker.stop_node(node)
                broker.start_node((node + 2) % 3)
            consumer.close()

    def test_topic_is_deleted_and_recreated(
        self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, producer_of: ProducerOf
    ) -> None:
        from chaffinch.admin.options import connect
        from chaffinch.admin.topics import delete_topics

        write(broker, topic, numbered(5))
        consumer = consumer_of(broker, metadata_max_age_ms=50)
        consumer.subscribe([topic])
        read(consumer, 5)
        with connect(bootstrap_servers=broker.bootstrap_servers) as client:
            delete_topics(client, [topic])
        consumer.poll(0.05)
        broker.create_topic(topic, 1)
        write(broker, topic, [b"new"])
        assert values_of(read(consumer, 1)) == [b"new"]

    @pytest.mark.parametrize(
        ("api", "error"),
        [
            ("Fetch", "NOT_LEADER_OR_FOLLOWER"),
            ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("Fetch", "FENCED_LEADER_EPOCH"),
            ("Fetch", "KAFKA_STORAGE_ERROR"),
            ("ListOffsets", "LEADER_NOT_AVAILABLE"),
            ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
            ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
            ("JoinGroup", "NOT_COORDINATOR"),
            ("JoinGroup", "UNKNOWN_MEMBER_ID"),
            ("SyncGroup", "REBALANCE_IN_PROGRESS"),
            ("SyncGroup", "NOT_COORDINATOR"),
            ("SyncGroup", "ILLEGAL_GENERATION"),
            ("SyncGroup", "UNKNOWN_MEMBER_ID"),
            ("OffsetFetch", "NOT_COORDINATOR"),
            ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
            ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT"),
        ],
    )
    def test_transient_errors_are_retried(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, api: str, error: str) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        write(broker, topic, numbered(3))
        broker.faults.add(api=api, error=error, count=1, client_id=name)
        # A member that was forgotten here is not by the broker: it is waited for.
        consumer = consumer_of(broker, client_id=name, session_timeout_ms=1000 if error == "UNKNOWN_MEMBER_ID" else 45_000)
        consumer.subscribe([topic])
        assert values_of(read(consumer, 3)) == numbered(3)

    @pytest.mark.parametrize("api", ["Metadata", "Fetch", "ListOffsets", "FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch"])
    @pytest.mark.parametrize("action", ["drop_before", "drop_after"])
    def test_broken_connections_are_replaced(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, api: str, action: Literal["drop_before", "drop_after"]
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        write(broker, topic, numbered(3))
        broker.faults.add(api=api, action=action, count=1, client_id=name)
        consumer = consumer_of(broker, client_id=name, reconnect_backoff_ms=10)
        consumer.subscribe([topic])
        assert values_of(read(consumer, 3)) == numbered(3)

    @pytest.mark.parametrize(
        ("api", "error", "raised"),
        [
            ("JoinGroup", "GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
            ("JoinGroup", "INCONSISTENT_GROUP_PROTOCOL", errors.InconsistentGroupProtocolException),
            ("JoinGroup", "GROUP_MAX_SIZE_REACHED", errors.GroupMaxSizeReachedException),
            ("FindCoordinator", "GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
            ("SyncGroup", "GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
            ("OffsetFetch", "GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
            ("Fetch", "TOPIC_AUTHORIZATION_FAILED", errors.TopicAuthorizationException),
            ("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", errors.TopicAuthorizationException),
        ],
    )
    def test_permanent_errors_are_raised_once(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, api: str, error: str, raised: type[errors.KafkaException]
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        write(broker, topic, numbered(3))
        broker.faults.add(api=api, error=error, count=1, client_id=name)
        consumer = consumer_of(broker, client_id=name)
        consumer.subscribe([topic])
        with pytest.raises(raised):
            read(consumer, 1)
        assert values_of(read(consumer, 3)) == numbered(3)

    def test_no_broker_is_reachable(self, consumer_of: ConsumerOf) -> None:
        with EmbeddedBroker() as gone:
            pass
        consumer = consumer_of(gone)
        consumer.subscribe(["orders"])
        assert consumer.poll(0.1) == []

        def is_logged() -> bool:
            with pytest.raises(errors.TimeoutException) as caught:
                consumer.partitions_for("orders", timeout=0.1)
            return "refused" in str(caught.value)

        poll_until(is_logged)  # Not at once, where a busy machine takes longer to refuse.


def test_pattern_matches_later_topics(broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
    for suffix in ("a", "b"):
        broker.create_topic(f"{name}-{suffix}", 1)
    consumer = consumer_of(broker, metadata_max_age_ms=50)
    consumer.subscribe(re.compile(rf"{name}-[ac]"))
    poll_until(lambda: consumer.subscription() == {f"{name}-a"} and len(consumer.assignment()) == 1, consumer)
    broker.create_topic(f"{name}-c", 1)
    poll_until(lambda: {tp.topic for tp in consumer.assignment()} == {f"{name}-a", f"{name}-c"}, consumer)
