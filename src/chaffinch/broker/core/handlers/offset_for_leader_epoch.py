"""OffsetForLeaderEpoch: returns the end offset of a leader epoch. Consumers request it after a leader change (KIP-320)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.replicas.leader_epochs import end_of_epoch, leadership_fault
from chaffinch.errors import codes
from chaffinch.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: OffsetForLeaderEpochRequest, steady_ms: int) -> Result:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_answer(broker, event.node_id, topic.topic, requested) for requested in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer(broker: BrokerState, node_id: int, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = broker.topics.partition(topic, requested.partition)
    code = leadership_fault(partition, node_id, requested.current_leader_epoch)
    if partition is None or code is not codes.NONE:
        return EpochEndOffset(partition=requested.partition, error_code=code.number)
    try:
        epoch, end_offset = end_of_epoch(partition, requested.leader_epoch)
    except StorageError:
        return EpochEndOffset(partition=requested.partition, error_code=codes.KAFKA_STORAGE_ERROR.number)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)
