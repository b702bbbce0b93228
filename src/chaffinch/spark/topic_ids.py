"""Topic ids in a checkpoint: they distinguish topics of the same name, for offsets and markers. Pure.

A topic that is deleted and created again keeps its name and gets another id. Offsets of the deleted topic are invalid in the new one.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from chaffinch.protocol.primitives import ZERO_UUID

MARK: Final = "@"
"""Separates a topic's name and its id. Topic names cannot contain it."""

TopicIds = Mapping[str, UUID]
PartitionCounts = Mapping[str, int]


def shown(topic_id: UUID) -> str:
    """Format an id like the tools of Kafka."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parsed(text: str) -> UUID:
    """Parse an id formatted by `shown`. Raises ValueError."""
    return UUID(bytes=urlsafe_b64decode(f"{text}=="))


def key(topic: str, topic_id: UUID) -> str:
    """The key of a topic's id in a checkpoint."""
    return f"{topic}{MARK}{shown(topic_id)}"


def ids_of(keys: Iterable[str]) -> dict[str, UUID]:
    """The topic ids among the keys of a checkpoint."""
    found = {}
    for name in keys:
        topic, mark, text = name.rpartition(MARK)
        if mark:
            try:
                found[topic] = parsed(text)
            except ValueError:  # Not written by Chaffinch: the id is unknown.
                continue
    return found


def created_again(before: TopicIds, now: TopicIds) -> dict[str, tuple[UUID, UUID]]:
    """Topics whose id has changed, with both ids. A topic without an id on either side counts as unchanged."""
    both = ((topic, before[topic], now[topic]) for topic in sorted(before.keys() & now.keys()))
    return {topic: (old, new) for topic, old, new in both if old != new and ZERO_UUID not in (old, new)}


def loss(topic: str, old: UUID, new: UUID, what: str = "its offsets belong to") -> str:
    """One-line message that a topic was created again. `what`: what belongs to the old topic."""
    return (
        f"topic {topic!r} was deleted and created again: {what} the topic with id {shown(old)}, "
        f"the topic of this name now has id {shown(new)}"
    )
