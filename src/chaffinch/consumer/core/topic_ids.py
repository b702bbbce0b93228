"""Topic ids: the current id of each topic name, and whether an id belongs to a deleted topic of that name.

Ids have no order, and a broker that lags behind may still report the id of a deleted topic. So an id that was known before is not taken
for a new one. Kafka before 2.8 reports no ids; then deleted topics are not detected here.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.identifiers import kafka_id
from chaffinch.protocol.primitives import ZERO_UUID

UNKNOWN_ID_MS: Final = 3_000
"""A coordinator that does not know an id may lag behind, and so may its metadata, but not for longer than this."""


class RecreatedTopic(NamedTuple):
    """A topic that was deleted and created again, with its previous and its current id."""

    topic: str
    before: UUID
    now: UUID

    def __str__(self) -> str:
        return f"topic {self.topic!r} was deleted and created again: its id was {kafka_id(self.before)} and is {kafka_id(self.now)} now"


class TopicIds:
    """All ids that metadata has reported for each name. The current id is the one first reported most recently."""

    def __init__(self) -> None:
        self._known: dict[str, set[UUID]] = {}
        self._present: dict[str, UUID] = {}
        self._unconfirmed: set[UUID] = set()
        self._unknown_since_ms: dict[UUID, int] = {}

    def learn(self, topic: str, topic_id: UUID) -> RecreatedTopic | None:
        """Process a reported id. Returns a RecreatedTopic if the topic was deleted and created again."""
        if topic_id == ZERO_UUID:
            return None
        known = self._known.setdefault(topic, set())
        before = self._present.get(topic, topic_id)
        is_new = topic_id not in known or before in self._unconfirmed
        known.add(topic_id)
        if topic_id == before or is_new:
            self._present[topic] = topic_id
            self._unconfirmed.discard(topic_id)
            self._unknown_since_ms.pop(topic_id, None)
        return RecreatedTopic(topic, before, topic_id) if is_new and topic_id != before else None

    def report_unknown(self, topic_id: UUID, steady_ms: int) -> None:
        """A coordinator does not know this id. If that lasts, the next id in metadata becomes current, even a previously known one."""
        if steady_ms - self._unknown_since_ms.setdefault(topic_id, steady_ms) >= UNKNOWN_ID_MS:
            self._unconfirmed.add(topic_id)

    def current(self, topic: str) -> UUID:
        """The current id of the topic name; zero if none was reported."""
        return self._present.get(topic, ZERO_UUID)

    def is_outdated(self, topic: str, topic_id: UUID) -> bool:
        """Whether this id is not zero and belongs to an earlier topic of this name."""
        return ZERO_UUID not in (topic_id, self.current(topic)) and topic_id != self.current(topic)
