"""Fetch session of the client (KIP-227): which partitions the next fetch to a broker names. Follows FetchSessionHandler.java.

One object per broker, without other dependencies.
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
"""With topic ids, which some callers of the API do not have."""
SESSION_ERRORS: Final = frozenset({codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH, codes.FETCH_SESSION_TOPIC_ID_ERROR})


class FetchPosition(NamedTuple):
    """Where one partition is fetched from. A zero `topic_id` means that the broker reported no ids."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    bytes_max: int


@dataclass(slots=True, eq=False)
class FetchSession:
    """The state of one broker's fetch session, as far as the client knows."""

    id: int = NO_SESSION
    epoch: int = EPOCH_INITIAL
    partitions: dict[TopicPartition, FetchPosition] | None = None

    def next_request(self, positions: Mapping[TopicPartition, FetchPosition]) -> tuple[FetchRequest, int]:
        """The request for these partitions, with names and session only, and the highest version that it fits."""
        uses_ids = _uses_ids(positions)
        known = self.partitions
        if known is None or self.epoch == EPOCH_INITIAL or _uses_ids(known) != uses_ids:
            self.epoch = EPOCH_INITIAL
            named, forgotten = dict(positions), dict[TopicPartition, FetchPosition]()
        else:
            named = {tp: position for tp, position in positions.items() if known.get(tp) != position}
            forgotten = {
                tp: previous for tp, previous in known.items() if tp not in positions or positions[tp].topic_id != previous.topic_id
            }
        self.partitions = dict(positions)
        request = FetchRequest(
            session_id=self.id, session_epoch=self.epoch, topics=_topics(named), forgotten_topics_data=_forgotten(forgotten)
        )
        return request, LAST_VERSION if uses_ids else LAST_VERSION_WITH_NAMES

    def response_received(self, response: FetchResponse) -> None:
        """Update the session from a response."""
        code = codes.by_number(response.error_code)
        if code is codes.FETCH_SESSION_ID_NOT_FOUND:
            self.id, self.epoch = NO_SESSION, EPOCH_INITIAL
        elif code is not codes.NONE:
            self.epoch = EPOCH_INITIAL
        elif response.session_id == NO_SESSION:
            # The broker's session cache is full: each request names all partitions.
            self.id, self.epoch = NO_SESSION, EPOCH_INITIAL
        else:
            self.id = response.session_id
            self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def request_failed(self) -> None:
        """The broker's state is unknown: the next request ends the session and starts another."""
        self.epoch = EPOCH_INITIAL

    def tps_by_key(self) -> dict[tuple[str | UUID, int], TopicPartition]:
        """The partitions of the request in flight, by (topic name or id, partition number)."""
        found: dict[tuple[str | UUID, int], TopicPartition] = {}
        for tp, position in (self.partitions or {}).items():
            found[tp.topic, tp.partition] = tp
            found[position.topic_id, tp.partition] = tp
        return found


def _uses_ids(partitions: Mapping[TopicPartition, FetchPosition]) -> bool:
    return all(position.topic_id != ZERO_UUID for position in partitions.values())


def _topics(named: Mapping[TopicPartition, FetchPosition]) -> list[FetchTopic]:
    """In the given order, so a topic may appear more than once, as from Java's client."""
    topics: list[FetchTopic] = []
    for tp, position in named.items():
        if not topics or topics[-1].topic != tp.topic:
            topics.append(FetchTopic(topic=tp.topic, topic_id=position.topic_id))
        topics[-1].partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                partition_max_bytes=position.bytes_max,
            )
        )
    return topics


def _forgotten(forgotten: Mapping[TopicPartition, FetchPosition]) -> list[ForgottenTopic]:
    topics: dict[str, ForgottenTopic] = {}
    for tp, previous in forgotten.items():
        topics.setdefault(tp.topic, ForgottenTopic(topic=tp.topic, topic_id=previous.topic_id)).partitions.append(tp.partition)
    return list(topics.values())
