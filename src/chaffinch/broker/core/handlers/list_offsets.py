"""ListOffsets: returns the first offset at or after a timestamp, or a special offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.replicas.leader_epochs import DEBUGGING_REPLICA, NO_EPOCH, leadership_fault
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
from chaffinch.storage.partition_log import PartitionLog

MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE = {OFFSET_LATEST: 1, OFFSET_EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""Special timestamps with the first request version that supports them."""

CONSUMER = -1
"""Replica id of all clients except brokers and debugging tools; only for consumers does the isolation level apply."""

Upper: TypeAlias = Callable[[PartitionLog], int]
"""The first offset that the client must not see."""

_UPPER: Final[Mapping[tuple[bool, bool], Upper]] = {
    (True, True): lambda log: log.last_stable_offset,
    (True, False): lambda log: log.high_watermark,
    (False, True): lambda log: log.log_end_offset,
    (False, False): lambda log: log.log_end_offset,
}
"""(is a consumer, reads committed records only) -> end of the log for this client."""

_NOWHERE = (NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


def handle(broker: BrokerState, event: RequestReceived, request: ListOffsetsRequest, steady_ms: int) -> Result:
    is_for_debugging = request.replica_id == DEBUGGING_REPLICA
    upper = _UPPER[request.replica_id == CONSUMER, request.isolation_level == READ_COMMITTED]
    times_named = Counter((topic.name, requested.partition_index) for topic in request.topics for requested in topic.partitions)

    def answer(name: str, requested: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        partition = broker.topics.partition(name, requested.partition_index)
        code = _request_fault(requested, event.request.version, times_named[name, requested.partition_index])
        if code is codes.NONE:
            code = leadership_fault(partition, event.node_id, requested.current_leader_epoch, allows_follower=is_for_debugging)
        return _answer(partition, requested, code, upper)

    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=topic.name, partitions=[answer(topic.name, requested) for requested in topic.partitions])
            for topic in request.topics
        ]
    )


def _request_fault(requested: ListOffsetsPartition, version: int, times_named: int) -> ErrorCode:
    """42 for partitions named twice, 35 for special timestamps that are unknown or need a later version."""
    if times_named > 1:
        return codes.INVALID_REQUEST
    is_known = requested.timestamp >= 0 or _SINCE.get(requested.timestamp, version + 1) <= version
    return codes.NONE if is_known else codes.UNSUPPORTED_VERSION


def _answer(partition: Partition | None, requested: ListOffsetsPartition, code: ErrorCode, upper: Upper) -> ListOffsetsPartitionResponse:
    if partition is None or code is not codes.NONE:
        return ListOffsetsPartitionResponse(partition_index=requested.partition_index, error_code=code.number)
    try:
        offset, timestamp, epoch = _found(partition, requested.timestamp, upper)
    except StorageError:
        return ListOffsetsPartitionResponse(partition_index=requested.partition_index, error_code=codes.KAFKA_STORAGE_ERROR.number)
    return ListOffsetsPartitionResponse(partition_index=requested.partition_index, offset=offset, timestamp=timestamp, leader_epoch=epoch)


def _found(partition: Partition, wanted: int, upper_of: Upper) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch); -1 if there is none."""
    log = partition.log
    upper = upper_of(log)
    if wanted == OFFSET_LATEST:
        return upper, NO_TIMESTAMP, partition.replicas.leader_epoch
    if wanted in (OFFSET_EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return start, NO_TIMESTAMP, log.epoch_at(start) if start < log.log_end_offset else partition.replicas.leader_epoch
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE  # There is no tiered storage.
    if wanted == MAX_TIMESTAMP:
        wanted = log.max_timestamp()
    found = log.offset_for_timestamp(wanted) if wanted != NO_TIMESTAMP else None
    if found is None or found[0] >= upper:
        return _NOWHERE
    return *found, log.epoch_at(found[0])
