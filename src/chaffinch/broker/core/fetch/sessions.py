"""Fetch sessions (KIP-227): the broker remembers a client's partitions, and responses contain only those that changed.

A session lives until its client ends it or it is evicted. At most `max.incremental.fetch.session.cache.slots` sessions are cached, with
PARTITIONS_MAX partitions in total; a client without one receives session id 0 and continues to name its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from chaffinch.broker.core.topics.creation_rules import NAME_LENGTH_MAX
from chaffinch.broker.core.topics.registry import Partition, RandomSource, TopicRegistry
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    PartitionData,
)
from chaffinch.protocol.primitives import ZERO_UUID

VERSION_WITH_IDS = 13

PositionKey: TypeAlias = tuple[str | UUID, int]
"""Topic and partition as named by the client: topics by name up to version 12, by id from 13 on."""


@dataclass(slots=True, eq=False)
class FetchPosition:
    """Fetch position of one partition in a request or session. `topic` is None while the id is unknown; `topic_id` is zero if names are
    used.

    `high_watermark` and `log_start_offset`: the values last sent to the client; -1 before that, and after an error.
    """

    key: PositionKey
    topic: str | None
    topic_id: UUID
    requested: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def locate(self, topics: TopicRegistry) -> tuple[Partition | None, ErrorCode]:
        """Find the partition; otherwise None and 3 (deleted or never existed), 100 (unknown id) or 103 (the name now has another id)."""
        if self.topic is None:
            return None, codes.UNKNOWN_TOPIC_ID
        partition = topics.partition(self.topic, self.requested.partition)
        if partition is None:
            return None, codes.UNKNOWN_TOPIC_OR_PARTITION
        if self.topic_id is not ZERO_UUID and partition.topic.topic_id != self.topic_id:
            return None, codes.INCONSISTENT_TOPIC_ID
        return partition, codes.NONE

    def is_unchanged(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the session's client already has these values."""
        return high_watermark == self.high_watermark and log_start_offset == self.log_start_offset

    def note(self, partition_data: PartitionData) -> None:
        """Record the values of a response. Errors record -1, so that the partition is sent again once it is readable."""
        self.high_watermark = partition_data.high_watermark
        self.log_start_offset = partition_data.log_start_offset


def positions_of(request: FetchRequest, version: int, topics: TopicRegistry) -> dict[PositionKey, FetchPosition]:
    """The positions in a request; for a partition named twice the last one counts."""
    positions = {}
    uses_ids = version >= VERSION_WITH_IDS
    for topic in request.topics:
        name: str | UUID = topic.topic_id if uses_ids else topic.topic
        resolved = topics.name_of(topic.topic_id) if uses_ids else topic.topic
        for requested in topic.partitions:
            key = (name, requested.partition)
            positions[key] = FetchPosition(key, resolved, topic.topic_id, requested)
    return positions


def forgotten_keys(forgotten: Iterable[ForgottenTopic], version: int) -> list[PositionKey]:
    """The keys that a request removes from its session."""
    uses_ids = version >= VERSION_WITH_IDS
    return [(topic.topic_id if uses_ids else topic.topic, index) for topic in forgotten for index in topic.partitions]


def resolve_ids(positions: Iterable[FetchPosition], topics: TopicRegistry) -> None:
    """Resolve topic ids that were unknown when they were added to a session."""
    for position in positions:
        if position.topic is None:
            position.topic = topics.name_of(position.topic_id)


NO_SESSION = 0
EPOCH_INITIAL = 0
EPOCH_FINAL = -1
EPOCH_MAX = 2**31 - 1

SAFE_MS = 120_000
"""How long a session in use is not evicted for a larger one, and an unused one is not evicted at all. As in Apache Kafka."""

PARTITIONS_MAX = 200_000
"""Limit of partitions in all sessions: some 100 MB."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """A client's partitions, the most recently returned last. `epoch`: the expected epoch of the next request."""

    id: int
    uses_ids: bool
    created_ms: int
    used_ms: int
    positions: dict[PositionKey, FetchPosition]
    epoch: int = EPOCH_INITIAL + 1

    def note(self, partition_data: list[tuple[FetchPosition, PartitionData]]) -> None:
        """Record a response. Positions that returned records move to the end, so that no other partition starves."""
        for position, data in partition_data:
            position.note(data)
            if data.records and self.positions.pop(position.key, None) is not None:
                self.positions[position.key] = position


@dataclass(slots=True, eq=False)
class FetchContext:
    """The positions of one request. Without `session` the response contains every partition; `epoch`: the session's epoch after this
    request.
    """

    positions: list[FetchPosition]
    uses_ids: bool
    session: FetchSession | None = None
    needs_session: bool = False
    epoch: int = field(default=EPOCH_FINAL)


