"""Topics by way of their requests: creation, deletion, metadata, options, and what a restart finds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from chaffinch.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.describe_cluster import DescribeClusterRequest
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    TYPE_INT,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import Client, Cluster, produce_request


def creatable(name: str = "orders", partitions: int = 1, replication: int = 1, **config: str) -> CreatableTopic:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication, configs=configs)


def assigned(*replicas: list[int], partitions: int = -1) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas)]
    return CreatableTopic(name="orders", num_partitions=partitions, replication_factor=-1, assignments=assignments)


def create(client: Client, *topics: CreatableTopic, validate_only: bool = False) -> list[CreatableTopicResult]:
    results: list[CreatableTopicResult] = client.ask(CreateTopicsRequest(topics=list(topics), validate_only=validate_only)).topics
    return results


REFUSED: list[tuple[CreatableTopic, int, str]] = [
    (creatable("taken"), 36, "already exists"),
    (creatable(""), 17, "empty"),
    (creatable("."), 17, "'.'"),
    (creatable("a/b"), 17, "letters"),
    (creatable("x" * 250), 17, "249"),
    (creatable("ta_ken.x"), 17, "collides"),
    (creatable(partitions=0), 37, "not 0"),
    (creatable(partitions=-2), 37, "not -2"),
    (creatable(replication=3), 38, "2 nodes"),
    (creatable(replication=0), 38, "at least 1"),
    (creatable(partitions=0, replication=0), 38, "at least 1"),
    (creatable("taken", 0, retention_ms="soon"), 36, "already exists"),
    (creatable(partitions=0, retention_ms="soon"), 40, "whole number"),
    (assigned([0, 1], [0]), 39, "same number"),
    (assigned([0, 0]), 39, "[0, 0]"),
    (assigned([5]), 39, "[5]"),
    (assigned([]), 39, "[]"),
    (assigned([0], partitions=1), 42, "cannot be combined"),
    (creatable(cleanup_polcy="compact"), 40, "cleanup.policy"),
    (creatable(cleanup_policy="compress"), 40, "compact"),
    (creatable(max_message_bytes="-1"), 40, "at least 0"),
    (creatable(compression_gzip_level="0"), 40, "not 0"),
    (creatable(retention_ms="9" * 20), 40, "at most 64 bits"),
    (creatable(message_format_version="new"), 40, "3.0"),
    (creatable(segment_bytes="100"), 40, "1048576"),
]


class TestCreateTopics:
    @pytest.mark.parametrize(("topic", "code", "says"), REFUSED, ids=[f"{number} {row[1]} {row[2]}" for number, row in enumerate(REFUSED)])
    def test_invalid_creation_is_refused_with_its_reason(self, topic: CreatableTopic, code: int, says: str) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("taken")
        cluster.topic("ta.ken_x")
        (result,) = create(cluster.client(), topic)
        assert result.error_code == code
        assert says in (result.error_message or "")
        assert len(cluster.core.topics) == 2

    def test_creation_uses_broker_defaults(self) -> None:
        cluster = Cluster({"num.partitions": 3, "default.replication.factor": 2}, nodes=2)
        (result,) = create(cluster.client(), creatable(partitions=-1, replication=-1))
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 2)

    def test_creation_uses_the_given_assignment(self) -> None:
        cluster = Cluster(nodes=3)
        create(cluster.client(), assigned([2, 0], [1, 2]))
        replicas = [partition.replicas.assigned for partition in cluster.topic_named("orders").partitions]
        assert replicas == [(2, 0), (1, 2)]

    def test_validate_only_creates_nothing(self) -> None:
        cluster = Cluster()
        (result,) = create(cluster.client(), creatable(partitions=2), validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 2)
        assert len(cluster.core.topics) == 0
        assert not cluster.file_system.exists("logs")

    def test_name_given_twice_is_refused(self) -> None:
        cluster = Cluster()
        results = create(cluster.client(), creatable("a"), creatable("a"), creatable("b"))
        assert [(result.name, result.error_code) for result in results] == [("a", 42), ("b", 0)]

    def test_leaders_are_spread_over_the_nodes(self) -> None:
        cluster = Cluster(nodes=3)
        create(cluster.client(), creatable(partitions=6, replication=2))
        leaders = [partition.replicas.leader for partition in cluster.topic_named("orders").partitions]
        assert sorted(leaders) == [0, 0, 1, 1, 2, 2]

    def test_creation_on_a_full_disk_is_refused(self) -> None:
        cluster = Cluster()
        client = cluster.client()

        def full(operation: str, path: str, size: int) -> None:
            if operation == "append":
                raise StorageError(path, "append to", "no space left")

        cluster.file_system.hook = full
        (result,) = create(client, creatable())
        reason = "the broker's disk failed for topic orders; ask the operator for the details in the broker's log"
        assert (result.error_code, result.error_message) == (56, reason)
        assert cluster.lines[-1].endswith("no space left")
        cluster.file_system.hook = None
        assert create(client, creatable())[0].error_code == 0


class TestDeleteTopics:
    @pytest.mark.parametrize("version", [5, 6])
    def test_topics_are_deleted_by_name(self, version: int) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        request = DeleteTopicsRequest(
            topic_names=["orders", "missing"], topics=[DeleteTopicState(name="orders"), DeleteTopicState(name="missing")]
        )
        assert [result.error_code for result in cluster.client().ask(request, version).responses] == [0, 3]
        assert cluster.file_system.list("logs") == []

    def test_topics_are_deleted_by_id(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        ids = [cluster.topic_named("orders").topic_id, UUID(int=7)]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids])
        results = cluster.client().ask(request).responses
        assert [(result.name, result.error_code) for result in results] == [("orders", 0), (None, 100)]

    def test_produce_to_a_deleted_topic_is_logged_with_its_id(self) -> None:
        """The broker does not have the name any more."""
        cluster = Cluster()
        cluster.topic("orders")
        client, topic_id = cluster.client(), cluster.topic_named("orders").topic_id
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        request = produce_request("orders", batch_of(b"v"), partition=2)
        request.topics[0].topic_id = topic_id
        assert client.ask(request, 13).responses[0].partition_responses[0].error_code == 100
        line = cluster.lines[-1]
        assert line.startswith(f"refused: Produce from client 'test' for topic id {topic_id}-2: UNKNOWN_TOPIC_ID: ")

    def test_disabled_deletion_is_refused(self) -> None:
        cluster = Cluster({"delete.topic.enable": "false"})
        cluster.topic("orders")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")])
        assert cluster.client().ask(request).responses[0].error_code == 73


def metadata(client: Client, *names: str, create: bool = True) -> dict[str, int]:
    topics = [MetadataRequestTopic(name=name) for name in names]
    answer = client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=create))
    return {topic.name: topic.error_code for topic in answer.topics}


class TestMetadata:
    def test_unknown_topics_are_created_when_both_sides_agree(self) -> None:
        cluster = Cluster()
        client = cluster.client()
        assert metadata(client, "a", create=False) == {"a": 3}
        assert metadata(client, "a", "b c") == {"a": 0, "b c": 17}
        assert len(cluster.core.topics) == 1
        off = Cluster({"auto.create.topics.enable": "false"})
        assert metadata(off.client(), "a") == {"a": 3}

    @pytest.mark.parametrize("version", range(14))
    def test_metadata_of_all_and_of_no_topics(self, version: int) -> None:
        cluster = Cluster()
        cluster.topic("a")
        cluster.topic("b")
        client = cluster.client()
        everything: list[MetadataRequestTopic] | None = [] if version == 0 else None
        assert {topic.name for topic in client.ask(MetadataRequest(topics=everything), version).topics} == {"a", "b"}
        if version > 0:
            assert client.ask(MetadataRequest(topics=[]), version).topics == []

    def test_metadata_by_topic_id(self) -> None:
        cluster = Cluster()
        cluster.topic("a")
        topic_id = cluster.topic_named("a").topic_id
        requested = [MetadataRequestTopic(name=None, topic_id=topic_id), MetadataRequestTopic(name=None, topic_id=UUID(int=9))]
        answer = cluster.client().ask(MetadataRequest(topics=requested))
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", 0), (None, 100)]

    def test_stopped_nodes_hand_their_leaderships_on(self) -> None:
        cluster = Cluster(nodes=3)
        cluster.topic("a", 1, 2)
        replicas = cluster.topic_named("a").partitions[0].replicas
        first, second = replicas.assigned
        cluster.stop_node(first)
        answer = cluster.client(node=second).ask(MetadataRequest(topics=None))
        (partition,) = answer.topics[0].partitions
        assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes, partition.offline_replicas) == (
            second,
            1,
            [second],
            [first],
        )
        assert first not in {broker.node_id for broker in answer.brokers}
        cluster.stop_node(second)
        (partition,) = cluster.client(node=3 - first - second).ask(MetadataRequest(topics=None)).topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (5, -1)
        cluster.start_node(first)
        assert replicas.leader == -1, "only the last in-sync replica may lead"
        cluster.start_node(second)
        assert (replicas.leader, replicas.in_sync) == (second, (first, second))

    def test_describe_cluster(self) -> None:
        cluster = Cluster(nodes=2)
        answer = cluster.client().ask(DescribeClusterRequest())
        assert (answer.cluster_id, answer.controller_id) == (cluster.core.state.cluster_id, 0)
        assert [(broker.broker_id, broker.host, broker.port) for broker in answer.brokers] == [(0, "node0", 9092), (1, "node1", 9093)]
        assert cluster.client().ask(DescribeClusterRequest(endpoint_type=2)).error_code == 114

    @pytest.mark.parametrize("version", range(7))
    def test_find_coordinator(self, version: int) -> None:
        cluster = Cluster(nodes=3)
        answer = cluster.client().ask(FindCoordinatorRequest(key="t", key_type=min(version, 1), coordinator_keys=["t"]), version)
        found = answer.coordinators[0] if version >= 4 else answer
        assert found.error_code == 0
        assert (found.host, found.port) == (f"node{found.node_id}", 9092 + found.node_id)
        assert cluster.core.state.is_coordinator(found.node_id, "t")

    def test_find_coordinator_of_an_unknown_type_is_refused(self) -> None:
        client = Cluster().client()
        assert client.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["x"])).coordinators[0].error_code == 42
        assert client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[""])).coordinators[0].error_code == 42


def described(client: Client, name: str, kind: int = RESOURCE_TOPIC, *keys: str) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    (result,) = client.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)).results
    assert result.error_code == 0, result
    return {config.name: config for config in result.configs}


def altered(
    client: Client, name: str, *changes: tuple[str, int, str | None], kind: int = RESOURCE_TOPIC, validate_only: bool = False
) -> Any:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (response,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)).responses
    return response


class TestOptions:
    def test_options_are_described_with_source_type_and_documentation(self) -> None:
        cluster = Cluster({"message.max.bytes": 2000})
        cluster.topic("orders", cleanup_policy="compact")
        configs = described(cluster.client(), "orders")
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("compact", SOURCE_TOPIC)
        assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == ("2000", SOURCE_STATIC_BROKER)
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("604800000", SOURCE_DEFAULT)
        assert [(place.name, place.value) for place in configs["max.message.bytes"].synonyms] == [
            ("message.max.bytes", "2000"),
            ("message.max.bytes", "1048588"),
        ]
        assert [configs[name].config_type for name in ("cleanup.policy", "retention.ms", "max.message.bytes", "preallocate")] == [
            7,
            5,
            3,
            1,
        ]
        assert "InconsistentReplicationFactorException" in (configs["min.insync.replicas"].documentation or "")

    def test_requested_options_are_described(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        assert set(described(cluster.client(), "orders", RESOURCE_TOPIC, "retention.ms", "no.such.option")) == {"retention.ms"}

    def test_broker_options_are_described(self) -> None:
        cluster = Cluster({"num.io.threads": "8", "num.partitions": 2})
        configs = described(cluster.client(), "0", RESOURCE_BROKER)
        assert (configs["num.partitions"].value, configs["num.partitions"].read_only) == ("2", False)
        assert configs["flush.policy"].read_only
        assert "without effect" in (configs["num.io.threads"].documentation or "")
        assert configs["message.max.bytes"].value == "1048588"
        cluster.client()
        assert any("num.io.threads" in line and "without effect" in line for line in cluster.lines)

    @pytest.mark.parametrize(("kind", "name", "code"), [(RESOURCE_TOPIC, "missing", 3), (RESOURCE_BROKER, "9", 42), (3, "x", 42)])
    def test_unknown_resource_is_refused(self, kind: int, name: str, code: int) -> None:
        client = Cluster().client()
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        assert client.ask(DescribeConfigsRequest(resources=[resource])).results[0].error_code == code
        assert altered(client, name, kind=kind).error_code == code

    def test_changes_apply_at_once_and_after_a_restart(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        client = cluster.client()
        assert client.produce("orders", batch_of(b"a", keys=[None])).error_code == 0
        assert altered(client, "orders", ("cleanup.policy", OPERATION_SET, "compact")).error_code == 0
        assert client.produce("orders", batch_of(b"a", keys=[None])).error_code == 87
        cluster.restart()
        client = cluster.client()
        assert client.produce("orders", batch_of(b"a", keys=[None])).error_code == 87
        assert altered(client, "orders", ("cleanup.policy", OPERATION_DELETE, None)).error_code == 0
        assert client.produce("orders", batch_of(b"a", keys=[None])).error_code == 0

    def test_list_options_are_appended_and_subtracted(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        client = cluster.client()
        for operation, expected in (
            (OPERATION_APPEND, "delete,compact"),
            (OPERATION_APPEND, "delete,compact"),
            (OPERATION_SUBTRACT, "delete"),
        ):
            assert altered(client, "orders", ("cleanup.policy", operation, "compact")).error_code == 0
            assert described(client, "orders")["cleanup.policy"].value == expected

    @pytest.mark.parametrize(
        ("change", "code", "says"),
        [
            (("retention.msec", OPERATION_SET, "1"), 40, "retention.ms"),
            (("retention.ms", OPERATION_SET, "soon"), 40, "whole number"),
            (("retention.ms", OPERATION_SET, None), 42, "no value"),
            (("retention.ms", OPERATION_APPEND, "1"), 40, "not a list"),
            (("retention.ms", 9, "1"), 42, "operation 9"),
        ],
        ids=str,
    )
    def test_refused_changes_change_nothing(self, change: tuple[str, int, str | None], code: int, says: str) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        response = altered(cluster.client(), "orders", ("max.message.bytes", OPERATION_SET, "7"), change)
        assert response.error_code == code
        assert says in (response.error_message or "")
        assert cluster.topic_named("orders").overrides == {}

    def test_validate_only_changes_nothing(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        change = ("retention.ms", OPERATION_SET, "1")
        assert altered(cluster.client(), "orders", change, validate_only=True).error_code == 0
        assert cluster.topic_named("orders").overrides == {}

    def test_broker_options_change_at_run_time(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        client = cluster.client()
        assert altered(client, "", ("message.max.bytes", OPERATION_SET, "100"), kind=RESOURCE_BROKER).error_code == 0
        assert client.produce("orders", batch_of(b"a" * 100)).error_code == 10
        cluster.restart()
        client = cluster.client()
        assert client.produce("orders", batch_of(b"a" * 100)).error_code == 10
        configs = described(client, "orders")
        assert configs["max.message.bytes"].config_source == SOURCE_DYNAMIC_DEFAULT_BROKER
        refused = altered(client, "0", ("flush.policy", OPERATION_SET, "always"), kind=RESOURCE_BROKER)
        assert (refused.error_code, "while the broker runs" in refused.error_message) == (42, True)


class TestWithoutEffect:
    """An option that Apache Kafka knows and that changes nothing here is said in the log: once, however often it is given."""

    SAYS = "topic option flush.ms=1 of topic orders is known to Apache Kafka and without effect here"

    def test_option_without_effect_is_logged_at_creation(self) -> None:
        cluster = Cluster()
        client = cluster.client()
        create(client, creatable("orders", flush_ms="1", cleanup_policy="compact"))
        assert cluster.lines == [self.SAYS]
        create(client, creatable("payments", flush_ms="2"))
        assert cluster.lines == [self.SAYS]

    def test_option_without_effect_of_the_owner_is_logged(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", flush_ms="1")
        cluster.client()
        assert cluster.lines == [self.SAYS]

    def test_option_without_effect_is_logged_when_altered(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        client = cluster.client()
        altered(client, "orders", ("flush.ms", OPERATION_SET, "1"), validate_only=True)
        assert cluster.lines == []
        altered(client, "orders", ("flush.ms", OPERATION_SET, "1"), ("max.message.bytes", OPERATION_SET, "7"))
        assert cluster.lines == [self.SAYS]

    def test_broker_default_without_effect_is_logged(self) -> None:
        cluster = Cluster({"log.preallocate": True, "log.segment.bytes": 1 << 20})
        client = cluster.client()
        assert cluster.lines == ["option log.preallocate=true is known to Apache Kafka and without effect here"]
        altered(client, "", ("log.segment.delete.delay.ms", OPERATION_SET, "1"), kind=RESOURCE_BROKER)
        assert cluster.lines[1:] == ["option log.segment.delete.delay.ms=1 is known to Apache Kafka and without effect here"]

    def test_refused_option_without_effect_is_not_logged(self) -> None:
        cluster = Cluster()
        create(cluster.client(), creatable("orders", flush_ms="1", max_message_bytes="many"))
        assert not any("without effect" in line for line in cluster.lines)


class TestInternalSegmentBytes:
    """The option with which tests of Apache Kafka make segments below 1 MiB: it overrides segment.bytes, and is shown where it is set."""

    NAME = "internal.segment.bytes"

    def test_internal_segment_bytes_applies_at_creation(self) -> None:
        cluster = Cluster()
        client = cluster.client()
        create(client, creatable("orders", internal_segment_bytes="300"), creatable("payments"))
        entry = described(client, "orders")[self.NAME]
        assert (entry.value, entry.config_source, entry.config_type) == ("300", SOURCE_TOPIC, TYPE_INT)
        assert self.NAME not in described(client, "payments")
        assert client.produce("orders", batch_of(b"a" * 300)).error_code == 18
        for _ in range(3):
            assert client.produce("orders", batch_of(b"a" * 100)).error_code == 0
        directory = cluster.partition("orders", 0).log.directory
        assert sum(name.endswith(".log") for name in cluster.file_system.list(directory)) > 1
        cluster.restart()
        assert cluster.client().produce("orders", batch_of(b"a" * 300)).error_code == 18

    def test_internal_segment_bytes_applies_when_altered(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        client = cluster.client()
        assert altered(client, "orders", (self.NAME, OPERATION_SET, "100")).error_code == 0
        assert client.produce("orders", batch_of(b"a" * 100)).error_code == 18
        assert altered(client, "orders", (self.NAME, OPERATION_SET, "0")).error_code == 40
        assert altered(client, "orders", (self.NAME, OPERATION_DELETE, None)).error_code == 0
        assert client.produce("orders", batch_of(b"a" * 100)).error_code == 0
        assert self.NAME not in described(client, "orders")
