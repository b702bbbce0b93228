"""Ids of topics in a checkpoint: which topic of a name its offsets, or its marker, belong to. Pure.

A topic that is deleted and created again keeps its name and gets another id. Facts about the deleted topic mean nothing in the new one.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from chaffinch.protocol.primitives import ZERO_UUID

MARK: Final = "@"
"""Between a topic's name and its id. No name of a topic has this character."""

TopicIds = Mapping[str, UUID]
PartitionCounts = Mapping[str, int]


def shown(topic_id: UUID) -> str:
    """An id as Kafka's own tools print it."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parsed(text: str) -> UUID:
    """An id from what `shown` made of it. Errors: ValueError."""
    return UUID(bytes=urlsafe_b64decode(f"{text}=="))


def key(topic: str, topic_id: UUID) -> str:
    """The name under which a checkpoint keeps a topic's id."""
    return f"{topic}{MARK}{shown(topic_id)}"


def ids_of(keys: Iterable[str]) -> dict[str, UUID]:
    """The ids among the names of a checkpoint."""
    found = {}
    for name in keys:
        topic, mark, text = name.rpartition(MARK)
        if mark:
            try:
                found[topic] = parsed(text)
            except ValueError:  # Not written by us: then the id is not known.
                continue
    return found


def created_again(before: TopicIds, now: TopicIds) -> dict[str, tuple[UUID, UUID]]:
    """Topics that have another id now, with both ids. A topic without an id on either side counts as the same."""
    both = ((topic, before[topic], now[topic]) for topic in sorted(before.keys() & now.keys()))
    return {topic: (old, new) for topic, old, new in both if old != new and ZERO_UUID not in (old, new)}


def loss(topic: str, old: UUID, new: UUID, what: str = "its offsets belong to") -> str:
    """What it means that a topic was created again, in one line. `what` belongs to the old topic."""
    return (
        f"topic {topic!r} was deleted and created again: {what} the topic with id {shown(old)}, "
        f"the topic of this name now has id {shown(new)}"
    )
