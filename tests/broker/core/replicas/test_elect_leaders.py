"""ElectLeaders (KIP-183): leadership goes back to the replicas named first."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.elect_leaders import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    ElectLeadersRequest,
    TopicPartitions,
)
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first
from tests.broker.core_client import Client, Cluster


def elect(client: Client, *tps: tuple[str, int], kind: int = ELECTION_PREFERRED, version: int | None = None) -> dict[Any, int]:
    """Code of each partition in the answer; all are requested when none is named."""
    topics = [TopicPartitions(topic=name, partitions=[index]) for name, index in tps] or None
    answer = client.ask(ElectLeadersRequest(election_type=kind, topic_partitions=topics), version)
    assert answer.error_code == 0
    results = answer.replica_election_results
    return {(topic.topic, part.partition_id): part.error_code for topic in results for part in topic.partition_result}


@pytest.fixture
def cluster() -> Cluster:
    """Node 0 prefers to lead orders-0 and has just come back; node 1 leads everything."""
    cluster = Cluster(nodes=2)
    cluster.core.topics.create("orders", assignment=[[0, 1], [1, 0]], steady_ms=cluster.steady_ms)
    cluster.stop_node(0)
    cluster.start_node(0)
    return cluster


def leaders(cluster: Cluster) -> list[tuple[int, int]]:
    return [(partition.replicas.leader, partition.replicas.leader_epoch) for partition in cluster.topic_named("orders").partitions]


@pytest.mark.parametrize("version", range(3))
def test_election_restores_the_preferred_leader(cluster: Cluster, version: int) -> None:
    assert leaders(cluster) == [(1, 1), (1, 0)]
    assert elect(cluster.client(), ("orders", 0), version=version) == {("orders", 0): 0}
    assert leaders(cluster) == [(0, 2), (1, 0)]
    assert cluster.client(node=0).produce("orders", batch_of(b"a")).error_code == 0


def test_election_of_all_reports_only_changes(cluster: Cluster) -> None:
    client = cluster.client()
    assert elect(client) == {("orders", 0): 0}
    assert elect(client) == {}


def test_unneeded_election_has_its_code(cluster: Cluster) -> None:
    codes = elect(cluster.client(), ("orders", 1), ("orders", 1), ("orders", 7), ("missing", 0))
    assert codes == {("orders", 1): 84, ("orders", 7): 3, ("missing", 0): 3}


def test_stopped_preferred_replica_is_not_elected(cluster: Cluster) -> None:
    cluster.stop_node(0)
    assert elect(cluster.client(node=1), ("orders", 0)) == {("orders", 0): 80}


def test_preferred_replica_out_of_sync_is_not_elected(cluster: Cluster) -> None:
    """It runs, but the last that was in sync is gone: to let it lead would be an unclean election."""
    cluster.stop_node(0)
    cluster.stop_node(1)
    cluster.start_node(0)
    assert leaders(cluster)[0][0] == -1
    assert elect(cluster.client(), ("orders", 0)) == {("orders", 0): 80}


def test_unclean_election_without_candidates_has_its_code(cluster: Cluster) -> None:
    client = cluster.client()
    assert elect(client, ("orders", 0), kind=ELECTION_UNCLEAN) == {("orders", 0): 84}
    cluster.stop_node(0)
    cluster.stop_node(1)
    assert elect(client, ("orders", 0), kind=ELECTION_UNCLEAN) == {("orders", 0): 83}


def test_unknown_election_type_is_refused(cluster: Cluster) -> None:
    assert cluster.client().ask(ElectLeadersRequest(election_type=9)).error_code == 42


def test_election_fails_waiting_fetches(cluster: Cluster) -> None:
    reader = cluster.client(node=1)
    reader.send(fetch(wait_ms=500, leader_epoch=1))
    elect(cluster.client())
    assert first(reader.answers.pop()).error_code == 74


def test_epochs_do_not_decrease_over_a_restart(cluster: Cluster) -> None:
    elect(cluster.client())
    before = max(epoch for _, epoch in leaders(cluster))
    cluster.restart()
    assert min(epoch for _, epoch in leaders(cluster)) > before


def test_unclean_election_elects_an_out_of_sync_replica() -> None:
    """The last in-sync replica is away; bytes are stored once, so nothing is lost here."""
    cluster = Cluster(nodes=3)
    cluster.topic("orders", 1, 2)
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    first, second = partition.replicas.assigned
    for node_id in (first, second):
        cluster.stop_node(node_id)
    cluster.start_node(first)
    assert partition.replicas.leader == -1
    client = cluster.client(node=3 - first - second)
    assert elect(client, ("orders", 0), kind=ELECTION_UNCLEAN) == {("orders", 0): 0}
    assert (partition.replicas.leader, partition.replicas.in_sync) == (first, (first,))
    cluster.start_node(second)
    assert (partition.replicas.leader, partition.replicas.in_sync) == (first, (first, second))
