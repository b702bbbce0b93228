"""DescribeTopicPartitions (KIP-966): topics page by page."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from chaffinch.protocol.primitives import ZERO_UUID
from tests.broker.core_client import Client, Cluster


def describe(client: Client, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    return client.ask(
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
    )


def shown(answer: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in answer.topics]


def cursor_of(answer: Any) -> tuple[str, int] | None:
    return None if answer.next_cursor is None else (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


@pytest.fixture
def client() -> Client:
    cluster = Cluster(nodes=2)
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        cluster.topic(name, count, 2)
    return cluster.client()


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "topics", "following"),
    [
        ((), 2000, None, [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])], None),
        (("c", "a"), 2000, None, [("a", [0, 1]), ("c", [0])], None),
        (("c", "c"), 2000, None, [("c", [0])], None),
        ((), 3, None, [("a", [0, 1]), ("b", [0])], ("b", 1)),
        ((), 2, None, [("a", [0, 1])], ("b", 0)),
        ((), 2, ("b", 1), [("b", [1, 2])], ("c", 0)),
        ((), 1, ("c", 0), [("c", [0])], None),
        ((), 0, None, [("a", [0])], ("a", 1)),
        ((), -5, None, [("a", [0])], ("a", 1)),
        ((), 2000, ("bb", 1), [("c", [0])], None),
        ((), 2000, ("b", 7), [("b", []), ("c", [0])], None),
        (("a", "missing"), 2, None, [("a", [0, 1])], ("missing", 0)),
    ],
)
def test_pages_follow_limit_and_cursor(client: Client, names: Any, limit: int, cursor: Any, topics: Any, following: Any) -> None:
    answer = describe(client, *names, limit=limit, cursor=cursor)
    assert (shown(answer), cursor_of(answer)) == (topics, following)


def test_pages_cover_all_partitions(client: Client) -> None:
    for limit in range(1, 7):
        seen, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            answer = describe(client, limit=limit, cursor=cursor)
            seen += [(name, index) for name, indexes in shown(answer) for index in indexes]
            cursor, pages = cursor_of(answer), pages + 1
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
        assert pages == -(-6 // limit)


@pytest.mark.parametrize(("name", "code"), [("missing", 3), ("a/b", 17), ("", 17)])
def test_missing_topic_has_its_code(client: Client, name: str, code: int) -> None:
    (topic,) = describe(client, name).topics
    assert (topic.error_code, topic.name, topic.topic_id, topic.partitions) == (code, name, ZERO_UUID, [])


@pytest.mark.parametrize("cursor", [("a", -1), ("b", 0)])
def test_invalid_cursor_is_refused(client: Client, cursor: tuple[str, int]) -> None:
    answer = describe(client, "a", cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", 42)]


def test_partition_is_described(client: Client) -> None:
    cluster = client.cluster
    leader = cluster.partition("a", 0).replicas.leader
    cluster.stop_node(1 - client.node)
    (topic,) = describe(client, "a").topics
    partition = topic.partitions[0]
    assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (cluster.topic_named("a").topic_id, False, 3576)
    assert sorted(partition.replica_nodes) == [0, 1]
    assert (partition.isr_nodes, partition.offline_replicas, partition.leader_id) == ([client.node], [1 - client.node], client.node)
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    assert partition.leader_epoch == (0 if leader == client.node else 1)
