"""A topic and its offsets: both are there or both are gone, whatever fails and whenever the broker stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.storage.file_system import StorageError
from tests.broker.core.groups.members import GROUP, commit
from tests.broker.core.groups.test_offsets import Transaction, fetch
from tests.broker.core.test_metadata_synced import lose_power
from tests.broker.core_client import Cluster

GROUPS = (GROUP, "second", "third")


@contextmanager
def failing(cluster: Cluster, failing_operation: str, part: str, *, but: int = 0) -> Iterator[None]:
    """These operations on files of this name fail, the first `but` excepted."""
    seen = 0

    def fail(operation: str, path: str, size: int) -> None:
        nonlocal seen
        seen += operation == failing_operation and part in path
        if operation == failing_operation and part in path and seen > but:
            raise StorageError(path, operation, "no space left")

    cluster.file_system.hook = fail
    yield
    cluster.file_system.hook = None


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    for topic in ("orders", "other"):
        cluster.topic(topic)
    for group in GROUPS:
        commit(cluster.client(), 3, group=group)
        commit(cluster.client(), 4, group=group, topic="other")
    return cluster


def delete(cluster: Cluster, *topics: str) -> list[int]:
    answer = cluster.client().ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic) for topic in topics]))
    return [result.error_code for result in answer.responses]


def create(cluster: Cluster) -> int:
    requested = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    code: int = cluster.client().ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000)).topics[0].error_code
    return code


def offsets(cluster: Cluster, topic: str = "orders") -> list[int | None]:
    """Of each group."""
    found = [cluster.core.state.offsets.fetch(group, TopicPartition(topic, 0)) for group in GROUPS]
    return [None if offset is None else offset.offset for offset in found]


class TestDeletionThatFails:
    def test_failed_deletion_keeps_topic_and_offsets(self, cluster: Cluster) -> None:
        """A reader that starts at the end of what it does not know would skip what is stored there."""
        with failing(cluster, "append", "cluster"):
            assert delete(cluster, "orders", "none") == [56, 3]
        assert cluster.core.topics.get("orders") is not None
        assert offsets(cluster) == [3, 3, 3]
        assert delete(cluster, "orders") == [0]
        assert offsets(cluster) == [None] * 3

    def test_failed_deletion_of_one_topic_keeps_its_offsets(self, cluster: Cluster) -> None:
        with failing(cluster, "append", "cluster", but=2):
            assert delete(cluster, "other", "orders") == [0, 56]
        assert (offsets(cluster), offsets(cluster, "other")) == ([3, 3, 3], [None] * 3)

    def test_deletion_lost_with_the_power_keeps_the_offsets(self, cluster: Cluster) -> None:
        cluster.core._metadata.sync()
        cluster.core.state.offsets.sync()
        with failing(cluster, "sync", "cluster"):
            client = cluster.client()
            client.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
            assert client.closed is not None
        lose_power(cluster)
        assert cluster.core.topics.get("orders") is not None
        assert offsets(cluster) == [3, 3, 3]


class TestFailedRemovalOfOffsets:
    @pytest.mark.parametrize("but", range(len(GROUPS)))
    @pytest.mark.parametrize("by", ["CreateTopics", "Metadata"])
    def test_topic_is_not_recreated_before_its_offsets_are_removed(self, cluster: Cluster, but: int, by: str) -> None:
        with failing(cluster, "append", "offsets", but=but):
            assert delete(cluster, "orders") == [0], "it is deleted"
            assert any("no space left" in line for line in cluster.lines)
            if by == "CreateTopics":
                assert create(cluster) == 56
            else:
                answer = cluster.client().ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=True))
                assert [topic.error_code for topic in answer.topics] == [5]
            assert cluster.core.topics.get("orders") is None
        assert create(cluster) == 0
        assert (offsets(cluster), offsets(cluster, "other")) == ([None] * 3, [4, 4, 4])
        assert fetch(cluster.client()) == (-1, 0)

    def test_failed_removal_at_a_start_prevents_recreation(self, cluster: Cluster) -> None:
        cluster.core.topics.delete("orders")
        with failing(cluster, "append", "offsets", but=1):
            cluster.restart()
            assert create(cluster) == 56
        assert create(cluster) == 0
        assert offsets(cluster) == [None] * 3

    def test_offsets_are_removed_with_the_next_deletion(self, cluster: Cluster) -> None:
        with failing(cluster, "append", "offsets"):
            delete(cluster, "orders")
        assert delete(cluster, "other") == [0]
        assert (offsets(cluster), offsets(cluster, "other")) == ([None] * 3, [None] * 3)


class TestStop:
    @pytest.mark.parametrize("kill", [True, False])
    def test_stop_between_topic_and_offsets_removes_both(self, cluster: Cluster, kill: bool) -> None:
        """They would be those of the next topic of that name, whose reader would skip what is stored there."""
        Transaction(cluster.client()).commit(9)
        cluster.core.topics.delete("orders")
        cluster.restart(kill=kill)
        assert create(cluster) == 0
        assert fetch(cluster.client()) == fetch(cluster.client(), require_stable=True) == (-1, 0)
        assert (offsets(cluster), offsets(cluster, "other")) == ([None] * 3, [4, 4, 4])

    def test_offsets_are_not_inherited_after_a_loss_of_power(self, cluster: Cluster) -> None:
        cluster.core.state.offsets.sync()
        delete(cluster, "orders")
        assert create(cluster) == 0
        cluster.core.topics.sync()
        lose_power(cluster)
        assert cluster.core.topics.get("orders") is not None
        assert offsets(cluster) == [None] * 3
