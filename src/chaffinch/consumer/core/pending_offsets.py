"""Pending offset requests of a group: commits and lookups in flight or waiting for a retry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from chaffinch.consumer.core.call_errors import IN_TIME, names_of
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.group_requests import NO_IDENTITY, Identity
from chaffinch.errors import KafkaException
from chaffinch.errors.copies import with_message
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition

Outcome = Callable[[KafkaException | None], None]


@dataclass(slots=True, eq=False, kw_only=True)
class _Retried:
    """A request that is sent again after a temporary error."""

    failures: int = 0
    not_before_ms: int = 0
    is_under_way: bool = False
    last_error: KafkaException | None = None

    def retry_later(self, error: KafkaException, context: ConsumerContext, steady_ms: int) -> None:
        """Retry after a growing wait."""
        self.failures += 1
        self.last_error = error
        self.not_before_ms = steady_ms + context.wait_ms(self.failures)


@dataclass(slots=True, eq=False)
class Commit(_Retried):
    """Offsets to commit. `on_done` is called once, with the error or None. Without `retries` the first failure is final.

    `identity`: the member that made the commit; the group accepts it from no other. `is_automatic`: not requested by the application, so it
    does not wait for a missing topic. `topic_ids`: of the topics that the offsets belong to. `is_explicit`: the application passed
    the offsets.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    deadline_ms: int
    retries: bool
    on_done: Outcome
    identity: Identity = NO_IDENTITY
    is_automatic: bool = False
    topic_ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    is_explicit: bool = False
    limit: str = IN_TIME
    """The time limit as text."""
    unknown_since_ms: int | None = None
    """Since when the coordinator has not known one of the partitions."""
    committed: set[TopicPartition] = field(default_factory=set)
    """Partitions whose offset the coordinator stored, whatever happens to the others."""
    skipped: set[TopicPartition] = field(default_factory=set)
    """Partitions that are not retried: the coordinator stored a later offset, or does not know the partition."""
    unknown: KafkaException | None = None
    """The error of a partition that the coordinator does not know."""
    outdated: set[TopicPartition] = field(default_factory=set)
    """Partitions whose topic was deleted and created again: their offsets are dropped, they mean nothing in the new topic."""
    is_checked: bool = False
    """Whether the coordinator's metadata has just been read."""
    unknown_id_count: int = 0
    """How often in a row the coordinator did not know a topic id."""
    missing: frozenset[TopicPartition] = frozenset()
    """Partitions that are not in the coordinator's metadata, while `is_checked`."""

    def with_committed(self, error: KafkaException) -> KafkaException:
        """The error; it names the partitions that were committed, if there are some."""
        if not self.committed:
            return error
        return with_message(error, f"{error.message.rstrip('.')}; the offsets of {names_of(self.committed)} were committed")

    @property
    def partial_error(self) -> KafkaException | None:
        """When all responses are in: why some partitions were not committed. None if each was, in one attempt or another."""
        return None if self.committed | self.outdated >= self.offsets.keys() else self.unknown or self.last_error

    @property
    def is_final(self) -> bool:
        """Whether its partitions are revoked after it, or the consumer closes. Until then this member owns them in every generation."""
        return self.is_automatic and self.retries


@dataclass(frozen=True, slots=True)
class CommitToken:
    """Token of an OffsetCommit. `names`: topic names by id, if it has ids. `missing`: partitions that it does not contain."""

    commit: Commit
    identity: Identity
    names: Mapping[UUID, str] = field(default_factory=dict)
    missing: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicsToken:
    """Token of the Metadata request to the coordinator before a commit: checks that the topics are still the ones that were read."""

    commit: Commit


@dataclass(slots=True, eq=False)
class Lookup(_Retried):
    """A lookup of committed offsets: for a call, or without a call for positions."""

    tps: tuple[TopicPartition, ...]
    deadline_ms: int | None = None
    call: Any = None
    limit: str = IN_TIME
    topic_ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    """Ids when it was sent."""
    has_ids: bool = False
    """Whether the request has ids instead of names."""
    is_by_name: bool = False
    """The coordinator did not know one of the ids."""
