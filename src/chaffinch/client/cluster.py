"""Cluster metadata: nodes, topics, partitions and their leaders, from Metadata responses.

A plain object without I/O: the caller requests metadata and passes the responses in. Follows MetadataCache.java and KIP-320: of two
responses about a topic, the one with the older leader epoch is ignored, so that a broker that lags behind does not move leaders back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.errors import ErrorCode, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from chaffinch.protocol.primitives import ZERO_UUID

NO_NODE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition: id of the leader (-1: no leader), leader epoch, and number of replicas."""

    leader_id: int
    leader_epoch: int
    replica_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One topic as of the last response. `code` is NONE, or why the topic cannot be used; then it has no partitions.

    `received_ms`: steady time of that response.
    """

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    code: ErrorCode = codes.NONE
    received_ms: int = 0

    @property
    def partition_count(self) -> int:
        return len(self.partitions)


class ClusterState:
    """The cluster as of the last response; before the first one it has no nodes and no topics."""

    __slots__ = ("_topics", "cluster_id", "controller_id", "nodes", "updated_ms", "version")

    def __init__(self) -> None:
        self.nodes: dict[int, Address] = {}
        self.controller_id = NO_NODE
        self.cluster_id: str | None = None
        self.updated_ms: int | None = None
        self.version = 0
        """Number of responses applied."""
        self._topics: dict[str, TopicState] = {}

    def update(self, response: MetadataResponse, steady_ms: int) -> None:
        """Apply a response. Topics that it does not contain are unchanged: the request may have named only some topics."""
        if response.brokers:
            self.nodes = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id or self.cluster_id
        self.updated_ms = steady_ms
        self.version += 1
        for topic in response.topics:
            if topic.name is not None:
                self._topics[topic.name] = self._merged(topic, topic.name, steady_ms)

    def _merged(self, topic: MetadataResponseTopic, name: str, steady_ms: int) -> TopicState:
        code = codes.by_number(topic.error_code)
        known = self._topics.get(name)
        if code.is_retriable and known is not None and known.partitions and code is not codes.UNKNOWN_TOPIC_OR_PARTITION:
            return TopicState(name=name, topic_id=known.topic_id, partitions=known.partitions, received_ms=steady_ms)
        before = known.partitions if known is not None and known.topic_id == topic.topic_id else {}
        partitions = {p.partition_index: _newer(p, before.get(p.partition_index)) for p in topic.partitions}
        return TopicState(name=name, topic_id=topic.topic_id, partitions=partitions, code=code, received_ms=steady_ms)

    def learn_leader(self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int) -> bool:
        """Apply the leader that a broker named in a Produce or Fetch response (KIP-951). Returns whether it is newer than the known one."""
        state = self._topics.get(topic_partition.topic)
        known = None if state is None else state.partitions.get(topic_partition.partition)
        if state is None or known is None or leader_id < 0 or leader_epoch <= known.leader_epoch:
            return False
        state.partitions[topic_partition.partition] = replace(known, leader_id=leader_id, leader_epoch=leader_epoch)
        return True

    def learn_node(self, node_id: int, address: Address) -> None:
        """Set the address of a node unless metadata has named one."""
        self.nodes.setdefault(node_id, address)

    def forget_nodes(self) -> None:
        """Forget all nodes: the cluster has moved, or is another one. The next request goes to a bootstrap address."""
        self.nodes = {}

    def forget(self, topic: str) -> None:
        """Remove a topic."""
        self._topics.pop(topic, None)

    def learn_missing_topic(self, topic: str, steady_ms: int) -> None:
        """A response about all topics did not contain this topic: it does not exist."""
        self._topics[topic] = TopicState(name=topic, topic_id=ZERO_UUID, code=codes.UNKNOWN_TOPIC_OR_PARTITION, received_ms=steady_ms)

    def topic(self, name: str) -> TopicState | None:
        """The topic as of the last response; None before the first one."""
        return self._topics.get(name)

    def topics(self) -> list[str]:
        """Names of the known topics without an error."""
        return [name for name, state in self._topics.items() if state.code is codes.NONE]

    def topic_id(self, name: str) -> UUID | None:
        """The topic's id; None if the topic is unknown."""
        state = self._topics.get(name)
        return None if state is None else state.topic_id

    def partition_count(self, name: str) -> int | None:
        """Number of partitions; None if the topic is unknown or cannot be used."""
        state = self._topics.get(name)
        return state.partition_count if state is not None and state.partitions else None

    def partition(self, topic_partition: TopicPartition) -> PartitionState | None:
        """The partition as of the last response; None if it is unknown."""
        state = self._topics.get(topic_partition.topic)
        return None if state is None else state.partitions.get(topic_partition.partition)

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """The leader's id; None if there is no leader, or if the leader or its address is unknown."""
        state = self.partition(topic_partition)
        return state.leader_id if state is not None and state.leader_id in self.nodes else None

    def leader_address(self, topic_partition: TopicPartition) -> Address | None:
        """The leader's address; None if it is unknown."""
        leader = self.leader_of(topic_partition)
        return None if leader is None else self.nodes[leader]

    def address_of(self, node_id: int) -> Address | None:
        """The node's address; None if it is unknown."""
        return self.nodes.get(node_id)


def _newer(received: MetadataResponsePartition, before: PartitionState | None) -> PartitionState:
    if before is not None and 0 <= received.leader_epoch < before.leader_epoch:
        return before
    has_leader = received.leader_id >= 0 and codes.by_number(received.error_code) is not codes.LEADER_NOT_AVAILABLE
    return PartitionState(
        leader_id=received.leader_id if has_leader else NO_NODE,
        leader_epoch=received.leader_epoch,
        replica_count=len(received.replica_nodes),
    )
