"""Metadata: nodes, topics and leaders; creates unknown topics if both the client and `auto.create.topics.enable` allow it.

If there are many, it creates only the first few. The others are answered as Apache Kafka answers every topic that it is about to create:
with UNKNOWN_TOPIC_OR_PARTITION, upon which clients retry.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.declared_replicas import NO_LEADER
from chaffinch.broker.core.security import authorized_operations
from chaffinch.broker.core.topics import creation_rules
from chaffinch.broker.core.topics.registry import Partition, Topic
from chaffinch.errors import codes
from chaffinch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.storage.file_system import StorageError

VERSION_WITH_IDS = 12
"""First version in which topics may be requested by id alone."""


def handle(broker: BrokerState, event: RequestReceived, request: MetadataRequest, steady_ms: int) -> Result:
    requested = request.topics or ()
    if event.request.version < VERSION_WITH_IDS and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in requested):
        return _refused(request)
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port) for node in broker.nodes.live],
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes.controller_id,
        topics=_topics(broker, event, request, steady_ms),
    )
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name is not None:
                topic.topic_authorized_operations = authorized_operations.ON_TOPICS
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations.ON_CLUSTER
    return response


def _refused(request: MetadataRequest) -> MetadataResponse:
    """Refuse topic ids before version 12: the field exists since version 10, but is used only since 12."""
    code = codes.INVALID_REQUEST.number
    topics = [
        MetadataResponseTopic(error_code=code, name=requested.name or "", topic_id=requested.topic_id) for requested in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=code)


def _topics(broker: BrokerState, event: RequestReceived, request: MetadataRequest, steady_ms: int) -> list[MetadataResponseTopic]:
    """Each requested topic once. If ids are given, names are ignored."""
    if request.topics is None or (event.request.version == 0 and not request.topics):
        return [_described(broker, topic) for topic in broker.topics]
    ids = dict.fromkeys(requested.topic_id for requested in request.topics if requested.topic_id != ZERO_UUID)
    if ids:
        return [_with_id(broker, topic_id) for topic_id in ids]
    names = dict.fromkeys(requested.name for requested in request.topics if requested.name is not None)
    may_create = request.allow_auto_topic_creation and broker.settings["auto.create.topics.enable"]
    put_off = _put_off(broker, names) if may_create else frozenset()
    return [_with_name(broker, event, name, may_create and name not in put_off, steady_ms) for name in names]


def _put_off(broker: BrokerState, names: Iterable[str]) -> frozenset[str]:
    """The new topics beyond the limit of one request. Invalid names do not count: they are refused anyway."""
    new = [name for name in names if broker.topics.get(name) is None and broker.topics.name_refusal(name) is None]
    return frozenset(new[creation_rules.automatic_topics_max(broker.settings["num.partitions"]) :])


def _with_id(broker: BrokerState, topic_id: UUID) -> MetadataResponseTopic:
    topic = broker.topics.by_id(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=codes.UNKNOWN_TOPIC_ID.number, name=None, topic_id=topic_id)
    return _described(broker, topic)


def _with_name(broker: BrokerState, event: RequestReceived, name: str, may_create: bool, steady_ms: int) -> MetadataResponseTopic:
    topic = broker.topics.get(name)
    if topic is not None:
        return _described(broker, topic)
    missing = MetadataResponseTopic(
        error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number, name=name, is_internal=name in creation_rules.INTERNAL
    )
    if creation_rules.fault_of(name) is not None:
        missing.error_code = codes.INVALID_TOPIC_EXCEPTION.number
        return missing
    if not may_create:
        return missing
    try:
        return _described(broker, broker.topics.create(name, steady_ms=steady_ms).topic)
    except RequestRefused as refused:
        log_refusal(broker, event, steady_ms, subject=name, code=refused.code, reason=refused.message)
        missing.error_code = refused.code.number
    except StorageError as error:
        log_refusal(broker, event, steady_ms, subject=name, code=codes.KAFKA_STORAGE_ERROR, reason=str(error))
        missing.error_code = codes.LEADER_NOT_AVAILABLE.number
    return missing


def _described(broker: BrokerState, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=codes.NONE.number,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_described_partition(broker, partition) for partition in topic.partitions],
    )


def _described_partition(broker: BrokerState, partition: Partition) -> MetadataResponsePartition:
    replicas = partition.replicas
    has_leader = replicas.leader != NO_LEADER
    return MetadataResponsePartition(
        error_code=codes.NONE.number if has_leader else codes.LEADER_NOT_AVAILABLE.number,
        partition_index=partition.topic_partition.partition,
        leader_id=replicas.leader,
        leader_epoch=replicas.leader_epoch,
        replica_nodes=list(replicas.assigned),
        isr_nodes=list(replicas.in_sync),
        offline_replicas=[node_id for node_id in replicas.assigned if broker.nodes.by_id(node_id) is None],
    )