class FetchSessions:
    """All fetch sessions, least recently used first."""

    def __init__(self, rng: RandomSource, slots: int) -> None:
        self._rng = rng
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Number of partitions in all sessions."""
        return self._partition_count

    def named_targets(self, session_id: int) -> Iterator[tuple[str | None, int]]:
        """Topics and partitions of a session; none if it does not exist."""
        session = self._sessions.get(session_id)
        for position in session.positions.values() if session is not None else ():
            yield position.topic, position.requested.partition

    def begin(self, request: FetchRequest, version: int, topics: TopicRegistry, steady_ms: int) -> FetchContext | ErrorCode:
        """The context of a request; 70, 71 or 106 if it does not fit its session."""
        uses_ids = version >= VERSION_WITH_IDS
        if request.session_epoch in (EPOCH_INITIAL, EPOCH_FINAL):
            self._remove(request.session_id)
            positions = list(positions_of(request, version, topics).values())
            return FetchContext(positions, uses_ids, needs_session=request.session_epoch == EPOCH_INITIAL and _can_be_cached(request))
        session = self._sessions.get(request.session_id)
        if session is None:
            return codes.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return codes.INVALID_FETCH_SESSION_EPOCH
        if session.uses_ids != uses_ids:
            return codes.FETCH_SESSION_TOPIC_ID_ERROR
        self._update(session, request, version, topics)
        if not session.positions:
            self._remove(session.id)
            return FetchContext([], uses_ids)
        self._touch(session, steady_ms)
        if not self._make_partitions_fit(0, steady_ms) or not _can_be_cached(request):  # Its client starts over, and then gets no session.
            self._remove(session.id)
            return codes.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else EPOCH_INITIAL + 1
        return FetchContext(list(session.positions.values()), uses_ids, session, epoch=session.epoch)

    def conclude(self, context: FetchContext, partition_data: Sequence[PartitionData | None], steady_ms: int) -> FetchResponse:
        """Build the response from the partition data; None for partitions of which the session's client already has everything."""
        pairs = [(position, data) for position, data in zip(context.positions, partition_data, strict=True) if data is not None]
        session = context.session
        if session is None:
            session_id = self._create(context, pairs, steady_ms) if context.needs_session else NO_SESSION
            return FetchResponse(session_id=session_id, responses=_grouped(pairs))
        if session.epoch != context.epoch:  # Another request used the session while this one was delayed.
            return FetchResponse(error_code=codes.INVALID_FETCH_SESSION_EPOCH.number, session_id=session.id)
        session.note(pairs)
        return FetchResponse(session_id=session.id, responses=_grouped(pairs))

    def _update(self, session: FetchSession, request: FetchRequest, version: int, topics: TopicRegistry) -> None:
        positions = session.positions
        self._partition_count -= len(positions)
        for key, position in positions_of(request, version, topics).items():
            known = positions.get(key)
            if known is None:
                positions[key] = position
            else:
                known.requested = position.requested
        for key in forgotten_keys(request.forgotten_topics_data, version):
            positions.pop(key, None)
        self._partition_count += len(positions)
        if session.uses_ids:
            resolve_ids(positions.values(), topics)

    def _create(self, context: FetchContext, pairs: list[tuple[FetchPosition, PartitionData]], steady_ms: int) -> int:
        """Create a session, if there is capacity or another can be evicted. Returns its id."""
        size = len(pairs)
        if size == 0 or not self._evict_for(size, steady_ms):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randrange(EPOCH_MAX)
        for position, data in pairs:
            position.note(data)
        positions = {position.key: position for position, _ in pairs}
        self._sessions[session_id] = FetchSession(session_id, context.uses_ids, steady_ms, steady_ms, positions)
        self._partition_count += size
        return session_id

    def _evict_for(self, size: int, steady_ms: int) -> bool:
        """Make room for a session with this many partitions: evict one that has long been unused, or a smaller one that is not new.
        Returns False if that is impossible.
        """
        if not self._make_partitions_fit(size, steady_ms):
            return False
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if steady_ms - oldest.used_ms > SAFE_MS:
            self._remove(oldest.id)
            return True
        # A session is new until it is used later than SAFE_MS after its creation.
        old = (session for session in self._sessions.values() if session.used_ms - session.created_ms > SAFE_MS)
        smallest = min(old, key=lambda session: len(session.positions), default=None)
        if smallest is None or len(smallest.positions) >= size:
            return False
        self._remove(smallest.id)
        return True

    def _make_partitions_fit(self, size: int, steady_ms: int) -> bool:
        """Make room for more partitions by evicting sessions that have long been unused. Returns False if that is not enough."""
        while self._partition_count + size > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or steady_ms - oldest.used_ms <= SAFE_MS:
                return False
            self._remove(oldest.id)
        return True

    def _touch(self, session: FetchSession, steady_ms: int) -> None:
        del self._sessions[session.id]
        self._sessions[session.id] = session
        session.used_ms = steady_ms

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.positions)


def _can_be_cached(request: FetchRequest) -> bool:
    """Whether the topic names have a valid length: the memory of a session is bounded."""
    return all(len(topic.topic) <= NAME_LENGTH_MAX for topic in request.topics)


def _grouped(pairs: list[tuple[FetchPosition, PartitionData]]) -> list[FetchableTopicResponse]:
    """Group consecutive partitions of one topic, in the order in which they were read."""
    topics: list[FetchableTopicResponse] = []
    last: object = None
    for position, data in pairs:
        name = position.key[0]
        if name is not last and name != last:
            topics.append(FetchableTopicResponse(topic=position.topic or "", topic_id=position.topic_id))
            last = name
        topics[-1].partitions.append(data)
    return topics
