"""Fetch: what is given, how much, when, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, ReplicaState
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first, offsets, partitions_of
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


class TestData:
    def test_fetch_returns_batches_from_the_offset(self, cluster: Cluster) -> None:
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
    def test_limits_apply_except_to_the_first_batch(self, cluster: Cluster, limit: str) -> None:
        client = cluster.client()
        sizes = [len(batch_of(b"a" * 100))] * 3
        for _ in sizes:
            client.produce("orders", batch_of(b"a" * 100))
        small: dict[str, Any] = {limit: 1}
        assert offsets(first(client.ask(fetch(**small)))) == [0]
        of_two: dict[str, Any] = {limit: sizes[0] * 2 + 10}
        assert offsets(first(client.ask(fetch(**of_two)))) == [0, 1]

    def test_response_limit_is_shared_by_partitions(self, cluster: Cluster) -> None:
        client = cluster.client()
        for partition in (0, 1):
            client.produce("orders", batch_of(b"a" * 100), partition=partition)
        answer = client.ask(fetch(partitions=(0, 1), max_bytes=10))
        assert [len(offsets(data)) for data in answer.responses[0].partitions] == [1, 0]

    @pytest.mark.parametrize("version", range(4, 19))
    def test_every_version_returns_records(self, cluster: Cluster, version: int) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        topic_id = cluster.topic_named("orders").topic_id
        (topic,) = client.ask(fetch(topic_id=topic_id, partitions=(0, 1)), version).responses
        assert [offsets(data) for data in topic.partitions] == [[0], []], "both in one part"
        assert (topic.topic == "orders", topic.topic_id == topic_id) == (version < 13, version >= 13)

    def test_repeated_partition_is_read_once_at_its_last_offset(self, cluster: Cluster) -> None:
        client = cluster.client()
        for _ in range(2):
            client.produce("orders", batch_of(b"a"))
        request = fetch(0, partitions=(0, 1))
        request.topics[0].partitions.append(FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20))
        answer = client.ask(request)
        assert (partitions_of(answer), offsets(first(answer))) == ([0, 1], [1])

    def test_records_above_the_high_watermark_are_not_returned(self, cluster: Cluster) -> None:
        client = cluster.client()
        for _ in range(3):
            client.produce("orders", batch_of(b"a"))
        cluster.partition("orders", 0).log.high_watermark = 1
        for offset, given in ((0, [0]), (1, []), (2, []), (3, [])):
            data = first(client.ask(fetch(offset)))
            assert (data.error_code, offsets(data), data.high_watermark) == (0, given, 1)

    @pytest.mark.parametrize(("version", "code"), [(9, 76), (10, 0)])
    def test_zstd_topic_is_refused_before_version_10(self, cluster: Cluster, version: int, code: int) -> None:
        cluster.topic("small", compression_type="zstd")
        assert first(cluster.client().ask(fetch(topic="small"), version)).error_code == code


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
    def test_invalid_fetch_has_its_code(self, cluster: Cluster, request_: FetchRequest, code: int) -> None:
        assert first(cluster.client().ask(request_)).error_code == code

    def test_fetch_with_an_error_does_not_wait(self, cluster: Cluster) -> None:
        assert first(cluster.client().ask(fetch(5, wait_ms=500))).error_code == 1

    @pytest.mark.parametrize("version", [12, 15, 16, 18])
    def test_fetch_at_another_node_names_the_leader(self, version: int) -> None:
        """KIP-951: from version 16 on the answer says which, and where it listens."""
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        leader = cluster.partition("orders", 0).replicas.leader
        topic_id = cluster.topic_named("orders").topic_id
        answer = cluster.client(node=1 - leader).ask(fetch(topic_id=topic_id), version)
        data = first(answer)
        assert data.error_code == 6
        named = None if data.current_leader is None else (data.current_leader.leader_id, data.current_leader.leader_epoch)
        nodes = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
        assert (named, nodes) == (((leader, 0), [(leader, f"node{leader}", 9092 + leader)]) if version >= 16 else (None, []))

    def test_fetch_of_a_follower_broker_is_refused(self, cluster: Cluster) -> None:
        request = fetch(topic_id=cluster.topic_named("orders").topic_id)
        request.replica_state = ReplicaState(replica_id=3)
        assert first(cluster.client().ask(request, 15)).error_code == 6
        assert first(cluster.client().ask(fetch(replica_id=3), 12)).error_code == 6

    def test_unknown_topic_ids_are_refused(self, cluster: Cluster) -> None:
        client = cluster.client()
        answer = client.ask(fetch(topic_id=UUID(int=5)), 13)
        assert (answer.responses[0].topic_id, first(answer).error_code) == (UUID(int=5), 100)
        assert first(client.ask(fetch(), 13)).error_code == 100, "no topic has the id zero"

    @pytest.mark.parametrize(("version", "code"), [(5, 6), (6, 56)])
    def test_unreadable_disk_has_a_storage_code(self, version: int, code: int) -> None:
        def fail(operation: str, path: str, size: int) -> None:
            if operation == "read":
                raise StorageError(path, operation, "input/output error")

        cluster = Cluster()
        cluster.topic("orders")
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        cluster.file_system.hook = fail
        assert first(client.ask(fetch(), version)).error_code == code

    def test_an_old_leader_epoch_is_fenced(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders", 1, 2)
        leader = cluster.partition("orders", 0).replicas.leader
        cluster.stop_node(leader)
        assert first(cluster.client(node=1 - leader).ask(fetch(leader_epoch=0))).error_code == 74


class TestIsolation:
    """KIP-98: what readers of committed records see, and which transactions they are to skip."""

    def test_open_transaction_hides_later_records(self, cluster: Cluster) -> None:
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

    def test_aborted_transactions_of_the_read_range_are_listed(self, cluster: Cluster) -> None:
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

    def test_transaction_after_the_read_range_is_not_listed(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        writer = Writer(client, "t")
        writer.write(b"b")
        writer.end(False)
        assert first(client.ask(fetch(committed=True, partition_bytes=1))).aborted_transactions == []

    def test_marker_wakes_waiting_committed_readers(self, cluster: Cluster) -> None:
        reader, client = cluster.client(), cluster.client()
        writer = Writer(client, "t")
        writer.write(b"a")
        reader.send(fetch(committed=True, wait_ms=500))
        assert reader.answers == []
        writer.end(True)
        assert offsets(first(reader.answers.pop())) == [0, 1]

    def test_timed_out_transaction_wakes_waiting_committed_readers(self, cluster: Cluster) -> None:
        reader, client = cluster.client(), cluster.client()
        Writer(client, "t").write(b"a")
        reader.send(fetch(committed=True, wait_ms=100_000))
        cluster.advance(60_000)
        assert offsets(first(reader.answers.pop())) == [0, 1]
