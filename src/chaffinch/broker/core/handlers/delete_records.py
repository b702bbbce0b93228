"""DeleteRecords: let logs begin later (KIP-107). The bytes go when whole segments lie below the beginning."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.leader_epochs import leadership_fault
from chaffinch.errors import codes
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.delete_records import (
    OFFSET_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, DeleteRecordsRequest)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_result(broker, event, topic.name, asked, now_ms) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _result(
    broker: BrokerState, event: RequestReceived, topic: str, asked: DeleteRecordsPartition, now_ms: int
) -> DeleteRecordsPartitionResult:
    place = TopicPartition(topic, asked.partition_index)
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=NO_OFFSET)
    try:
        result.low_watermark = _delete(broker, event.node_id, place, asked.offset, now_ms)
    except RequestRefused as refused:
        result.error_code = refused.code.number
        refuse(broker, event, now_ms, place=place, code=refused.code, reason=refused.message)
    except StorageError as error:
        result.error_code = codes.KAFKA_STORAGE_ERROR.number
        refuse(broker, event, now_ms, place=place, code=codes.KAFKA_STORAGE_ERROR, reason=str(error))
    return result


def _delete(broker: BrokerState, node_id: int, place: TopicPartition, offset: int, now_ms: int) -> int:
    """Where the log begins afterwards: at `offset`, or later if it did already."""
    partition = broker.topics.partition(*place)
    if partition is not None and partition.topic.is_internal:
        raise RequestRefused(codes.INVALID_TOPIC_EXCEPTION, "records of internal topics cannot be deleted")
    code = leadership_fault(partition, node_id)
    if partition is None or code is not codes.NONE:
        raise RequestRefused(code, "no such partition" if partition is None else f"node {partition.replicas.leader} leads it")
    if partition.log.config.compacts and not partition.log.config.deletes:
        raise RequestRefused(codes.POLICY_VIOLATION, "cleanup.policy has no delete: records go by compaction only")
    log = partition.log
    wanted = log.high_watermark if offset == OFFSET_HIGH_WATERMARK else offset
    if not 0 <= wanted <= log.high_watermark:
        raise RequestRefused(codes.OFFSET_OUT_OF_RANGE, f"offset {offset} is not between 0 and the high watermark {log.high_watermark}")
    broker.changed(place)  # Fetches that wait for what is deleted are to hear so.
    return log.delete_records_before(wanted, now_ms)
