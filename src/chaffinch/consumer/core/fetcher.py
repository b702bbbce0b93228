"""Fetcher: fetch requests, one at a time for each broker, ahead of the caller; and delivery of fetched records.

Responses are buffered as bytes until the caller's poll reads them (`records/fetched.py`). The next bytes of a partition are requested while
earlier ones are still buffered, up to twice `max.partition.fetch.bytes`. Each buffered response starts at an offset, and is used only if
the caller's position reaches it; a seek or a reset drops it. Follows Fetcher.java and FetchCollector.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from chaffinch.client.addresses import Address
from chaffinch.client.connections import ResponseReceived
from chaffinch.consumer.core.context import LANE_FETCH, ConsumerContext
from chaffinch.consumer.core.fetch_session import SESSION_ERRORS, FetchPosition, FetchSession
from chaffinch.consumer.core.options import NONE
from chaffinch.consumer.core.positions import PartitionState, Position
from chaffinch.errors import CorruptRecordException, ErrorCode, KafkaException, OffsetOutOfRangeException, Stored, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import READ_COMMITTED, FetchResponse, PartitionData
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import RecordsError
from chaffinch.records.fetched import FetchedRecords, whole_batches

TRANSIENT: Final = frozenset(
    {
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.REPLICA_NOT_AVAILABLE,
        codes.KAFKA_STORAGE_ERROR,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.OFFSET_NOT_AVAILABLE,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
        codes.INCONSISTENT_TOPIC_ID,
        codes.LEADER_NOT_AVAILABLE,
        codes.UNKNOWN_SERVER_ERROR,
    }
)
"""Error codes after which metadata is requested, and the partition is fetched again after a wait."""

POLL_BYTES_MAX: Final = 64 << 20
"""A poll that has unpacked this many bytes of keys, values and headers returns; the next one continues."""


class Portion(NamedTuple):
    """Records of one partition, ordered by `columns.offsets`."""

    tp: TopicPartition
    columns: RecordColumns
    timestamp_type: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class FetchToken:
    """Token of a fetch request: the position of each partition."""

    node_id: int
    positions: dict[TopicPartition, FetchPosition]


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """Response for one partition from offset `start` to `end`-1: `size` bytes of whole batches, or an error code."""

    tp: TopicPartition
    start: int
    end: int
    size: int
    reader: FetchedRecords | None
    code: ErrorCode


class Fetcher:
    """Fetches the assigned partitions. `take` returns records; the core calls `response_received`, `request_failed` and `advance`."""

    def __init__(self, context: ConsumerContext) -> None:
        settings = context.settings
        self._context = context
        self._partition_bytes_max: int = settings["max.partition.fetch.bytes"]
        self._checks_crc: bool = settings["check.crcs"]
        self._sessions: dict[int, FetchSession] = {}
        self._under_way: set[int] = set()
        self._completed: deque[CompletedFetch] = deque()

    # Requests.

    def advance(self, steady_ms: int) -> None:
        """Send a fetch to every broker that has no fetch in flight and leads a partition to read."""
        for node_id, positions in self._positions_by_node(steady_ms).items():
            address = self._context.node_address(node_id, steady_ms, LANE_FETCH)
            if address is None:
                continue
            settings = self._context.settings
            session = self._sessions.setdefault(node_id, FetchSession())
            request, version_max = session.next_request(positions)
            request.max_wait_ms = settings["fetch.max.wait.ms"]
            request.min_bytes = settings["fetch.min.bytes"]
            request.max_bytes = settings["fetch.max.bytes"]
            request.isolation_level = self._context.isolation_level
            request.rack_id = settings["client.rack"]
            self._under_way.add(node_id)
            self._context.counts["fetches_sent"] += 1
            token = FetchToken(node_id, positions)
            timeout_ms = self._context.request_timeout_ms + request.max_wait_ms
            self._context.send(address, request, token, timeout_ms=timeout_ms, version_max=version_max)

    def _positions_by_node(self, steady_ms: int) -> dict[int, dict[TopicPartition, FetchPosition]]:
        """The positions to request from each broker; none from a broker while the buffer of one of its partitions is full.

        A request for its other partitions alone, if they have nothing new, would return only after `fetch.max.wait.ms`, and block the full
        one once the caller has read it. The partitions served last come last: brokers without a fetch session fill `fetch.max.bytes` in the
        order of the request.
        """
        buffered = self._buffered()
        rejected = {fetched.tp for fetched in self._completed if fetched.reader is None}  # Until the error is raised.
        buffered_bytes_max = max(self._partition_bytes_max, 1)
        found: dict[int, dict[TopicPartition, FetchPosition]] = {}
        full_nodes: set[int | None] = set()
        for tp, state in self._context.subscriptions.assigned.items():
            if not state.is_reading or state.is_paused or state.retry_at_ms > steady_ms or state.position is None or tp in rejected:
                continue
            offset, size = buffered.get(tp, (state.position.offset, 0))
            node_id = self._node_of(state, steady_ms)
            if size >= buffered_bytes_max:
                full_nodes.add(node_id)
            elif node_id is None:
                self._context.need_leader(tp)
            elif node_id not in self._under_way:
                fetch_position = FetchPosition(
                    self._context.topic_id(tp.topic), offset, self._context.leader_epoch(tp), self._partition_bytes_max
                )
                found.setdefault(node_id, {})[tp] = fetch_position
        return {node_id: self._least_recently_served_first(positions) for node_id, positions in found.items() if node_id not in full_nodes}

    def _least_recently_served_first(self, positions: dict[TopicPartition, FetchPosition]) -> dict[TopicPartition, FetchPosition]:
        assigned = self._context.subscriptions.assigned
        return {tp: positions[tp] for tp in sorted(positions, key=lambda tp: assigned[tp].served_at)}

    def _node_of(self, state: PartitionState, steady_ms: int) -> int | None:
        """The preferred replica while it is valid, otherwise the leader."""
        if state.preferred_replica >= 0:
            if steady_ms < state.preferred_until_ms and state.preferred_replica in self._context.cluster.nodes:
                return state.preferred_replica
            state.preferred_replica = -1
        return self._context.cluster.leader_of(state.tp)

    def _buffered(self) -> dict[TopicPartition, tuple[int, int]]:
        """For partitions with buffered responses: the offset after them, and their bytes."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for fetched in self._completed:
            _, size = found.get(fetched.tp, (0, 0))
            found[fetched.tp] = fetched.end, size + fetched.size
        return found

    # Responses.

    def response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        """Buffer the data of a response; new leaders that it names are used at once (KIP-951)."""
        token: FetchToken = event.token
        response: FetchResponse = event.message
        self._under_way.discard(token.node_id)
        self._context.counts["fetches_answered"] += 1
        session = self._sessions[token.node_id]
        tps_by_key = session.tps_by_key()
        session.response_received(response)
        code = codes.by_number(response.error_code, numbering=event.numbering)
        if code is not codes.NONE:
            if code not in SESSION_ERRORS:
                self._refetch_later(token, steady_ms)
            return
        for node in response.node_endpoints:
            self._context.cluster.learn_node(node.node_id, Address(node.host, node.port))
        buffered = self._buffered()
        for topic in response.responses:
            for data in topic.partitions:
                tp = tps_by_key.get((topic.topic or topic.topic_id, data.partition_index))
                state = None if tp is None else self._context.subscriptions.assigned.get(tp)
                if state is None or not state.is_reading or state.position is None:
                    continue
                fetch_position = token.positions[state.tp]
                next_offset = buffered.get(state.tp, (state.position.offset, 0))[0]
                if fetch_position.offset == next_offset and self._context.is_current(state.tp.topic, fetch_position.topic_id):
                    code = codes.by_number(data.error_code, numbering=event.numbering)
                    self._store(state, fetch_position.offset, data, code, steady_ms)
                    leader = data.current_leader
                    if leader is not None and self._context.cluster.learn_leader(state.tp, leader.leader_id, leader.leader_epoch):
                        state.retry_at_ms = 0

    def _store(self, state: PartitionState, start: int, data: PartitionData, code: ErrorCode, steady_ms: int) -> None:
        if code in TRANSIENT:
            state.back_off(steady_ms + self._context.wait_ms(1), code)
            state.preferred_replica = -1
            self._context.refresh()
            return
        state.last_error_code = None
        if code is codes.OFFSET_OUT_OF_RANGE and state.preferred_replica >= 0:
            state.preferred_replica = -1  # The leader may have the offset.
            return
        if data.preferred_read_replica >= 0:
            state.preferred_replica = data.preferred_read_replica
            state.preferred_until_ms = steady_ms + int(self._context.settings["metadata.max.age.ms"])
        if code is codes.NONE:
            state.end = data.last_stable_offset if self._context.isolation_level == READ_COMMITTED else data.high_watermark
        records: Any = data.records or b""
        assert not isinstance(records, list), "records that were received are one buffer"
        end, size = whole_batches(records)
        if code is codes.NONE and end is None:
            if not records:
                return
            code = codes.CORRUPT_MESSAGE  # Not one whole batch: another fetch would return the same, endlessly.
        reader = None
        if code is codes.NONE:
            aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
            reader = FetchedRecords(records, start, aborted=aborted, checks_crc=self._checks_crc)
            state.served_at = self._context.counts["fetches_answered"]
        self._completed.append(CompletedFetch(state.tp, start, start if end is None else max(end, start), size, reader, code))
        self._context.wake_caller()

    def request_failed(self, token: FetchToken, steady_ms: int) -> None:
        """No response: the broker may be down, and its partitions get another leader soon."""
        self._under_way.discard(token.node_id)
        self._sessions[token.node_id].request_failed()
        self._refetch_later(token, steady_ms)

    def _refetch_later(self, token: FetchToken, steady_ms: int) -> None:
        self._context.refresh()
        for tp in token.positions:
            state = self._context.subscriptions.assigned.get(tp)
            if state is not None:
                state.back_off(steady_ms + self._context.wait_ms(1))
                state.preferred_replica = -1

    # Delivery.

    def take(self, records_max: int) -> list[Portion]:
        """Up to `records_max` records; positions move after them. An error is raised once all records before it were returned."""
        portions: list[Portion] = []
        try:
            for portion in self._portions(records_max):
                portions.append(portion)
        except KafkaException:
            if not portions:
                raise
        except BaseException:
            self.put_back(portions)
            raise
        self._context.counts["records_consumed"] += sum(len(portion.columns) for portion in portions)
        return portions

    def put_back(self, portions: Sequence[Portion]) -> None:
        """The caller did not get these records: they are read again, and not committed."""
        for portion in reversed(portions):
            state = self._context.subscriptions.assigned.get(portion.tp)
            if state is None or state.position is None or state.is_recreated:
                continue  # It was revoked, is being reset, or its topic was deleted.
            self.drop(portion.tp)
            assert portion.columns.offsets is not None, "records that were read have offsets"
            state.delivered_offset = -1
            state.position = state.position._replace(offset=int(portion.columns.offsets[0]))

    def _portions(self, limit: int) -> Iterator[Portion]:
        index, has_records = 0, False
        bytes_left = POLL_BYTES_MAX
        while limit and bytes_left > 0 and index < len(self._completed):
            fetched = self._completed[index]
            state = self._context.subscriptions.assigned.get(fetched.tp)
            if state is not None and not (state.is_reading and not state.is_paused):
                index += 1  # Retained until it may be read again.
            elif state is None or state.position is None or state.position.offset != _start_of(fetched):
                del self._completed[index]
            elif fetched.reader is None:
                if has_records:
                    return  # The next call raises it; raised here, it would be lost.
                self._raise_or_reset(fetched, state, index)
            else:
                portion = self._read_next(fetched, fetched.reader, state, limit)
                if portion is None:
                    self._context.counts["bytes_consumed"] += fetched.size
                    del self._completed[index]
                else:
                    limit -= len(portion.columns)
                    bytes_left -= _size(portion.columns)
                    has_records = True
                    yield portion

    def _read_next(self, fetched: CompletedFetch, reader: FetchedRecords, state: PartitionState, limit: int) -> Portion | None:
        assert state.position is not None, "a partition that is read has a position"
        try:
            piece = reader.read(limit)
        except RecordsError as error:
            text = f"{error}; seek to {reader.position + 1} or beyond to skip it"
            raise CorruptRecordException(text, topic_partition=fetched.tp, stored=Stored.NO, api="Fetch") from None
        epoch = reader.leader_epoch if reader.leader_epoch >= 0 else state.position.offset_epoch
        position = reader.position if piece is not None else max(reader.position, fetched.end)
        state.position = Position(position, epoch, state.position.leader_epoch)
        if piece is None:
            return None
        state.delivered_id = state.topic_id
        return Portion(fetched.tp, piece.columns, int(piece.timestamp_type), piece.leader_epoch)

    def _raise_or_reset(self, fetched: CompletedFetch, state: PartitionState, index: int) -> None:
        """Raise the error; an offset out of range is reset instead if auto.offset.reset allows it."""
        if fetched.code is codes.OFFSET_OUT_OF_RANGE:
            text = f"offset {fetched.start} is out of range"
            if self._context.reset_strategy is NONE:
                raise OffsetOutOfRangeException(
                    f"{text}, and auto.offset.reset is none: seek", topic_partition=fetched.tp, stored=Stored.NO, api="Fetch"
                )
            self._context.report(f"{fetched.tp}: {text}; continuing as auto.offset.reset says ({self._context.reset_strategy.name})")
            self._context.counts["offset_resets"] += 1
            self.drop(fetched.tp)
            state.reset(self._context.reset_strategy)
            return
        del self._completed[index]
        raise exception_for(fetched.code, topic_partition=fetched.tp, stored=Stored.NO, api="Fetch")

    def drop(self, tp: TopicPartition) -> None:
        """Drop buffered responses of a partition: its position has moved, or it is not assigned any more."""
        self._completed = deque(fetched for fetched in self._completed if fetched.tp != tp)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the back-off of a partition ends."""
        times = [state.retry_at_ms for state in self._context.subscriptions.assigned.values() if state.retry_at_ms > steady_ms]
        return min(times, default=None)


def _size(columns: RecordColumns) -> int:
    sides = (columns.key_offsets, columns.value_offsets, columns.header_key_offsets, columns.header_value_offsets)
    return sum(int(offsets[-1] - offsets[0]) for offsets in sides)


def _start_of(fetched: CompletedFetch) -> int:
    return fetched.start if fetched.reader is None else fetched.reader.position
