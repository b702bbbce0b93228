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


def increase_to(count: int, *replicas: list[int], name: str = "orders") -> CreatePartitionsTopic:
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
    (increase_to(3, name="missing"), 3, "does not exist"),
    (increase_to(2), 37, "has 2 partitions"),
    (increase_to(1), 37, "not set to 1"),
    (increase_to(-1), 37, "not set to -1"),
    (increase_to(100_001), 44, "at most 10000"),
    (increase_to(4, [0, 1]), 39, "replicas are given for 1 new partitions, not for 2"),
    (increase_to(3, [0, 1], [1, 2]), 39, "replicas are given for 2 new partitions, not for 1"),
    (increase_to(3, [0]), 39, "2 replicas"),
    (increase_to(3, [0, 0]), 39, "[0, 0]"),
    (increase_to(3, [0, 7]), 39, "[0, 7]"),
    (increase_to(4, [0, 1], [0]), 39, "same number"),
    (increase_to(3, []), 39, "[]"),
]


@pytest.mark.parametrize(("topic", "code", "says"), REFUSED, ids=[f"{row[1]} {row[2]}" for row in REFUSED])
def test_invalid_request_is_refused_with_code_and_reason(cluster: Cluster, topic: CreatePartitionsTopic, code: int, says: str) -> None:
    (result,) = create(cluster.client(), topic)
    assert (result.error_code, says in (result.error_message or "")) == (code, True), result
    assert len(replicas(cluster)) == 2


def test_empty_list_of_assignments_is_refused(cluster: Cluster) -> None:
    (result,) = create(cluster.client(), CreatePartitionsTopic(name="orders", count=3, assignments=[]))
    assert result.error_code == 39


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    before = replicas(cluster)
    (result,) = client.ask(CreatePartitionsRequest(topics=[increase_to(5)], timeout_ms=1000), version).results
    assert (result.error_code, result.error_message) == (0, None)
    assert replicas(cluster)[:2] == before
    assert {len(set(ids)) for ids in replicas(cluster)} == {2}
    assert {ids[0] for ids in replicas(cluster)[1:4]} == {0, 1, 2}, "leaders are spread on"
    leader = cluster.partition("orders", 4).replicas.leader
    assert cluster.client(node=leader).produce("orders", batch_of(b"a"), partition=4).error_code == 0


def test_given_assignments_are_used(cluster: Cluster) -> None:
    create(cluster.client(), increase_to(4, [2, 0], [1, 2]))
    assert replicas(cluster)[2:] == [(2, 0), (1, 2)]


def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    (result,) = create(cluster.client(), increase_to(5), validate_only=True)
    assert (result.error_code, len(replicas(cluster))) == (0, 2)
    (result,) = create(cluster.client(), increase_to(1), validate_only=True)
    assert result.error_code == 37


def test_topic_named_twice_is_refused(cluster: Cluster) -> None:
    cluster.topic("bills")
    results = create(cluster.client(), increase_to(3), increase_to(4), increase_to(2, name="bills"))
    assert [(result.name, result.error_code) for result in results] == [("orders", 42), ("bills", 0)]
    assert len(replicas(cluster)) == 2


def test_too_few_nodes_for_the_replication_factor_are_refused(cluster: Cluster) -> None:
    cluster.node_count = 1
    cluster.restart()
    (result,) = create(cluster.client(), increase_to(3))
    assert (result.error_code, "1 node of" in (result.error_message or "")) == (38, True)


@pytest.mark.parametrize("kill", [True, False])
def test_added_partitions_survive_a_restart(cluster: Cluster, kill: bool) -> None:
    create(cluster.client(), increase_to(5))
    before = replicas(cluster)
    cluster.restart(kill=kill)
    assert replicas(cluster) == before


@pytest.mark.parametrize("operation", ["make directory", "sync directory", "append"])
def test_failing_disk_adds_no_partitions(cluster: Cluster, operation: str) -> None:
    client = cluster.client()

    def fail(done: str, path: str, size: int) -> None:
        if done == operation:
            raise StorageError(path, done, "no space left")

    cluster.file_system.hook = fail
    (result,) = create(client, increase_to(5))
    assert (result.error_code, len(replicas(cluster))) == (56, 2)
    cluster.file_system.hook = None
    assert create(client, increase_to(4))[0].error_code == 0
    cluster.restart()
    assert len(replicas(cluster)) == 4


@pytest.mark.parametrize("survive", [True, False])
def test_crash_at_any_operation_adds_all_or_nothing(survive: bool) -> None:
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
            create(client, increase_to(4))
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
        assert create(cluster.client(), increase_to(6))[0].error_code == 0
        assert cluster.client().produce("orders", batch_of(b"a"), partition=5).base_offset == 0
    else:
        pytest.fail("more steps than thought of")
    assert counts <= {2, 4}
    assert 2 in counts
