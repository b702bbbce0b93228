"""What Metadata answers teach: leaders, counts, ids; older news about a leader is not believed (KIP-320)."""

from __future__ import annotations

from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.client.cluster import ClusterState
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ORDERS_0 = TopicPartition("orders", 0)


def answer(leader: int = 1, epoch: int = 5, *, topic_id: int = 1, code: int = 0, partition_code: int = 0) -> MetadataResponse:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1], error_code=partition_code
    )
    topic = MetadataResponseTopic(name="orders", topic_id=UUID(int=topic_id), partitions=[] if code else [partition], error_code=code)
    brokers = [MetadataResponseBroker(node_id=node, host="h", port=node) for node in (1, 2)]
    return MetadataResponse(brokers=brokers, controller_id=2, cluster_id="c", topics=[topic])


def state(*answers: MetadataResponse) -> ClusterState:
    cluster = ClusterState()
    for number, response in enumerate(answers):
        cluster.update(response, number)
    return cluster


def test_state_is_empty_before_the_first_response() -> None:
    cluster = ClusterState()
    assert (cluster.leader_of(ORDERS_0), cluster.partition_count("orders"), cluster.topic_id("orders"), cluster.topics()) == (None,) * 3 + (
        [],
    )


def test_response_is_applied() -> None:
    cluster = state(answer())
    assert cluster.nodes == {1: Address("h", 1), 2: Address("h", 2)}
    assert (cluster.leader_of(ORDERS_0), cluster.partition_count("orders"), cluster.topic_id("orders")) == (1, 1, UUID(int=1))
    assert (cluster.controller_id, cluster.cluster_id, cluster.topics(), cluster.updated_ms) == (2, "c", ["orders"], 0)
    partition = cluster.partition(ORDERS_0)
    assert partition is not None
    assert partition.replica_count == 2


def test_older_leader_epoch_is_ignored() -> None:
    assert state(answer(1, 5), answer(2, 4)).leader_of(ORDERS_0) == 1
    assert state(answer(1, 5), answer(2, 6)).leader_of(ORDERS_0) == 2
    assert state(answer(1, 5), answer(2, -1)).leader_of(ORDERS_0) == 2, "a response without epochs is applied"


def test_recreated_topic_accepts_lower_epochs() -> None:
    assert state(answer(1, 5, topic_id=1), answer(2, 0, topic_id=2)).leader_of(ORDERS_0) == 2


def test_partition_without_leader() -> None:
    assert state(answer(-1)).leader_of(ORDERS_0) is None
    assert state(answer(1, partition_code=5)).leader_of(ORDERS_0) is None
    assert state(answer(9)).leader_of(ORDERS_0) is None, "a leader whose address is unknown is no leader"


def test_unusable_topic_has_its_code() -> None:
    cluster = state(answer(), answer(code=codes.TOPIC_AUTHORIZATION_FAILED.number))
    topic = cluster.topic("orders")
    assert topic is not None
    assert topic.code is codes.TOPIC_AUTHORIZATION_FAILED
    assert cluster.partition_count("orders") is None


def test_retriable_error_keeps_partitions_of_a_topic_that_exists() -> None:
    assert state(answer(), answer(code=codes.LEADER_NOT_AVAILABLE.number)).partition_count("orders") == 1
    assert state(answer(), answer(code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)).partition_count("orders") is None


def test_forgotten_topic_is_unknown() -> None:
    cluster = state(answer())
    cluster.forget("orders")
    assert cluster.topic("orders") is None
