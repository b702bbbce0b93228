"""ListOffsets: the first offset at or after a timestamp, or one of Kafka's special places in a log."""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.replicas.leader_epochs import NO_EPOCH, leadership_fault
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
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

_SINCE = {OFFSET_LATEST: 1, OFFSET_EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The special places, and the first version of the request that knows them."""

_NOWHERE = (NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, ListOffsetsRequest)
    is_committed = request.isolation_level == READ_COMMITTED
    times_named = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)

    def answer(name: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        partition = broker.topics.partition(name, asked.partition_index)
        code = _request_fault(asked, event.request.version, times_named[name, asked.partition_index])
        if code is codes.NONE:
            code = leadership_fault(partition, event.node_id, asked.current_leader_epoch)
        return _answer(partition, asked, code, is_committed)

    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=topic.name, partitions=[answer(topic.name, asked) for asked in topic.partitions])
            for topic in request.topics
        ]
    )


def _request_fault(asked: ListOffsetsPartition, version: int, times_named: int) -> ErrorCode:
    """42 for partitions named twice, 35 for special places that nobody or only later versions know."""
    if times_named > 1:
        return codes.INVALID_REQUEST
    is_known = asked.timestamp >= 0 or _SINCE.get(asked.timestamp, version + 1) <= version
    return codes.NONE if is_known else codes.UNSUPPORTED_VERSION


def _answer(partition: Partition | None, asked: ListOffsetsPartition, code: ErrorCode, is_committed: bool) -> ListOffsetsPartitionResponse:
    if partition is None or code is not codes.NONE:
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code.number)
    try:
        offset, timestamp, epoch = _found(partition, asked.timestamp, is_committed)
    except StorageError:
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=codes.KAFKA_STORAGE_ERROR.number)
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=offset, timestamp=timestamp, leader_epoch=epoch)


def _found(partition: Partition, wanted: int, is_committed: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch); -1 where there is none."""
    log = partition.log
    upper = log.last_stable_offset if is_committed else log.high_watermark
    if wanted == OFFSET_LATEST:
        return upper, NO_TIMESTAMP, partition.replicas.leader_epoch
    if wanted in (OFFSET_EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return start, NO_TIMESTAMP, log.epoch_at(start) if start < log.log_end_offset else partition.replicas.leader_epoch
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE  # Nothing is ever moved to another tier.
    if wanted == MAX_TIMESTAMP:
        wanted = log.max_timestamp()
    found = log.offset_for_timestamp(wanted) if wanted != NO_TIMESTAMP else None
    if found is None or found[0] >= upper:
        return _NOWHERE
    return *found, log.epoch_at(found[0])
