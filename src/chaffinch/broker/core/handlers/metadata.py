"""Metadata: nodes, topics, leaders; creates unknown topics when both the client and `auto.create.topics.enable` agree."""

from __future__ import annotations

from chaffinch.broker.core import topic_names
from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.declared_replicas import NO_LEADER
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.topics import Partition, Topic
from chaffinch.errors import codes
from chaffinch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from chaffinch.storage.file_system import StorageError

VERSION_WITH_IDS = 12
"""First version in which topics may be asked for by id alone."""


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, MetadataRequest)
    asks_for_all = request.topics is None or (event.request.version == 0 and not request.topics)
    if event.request.version < VERSION_WITH_IDS and any(asked.name is None for asked in request.topics or ()):
        # Versions 10 and 11 have room for an id and no answer to it: all is refused, as in Apache Kafka.
        topics = [
            MetadataResponseTopic(error_code=codes.INVALID_REQUEST.number, name=asked.name or "", topic_id=asked.topic_id)
            for asked in request.topics or ()
        ]
    elif asks_for_all:
        topics = [_described(broker, topic) for topic in broker.topics]
    else:
        topics = [_asked_for(broker, event, asked, request.allow_auto_topic_creation, now_ms) for asked in request.topics or ()]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port) for node in broker.nodes.live],
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes.controller_id,
        topics=topics,
    )


def _asked_for(
    broker: BrokerState, event: RequestReceived, asked: MetadataRequestTopic, may_create: bool, now_ms: int
) -> MetadataResponseTopic:
    if asked.name is None:
        by_id = broker.topics.by_id(asked.topic_id)
        if by_id is None:
            return MetadataResponseTopic(error_code=codes.UNKNOWN_TOPIC_ID.number, name=None, topic_id=asked.topic_id)
        return _described(broker, by_id)
    topic = broker.topics.get(asked.name)
    if topic is not None:
        return _described(broker, topic)
    if topic_names.fault_of(asked.name) is not None:
        return MetadataResponseTopic(error_code=codes.INVALID_TOPIC_EXCEPTION.number, name=asked.name)
    if not (may_create and broker.settings["auto.create.topics.enable"]):
        return MetadataResponseTopic(error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number, name=asked.name)
    try:
        return _described(broker, broker.topics.create(asked.name, now_ms=now_ms).topic)
    except RequestRefused as refused:
        refuse(broker, event, now_ms, place=asked.name, code=refused.code, reason=refused.message)
        return MetadataResponseTopic(error_code=refused.code.number, name=asked.name)
    except StorageError as error:
        refuse(broker, event, now_ms, place=asked.name, code=codes.KAFKA_STORAGE_ERROR, reason=str(error))
        return MetadataResponseTopic(error_code=codes.LEADER_NOT_AVAILABLE.number, name=asked.name)


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
