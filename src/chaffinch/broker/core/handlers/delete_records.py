"""DeleteRecords: raises log start offsets (KIP-107). The data is deleted when whole segments are below the start offset."""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.leader_epochs import leadership_fault
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.delete_records import (
    OFFSET_HIGH_WATERMARK,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from chaffinch.storage.many_logs import delete_records_many
from chaffinch.storage.partition_log import PartitionLog


def handle(broker: BrokerState, event: RequestReceived, request: DeleteRecordsRequest, steady_ms: int) -> Result:
    starts: dict[PartitionLog, int] = {}
    faults: dict[TopicPartition, tuple[ErrorCode, str]] = {}
    requested = _requested(request)
    for tp, offset in requested.items():
        try:
            log, start = _start(broker, event.node_id, tp, offset)
        except RequestRefused as refused:
            faults[tp] = refused.code, refused.message
        else:
            starts[log] = start
            broker.changed(tp)  # Waiting fetches of deleted records must be completed.
    for log, error in delete_records_many(starts, steady_ms).items():
        faults[log.topic_partition] = codes.KAFKA_STORAGE_ERROR, str(error)
    for tp, (code, reason) in faults.items():
        log_refusal(broker, event, steady_ms, subject=tp, code=code, reason=reason)
    results: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for tp in requested:
        results.setdefault(tp.topic, []).append(_result(broker, tp, faults))
    return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name=name, partitions=parts) for name, parts in results.items()])


def _requested(request: DeleteRecordsRequest) -> dict[TopicPartition, int]:
    """Offset by partition; for a partition named twice the last one, as in Kafka."""
    return {
        TopicPartition(topic.name, requested.partition_index): requested.offset
        for topic in request.topics
        for requested in topic.partitions
    }


def _result(
    broker: BrokerState, tp: TopicPartition, faults: Mapping[TopicPartition, tuple[ErrorCode, str]]
) -> DeleteRecordsPartitionResult:
    partition = broker.topics.partition(*tp)
    code, _ = faults.get(tp, (codes.NONE, ""))
    start = NO_OFFSET if partition is None or code is not codes.NONE else partition.log.log_start_offset
    return DeleteRecordsPartitionResult(partition_index=tp.partition, low_watermark=start, error_code=code.number)


def _start(broker: BrokerState, node_id: int, tp: TopicPartition, offset: int) -> tuple[PartitionLog, int]:
    """The log and its new start offset."""
    partition = broker.topics.partition(*tp)
    if partition is not None and partition.topic.is_internal:
        raise RequestRefused(codes.INVALID_TOPIC_EXCEPTION, "records of internal topics cannot be deleted")
    code = leadership_fault(partition, node_id)
    if partition is None or code is not codes.NONE:
        raise RequestRefused(code, "no such partition" if partition is None else f"node {partition.replicas.leader} leads it")
    if partition.log.config.compacts and not partition.log.config.deletes:
        raise RequestRefused(codes.POLICY_VIOLATION, "cleanup.policy has no delete: only compaction removes records")
    log = partition.log
    wanted = log.high_watermark if offset == OFFSET_HIGH_WATERMARK else offset
    if not 0 <= wanted <= log.high_watermark:
        raise RequestRefused(codes.OFFSET_OUT_OF_RANGE, f"offset {offset} is not between 0 and the high watermark {log.high_watermark}")
    return log, wanted
