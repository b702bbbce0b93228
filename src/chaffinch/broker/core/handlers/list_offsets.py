"""ListOffsets: the first offset at or after a timestamp, or one of Kafka's special places in a log."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.leader_epochs import leadership_fault
from chaffinch.broker.core.topics import Partition
from chaffinch.errors import codes
from chaffinch.identifiers import NO_OFFSET, NO_TIMESTAMP, OFFSET_EARLIEST, OFFSET_LATEST
from chaffinch.protocol.messages.fetch import READ_COMMITTED
from chaffinch.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from chaffinch.storage.file_system import StorageError

MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, ListOffsetsRequest)
    is_committed = request.isolation_level == READ_COMMITTED
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(broker.topics.partition(topic.name, asked.partition_index), asked, event.node_id, is_committed)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(partition: Partition | None, asked: ListOffsetsPartition, node_id: int, is_committed: bool) -> ListOffsetsPartitionResponse:
    code = leadership_fault(partition, node_id, asked.current_leader_epoch)
    if partition is None or code is not codes.NONE:
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code.number)
    try:
        offset, timestamp = _found(partition, asked.timestamp, is_committed)
    except StorageError:
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=codes.KAFKA_STORAGE_ERROR.number)
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=partition.replicas.leader_epoch if offset != NO_OFFSET else -1,
    )


def _found(partition: Partition, wanted: int, is_committed: bool) -> tuple[int, int]:
    """(offset, timestamp); -1 and -1 where there is none."""
    log = partition.log
    upper = log.last_stable_offset if is_committed else log.high_watermark
    if wanted == OFFSET_LATEST:
        return upper, NO_TIMESTAMP
    if wanted in (OFFSET_EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, NO_TIMESTAMP
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NO_OFFSET, NO_TIMESTAMP  # Nothing is ever moved to another tier.
    found = log.offset_for_timestamp(log.max_timestamp if wanted == MAX_TIMESTAMP else wanted)
    if found is None or found[0] >= upper:
        return NO_OFFSET, NO_TIMESTAMP
    return found
