"""Errors of a consumer's calls and requests: timeouts, missing responses, rejected commits."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from chaffinch.client.connections import RequestFailed
from chaffinch.errors import (
    CommitFailedException,
    KafkaException,
    NetworkException,
    RebalanceInProgressException,
    Stored,
    TimeoutException,
    UnsupportedVersionException,
)
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition

IN_TIME: Final = "in time"
"""Default, for calls without a named timeout."""
_NAMED_MAX: Final = 5


def within(limit_ms: int, name: str) -> str:
    """`name`: the option or argument that set the limit."""
    return f"within {limit_ms} ms ({name})"


def names_of(tps: Collection[TopicPartition]) -> str:
    """The first few partitions by name, and the number of the others."""
    named = ", ".join(str(tp) for tp in sorted(tps)[:_NAMED_MAX])
    return named if len(tps) <= _NAMED_MAX else f"{named} and {len(tps) - _NAMED_MAX} more"


def network_error(event: RequestFailed, api: str | None = None) -> KafkaException:
    """The error of a request that got no response."""
    text = f"{event.address}: {event.reason}"
    if event.is_unsupported:
        return UnsupportedVersionException(text, stored=Stored.NO, api=api)
    kind = TimeoutException if event.is_timeout else NetworkException
    return kind(text, stored=Stored.NO, api=api)


def no_response_error(event: RequestFailed, api: str) -> KafkaException:
    """The error of a request to the coordinator that got no response; it may have been executed."""
    stored = Stored.POSSIBLY if event.was_sent else Stored.NO
    if event.is_unsupported:
        return UnsupportedVersionException(f"{event.address}: {event.reason}", stored=Stored.NO, api=api)
    return NetworkException(f"{event.address}: {event.reason}", stored=stored, api=api)


def rebalancing_error(group_id: str, tp: TopicPartition | None = None, *, joins: bool) -> KafkaException:
    what = f"this consumer joins group {group_id!r}" if joins else "the group rebalances"
    text = f"offsets cannot be committed while {what}: poll, then commit again"
    return RebalanceInProgressException(text, topic_partition=tp, stored=Stored.NO, api="OffsetCommit")


def not_joined_error(group_id: str) -> KafkaException:
    text = f"this consumer is not a member of group {group_id!r} yet: it joins with its first poll and can commit after it"
    return CommitFailedException(text, api="OffsetCommit")


def expelled_error(group_id: str) -> KafkaException:
    text = f"group {group_id!r} has removed this member: others read its uncommitted records again; it rejoins with the next poll"
    return CommitFailedException(text, api="OffsetCommit")


def metadata_too_long(committed: OffsetAndMetadata | None) -> str:
    characters = 0 if committed is None else len(committed.metadata)
    return f"the metadata has {characters} characters, more than the broker's offset.metadata.max.bytes, 4096 unless it is set: shorten it"


def not_a_member_error(group_id: str) -> KafkaException:
    text = (
        f"group {group_id!r} has members that share its partitions, so only they commit for it: subscribe, or use a group.id of your own"
        " for partitions that you assign"
    )
    return CommitFailedException(text, api="OffsetCommit")
