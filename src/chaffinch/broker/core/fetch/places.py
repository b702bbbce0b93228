"""Places to read from: a partition, an offset in it, and what the client was told last about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, ForgottenTopic, PartitionData
from chaffinch.protocol.primitives import ZERO_UUID

VERSION_WITH_IDS = 13

PlaceKey: TypeAlias = tuple[str | UUID, int]
"""Topic and partition as the client names them: topics by name up to version 12, by id from 13 on."""


@dataclass(slots=True, eq=False)
class FetchPlace:
    """One partition of a request or of a session. `topic` is None while nobody knows the id; `topic_id` zero where names are used.

    `high_watermark` and `log_start_offset` are what the client was told last; -1 before, and after an error.
    """

    key: PlaceKey
    topic: str | None
    topic_id: UUID
    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def locate(self, topics: TopicRegistry) -> tuple[Partition | None, ErrorCode]:
        """The partition, or None and 3 (gone, or never there), 100 (nobody knows the id) or 103 (the name belongs to another id now)."""
        if self.topic is None:
            return None, codes.UNKNOWN_TOPIC_ID
        partition = topics.partition(self.topic, self.asked.partition)
        if partition is None:
            return None, codes.UNKNOWN_TOPIC_OR_PARTITION
        if self.topic_id is not ZERO_UUID and partition.topic.topic_id != self.topic_id:
            return None, codes.INCONSISTENT_TOPIC_ID
        return partition, codes.NONE

    def knows(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client was told just this, in its session."""
        return high_watermark == self.high_watermark and log_start_offset == self.log_start_offset

    def note(self, told: PartitionData) -> None:
        """Take note of an answer. Errors tell -1, so that the partition is told of again once it can be read."""
        self.high_watermark = told.high_watermark
        self.log_start_offset = told.log_start_offset


def places_of(request: FetchRequest, version: int, topics: TopicRegistry) -> dict[PlaceKey, FetchPlace]:
    """What a request names; of a partition named twice the last wins."""
    places = {}
    uses_ids = version >= VERSION_WITH_IDS
    for topic in request.topics:
        name: str | UUID = topic.topic_id if uses_ids else topic.topic
        resolved = _name_of(topic.topic_id, topics) if uses_ids else topic.topic
        for asked in topic.partitions:
            key = (name, asked.partition)
            places[key] = FetchPlace(key, resolved, topic.topic_id, asked)
    return places


def forgotten_keys(forgotten: Iterable[ForgottenTopic], version: int) -> list[PlaceKey]:
    """What a request takes out of its session."""
    uses_ids = version >= VERSION_WITH_IDS
    return [(topic.topic_id if uses_ids else topic.topic, index) for topic in forgotten for index in topic.partitions]


def resolve_ids(places: Iterable[FetchPlace], topics: TopicRegistry) -> None:
    """Look again for topics whose ids were unknown when they came into a session."""
    for place in places:
        if place.topic is None:
            place.topic = _name_of(place.topic_id, topics)


def _name_of(topic_id: UUID, topics: TopicRegistry) -> str | None:
    topic = topics.by_id(topic_id)
    return None if topic is None else topic.name
