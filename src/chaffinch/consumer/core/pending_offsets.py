"""What the coordinator of a group is asked about offsets: commits and look-ups on their way."""

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
    """A request that is sent again after a failure that passes."""

    failures: int = 0
    not_before_ms: int = 0
    is_under_way: bool = False
    last_error: KafkaException | None = None

    def retry_later(self, error: KafkaException, context: ConsumerContext, steady_ms: int) -> None:
        """After a wait that grows."""
        self.failures += 1
        self.last_error = error
        self.not_before_ms = steady_ms + context.wait_ms(self.failures)


@dataclass(slots=True, eq=False)
class Commit(_Retried):
    """Offsets on their way. `on_done` hears how it went, once. Without `retries` the first failure is the last.

    `identity`: as whom it was asked for; the group takes it from no other. `is_automatic`: nobody asked for it by name, so a topic that is
    gone is no reason to wait for it. `topic_ids`: of the topics that the offsets belong to. `is_explicit`: the application gave the
    offsets.
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
    """How long there is, in words."""
    unknown_since_ms: int | None = None
    """Since when the coordinator says that it knows no such partition."""
    committed: set[TopicPartition] = field(default_factory=set)
    """Those that the coordinator took, whatever becomes of the others."""
    skipped: set[TopicPartition] = field(default_factory=set)
    """Those that are not tried again: the coordinator took what a later commit tells of them, or does not know them."""
    unknown: KafkaException | None = None
    """That it does not know some."""
    outdated: set[TopicPartition] = field(default_factory=set)
    """Those whose topic was deleted and created again: they are dropped, for in the new topic they mean nothing."""
    is_checked: bool = False
    """Whether the coordinator's metadata has just been asked for."""
    unknown_id_count: int = 0
    """How often in a row the coordinator did not know a topic's id."""
    missing: frozenset[TopicPartition] = frozenset()
    """Those that are not in the coordinator's metadata, while `is_checked`."""

    def with_committed(self, error: KafkaException) -> KafkaException:
        """A failure, which is one of the others alone where the coordinator took some."""
        if not self.committed:
            return error
        return with_message(error, f"{error.message.rstrip('.')}; the offsets of {names_of(self.committed)} were committed")

    @property
    def partial_error(self) -> KafkaException | None:
        """When everything was answered: why some were not committed; None where all were, in one attempt or another."""
        return None if self.committed | self.outdated >= self.offsets.keys() else self.unknown or self.last_error

    @property
    def is_final(self) -> bool:
        """Whether its partitions are given up after it, or the consumer closes: until then they are this member's, in each generation."""
        return self.is_automatic and self.retries


@dataclass(frozen=True, slots=True)
class CommitToken:
    """Token of an OffsetCommit. `names`: of the topics' ids, where it has ids in place of names. `missing` are not in it."""

    commit: Commit
    identity: Identity
    names: Mapping[UUID, str] = field(default_factory=dict)
    missing: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicsToken:
    """Token of the Metadata request to the coordinator before a commit: whether the topics are still those that were read."""

    commit: Commit


@dataclass(slots=True, eq=False)
class Lookup(_Retried):
    """Committed offsets that are asked for: by a caller, or without a call for positions."""

    tps: tuple[TopicPartition, ...]
    deadline_ms: int | None = None
    call: Any = None
    limit: str = IN_TIME
    topic_ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    """As known when it was sent."""
    has_ids: bool = False
    """Whether the request has them in place of names."""
    is_by_name: bool = False
    """The coordinator did not know one of the ids."""
