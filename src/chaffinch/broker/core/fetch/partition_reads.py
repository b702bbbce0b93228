"""Partition reads of a fetch: each partition returns records or an error, within the limits of the request. While a fetch is delayed,
available bytes are only counted, not read.

Consumers of committed records see data below the last stable offset, and which transactions below it were aborted (KIP-98).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.fetch.sessions import FetchPosition
from chaffinch.broker.core.replicas.leader_epochs import NO_EPOCH, end_of_epoch, leadership_fault
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import AbortedTransaction, EpochEndOffset, PartitionData
from chaffinch.protocol.messages.produce import LeaderIdAndEpoch
from chaffinch.records.file_slice import Part
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.partition_log import LogPosition

LENT_BYTES_MIN = 64 << 10
"""Smaller reads are done immediately, in the same call that finds their bounds."""

VERSION_WITH_STORAGE_ERRORS = 6
VERSION_WITH_ZSTD = 10
VERSION_WITH_LEADERS = 16

_UNINTERESTING = frozenset({codes.UNKNOWN_TOPIC_ID, codes.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors that do not complete a delayed fetch of other partitions, as in Apache Kafka: a retry would not resolve them soon."""

_WITH_LEADER = frozenset({codes.NOT_LEADER_OR_FOLLOWER, codes.FENCED_LEADER_EPOCH})
"""Errors whose response includes the new leader (KIP-951)."""


@dataclass(slots=True, eq=False, kw_only=True)
class FetchTerms:
    """Fields of a fetch request that apply to all its partitions. `fault`: a scripted error and the partitions that it affects.

    Not frozen, only because creating a frozen instance takes longer.
    """

    version: int
    node_id: int
    is_follower: bool
    allows_follower: bool
    is_committed: bool
    bytes_min: int
    bytes_max: int
    fault: Fault | None


@dataclass(slots=True, eq=False)
class ReadResult:
    """Result of one attempt: `partition_data` per position in order, None if a session's client already has everything; and the positions
    that can be waited for, with their partitions.
    """

    partition_data: list[PartitionData | None] = field(default_factory=list)
    readable: list[tuple[FetchPosition, Partition]] = field(default_factory=list)
    bytes_read: int = 0
    must_respond: bool = False

    def is_enough(self, terms: FetchTerms) -> bool:
        """Whether to respond now: there are `bytes_min`, an error, or no partition to wait for."""
        return self.must_respond or self.bytes_read >= terms.bytes_min or not self.readable


def read(broker: BrokerState, terms: FetchTerms, positions: Sequence[FetchPosition]) -> ReadResult:
    """Read all positions in order until the response is full; the remaining ones return no records."""
    result = ReadResult()
    for position in positions:
        result.partition_data.append(_read_position(broker, terms, position, result))
    return result


def count(broker: BrokerState, positions: Sequence[FetchPosition], partition_data: Sequence[PartitionData | None]) -> None:
    """Update the counters for a response that is sent."""
    for position, data in zip(positions, partition_data, strict=True):
        topic = position.topic
        if topic is None or broker.topics.get(topic) is None:
            continue
        if data is None or not data.error_code:
            size = sum(map(len, data.records)) if data is not None and isinstance(data.records, list) else 0
            broker.counters.add_read(topic, size)
        else:
            broker.counters.add(topic, "TotalFetchRequestsPerSec")
            broker.counters.add(topic, "FailedFetchRequestsPerSec")


def _read_position(broker: BrokerState, terms: FetchTerms, position: FetchPosition, result: ReadResult) -> PartitionData | None:
    requested = position.requested
    partition, code = position.locate(broker.topics)
    if terms.fault is not None and terms.fault.covers(position.topic, requested.partition):
        code = terms.fault.error
    elif partition is not None:
        code = _refusal(terms, position, partition)
    if partition is None or code is not codes.NONE:
        result.must_respond = result.must_respond or code not in _UNINTERESTING
        return refused(terms, position, code, partition)
    try:
        data = _diverging(terms, position, partition) or _records(broker, terms, position, partition, result)
    except StorageError:
        result.must_respond = True
        return refused(terms, position, codes.KAFKA_STORAGE_ERROR, partition)
    if data is not None and (data.diverging_epoch is not None or data.error_code):
        result.must_respond = True
    result.readable.append((position, partition))
    return data


def _refusal(terms: FetchTerms, position: FetchPosition, partition: Partition) -> ErrorCode:
    requested = position.requested
    code = leadership_fault(partition, terms.node_id, requested.current_leader_epoch, allows_follower=terms.allows_follower)
    if code is not codes.NONE:
        return code
    if terms.is_follower:
        return codes.NOT_LEADER_OR_FOLLOWER  # Data is stored once: no node copies it as a follower.
    if terms.version < VERSION_WITH_ZSTD and partition.topic.config.compression_type == "zstd":
        return codes.UNSUPPORTED_COMPRESSION_TYPE
    log = partition.log
    return codes.NONE if log.log_start_offset <= requested.fetch_offset <= log.log_end_offset else codes.OFFSET_OUT_OF_RANGE


