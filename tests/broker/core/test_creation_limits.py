"""The number of partitions that one request may create is limited: each is a directory, and other clients wait."""

from __future__ import annotations

import pytest

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from chaffinch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.core_client import Cluster

POLICY_VIOLATION = 44


def creatable(name: str, partitions: int) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)


def assigned(name: str, partitions: int) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[0]) for index in range(partitions)]
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)


class TestCreateTopics:
    @pytest.mark.parametrize(
        ("topics", "codes"),
        [
            ([creatable("a", 5000), creatable("b", 5000)], [0, 0]),
            ([creatable("a", 10_001)], [POLICY_VIOLATION]),
            ([creatable("a", 5000), creatable("b", 5001)], [POLICY_VIOLATION] * 2),
            ([creatable("a", 9997), creatable("b", -1)], [0, 0]),
            ([creatable("a", 9998), creatable("b", -1)], [POLICY_VIOLATION] * 2),
            ([creatable("a", 9998), assigned("b", 2)], [0, 0]),
            ([creatable("a", 9998), assigned("b", 3)], [POLICY_VIOLATION] * 2),
            ([creatable("a", 10_000), creatable("b", -2), creatable("c", 0)], [0, 37, 37]),
            # Those that cannot be created count too, but for those that are refused by their name alone.
            ([creatable("a", 10_000), creatable("b/c", 1)], [POLICY_VIOLATION] * 2),
            ([creatable("a", 10_000), creatable("b", 9), creatable("b", 9), creatable("__cluster_metadata", 9)], [0, 42, 29]),
            ([creatable("a", 10_001), creatable("b", 9), creatable("b", 9)], [POLICY_VIOLATION] * 3),
            ([creatable("a", 2**31 - 1), creatable("b", 2**31 - 1)], [POLICY_VIOLATION] * 2),
        ],
    )
    def test_limit_counts_the_partitions_of_all_topics(self, topics: list[CreatableTopic], codes: list[int]) -> None:
        cluster = Cluster({"num.partitions": "3"})
        results = cluster.client().ask(CreateTopicsRequest(topics=topics, validate_only=True)).topics
        assert [result.error_code for result in results] == codes

    def test_request_above_the_limit_creates_nothing(self) -> None:
        cluster = Cluster()
        results = cluster.client().ask(CreateTopicsRequest(topics=[creatable("a", 1), creatable("b", 10_000)])).topics
        assert [(result.name, result.error_message) for result in results] == [
            (name, "Excessively large number of partitions per request: 10001 new ones, at most 10000.") for name in ("a", "b")
        ]
        assert len(cluster.core.topics) == 0
        assert cluster.lines[-1].startswith("refused: CreateTopics from client 'test' for 2 topics: POLICY_VIOLATION: ")

    def test_limit_does_not_apply_to_the_owner_of_the_broker(self) -> None:
        cluster = Cluster()
        cluster.topic("wide", 10_001)
        assert len(cluster.topic_named("wide").partitions) == 10_001


class TestCreatePartitions:
    @pytest.mark.parametrize(
        ("topics", "codes"),
        [
            ([("a", 10_002)], [0]),
            ([("a", 10_003)], [POLICY_VIOLATION]),
            ([("a", 5002), ("b", 5003)], [0, 0]),
            ([("a", 5002), ("b", 5004)], [POLICY_VIOLATION] * 2),
            ([("a", 10_002), ("b", 1), ("missing", 10_000)], [0, 37, 3]),
            ([("a", 10_002), ("b", 9), ("b", 9)], [0, 42]),
            ([("a", 10_003), ("b", 9), ("b", 9)], [POLICY_VIOLATION] * 3),
        ],
    )
    def test_limit_counts_the_new_partitions_of_all_topics(self, topics: list[tuple[str, int]], codes: list[int]) -> None:
        cluster = Cluster()
        cluster.topic("a", 2)
        cluster.topic("b", 3)
        new_counts = [CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in topics]
        results = cluster.client().ask(CreatePartitionsRequest(topics=new_counts, timeout_ms=1000, validate_only=True)).results
        assert [result.error_code for result in results] == codes

    def test_request_above_the_limit_adds_nothing(self) -> None:
        cluster = Cluster()
        cluster.topic("a")
        new_counts = [CreatePartitionsTopic(name="a", count=10_002, assignments=None)]
        (result,) = cluster.client().ask(CreatePartitionsRequest(topics=new_counts, timeout_ms=1000, validate_only=False)).results
        assert result.error_message == "Excessively large number of partitions per request: 10001 new ones, at most 10000."
        assert len(cluster.topic_named("a").partitions) == 1
        assert cluster.lines[-1].startswith("refused: CreatePartitions from client 'test' for 1 topic: POLICY_VIOLATION: ")

    def test_partition_count_of_a_topic_is_limited(self) -> None:
        cluster = Cluster()
        cluster.topic("a")
        with pytest.raises(RequestRefused, match="up to 100000, not set to 100001"):
            cluster.core.topics.create_partitions("a", 100_001, steady_ms=cluster.steady_ms)


class TestMetadata:
    @staticmethod
    def codes(cluster: Cluster, *names: str) -> list[int]:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return [topic.error_code for topic in cluster.client().ask(MetadataRequest(topics=topics, allow_auto_topic_creation=True)).topics]

    def test_metadata_creates_a_limited_number_of_topics_per_request(self) -> None:
        """As by Apache Kafka, which answers so for all that it has yet to create."""
        cluster = Cluster()
        names = [f"topic-{index}" for index in range(450)]
        assert self.codes(cluster, *names) == [0] * 200 + [3] * 250
        assert len(cluster.core.topics) == 200
        assert self.codes(cluster, *names) == [0] * 400 + [3] * 50
        assert self.codes(cluster, *names) == [0] * 450

    @pytest.mark.parametrize(("partitions", "codes"), [("60", [0, 0, 0, 3]), ("201", [0, 3, 3, 3])])
    def test_metadata_limit_counts_partitions(self, partitions: str, codes: list[int]) -> None:
        assert self.codes(Cluster({"num.partitions": partitions}), "a", "b", "c", "d") == codes

    def test_invalid_names_do_not_count_for_the_metadata_limit(self) -> None:
        cluster = Cluster({"num.partitions": "200"})
        cluster.topic("a.b")
        assert self.codes(cluster, "a_b", "a/b", "a.b", "new", "newer") == [17, 17, 0, 0, 3]
