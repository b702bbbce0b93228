"""Fetch sessions (KIP-227): the broker remembers a client's partitions, and answers name only those of which there is news.

A session lives until its client ends it or it has to make room for others. At most `max.incremental.fetch.session.cache.slots` of
them are kept, and PARTITIONS_MAX partitions in all; a client that gets none is told session id 0 and goes on naming its partitions.
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
"""Topic and partition as the client names them: topics by name up to version 12, by id from 13 on."""


@dataclass(slots=True, eq=False)
class FetchPosition:
    """One partition of a request or of a session. `topic` is None while nobody knows the id; `topic_id` zero where names are used.

    `high_watermark` and `log_start_offset` are what the client was told last; -1 before, and after an error.
    """

    key: PositionKey
    topic: str | None
    topic_id: UUID
    requested: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def locate(self, topics: TopicRegistry) -> tuple[Partition | None, ErrorCode]:
        """The partition, or None and 3 (gone, or never there), 100 (nobody knows the id) or 103 (the name belongs to another id now)."""
        if self.topic is None:
            return None, codes.UNKNOWN_TOPIC_ID
        partition = topics.partition(self.topic, self.requested.partition)
        if partition is None:
            return None, codes.UNKNOWN_TOPIC_OR_PARTITION
        if self.topic_id is not ZERO_UUID and partition.topic.topic_id != self.topic_id:
            return None, codes.INCONSISTENT_TOPIC_ID
        return partition, codes.NONE

    def is_unchanged(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client was told just this, in its session."""
        return high_watermark == self.high_watermark and log_start_offset == self.log_start_offset

    def note(self, partition_data: PartitionData) -> None:
        """Take note of an answer. Errors tell -1, so that the partition is told of again once it can be read."""
        self.high_watermark = partition_data.high_watermark
        self.log_start_offset = partition_data.log_start_offset


def positions_of(request: FetchRequest, version: int, topics: TopicRegistry) -> dict[PositionKey, FetchPosition]:
    """What a request names; of a partition named twice the last wins."""
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
    """What a request takes out of its session."""
    uses_ids = version >= VERSION_WITH_IDS
    return [(topic.topic_id if uses_ids else topic.topic, index) for topic in forgotten for index in topic.partitions]


def resolve_ids(positions: Iterable[FetchPosition], topics: TopicRegistry) -> None:
    """Look again for topics whose ids were unknown when they came into a session."""
    for position in positions:
        if position.topic is None:
            position.topic = topics.name_of(position.topic_id)


NO_SESSION = 0
EPOCH_INITIAL = 0
EPOCH_FINAL = -1
EPOCH_MAX = 2**31 - 1

SAFE_MS = 120_000
"""For so long a session in use is safe from larger ones, and an unused one from everybody. As in Apache Kafka."""

PARTITIONS_MAX = 200_000
"""Partitions remembered in all sessions together: some 100 MB."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """One client's partitions, those served last at the end. `epoch` is the number that its next request must have."""

    id: int
    uses_ids: bool
    created_ms: int
    used_ms: int
    positions: dict[PositionKey, FetchPosition]
    epoch: int = EPOCH_INITIAL + 1

    def note(self, partition_data: list[tuple[FetchPosition, PartitionData]]) -> None:
        """Take note of an answer. Places that gave records go to the end, so that no other starves behind them."""
        for position, data in partition_data:
            position.note(data)
            if data.records and self.positions.pop(position.key, None) is not None:
                self.positions[position.key] = position


@dataclass(slots=True, eq=False)
class FetchContext:
    """What one request reads. Without `session` the answer names every place; `epoch` is that of the session after this request."""

    positions: list[FetchPosition]
    uses_ids: bool
    session: FetchSession | None = None
    needs_session: bool = False
    epoch: int = field(default=EPOCH_FINAL)


class FetchSessions:
    """All sessions, least recently used first."""

    def __init__(self, rng: RandomSource, slots: int) -> None:
        self._rng = rng
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Of all sessions."""
        return self._partition_count

    def named_targets(self, session_id: int) -> Iterator[tuple[str | None, int]]:
        """Topics and partitions of a session; none if there is no such session."""
        session = self._sessions.get(session_id)
        for position in session.positions.values() if session is not None else ():
            yield position.topic, position.requested.partition

    def begin(self, request: FetchRequest, version: int, topics: TopicRegistry, steady_ms: int) -> FetchContext | ErrorCode:
        """What to read for a request; 70, 71 or 106 when it does not fit its session."""
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
        if not self._make_partitions_fit(0, steady_ms) or not _can_be_cached(request):  # Its client begins anew, and gets no session then.
            self._remove(session.id)
            return codes.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else EPOCH_INITIAL + 1
        return FetchContext(list(session.positions.values()), uses_ids, session, epoch=session.epoch)

    def conclude(self, context: FetchContext, partition_data: Sequence[PartitionData | None], steady_ms: int) -> FetchResponse:
        """The answer, from what each place gave; None for places of which the session's client knows everything."""
        pairs = [(position, data) for position, data in zip(context.positions, partition_data, strict=True) if data is not None]
        session = context.session
        if session is None:
            session_id = self._create(context, pairs, steady_ms) if context.needs_session else NO_SESSION
            return FetchResponse(session_id=session_id, responses=_grouped(pairs))
        if session.epoch != context.epoch:  # Another request used the session while this one waited.
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
        """Remember the places, if there is room or some can be made."""
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
        """Whether a session of this many partitions can come in: in place of those unused for long, or of a smaller one that is not new."""
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
        # Looked at as it was when last used: only then does a session stop being new.
        old = (session for session in self._sessions.values() if session.used_ms - session.created_ms > SAFE_MS)
        smallest = min(old, key=lambda session: len(session.positions), default=None)
        if smallest is None or len(smallest.positions) >= size:
            return False
        self._remove(smallest.id)
        return True

    def _make_partitions_fit(self, size: int, steady_ms: int) -> bool:
        """Whether there is room for so many more partitions; sessions unused for long make some."""
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
    """Whether the names are not longer than names of topics are: what a session remembers is bounded."""
    return all(len(topic.topic) <= NAME_LENGTH_MAX for topic in request.topics)


def _grouped(pairs: list[tuple[FetchPosition, PartitionData]]) -> list[FetchableTopicResponse]:
    """Neighbours of one topic together, in the order in which they were read."""
    topics: list[FetchableTopicResponse] = []
    last: object = None
    for position, data in pairs:
        name = position.key[0]
        if name is not last and name != last:
            topics.append(FetchableTopicResponse(topic=position.topic or "", topic_id=position.topic_id))
            last = name
        topics[-1].partitions.append(data)
    return topics
