"""Calls whose time is over, and requests without an answer: what they were about, how long there was, and why."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from chaffinch.client.connections import Failed
from chaffinch.errors import KafkaException, NetworkException, Stored, TimeoutException, UnsupportedVersionException
from chaffinch.identifiers import TopicPartition

IN_TIME: Final = "in time"
"""Where nobody has set the time by a name."""
_NAMED_MAX: Final = 5


def within(limit_ms: int, name: str) -> str:
    """`name`: of the option or argument that says so."""
    return f"within {limit_ms} ms ({name})"


def names_of(places: Collection[TopicPartition]) -> str:
    """Some of them by name, how many more there are."""
    named = ", ".join(str(place) for place in sorted(places)[:_NAMED_MAX])
    return named if len(places) <= _NAMED_MAX else f"{named} and {len(places) - _NAMED_MAX} more"


def network_error(event: Failed, api: str | None = None) -> KafkaException:
    """A request without an answer, as an exception."""
    text = f"{event.address}: {event.reason}"
    if event.is_unsupported:
        return UnsupportedVersionException(text, stored=Stored.NO, api=api)
    kind = TimeoutException if event.is_timeout else NetworkException
    return kind(text, stored=Stored.NO, api=api)


def lost(event: Failed, api: str) -> KafkaException:
    """A request to the coordinator without an answer: it may have been carried out."""
    stored = Stored.POSSIBLY if event.was_sent else Stored.NO
    if event.is_unsupported:
        return UnsupportedVersionException(f"{event.address}: {event.reason}", stored=Stored.NO, api=api)
    return NetworkException(f"{event.address}: {event.reason}", stored=stored, api=api)