def _diverging(terms: FetchTerms, position: FetchPosition, partition: Partition) -> PartitionData | None:
    """Where the log diverges from the reader, for readers that send the leader epoch of their last read (KIP-595); None if it does not."""
    requested, log = position.requested, partition.log
    if requested.last_fetched_epoch < 0:
        return None
    epoch, end_offset = end_of_epoch(partition, requested.last_fetched_epoch)
    if epoch == requested.last_fetched_epoch and end_offset >= requested.fetch_offset:
        return None
    if epoch == NO_EPOCH:
        return refused(terms, position, codes.OFFSET_OUT_OF_RANGE)
    return PartitionData(
        partition_index=requested.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset),
        records=[],
    )


def _records(
    broker: BrokerState, terms: FetchTerms, position: FetchPosition, partition: Partition, result: ReadResult
) -> PartitionData | None:
    requested, log = position.requested, partition.log
    high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
    upper = last_stable_offset if terms.is_committed else high_watermark
    records: list[Part] = []
    aborted: list[AbortedTransaction] | None = [] if terms.is_committed else None
    # The first batch of a response may exceed the limit, so that no client gets stuck before it.
    may_exceed = result.bytes_read == 0
    bytes_max = max(0, min(requested.partition_max_bytes, terms.bytes_max - result.bytes_read))
    if requested.fetch_offset < upper and (bytes_max > 0 or may_exceed):
        found = log.find(requested.fetch_offset, bytes_max, upper_bound_offset=upper, at_least_one=may_exceed)
        if found is not None:
            size = len(found.records)
            records = [found.records if broker.lends_files and size >= LENT_BYTES_MIN else bytes(found.records)]
            result.bytes_read += size
            broker.bytes_handled += size
            if terms.is_committed:
                aborted = _aborted(partition, requested.fetch_offset, found.end_offset)
    if not records and position.is_unchanged(high_watermark, log.log_start_offset):
        return None
    return PartitionData(
        partition_index=requested.partition,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=aborted,
        records=records,
    )


def refused(terms: FetchTerms, position: FetchPosition, code: ErrorCode, partition: Partition | None = None) -> PartitionData:
    """The response for a partition with an error."""
    if code is codes.KAFKA_STORAGE_ERROR and terms.version < VERSION_WITH_STORAGE_ERRORS:
        code = codes.NOT_LEADER_OR_FOLLOWER
    data = PartitionData(
        partition_index=position.requested.partition,
        error_code=code.number,
        high_watermark=-1,
        aborted_transactions=[] if code in _UNINTERESTING else None,
        records=[],
    )
    if partition is not None and code in _WITH_LEADER and terms.version >= VERSION_WITH_LEADERS:
        data.current_leader = LeaderIdAndEpoch(leader_id=partition.replicas.leader, leader_epoch=partition.replicas.leader_epoch)
    return data


def _aborted(partition: Partition, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Aborted transactions with records in the range that was read, up to `end_offset`."""
    found = partition.log.aborted_transactions(fetch_offset, end_offset)
    return [AbortedTransaction(producer_id=producer_id, first_offset=first_offset) for producer_id, first_offset in found]


@dataclass(slots=True, eq=False)
class _DelayedPartition:
    """A partition of a delayed fetch. `bytes_ready`: bytes between `start` and `upper`, the end of what the client may read."""

    position: FetchPosition
    partition: Partition
    start: LogPosition
    upper: int
    bytes_ready: int


class DelayedFetch:
    """A delayed fetch: counts the bytes it would return. Raises StorageError at construction."""

    def __init__(self, broker: BrokerState, terms: FetchTerms, result: ReadResult) -> None:
        self._broker = broker
        self._terms = terms
        self._partitions = [
            _DelayedPartition(
                position, partition, partition.log.position_of(position.requested.fetch_offset), position.requested.fetch_offset, 0
            )
            for position, partition in result.readable
        ]

    @property
    def keys(self) -> list[TopicPartition]:
        return [delayed.partition.topic_partition for delayed in self._partitions]

    def is_enough(self) -> bool:
        """Whether to read now: enough bytes are available, or a partition has an error to report."""
        bytes_ready = 0
        for delayed in self._partitions:
            if not self._is_readable(delayed):
                return True
            log = delayed.partition.log
            upper = log.last_stable_offset if self._terms.is_committed else log.high_watermark
            if upper > delayed.upper:
                try:
                    end = log.position_of(upper)
                except StorageError:
                    return True
                if end.segment != delayed.start.segment:
                    return True  # A read ends with the segment, so waiting longer adds nothing.
                delayed.upper = upper
                delayed.bytes_ready = min(end.position - delayed.start.position, delayed.position.requested.partition_max_bytes)
            bytes_ready += delayed.bytes_ready
            if bytes_ready >= self._terms.bytes_min:
                return True
        return False

    def _is_readable(self, delayed: _DelayedPartition) -> bool:
        partition = delayed.partition
        if self._broker.topics.partition(*partition.topic_partition) is not partition:
            return False
        requested = delayed.position.requested
        if requested.fetch_offset < partition.log.log_start_offset:
            return False
        terms = self._terms
        fault = leadership_fault(partition, terms.node_id, requested.current_leader_epoch, allows_follower=terms.allows_follower)
        return fault is codes.NONE
