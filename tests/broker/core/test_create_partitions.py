"""CreatePartitions (KIP-195): topics get more partitions, or an answer why not."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from chaffinch.storage.file_system import Interrupted, StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import Client, Cluster


def wanted(count: int, *replicas: list[int], name: str = "orders") -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in replicas]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments or None)


def create(client: Client, *topics: CreatePartitionsTopic, validate_only: bool = False) -> list[CreatePartitionsTopicResult]:
    results: list[CreatePartitionsTopicResult] = client.ask(
        CreatePartitionsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    ).results
    return results


def replicas(cluster: Cluster, name: str = "orders") -> list[tuple[int, ...]]:
    return [partition.replicas.assigned for partition in cluster.topic_named(name).partitions]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(nodes=3)
    cluster.topic("orders", 2, 2)
    return cluster


REFUSED: list[tuple[CreatePartitionsTopic, int, str]] = [
    (wanted(3, name="missing"), 3, "does not exist"),
    (wanted(2), 37, "has 2 partitions"),
    (wanted(1), 37, "not set to 1"),
    (wanted(-1), 37, "not set to -1"),
    (wanted(100_001), 44, "at most 10000"),
    (wanted(4, [0, 1]), 39, "replicas are given for 1 new partitions, not for 2"),
    (wanted(3, [0, 1], [1, 2]), 39, "replicas are given for 2 new partitions, not for 1"),
    (wanted(3, [0]), 39, "2 replicas"),
    (wanted(3, [0, 0]), 39, "[0, 0]"),
    (wanted(3, [0, 7]), 39, "[0, 7]"),
    (wanted(4, [0, 1], [0]), 39, "same number"),
    (wanted(3, []), 39, "[]"),
]


@pytest.mark.parametrize(("topic", "code", "says"), REFUSED, ids=[f"{row[1]} {row[2]}" for row in REFUSED])
def test_refusals(cluster: Cluster, topic: CreatePartitionsTopic, code: int, says: str) -> None:
    (result,) = create(cluster.client(), topic)
    assert (result.error_code, says in (result.error_message or "")) == (code, True), result
    assert len(replicas(cluster)) == 2


def test_an_empty_list_of_assignments_is_one(cluster: Cluster) -> None:
    (result,) = create(cluster.client(), CreatePartitionsTopic(name="orders", count=3, assignments=[]))
    assert result.error_code == 39


@pytest.mark.parametrize("version", range(4))
def test_more_partitions(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    before = replicas(cluster)
    (result,) = client.ask(CreatePartitionsRequest(topics=[wanted(5)], timeout_ms=1000), version).results
    assert (result.error_code, result.error_message) == (0, None)
    assert replicas(cluster)[:2] == before
    assert {len(set(ids)) for ids in replicas(cluster)} == {2}
    assert {ids[0] for ids in replicas(cluster)[1:4]} == {0, 1, 2}, "leaders are spread on"
    leader = cluster.partition("orders", 4).replicas.leader
    assert cluster.client(node=leader).produce("orders", batch_of(b"a"), partition=4).error_code == 0


def test_assignments(cluster: Cluster) -> None:
    create(cluster.client(), wanted(4, [2, 0], [1, 2]))
    assert replicas(cluster)[2:] == [(2, 0), (1, 2)]


def test_checked_only(cluster: Cluster) -> None:
    (result,) = create(cluster.client(), wanted(5), validate_only=True)
    assert (result.error_code, len(replicas(cluster))) == (0, 2)
    (result,) = create(cluster.client(), wanted(1), validate_only=True)
    assert result.error_code == 37


def test_named_twice(cluster: Cluster) -> None:
    cluster.topic("bills")
    results = create(cluster.client(), wanted(3), wanted(4), wanted(2, name="bills"))
    assert [(result.name, result.error_code) for result in results] == [("orders", 42), ("bills", 0)]
    assert len(replicas(cluster)) == 2


def test_fewer_nodes_than_replicas(cluster: Cluster) -> None:
    cluster.node_count = 1
    cluster.restart()
    (result,) = create(cluster.client(), wanted(3))
    assert (result.error_code, "1 node of" in (result.error_message or "")) == (38, True)


@pytest.mark.parametrize("kill", [True, False])
def test_they_are_there_after_a_restart(cluster: Cluster, kill: bool) -> None:
    create(cluster.client(), wanted(5))
    before = replicas(cluster)
    cluster.restart(kill=kill)
    assert replicas(cluster) == before


@pytest.mark.parametrize("operation", ["make directory", "sync directory", "append"])
def test_a_disk_that_refuses(cluster: Cluster, operation: str) -> None:
    client = cluster.client()

    def fail(done: str, path: str, size: int) -> None:
        if done == operation:
            raise StorageError(path, done, "no space left")

    cluster.file_system.hook = fail
    (result,) = create(client, wanted(5))
    assert (result.error_code, len(replicas(cluster))) == (56, 2)
    cluster.file_system.hook = None
    assert create(client, wanted(4))[0].error_code == 0
    cluster.restart()
    assert len(replicas(cluster)) == 4


@pytest.mark.parametrize("survive", [True, False])
def test_all_or_nothing_wherever_the_power_goes(survive: bool) -> None:
    """Cut at every operation on the disk: the topic has 2 partitions or 4, and works."""
    counts = set()
    for cut_at in range(40):
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders", 2)
        client = cluster.client()
        steps = iter(range(1000))

        def interrupt(operation: str, path: str, size: int, steps: Any = steps, cut_at: int = cut_at) -> None:
            if next(steps) == cut_at:
                raise Interrupted

        cluster.file_system.hook = interrupt
        try:
            create(client, wanted(4))
        except Interrupted:
            pass
        else:
            break
        finally:
            cluster.file_system.hook = None
        cluster.file_system.crash(lambda path, unsynced: unsynced if survive else 0)
        cluster.clients.clear()
        cluster.core = cluster._core()
        counts.add(len(replicas(cluster)))
        assert cluster.client().produce("orders", batch_of(b"a"), partition=1).error_code == 0
        assert create(cluster.client(), wanted(6))[0].error_code == 0
        assert cluster.client().produce("orders", batch_of(b"a"), partition=5).base_offset == 0
    else:
        pytest.fail("more steps than thought of")
    assert counts <= {2, 4}
    assert 2 in counts
