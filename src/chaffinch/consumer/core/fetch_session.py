"""The client's half of a fetch session (KIP-227): which partitions the next request to one broker names. Follows FetchSessionHandler.java.

Free of everything else: one object per broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from chaffinch.protocol.primitives import ZERO_UUID

NO_SESSION: Final = 0
EPOCH_INITIAL: Final = 0
EPOCH_MAX: Final = 2**31 - 1

LAST_VERSION_WITH_NAMES: Final = 12
LAST_VERSION: Final = 18
"""With topic ids, which not every user of the API has at hand."""
SESSION_ERRORS: Final = frozenset({codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH, codes.FETCH_SESSION_TOPIC_ID_ERROR})


class Wanted(NamedTuple):
    """From where one partition is fetched. `topic_id` zero: the broker did not tell ids."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    bytes_max: int


@dataclass(slots=True, eq=False)
class FetchSession:
    """What one broker remembers of us, as far as we know."""

    id: int = NO_SESSION
    epoch: int = EPOCH_INITIAL
    partitions: dict[TopicPartition, Wanted] | None = None

    def next_request(self, wanted: Mapping[TopicPartition, Wanted]) -> tuple[FetchRequest, int]:
        """The request for these partitions, names and session only, and the last version that it fits."""
        uses_ids = _uses_ids(wanted)
        known = self.partitions
        if known is None or self.epoch == EPOCH_INITIAL or _uses_ids(known) != uses_ids:
            self.epoch = EPOCH_INITIAL
            named, forgotten = dict(wanted), dict[TopicPartition, Wanted]()
        else:
            named = {place: asked for place, asked in wanted.items() if known.get(place) != asked}
            forgotten = {place: was for place, was in known.items() if place not in wanted or wanted[place].topic_id != was.topic_id}
        self.partitions = dict(wanted)
        request = FetchRequest(
            session_id=self.id, session_epoch=self.epoch, topics=_topics(named), forgotten_topics_data=_forgotten(forgotten)
        )
        return request, LAST_VERSION if uses_ids else LAST_VERSION_WITH_NAMES

    def answered(self, response: FetchResponse) -> None:
        """Take note of what the broker says of the session."""
        code = codes.by_number(response.error_code)
        if code is codes.FETCH_SESSION_ID_NOT_FOUND:
            self.id, self.epoch = NO_SESSION, EPOCH_INITIAL
        elif code is not codes.NONE:
            self.epoch = EPOCH_INITIAL
        elif response.session_id == NO_SESSION:
            # The broker has no room: every request names everything.
            self.id, self.epoch = NO_SESSION, EPOCH_INITIAL
        else:
            self.id = response.session_id
            self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def unanswered(self) -> None:
        """Nobody knows what the broker did: the next request ends the session and begins another."""
        self.epoch = EPOCH_INITIAL

    def places(self) -> dict[tuple[str | UUID, int], TopicPartition]:
        """The partitions of the request under way, by topic name or id, and number."""
        found: dict[tuple[str | UUID, int], TopicPartition] = {}
        for place, asked in (self.partitions or {}).items():
            found[place.topic, place.partition] = place
            found[asked.topic_id, place.partition] = place
        return found


def _uses_ids(partitions: Mapping[TopicPartition, Wanted]) -> bool:
    return all(asked.topic_id != ZERO_UUID for asked in partitions.values())


def _topics(named: Mapping[TopicPartition, Wanted]) -> list[FetchTopic]:
    """In their order, so that a topic may come more than once, as from Java's client."""
    topics: list[FetchTopic] = []
    for place, asked in named.items():
        if not topics or topics[-1].topic != place.topic:
            topics.append(FetchTopic(topic=place.topic, topic_id=asked.topic_id))
        topics[-1].partitions.append(
            FetchPartition(
                partition=place.partition,
                current_leader_epoch=asked.leader_epoch,
                fetch_offset=asked.offset,
                partition_max_bytes=asked.bytes_max,
            )
        )
    return topics


def _forgotten(forgotten: Mapping[TopicPartition, Wanted]) -> list[ForgottenTopic]:
    topics: dict[str, ForgottenTopic] = {}
    for place, was in forgotten.items():
        topics.setdefault(place.topic, ForgottenTopic(topic=place.topic, topic_id=was.topic_id)).partitions.append(place.partition)
    return list(topics.values())
