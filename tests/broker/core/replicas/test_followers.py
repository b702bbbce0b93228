"""What a follower may answer, as in Apache Kafka: DescribeProducers, consumers of KIP-392, debuggers. All else is for the leader."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chaffinch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first, offsets
from tests.broker.core_client import Cluster

LEADER, FOLLOWER, OUT_OF_SYNC, STRANGER = range(4)
CONSUMER, DEBUGGER, BROKER = -1, -2, 5


@pytest.fixture
def cluster() -> Cluster:
    """Node 0 leads orders-0, node 1 follows, node 3 has no replica of it."""
    cluster = Cluster(nodes=4)
    cluster.core.topics.create("orders", assignment=[[LEADER, FOLLOWER, OUT_OF_SYNC]], steady_ms=cluster.steady_ms)
    assert cluster.client(node=LEADER).produce("orders", batch_of(b"a", b"b")).error_code == 0
    return cluster


def describe_producers(cluster: Cluster, node: int) -> Any:
    request = DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name="orders", partition_indexes=[0])])
    return cluster.client(node=node).ask(request).topics[0].partitions[0]


def list_offsets(cluster: Cluster, node: int, replica_id: int, epoch: int = -1, committed: bool = False) -> tuple[int, int]:
    requested = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=-1)
    topics = [ListOffsetsTopic(name="orders", partitions=[requested])]
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=int(committed), topics=topics)
    answer = cluster.client(node=node).ask(request).topics[0].partitions[0]
    return answer.error_code, answer.offset


@pytest.mark.parametrize(("node", "code"), [(LEADER, 0), (FOLLOWER, 0), (STRANGER, 6)])
def test_follower_answers_describe_producers(cluster: Cluster, node: int, code: int) -> None:
    answer = describe_producers(cluster, node)
    assert (answer.error_code, "node 0 leads it" in (answer.error_message or "")) == (code, code != 0)


def test_replica_out_of_sync_answers_nothing(cluster: Cluster) -> None:
    cluster.stop_node(OUT_OF_SYNC)
    for node in (LEADER, FOLLOWER):
        cluster.stop_node(node)
    cluster.start_node(OUT_OF_SYNC)
    assert describe_producers(cluster, OUT_OF_SYNC).error_code == 6
    assert list_offsets(cluster, OUT_OF_SYNC, DEBUGGER)[0] == 6
    assert first(cluster.client(node=OUT_OF_SYNC).ask(fetch(), 12)).error_code == 6


@pytest.mark.parametrize(
    ("version", "replica_id", "code"), [(12, CONSUMER, 0), (11, CONSUMER, 0), (10, CONSUMER, 6), (10, DEBUGGER, 0), (12, BROKER, 6)]
)
def test_follower_answers_fetch_of_known_replica_ids(cluster: Cluster, version: int, replica_id: int, code: int) -> None:
    answer = first(cluster.client(node=FOLLOWER).ask(fetch(replica_id=replica_id), version))
    assert answer.error_code == code
    if not code:
        assert offsets(answer) == [0]
    assert first(cluster.client(node=STRANGER).ask(fetch(replica_id=replica_id), version)).error_code == 6


def test_fetch_at_a_follower_waits_for_records(cluster: Cluster) -> None:
    reader = cluster.client(node=FOLLOWER)
    reader.send(fetch(2, wait_ms=500))
    assert not reader.answers
    cluster.client(node=LEADER).produce("orders", batch_of(b"c"))
    assert offsets(first(reader.answers.pop())) == [2]


def test_follower_checks_the_leader_epoch(cluster: Cluster) -> None:
    cluster.stop_node(LEADER)
    cluster.start_node(LEADER)
    assert first(cluster.client(node=LEADER).ask(fetch(leader_epoch=0), 12)).error_code == 74
    assert list_offsets(cluster, LEADER, DEBUGGER, epoch=0)[0] == 74
    assert list_offsets(cluster, LEADER, DEBUGGER, epoch=2)[0] == 75


@pytest.mark.parametrize(
    ("node", "replica_id", "expected"),
    [
        (LEADER, CONSUMER, (0, 2)),
        (FOLLOWER, CONSUMER, (6, -1)),
        (FOLLOWER, DEBUGGER, (0, 2)),
        (STRANGER, DEBUGGER, (6, -1)),
        (1, BROKER, (6, -1)),
    ],
)
def test_follower_answers_list_offsets_of_a_debugger(cluster: Cluster, node: int, replica_id: int, expected: tuple[int, int]) -> None:
    assert list_offsets(cluster, node, replica_id) == expected


@pytest.mark.parametrize(("replica_id", "offset"), [(CONSUMER, 2), (DEBUGGER, 3), (BROKER, 3)])
@pytest.mark.parametrize("committed", [False, True])
def test_only_consumers_are_limited_by_isolation(cluster: Cluster, replica_id: int, offset: int, committed: bool) -> None:
    cluster.stop_node(FOLLOWER, abruptly=True)  # The high watermark stands still.
    cluster.client(node=LEADER).produce("orders", batch_of(b"c"), acks=1)
    assert list_offsets(cluster, LEADER, replica_id, committed=committed) == (0, offset)


def test_leader_only_requests_are_refused_by_a_follower(cluster: Cluster) -> None:
    client = cluster.client(node=FOLLOWER)
    epochs = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic="orders", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])]
    )
    assert client.ask(epochs).topics[0].partitions[0].error_code == 6
    deletion = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])], timeout_ms=1
    )
    assert client.ask(deletion).topics[0].partitions[0].error_code == 6
    assert client.produce("orders", batch_of(b"c")).error_code == 6
