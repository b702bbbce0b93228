"""Log contents, read in two ways: from the broker's log objects, and over Fetch as a read_committed consumer sees them.

The second goes over the healed network and applies the consumer's part of KIP-98 (Kafka's CompletedFetch): records of aborted transactions
are skipped from the first offset to the marker. Records are identified by the number in their value, see `records.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.client.addresses import Address
from chaffinch.client.connections import ConnectionEvent, RequestFailed, ResponseReceived
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.fetch import (
    READ_COMMITTED,
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chaffinch.protocol.primitives import Records
from chaffinch.records import batch as batches
from chaffinch.records.batch import BatchView
from chaffinch.records.few_records import plain_records
from chaffinch.records.file_slice import loaded
from chaffinch.storage import log_state
from chaffinch.storage.memory_files import MemoryFileSystem
from chaffinch.storage.recovery import bases_of
from chaffinch.storage.segment import LOG_SUFFIX, stem_of
from simulation.brokers.broker_process import BrokerProcess
from simulation.network import Network
from simulation.records import number_of
from simulation.transport import Transport
from simulation.world import World

READ_BYTES: Final = 1 << 30
REMEMBERED_BYTES_MAX: Final = 4_000
FOLLOW_MS_MAX: Final = 1_500
LEADER_MOVED: Final = frozenset({codes.NOT_LEADER_OR_FOLLOWER.number, codes.OFFSET_NOT_AVAILABLE.number})
"""Errors of a partition whose leader has just moved."""
FETCH_BYTES_MIN: Final = 20_000
"""Small, so that aborted transactions begin in one response and end in another."""


class LogRecord(NamedTuple):
    """One data record in a log."""

    offset: int
    number: int
    identity: ProducerIdentity
    sequence: int
    is_transactional: bool


class Marker(NamedTuple):
    offset: int
    identity: ProducerIdentity
    is_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContents:
    """The whole log of one partition."""

    records: list[LogRecord]
    markers: list[Marker]
    last_stable_offset: int
    log_end_offset: int
    log_start_offset: int = 0
    """Earlier records are gone; they are in `records` only if the administrator remembered them."""
    is_compacted: bool = False


def read_logs(core: BrokerCore) -> dict[TopicPartition, LogContents]:
    """The log of every partition, in whole batches, with undecided and aborted records."""
    return {partition.topic_partition: read_log(partition, partition.log.log_start_offset) for partition in core.topics.partitions()}


def read_log(partition: Partition, offset: int) -> LogContents:
    """A log from an offset on, in whole batches."""
    log, records, markers = partition.log, list[LogRecord](), list[Marker]()
    start = offset
    while offset < log.log_end_offset:
        parts = log.read(offset, READ_BYTES)
        assert parts, f"nothing at offset {offset} of {partition.topic_partition}, which ends at {log.log_end_offset}"
        for part in parts:
            for view in batches.views(part):
                _collect_batch(view, records, markers)
                offset = view.header.last_offset + 1
    return LogContents(
        records=[record for record in records if record.offset >= start],
        markers=markers,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        log_start_offset=log.log_start_offset,
        is_compacted=log.config.compacts,
    )


def flushed_end(partition: Partition, file_system: MemoryFileSystem) -> int:
    """The offset up to which a log certainly survives a power loss. A start offset written by a process that died doing so may still be
    lost."""
    directory = partition.log.directory
    end = log_state.start_of(file_system.flushed_names(directory))
    names = file_system.list(directory) if file_system.exists(directory) else ()
    for base in bases_of(names):
        path = stem_of(directory, base) + LOG_SUFFIX
        data, position = file_system.flushed(path), 0
        while len(data) - position >= batches.HEADER_BYTES:
            header = batches.read_header(data, position)
            position += header.size
            if position <= len(data):
                end = max(end, header.last_offset + 1)
        if len(data) < file_system.open(path, create=False).size:
            break
    return end


def _collect_batch(view: BatchView, records: list[LogRecord], markers: list[Marker]) -> None:
    header = view.header
    assert view.crc_is_valid(), f"the batch at offset {header.base_offset} has a wrong CRC"
    if header.is_control:
        markers.append(Marker(header.base_offset, header.identity, _is_commit(bytes(view.data))))
    else:
        records.extend(_records(view))


def _records(view: BatchView) -> Sequence[LogRecord]:
    # The same batch is read four times in a world: by two readers, and from the log before and after the last death.
    return _read(bytes(view.data)) if view.size <= REMEMBERED_BYTES_MAX else _read.__wrapped__(view.data)


@lru_cache(maxsize=1_000)
def _read(data: bytes | memoryview) -> tuple[LogRecord, ...]:
    """The records of a batch; compaction leaves gaps between them."""
    view = next(batches.views(data))
    header = view.header
    identity, is_transactional, ahead = header.identity, header.is_transactional, header.base_sequence - header.base_offset
    found = plain_records(view)
    return tuple(LogRecord(offset, number_of(value), identity, offset + ahead, is_transactional) for offset, _, value in found)


@lru_cache(maxsize=1_000)
def _is_commit(data: bytes) -> bool:
    """Whether a control batch is a commit marker."""
    is_commit, _ = batches.read_control(next(batches.views(data)))
    assert is_commit is not None
    return is_commit


class CommittedReader:
    """A consumer of every partition with isolation.level=read_committed, from the beginning on, through all faults.

    It follows the log until `finish`, then stops at the last stable offset. Records it has read stay in `found`, even if they turn out to
    be uncommitted or lost.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        broker: BrokerProcess,
        partitions: Sequence[TopicPartition],
        actor: str,
        *,
        fetch_bytes: int = FETCH_BYTES_MIN,
    ) -> None:
        self.found: dict[TopicPartition, list[LogRecord]] = {topic_partition: [] for topic_partition in partitions}
        self._actor = actor
        self._fetch_bytes = max(fetch_bytes, FETCH_BYTES_MIN)
        self._world = world
        self._broker = broker
        self._transport = Transport(world, network, actor, self._on_events, request_timeout_ms=1_000, connect_timeout_ms=500)
        self._aborted: dict[TopicPartition, set[int]] = {topic_partition: set() for topic_partition in partitions}
        self._offsets = dict.fromkeys(partitions, 0)
        self._idle = list(partitions)
        """Partitions that are currently in no request."""
        self._open = set(partitions)
        self._is_finishing = False
        self._fetch()

    @property
    def is_done(self) -> bool:
        return not self._open

    def finish(self) -> None:
        """Read up to the end, then stop."""
        self._is_finishing = True

    def _fetch(self) -> None:
        """Send one request to each leader for all its idle partitions, the most recently read ones last."""
        by_leader: dict[Address, list[TopicPartition]] = {}
        for tp in self._idle:
            by_leader.setdefault(self._broker.leader_address(tp), []).append(tp)
        self._idle.clear()
        for address, tps in by_leader.items():
            request = FetchRequest(
                max_wait_ms=0 if self._is_finishing else self._world.rng.choice((0, 100)),
                min_bytes=1,
                max_bytes=self._fetch_bytes,
                isolation_level=READ_COMMITTED,
                topics=[FetchTopic(topic=tp.topic, partitions=[self._part(tp)]) for tp in tps],
            )
            self._transport.send(address, request, (tps, self._is_finishing))

    def _part(self, tp: TopicPartition) -> FetchPartition:
        return FetchPartition(partition=tp.partition, fetch_offset=self._offsets[tp], partition_max_bytes=self._fetch_bytes)

    def _on_events(self, events: Sequence[ConnectionEvent]) -> None:
        is_behind = False
        for event in events:
            if isinstance(event, ResponseReceived):
                tps, is_last_look = event.token
                response: FetchResponse = event.message
                parts = [part for topic in response.responses for part in topic.partitions]
                is_behind |= self._take_all(dict(zip(tps, parts, strict=True)), is_last_look)
            elif isinstance(event, RequestFailed):
                self._idle += event.token[0]
        if self._idle:
            wait_ms = 0 if is_behind else 10 if self._is_finishing else self._world.rng.randint(10, FOLLOW_MS_MAX)
            self._world.after(wait_ms, self._fetch)

    def _take_all(self, answer: Mapping[TopicPartition, PartitionData], is_last_look: bool) -> bool:
        """Returns whether there is more to read now."""
        began = [self._offsets[tp] for tp in answer]
        behind = [tp for tp, data in answer.items() if self._take(tp, data, is_last_look)]
        has_moved = began != [self._offsets[tp] for tp in answer]
        assert has_moved or not behind, f"{self._actor}: no progress in {behind[0]} at {self._offsets[behind[0]]}"
        self._idle[:0] = behind
        return bool(behind)

    def _take(self, tp: TopicPartition, data: PartitionData, is_last_look: bool) -> bool:
        """Returns whether there is more to read in this partition now."""
        offset = self._offsets[tp]
        if data.error_code in LEADER_MOVED:
            self._idle.append(tp)
            return False
        if data.error_code == codes.OFFSET_OUT_OF_RANGE.number:
            return self._skip_to_log_start(tp)
        assert data.error_code == 0, f"{self._actor}: {tp} at offset {offset}: error {data.error_code}"
        self._offsets[tp] = self._collect(tp, offset, data.records, list(data.aborted_transactions or ()))
        if self._offsets[tp] < data.last_stable_offset:
            return True
        if is_last_look:
            self._open.discard(tp)
        else:
            self._idle.append(tp)
        return False

    def _skip_to_log_start(self, tp: TopicPartition) -> bool:
        """Continue at the current log start offset; False if it is currently unknown."""
        core = self._broker.core
        partition = None if core is None else core.topics.partition(*tp)
        if partition is None:
            self._idle.append(tp)
            return False
        start = partition.log.log_start_offset
        assert self._offsets[tp] < start, f"{self._actor}: {tp} at offset {self._offsets[tp]} is out of range, it begins at {start}"
        self._offsets[tp] = start
        self._aborted[tp].clear()
        return True

    def _collect(self, topic_partition: TopicPartition, offset: int, records: Records, starting: list[AbortedTransaction]) -> int:
        """Collect the visible records of one response; returns the next offset."""
        aborted = self._aborted[topic_partition]
        starting.sort(key=lambda transaction: transaction.first_offset)
        parts = records if isinstance(records, list) else [records] if records is not None else []
        for part in loaded(parts):
            for view in batches.views(part, may_be_cut_short=True):
                header = view.header
                while starting and starting[0].first_offset <= header.last_offset:
                    aborted.add(starting.pop(0).producer_id)
                if header.is_control:
                    if not _is_commit(bytes(view.data)):
                        aborted.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborted):
                    self.found[topic_partition] += [record for record in _records(view) if record.offset >= offset]
                offset = max(offset, header.last_offset + 1)
        return offset
