"""What a log holds, seen twice: straight from the broker's own log objects, and as a read_committed consumer sees it through Fetch.

The second goes over the (healed) network and applies the consumer's half of KIP-98 (Kafka's CompletedFetch): aborted producers are
skipped from their first offset to their marker. A record is known by the number in its value, see `records.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.topics import Partition
from chaffinch.client.connections import Answered, ConnectionEvent, Failed
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
from chaffinch.simulation.cluster import BrokerProcess
from chaffinch.simulation.network import Network
from chaffinch.simulation.records import number_of
from chaffinch.simulation.transport import Transport
from chaffinch.simulation.world import World

READ_BYTES: Final = 1 << 30
REMEMBERED_BYTES_MAX: Final = 4_000
FOLLOW_MS_MAX: Final = 1_500
ELSEWHERE: Final = frozenset({codes.NOT_LEADER_OR_FOLLOWER.number, codes.OFFSET_NOT_AVAILABLE.number})
"""Errors of a partition whose leader has just moved."""
FETCH_BYTES: Final = 20_000
"""Small, so that aborted transactions begin in one answer and end in another."""


class LogRecord(NamedTuple):
    """One record of data in a log."""

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
    """All of one partition's log."""

    records: list[LogRecord]
    markers: list[Marker]
    last_stable_offset: int
    log_end_offset: int
    is_compacted: bool = False


def read_logs(core: BrokerCore) -> dict[TopicPartition, LogContents]:
    """Every partition's log, by whole batches, undecided and aborted records too."""
    return {partition.topic_partition: read_log(partition, partition.log.log_start_offset) for partition in core.topics.partitions()}


def read_log(partition: Partition, offset: int) -> LogContents:
    """A log from an offset on, by whole batches."""
    log, records, markers = partition.log, list[LogRecord](), list[Marker]()
    start = offset
    while offset < log.log_end_offset:
        parts = log.read(offset, READ_BYTES)
        assert parts, f"nothing at offset {offset} of {partition.topic_partition}, which ends at {log.log_end_offset}"
        for part in parts:
            for view in batches.views(part):
                _note(view, records, markers)
                offset = view.header.last_offset + 1
    return LogContents(
        records=[record for record in records if record.offset >= start],
        markers=markers,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        is_compacted=log.config.compacts,
    )


def _note(view: BatchView, records: list[LogRecord], markers: list[Marker]) -> None:
    header = view.header
    assert view.crc_is_valid(), f"the batch at offset {header.base_offset} has a wrong CRC"
    if header.is_control:
        is_commit, _ = batches.read_control(view)
        markers.append(Marker(header.base_offset, header.identity, bool(is_commit)))
    else:
        records.extend(_records(view))


def _records(view: BatchView) -> list[LogRecord]:
    header = view.header
    # The same batch is read four times in a world: by two readers, and from the log before and after the last death.
    numbers = _numbers(bytes(view.data)) if view.size <= REMEMBERED_BYTES_MAX else _numbers.__wrapped__(view.data)
    return [
        LogRecord(header.base_offset + delta, number, header.identity, header.base_sequence + delta, header.is_transactional)
        for delta, number in numbers
    ]


@lru_cache(maxsize=1_000)
def _numbers(data: bytes | memoryview) -> tuple[tuple[int, int], ...]:
    """(place in the batch as it was sent, number) of each record: compaction leaves gaps."""
    columns = batches.decode(data)
    assert columns.offsets is not None
    base_offset = batches.read_header(data).base_offset
    return tuple((offset - base_offset, number_of(columns.value(index))) for index, offset in enumerate(columns.offsets.tolist()))


class CommittedReader:
    """A consumer with isolation.level=read_committed of every partition, from the beginning on, through every fault.

    It follows the log until `finish`, then stops at the last stable offset. What it has read it never unreads: a record that turns out
    not to be committed, or to be lost, stays in `found`.
    """

    def __init__(self, world: World, network: Network, broker: BrokerProcess, partitions: Sequence[TopicPartition], who: str) -> None:
        self.found: dict[TopicPartition, list[LogRecord]] = {topic_partition: [] for topic_partition in partitions}
        self._who = who
        self._world = world
        self._broker = broker
        self._transport = Transport(world, network, who, self._told, request_timeout_ms=1_000, connect_timeout_ms=500)
        self._aborted: dict[TopicPartition, set[int]] = {topic_partition: set() for topic_partition in partitions}
        self._open = set(partitions)
        self._is_finishing = False
        for topic_partition in partitions:
            self._ask(topic_partition, 0)

    @property
    def is_done(self) -> bool:
        return not self._open

    def finish(self) -> None:
        """Read what there is, then stop."""
        self._is_finishing = True

    def _ask(self, topic_partition: TopicPartition, offset: int) -> None:
        part = FetchPartition(partition=topic_partition.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=0 if self._is_finishing else self._world.dice.choice((0, 100)),
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic=topic_partition.topic, partitions=[part])],
        )
        self._transport.send(self._broker.leader_address(topic_partition), request, (topic_partition, offset, self._is_finishing))

    def _ask_later(self, topic_partition: TopicPartition, offset: int) -> None:
        wait_ms = 10 if self._is_finishing else self._world.dice.randint(10, FOLLOW_MS_MAX)
        self._world.after(wait_ms, lambda: self._ask(topic_partition, offset))

    def _told(self, event: ConnectionEvent) -> None:
        if isinstance(event, Failed):
            self._ask_later(*event.token[:2])
        if isinstance(event, Answered):
            topic_partition, offset, is_last_look = event.token
            response: FetchResponse = event.message
            self._take(topic_partition, offset, response.responses[0].partitions[0], is_last_look)

    def _take(self, topic_partition: TopicPartition, offset: int, data: PartitionData, is_last_look: bool) -> None:
        if data.error_code in ELSEWHERE:
            self._ask_later(topic_partition, offset)
            return
        assert data.error_code == 0, f"{self._who}: {topic_partition} at offset {offset}: error {data.error_code}"
        position = self._collect(topic_partition, offset, data.records, list(data.aborted_transactions or ()))
        if position < data.last_stable_offset:
            assert position > offset, f"{self._who}: no progress at {offset} of {topic_partition}, stable up to {data.last_stable_offset}"
            self._ask(topic_partition, position)
        elif is_last_look:
            self._open.discard(topic_partition)
        else:
            self._ask_later(topic_partition, position)

    def _collect(self, topic_partition: TopicPartition, offset: int, records: Records, starting: list[AbortedTransaction]) -> int:
        """Take the visible records of one answer; returns the next offset."""
        aborted = self._aborted[topic_partition]
        starting.sort(key=lambda transaction: transaction.first_offset)
        parts = records if isinstance(records, list) else [records] if records is not None else []
        for part in parts:
            for view in batches.views(part, may_be_cut_short=True):
                header = view.header
                while starting and starting[0].first_offset <= header.last_offset:
                    aborted.add(starting.pop(0).producer_id)
                if header.is_control:
                    if batches.read_control(view)[0] is False:
                        aborted.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborted):
                    self.found[topic_partition] += [record for record in _records(view) if record.offset >= offset]
                offset = max(offset, header.last_offset + 1)
        return offset
