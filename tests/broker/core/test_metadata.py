"""Metadata, DeleteTopics and CreateTopics: how topics may be named, and the other fields of the answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from chaffinch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.describe_cluster import DescribeClusterRequest
from chaffinch.protocol.messages.metadata import OPERATIONS_UNKNOWN, MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.primitives import ZERO_UUID
from tests.broker.core_client import Client, Cluster

UNKNOWN_ID = UUID(int=9)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster({"auto.create.topics.enable": "false"})
    cluster.topic("orders")
    cluster.topic("bills")
    return cluster


def id_of(cluster: Cluster, name: str) -> UUID:
    return cluster.topic_named(name).topic_id


def ask(client: Client, *requested: str | UUID | tuple[str, UUID], version: int = 13, **wishes: bool) -> Any:
    """Topics by name, by id, or by both."""
    pairs = [one if isinstance(one, tuple) else (one, ZERO_UUID) if isinstance(one, str) else (None, one) for one in requested]
    topics = [MetadataRequestTopic(name=name, topic_id=topic_id) for name, topic_id in pairs]
    return client.ask(MetadataRequest(topics=topics, **wishes), version)


class TestNamesAndIds:
    def test_topic_named_twice_is_returned_once(self, cluster: Cluster) -> None:
        answer = ask(cluster.client(), "orders", "missing", "orders", "missing")
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [("orders", 0), ("missing", 3)]

    def test_names_are_ignored_where_ids_are_given(self, cluster: Cluster) -> None:
        orders = id_of(cluster, "orders")
        answer = ask(cluster.client(), orders, "bills", UNKNOWN_ID, orders, version=12)
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.topics] == [
            ("orders", orders, 0),
            (None, UNKNOWN_ID, 100),
        ]

    @pytest.mark.parametrize("version", [10, 11])
    @pytest.mark.parametrize("by", ["id", "both"])
    def test_versions_10_and_11_refuse_topic_ids(self, cluster: Cluster, version: int, by: str) -> None:
        orders = id_of(cluster, "orders")
        answer = ask(cluster.client(), "bills", orders if by == "id" else ("orders", orders), version=version)
        named = "" if by == "id" else "orders"
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.topics] == [
            ("bills", ZERO_UUID, 42),
            (named, orders, 42),
        ]

    def test_request_without_name_and_id_returns_nothing(self, cluster: Cluster) -> None:
        answer = ask(cluster.client(), ZERO_UUID)
        assert (answer.topics, len(answer.brokers)) == ([], 1)

    def test_internal_topics_are_marked(self, cluster: Cluster) -> None:
        cluster.topic("__consumer_offsets")
        answer = ask(cluster.client(), "__consumer_offsets", "__transaction_state", "orders")
        assert [(topic.error_code, topic.is_internal) for topic in answer.topics] == [(0, True), (3, True), (0, False)]


class TestAuthorizedOperations:
    """KIP-430: without an authorizer every user may do every operation."""

    @pytest.mark.parametrize("version", range(8, 14))
    def test_authorized_operations_of_topics(self, cluster: Cluster, version: int) -> None:
        client = cluster.client()
        for is_wanted, operations in ((True, 0b1101_1111_1000), (False, OPERATIONS_UNKNOWN)):
            answer = ask(client, "orders", "missing", version=version, include_topic_authorized_operations=is_wanted)
            assert [topic.topic_authorized_operations for topic in answer.topics] == [operations, operations]

    def test_unknown_topic_ids_have_unknown_operations(self, cluster: Cluster) -> None:
        (topic,) = ask(cluster.client(), UNKNOWN_ID, include_topic_authorized_operations=True).topics
        assert topic.topic_authorized_operations == OPERATIONS_UNKNOWN

    def test_authorized_operations_of_the_cluster(self, cluster: Cluster) -> None:
        client = cluster.client()
        answer = ask(client, version=10, include_cluster_authorized_operations=True)
        assert answer.cluster_authorized_operations == 0b1_1111_1010_0000
        assert ask(client, version=10).cluster_authorized_operations == OPERATIONS_UNKNOWN
        for is_wanted, operations in ((True, 0b1_1111_1010_0000), (False, OPERATIONS_UNKNOWN)):
            answer = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=is_wanted))
            assert answer.cluster_authorized_operations == operations


def delete(client: Client, *requested: tuple[str | None, UUID], version: int = 6) -> list[tuple[str | None, int]]:
    topics = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in requested]
    request = DeleteTopicsRequest(topics=topics, topic_names=[name or "" for name, _ in requested])
    return [(response.name, response.error_code) for response in client.ask(request, version).responses]


class TestDeleteTopics:
    def test_deleting_a_name_twice_is_refused(self, cluster: Cluster) -> None:
        requested = [("orders", ZERO_UUID), ("bills", ZERO_UUID), ("orders", ZERO_UUID), ("missing", ZERO_UUID), ("missing", ZERO_UUID)]
        assert delete(cluster.client(), *requested) == [("orders", 42), ("bills", 0), ("missing", 42)]
        assert [topic.name for topic in cluster.core.topics] == ["orders"]

    def test_deleting_an_id_twice_is_refused(self, cluster: Cluster) -> None:
        orders, bills = id_of(cluster, "orders"), id_of(cluster, "bills")
        assert delete(cluster.client(), (None, orders), (None, orders)) == [("orders", 42)]
        assert delete(cluster.client(), (None, bills), ("bills", ZERO_UUID)) == [("bills", 42)]
        assert len(cluster.core.topics) == 2

    def test_deletion_needs_either_name_or_id(self, cluster: Cluster) -> None:
        orders = id_of(cluster, "orders")
        assert delete(cluster.client(), (None, ZERO_UUID), ("orders", orders)) == [(None, 42), ("orders", 42)]
        assert len(cluster.core.topics) == 2

    @pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
    def test_disabled_deletion_has_its_code(self, version: int, code: int) -> None:
        cluster = Cluster({"delete.topic.enable": "false"})
        cluster.topic("orders")
        assert delete(cluster.client(), ("orders", ZERO_UUID), version=version) == [("orders", code)]

    def test_deleting_an_unknown_id_is_refused(self, cluster: Cluster) -> None:
        assert delete(cluster.client(), (None, UNKNOWN_ID)) == [(None, 100)]


def test_cluster_metadata_topic_cannot_be_created(cluster: Cluster) -> None:
    topic = CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1)
    (result,) = cluster.client().ask(CreateTopicsRequest(topics=[topic])).topics
    assert (result.error_code, bool(result.error_message)) == (29, True)
