"""WriteTxnMarkers: ends transactions in partitions for any client, as in Apache Kafka without an authorizer.

For tools that abort hanging transactions (KIP-664): this broker's own coordinator does not use the request, and its
state is not changed.
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.transactions.moves import VERSION_WITH_EPOCH_BUMP
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: WriteTxnMarkersRequest, steady_ms: int) -> Result:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=_write(broker, event, marker, TopicPartition(topic.name, index), steady_ms).number,
                            )
                            for index in dict.fromkeys(topic.partition_indexes)
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _write(broker: BrokerState, event: RequestReceived, marker: WritableTxnMarker, tp: TopicPartition, steady_ms: int) -> ErrorCode:
    partition = broker.topics.partition(*tp)
    if partition is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if partition.replicas.leader != event.node_id:
        return codes.NOT_LEADER_OR_FOLLOWER
    log = partition.log
    identity = ProducerIdentity(marker.producer_id, marker.producer_epoch)
    needs_higher_epoch = marker.transaction_version >= VERSION_WITH_EPOCH_BUMP
    refused = log.check_marker(identity, marker.coordinator_epoch, needs_higher_epoch=needs_higher_epoch)
    if refused is not None:
        log_refusal(broker, event, steady_ms, subject=tp, code=refused.code, reason=refused.message)
        return refused.code
    epoch = partition.replicas.leader_epoch
    try:
        log.append_marker(marker.transaction_result, identity, marker.coordinator_epoch, steady_ms, leader_epoch=epoch)
    except StorageError as error:
        log_refusal(broker, event, steady_ms, subject=tp, code=codes.KAFKA_STORAGE_ERROR, reason=str(error))
        return codes.KAFKA_STORAGE_ERROR
    broker.grown.append(partition)
    return codes.NONE
