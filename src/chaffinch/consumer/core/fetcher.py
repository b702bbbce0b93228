"""Fetching: one request at a time to each broker that leads something of ours, ahead of the caller, and handing out what came.

What came is kept as bytes until the caller's poll reads it (`records/fetched.py`). Of a partition the next bytes are asked for while the
last ones are still waiting, up to twice `max.partition.fetch.bytes`. Everything kept knows the offset it begins with and is worth
something only if the caller's position gets there: after a seek or a reset it is dropped. Follows Fetcher.java and FetchCollector.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from chaffinch.client.addresses import Address
from chaffinch.client.connections import ResponseReceived
from chaffinch.consumer.core.fetch_session import SESSION_ERRORS, FetchSession, Wanted
from chaffinch.consumer.core.options import NONE
from chaffinch.consumer.core.positions import PartitionState, Position
from chaffinch.consumer.core.wiring import LANE_FETCH, Wiring
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
"""Answers after which metadata is asked for and the partition fetched again, after a wait."""

POLL_BYTES_MAX: Final = 64 << 20
"""A poll that has unpacked so many bytes of keys, values and headers gives what it has; the next one gives the rest."""


class Portion(NamedTuple):
    """Records of one partition, in the order of their offsets, which `columns.offsets` has."""

    place: TopicPartition
    columns: RecordColumns
    timestamp_type: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class FetchSent:
    """Token of a fetch request: what was wanted of each partition."""

    node_id: int
    wanted: dict[TopicPartition, Wanted]


@dataclass(slots=True, eq=False)
class _Fetched:
    """What a broker gave of one partition from offset `start` up to `end`-1, `size` bytes of whole batches, or why it gave nothing."""

    place: TopicPartition
    start: int
    end: int
    size: int
    reader: FetchedRecords | None
    code: ErrorCode


class Fetcher:
    """Fetches what is assigned. `take` hands out; `answered`, `failed` and `advance` are the core's."""

    def __init__(self, wiring: Wiring) -> None:
        settings = wiring.settings
        self._wiring = wiring
        self._partition_bytes_max: int = settings["max.partition.fetch.bytes"]
        self._checks_crc: bool = settings["check.crcs"]
        self._sessions: dict[int, FetchSession] = {}
        self._under_way: set[int] = set()
        self._fetched: deque[_Fetched] = deque()

    # Asking.

    def advance(self, steady_ms: int) -> None:
        """Ask every broker that is not being asked already for what is wanted of it."""
        for node_id, wanted in self._wanted_by_node(steady_ms).items():
            address = self._wiring.node_address(node_id, steady_ms, LANE_FETCH)
            if address is None:
                continue
            settings = self._wiring.settings
            session = self._sessions.setdefault(node_id, FetchSession())
            request, version_max = session.next_request(wanted)
            request.max_wait_ms = settings["fetch.max.wait.ms"]
            request.min_bytes = settings["fetch.min.bytes"]
            request.max_bytes = settings["fetch.max.bytes"]
            request.isolation_level = self._wiring.isolation_level
            request.rack_id = settings["client.rack"]
            self._under_way.add(node_id)
            self._wiring.counts["fetches_sent"] += 1
            token = FetchSent(node_id, wanted)
            timeout_ms = self._wiring.request_timeout_ms + request.max_wait_ms
            self._wiring.send(address, request, token, timeout_ms=timeout_ms, version_max=version_max)

    def _wanted_by_node(self, steady_ms: int) -> dict[int, dict[TopicPartition, Wanted]]:
        """Nothing of a broker of which enough is kept: one that is asked for the rest, with nothing new, answers only after
        `fetch.max.wait.ms`, and until then could not be asked for what the caller has taken meanwhile. Who got records last comes last:
        brokers without a session for us give in the order in which they are asked, until `fetch.max.bytes` are full."""
        ahead = self._ahead()
        refused = {fetched.place for fetched in self._fetched if fetched.reader is None}  # Until the caller has heard of it.
        kept_bytes_max = max(self._partition_bytes_max, 1)
        found: dict[int, dict[TopicPartition, Wanted]] = {}
        held_up: set[int | None] = set()
        for place, state in self._wiring.subscriptions.assigned.items():
            if not state.is_reading or state.is_paused or state.retry_at_ms > steady_ms or state.position is None or place in refused:
                continue
            offset, size = ahead.get(place, (state.position.offset, 0))
            node_id = self._node_of(state, steady_ms)
            if size >= kept_bytes_max:
                held_up.add(node_id)
            elif node_id is None:
                self._wiring.miss(place)
            elif node_id not in self._under_way:
                asked = Wanted(self._wiring.topic_id(place.topic), offset, self._wiring.leader_epoch(place), self._partition_bytes_max)
                found.setdefault(node_id, {})[place] = asked
        return {node_id: self._by_turns(wanted) for node_id, wanted in found.items() if node_id not in held_up}

    def _by_turns(self, wanted: dict[TopicPartition, Wanted]) -> dict[TopicPartition, Wanted]:
        assigned = self._wiring.subscriptions.assigned
        return {place: wanted[place] for place in sorted(wanted, key=lambda place: assigned[place].served)}

    def _node_of(self, state: PartitionState, steady_ms: int) -> int | None:
        """The replica that the leader sent us to, as long as that holds, or the leader."""
        if state.preferred_replica >= 0:
            if steady_ms < state.preferred_until_ms and state.preferred_replica in self._wiring.cluster.nodes:
                return state.preferred_replica
            state.preferred_replica = -1
        return self._wiring.cluster.leader_of(state.place)

    def _ahead(self) -> dict[TopicPartition, tuple[int, int]]:
        """Of partitions with something kept: the offset after it, and its bytes."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for fetched in self._fetched:
            _, size = found.get(fetched.place, (0, 0))
            found[fetched.place] = fetched.end, size + fetched.size
        return found

    # Answers.

    def answered(self, event: ResponseReceived, steady_ms: int) -> None:
        """Keep what an answer brings; leaders that it names are followed at once (KIP-951)."""
        token: FetchSent = event.token
        response: FetchResponse = event.message
        self._under_way.discard(token.node_id)
        self._wiring.counts["fetches_answered"] += 1
        session = self._sessions[token.node_id]
        places = session.places()
        session.answered(response)
        code = codes.by_number(response.error_code, numbering=event.numbering)
        if code is not codes.NONE:
            if code not in SESSION_ERRORS:
                self._refetch_later(token, steady_ms)
            return
        for node in response.node_endpoints:
            self._wiring.cluster.learn_node(node.node_id, Address(node.host, node.port))
        ahead = self._ahead()
        for topic in response.responses:
            for data in topic.partitions:
                place = places.get((topic.topic or topic.topic_id, data.partition_index))
                state = None if place is None else self._wiring.subscriptions.assigned.get(place)
                if state is None or not state.is_reading or state.position is None:
                    continue
                asked = token.wanted[state.place]
                next_offset = ahead.get(state.place, (state.position.offset, 0))[0]
                if asked.offset == next_offset and self._wiring.is_present(state.place.topic, asked.topic_id):
                    code = codes.by_number(data.error_code, numbering=event.numbering)
                    self._keep(state, asked.offset, data, code, steady_ms)
                    leader = data.current_leader
                    if leader is not None and self._wiring.cluster.learn_leader(state.place, leader.leader_id, leader.leader_epoch):
                        state.retry_at_ms = 0

    def _keep(self, state: PartitionState, start: int, data: PartitionData, code: ErrorCode, steady_ms: int) -> None:
        if code in TRANSIENT:
            state.wait(steady_ms + self._wiring.wait_ms(1), code)
            state.preferred_replica = -1
            self._wiring.refresh()
            return
        state.refusal = None
        if code is codes.OFFSET_OUT_OF_RANGE and state.preferred_replica >= 0:
            state.preferred_replica = -1  # The leader may have it.
            return
        if data.preferred_read_replica >= 0:
            state.preferred_replica = data.preferred_read_replica
            state.preferred_until_ms = steady_ms + int(self._wiring.settings["metadata.max.age.ms"])
        if code is codes.NONE:
            state.end = data.last_stable_offset if self._wiring.isolation_level == READ_COMMITTED else data.high_watermark
        records: Any = data.records or b""
        assert not isinstance(records, list), "records that were received are one buffer"
        end, size = whole_batches(records)
        if code is codes.NONE and end is None:
            if not records:
                return
            code = codes.CORRUPT_MESSAGE  # Not one whole batch: asking again would bring the same, for ever.
        reader = None
        if code is codes.NONE:
            aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
            reader = FetchedRecords(records, start, aborted=aborted, checks_crc=self._checks_crc)
            state.served = self._wiring.counts["fetches_answered"]
        self._fetched.append(_Fetched(state.place, start, start if end is None else max(end, start), size, reader, code))
        self._wiring.wake()

    def failed(self, token: FetchSent, steady_ms: int) -> None:
        """No answer: the broker may be gone, and its partitions have another leader soon."""
        self._under_way.discard(token.node_id)
        self._sessions[token.node_id].unanswered()
        self._refetch_later(token, steady_ms)

    def _refetch_later(self, token: FetchSent, steady_ms: int) -> None:
        self._wiring.refresh()
        for place in token.wanted:
            state = self._wiring.subscriptions.assigned.get(place)
            if state is not None:
                state.wait(steady_ms + self._wiring.wait_ms(1))
                state.preferred_replica = -1

    # Handing out.

    def take(self, records_max: int) -> list[Portion]:
        """Up to `records_max` records; positions move behind them. What is wrong is raised once everything before it was given."""
        portions: list[Portion] = []
        try:
            for portion in self._portions(records_max):
                portions.append(portion)
        except KafkaException:
            if not portions:
                raise
        except BaseException:
            self.take_back(portions)
            raise
        self._wiring.counts["records_consumed"] += sum(len(portion.columns) for portion in portions)
        return portions

    def take_back(self, portions: Sequence[Portion]) -> None:
        """Nobody got them after all: they are read again, and not committed."""
        for portion in reversed(portions):
            state = self._wiring.subscriptions.assigned.get(portion.place)
            if state is None or state.position is None or state.has_renewed:
                continue  # It was taken away, is looked for again, or its topic was deleted.
            self.drop(portion.place)
            assert portion.columns.offsets is not None, "records that were read have offsets"
            state.given = -1
            state.position = state.position._replace(offset=int(portion.columns.offsets[0]))

    def _portions(self, left: int) -> Iterator[Portion]:
        index, has_given = 0, False
        bytes_left = POLL_BYTES_MAX
        while left and bytes_left > 0 and index < len(self._fetched):
            fetched = self._fetched[index]
            state = self._wiring.subscriptions.assigned.get(fetched.place)
            if state is not None and not (state.is_reading and not state.is_paused):
                index += 1  # Kept until it may be read again.
            elif state is None or state.position is None or state.position.offset != _begins(fetched):
                del self._fetched[index]
            elif fetched.reader is None:
                if has_given:
                    return  # The next call begins with it: raised now, nobody would hear of it, and it would be forgotten.
                self._refused(fetched, state, index)
            else:
                portion = self._next_of(fetched, fetched.reader, state, left)
                if portion is None:
                    self._wiring.counts["bytes_consumed"] += fetched.size
                    del self._fetched[index]
                else:
                    left -= len(portion.columns)
                    bytes_left -= _size(portion.columns)
                    has_given = True
                    yield portion

    def _next_of(self, fetched: _Fetched, reader: FetchedRecords, state: PartitionState, left: int) -> Portion | None:
        assert state.position is not None, "what is read has a position"
        try:
            piece = reader.read(left)
        except RecordsError as error:
            text = f"{error}; seek to {reader.position + 1} or beyond to pass over it"
            raise CorruptRecordException(text, topic_partition=fetched.place, stored=Stored.NO, api="Fetch") from None
        epoch = reader.leader_epoch if reader.leader_epoch >= 0 else state.position.offset_epoch
        position = reader.position if piece is not None else max(reader.position, fetched.end)
        state.position = Position(position, epoch, state.position.leader_epoch)
        if piece is None:
            return None
        state.delivered_id = state.topic_id
        return Portion(fetched.place, piece.columns, int(piece.timestamp_type), piece.leader_epoch)

    def _refused(self, fetched: _Fetched, state: PartitionState, index: int) -> None:
        """An error is raised; where positions reset themselves, one out of range does."""
        if fetched.code is codes.OFFSET_OUT_OF_RANGE:
            text = f"offset {fetched.start} is not there, or not any more"
            if self._wiring.reset_strategy is NONE:
                raise OffsetOutOfRangeException(
                    f"{text}, and auto.offset.reset is none: seek", topic_partition=fetched.place, stored=Stored.NO, api="Fetch"
                )
            self._wiring.report(f"{fetched.place}: {text}; going on as auto.offset.reset says, {self._wiring.reset_strategy.name}")
            self._wiring.counts["offset_resets"] += 1
            self.drop(fetched.place)
            state.reset(self._wiring.reset_strategy)
            return
        del self._fetched[index]
        raise exception_for(fetched.code, topic_partition=fetched.place, stored=Stored.NO, api="Fetch")

    def drop(self, place: TopicPartition) -> None:
        """Forget what was fetched of a partition: its position has moved, or it is not ours any more."""
        self._fetched = deque(fetched for fetched in self._fetched if fetched.place != place)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When a partition that has to wait may be fetched again."""
        times = [state.retry_at_ms for state in self._wiring.subscriptions.assigned.values() if state.retry_at_ms > steady_ms]
        return min(times, default=None)


def _size(columns: RecordColumns) -> int:
    sides = (columns.key_offsets, columns.value_offsets, columns.header_key_offsets, columns.header_value_offsets)
    return sum(int(offsets[-1] - offsets[0]) for offsets in sides)


def _begins(fetched: _Fetched) -> int:
    return fetched.start if fetched.reader is None else fetched.reader.position
