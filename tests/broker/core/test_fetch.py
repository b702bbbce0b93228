"""Fetch and ListOffsets: what is given, how much, when, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chaffinch.records import batch
from tests.broker.batches import NOW_MS, batch_of
from tests.broker.core_client import Client, Cluster


def fetch(
    offset: int = 0,
    *,
    topic: str = "orders",
    partitions: tuple[int, ...] = (0,),
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    committed: bool = False,
    leader_epoch: int = -1,
    session_id: int = 0,
) -> FetchRequest:
    asked = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes, current_leader_epoch=leader_epoch)
        for index in partitions
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        session_id=session_id,
        topics=[FetchTopic(topic=topic, partitions=asked)],
    )


def first(answer: Any) -> PartitionData:
    result: PartitionData = answer.responses[0].partitions[0]
    return result


def offsets(data: PartitionData) -> list[int]:
    """Base offsets of the batches."""
    assert isinstance(data.records, memoryview)
    return [view.header.base_offset for view in batch.views(data.records)]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


class TestData:
    def test_from_an_offset_to_the_end(self, cluster: Cluster) -> None:
        client = cluster.client()
        for _ in range(3):
            client.produce("orders", batch_of(b"a", b"b"))
        assert offsets(first(client.ask(fetch(0)))) == [0, 2, 4]
        data = first(client.ask(fetch(3)))
        assert offsets(data) == [2, 4], "the batch that holds the offset comes whole"
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (6, 6, 0)
        assert data.aborted_transactions is None
        assert offsets(first(client.ask(fetch(6)))) == []

    @pytest.mark.parametrize("limit", ["max_bytes", "partition_bytes"])
    def test_limits_hold_but_the_first_batch_comes(self, cluster: Cluster, limit: str) -> None:
        client = cluster.client()
        sizes = [len(batch_of(b"a" * 100))] * 3
        for _ in sizes:
            client.produce("orders", batch_of(b"a" * 100))
        assert offsets(first(client.ask(fetch(**{limit: 1})))) == [0]
        assert offsets(first(client.ask(fetch(**{limit: sizes[0] * 2 + 10})))) == [0, 1]

    def test_the_limit_of_the_answer_is_shared(self, cluster: Cluster) -> None:
        client = cluster.client()
        for partition in (0, 1):
            client.produce("orders", batch_of(b"a" * 100), partition=partition)
        answer = client.ask(fetch(partitions=(0, 1), max_bytes=10))
        assert [len(offsets(data)) for data in answer.responses[0].partitions] == [1, 0]

    def test_full_fetches_only(self, cluster: Cluster) -> None:
        client = cluster.client()
        assert client.ask(fetch()).session_id == 0
        assert client.ask(fetch(session_id=5)).error_code == 70

    @pytest.mark.parametrize("version", range(4, 13))
    def test_every_version(self, cluster: Cluster, version: int) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        assert offsets(first(client.ask(fetch(), version))) == [0]


class TestRefusals:
    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (fetch(topic="missing"), 3),
            (fetch(partitions=(7,)), 3),
            (fetch(5), 1),
            (fetch(-1), 1),
            (fetch(leader_epoch=1), 75),
            (fetch(leader_epoch=0), 0),
        ],
        ids=["topic", "partition", "beyond the end", "negative", "newer epoch", "current epoch"],
    )
    def test_code(self, cluster: Cluster, request_: FetchRequest, code: int) -> None:
        assert first(cluster.client().ask(request_)).error_code == code

    def test_errors_do_not_wait(self, cluster: Cluster) -> None:
        assert first(cluster.client().ask(fetch(5, wait_ms=500))).error_code == 1

    def test_another_node_leads(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        leader = cluster.core.topics.partition("orders", 0).replicas.leader
        data = first(cluster.client(node=1 - leader).ask(fetch()))
        assert data.error_code == 6
        assert data.current_leader is not None
        assert data.current_leader.leader_id == leader

    def test_an_old_leader_epoch_is_fenced(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders", 1, 2)
        leader = cluster.core.topics.partition("orders", 0).replicas.leader
        cluster.stop_node(leader)
        assert first(cluster.client(node=1 - leader).ask(fetch(leader_epoch=0))).error_code == 74


class TestWaiting:
    def test_until_records_come(self, cluster: Cluster) -> None:
        reader, writer = cluster.client(), cluster.client()
        reader.send(fetch(0, wait_ms=500))
        cluster.advance(499)
        assert reader.answers == []
        writer.produce("orders", batch_of(b"a"))
        assert offsets(first(reader.answers.pop())) == [0]

    def test_until_time_is_up(self, cluster: Cluster) -> None:
        reader = cluster.client()
        reader.send(fetch(0, wait_ms=500))
        cluster.advance(499)
        assert reader.answers == []
        cluster.advance(1)
        assert offsets(first(reader.answers.pop())) == []

    def test_until_enough_bytes_are_there(self, cluster: Cluster) -> None:
        reader, writer = cluster.client(), cluster.client()
        size = len(batch_of(b"a"))
        reader.send(fetch(0, wait_ms=500, min_bytes=2 * size, partitions=(0, 1)))
        writer.produce("orders", batch_of(b"a"))
        assert reader.answers == []
        writer.produce("orders", batch_of(b"a"), partition=1)
        (answer,) = reader.answers
        assert [len(offsets(data)) for data in answer.responses[0].partitions] == [1, 1]

    def test_other_partitions_wake_nobody(self, cluster: Cluster) -> None:
        reader, writer = cluster.client(), cluster.client()
        reader.send(fetch(0, wait_ms=500))
        writer.produce("orders", batch_of(b"a"), partition=1)
        assert reader.answers == []

    def test_a_deleted_topic_is_heard_of(self, cluster: Cluster) -> None:
        from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

        reader, admin = cluster.client(), cluster.client()
        reader.send(fetch(0, wait_ms=500))
        admin.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        assert first(reader.answers.pop()).error_code == 3

    def test_a_lost_connection_leaves_nothing(self, cluster: Cluster) -> None:
        reader, writer = cluster.client(), cluster.client()
        reader.send(fetch(0, wait_ms=500))
        reader.lose()
        writer.produce("orders", batch_of(b"a"))
        cluster.advance(1000)
        assert reader.answers == []
        assert not cluster.core._waits


class Writer:
    """A transactional producer in three requests."""

    def __init__(self, client: Client, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        answer = client.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000))
        self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self.sequence = 0

    def write(self, *values: bytes, topic: str = "orders") -> int:
        self.client.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.identity.producer_id,
                v3_and_below_producer_epoch=self.identity.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
            )
        )
        records = batch_of(*values, identity=self.identity, sequence=self.sequence, transactional=True)
        answer = self.client.produce(topic, records, txn=self.transactional_id)
        assert answer.error_code == 0, answer
        self.sequence += len(values)
        return answer.base_offset

    def end(self, commit: bool) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )
        code: int = self.client.ask(request).error_code
        return code


class TestIsolation:
    """KIP-98: what readers of committed records see, and which transactions they are told to skip."""

    def test_open_transactions_hide_what_follows(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"before"))
        writer = Writer(client, "t")
        writer.write(b"a")
        client.produce("orders", batch_of(b"after"))
        data = first(client.ask(fetch(committed=True)))
        assert (offsets(data), data.last_stable_offset, data.high_watermark) == ([0], 1, 3)
        assert offsets(first(client.ask(fetch()))) == [0, 1, 2]
        writer.end(True)
        data = first(client.ask(fetch(committed=True)))
        assert (offsets(data), data.last_stable_offset, data.aborted_transactions) == ([0, 1, 2, 3], 4, [])

    def test_aborted_transactions_are_listed_where_they_matter(self, cluster: Cluster) -> None:
        client = cluster.client()
        first_writer, second_writer = Writer(client, "t1"), Writer(client, "t2")
        start = first_writer.write(b"a")
        second_writer.write(b"b")
        first_writer.end(False)
        second_writer.end(True)
        data = first(client.ask(fetch(committed=True)))
        assert data.aborted_transactions is not None
        assert [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions] == [
            (first_writer.identity.producer_id, start)
        ]
        assert first(client.ask(fetch(3, committed=True))).aborted_transactions == []
        assert first(client.ask(fetch(0))).aborted_transactions is None

    def test_a_transaction_after_what_is_read_is_not_listed(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        writer = Writer(client, "t")
        writer.write(b"b")
        writer.end(False)
        assert first(client.ask(fetch(committed=True, partition_bytes=1))).aborted_transactions == []

    def test_a_marker_wakes_readers_of_committed_records(self, cluster: Cluster) -> None:
        reader, client = cluster.client(), cluster.client()
        writer = Writer(client, "t")
        writer.write(b"a")
        reader.send(fetch(committed=True, wait_ms=500))
        assert reader.answers == []
        writer.end(True)
        assert offsets(first(reader.answers.pop())) == [0, 1]

    def test_a_timed_out_transaction_wakes_them_too(self, cluster: Cluster) -> None:
        reader, client = cluster.client(), cluster.client()
        Writer(client, "t").write(b"a")
        reader.send(fetch(committed=True, wait_ms=100_000))
        cluster.advance(60_000)
        assert offsets(first(reader.answers.pop())) == [0, 1]


def list_offsets(timestamp: int, *, committed: bool = False, topic: str = "orders") -> ListOffsetsRequest:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    return ListOffsetsRequest(isolation_level=int(committed), topics=[ListOffsetsTopic(name=topic, partitions=asked)])


class TestListOffsets:
    @pytest.mark.parametrize(
        ("timestamp", "offset", "found_timestamp"),
        [
            (-1, 4, -1),
            (-2, 0, -1),
            (-3, 1, NOW_MS + 50),
            (-4, 0, -1),
            (-5, -1, -1),
            (0, 0, NOW_MS),
            (NOW_MS + 1, 1, NOW_MS + 50),
            (NOW_MS + 51, -1, -1),
        ],
    )
    def test_places(self, cluster: Cluster, timestamp: int, offset: int, found_timestamp: int) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a", b"b", timestamps=[NOW_MS, NOW_MS + 50]))
        client.produce("orders", batch_of(b"c", b"d", timestamps=[NOW_MS + 10, NOW_MS + 20]))
        (answer,) = client.ask(list_offsets(timestamp)).topics[0].partitions
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found_timestamp)

    def test_the_last_stable_offset_ends_committed_logs(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        Writer(client, "t").write(b"b")
        assert client.ask(list_offsets(-1)).topics[0].partitions[0].offset == 2
        assert client.ask(list_offsets(-1, committed=True)).topics[0].partitions[0].offset == 1

    def test_an_empty_log(self, cluster: Cluster) -> None:
        client = cluster.client()
        found = [client.ask(list_offsets(timestamp)).topics[0].partitions[0].offset for timestamp in (-1, -2, -3, 0)]
        assert found == [0, 0, -1, -1]

    def test_unknown_places(self, cluster: Cluster) -> None:
        client = cluster.client()
        assert client.ask(list_offsets(-1, topic="missing")).topics[0].partitions[0].error_code == 3
