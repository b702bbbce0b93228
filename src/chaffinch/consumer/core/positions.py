"""Subscriptions and positions: which partitions are read, and from where. Follows SubscriptionState.java.

A partition's position is known (`READING`), or looked up: first among the committed offsets (`COMMITTED`), then as auto.offset.reset says
(`RESETTING`). After a leader change that may have truncated the log it is checked first (`VALIDATING`, KIP-320). This is a plain table; it
sends no requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.options import NONE, ResetStrategy
from chaffinch.errors import ErrorCode, IllegalStateException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID


class Stage(Enum):
    """How far a partition's position is known."""

    COMMITTED = "the committed offset is looked up"
    NEEDS_SEEK = "nothing is committed, and auto.offset.reset is none: the caller must seek"
    RESETTING = "the offset of auto.offset.reset is looked up"
    VALIDATING = "the leader checks that its log still has the records that were read"
    READING = "known"


class Kind(Enum):
    """How partitions are assigned."""

    NONE = "neither subscribed nor assigned"
    TOPICS = "subscribed to topics"
    PATTERN = "subscribed to a pattern"
    MANUAL = "given partitions by assign()"


class Position(NamedTuple):
    """The offset to read next, the leader epoch of the record before it, and the leader epoch it was checked with (-1: not known)."""

    offset: int
    offset_epoch: int = -1
    leader_epoch: int = -1


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition. `position`: the next record that a poll returns. Offsets are -1 until a leader has reported them."""

    tp: TopicPartition
    stage: Stage = Stage.COMMITTED
    position: Position | None = None
    reset_to: ResetStrategy | None = None
    is_paused: bool = False
    is_usable: bool = True
    """False while a callback for assigning or revoking the partition is due: nothing is read then."""
    retry_at_ms: int = 0
    preferred_replica: int = -1
    preferred_until_ms: int = 0
    delivered_offset: int = -1
    """While a loop iterates: the offset after the last record yielded, before `position`; otherwise -1."""
    end: int = -1
    """End of the readable records in the last response: the high watermark, or the last stable offset; -1: not reported."""
    last_error_code: ErrorCode | None = None
    """Error of the leader's last response, if retries can solve it."""
    served_at: int = 0
    """Number of the response that brought its last records; 0: none has."""
    topic_id: UUID = ZERO_UUID
    """Id of the topic that this state is about; zero: not known yet, or brokers report no ids."""
    delivered_id: UUID = ZERO_UUID
    """Id of the topic whose records the caller got last; zero: none."""

    @property
    def is_reading(self) -> bool:
        return self.stage is Stage.READING and self.is_usable

    @property
    def consumed(self) -> Position | None:
        """The position up to which the caller has got records."""
        return self.position if self.delivered_offset < 0 or self.position is None else self.position._replace(offset=self.delivered_offset)

    def seek(self, position: Position) -> None:
        """Continue at `position`. If it has an epoch, the leader first checks that its log still has the offset."""
        self.position, self.delivered_offset = position, -1
        self.reset_to = self.last_error_code = None
        self.stage = Stage.VALIDATING if position.offset_epoch >= 0 and position.leader_epoch < 0 else Stage.READING
        self.retry_at_ms = 0

    def validate(self) -> None:
        """Start a check of the position, because the leader is not the one that it was checked with."""
        self.stage = Stage.VALIDATING

    def validated(self, leader_epoch: int) -> None:
        """Record that the leader of this epoch has the records that were read, or cannot check it."""
        assert self.position is not None, "only a position can be checked"
        self.position, self.stage = self.position._replace(leader_epoch=leader_epoch), Stage.READING

    def back_off(self, until_ms: int, last_error_code: ErrorCode | None = None) -> None:
        """Retry at `until_ms`. `last_error_code`: the leader's error code, if it sent one that retries can solve."""
        self.retry_at_ms, self.last_error_code = until_ms, last_error_code or self.last_error_code

    @property
    def is_recreated(self) -> bool:
        """Whether the records that the caller got last are from an earlier topic of this name."""
        return ZERO_UUID not in (self.delivered_id, self.topic_id) and self.delivered_id != self.topic_id

    def start_new_topic(self, topic_id: UUID, strategy: ResetStrategy) -> None:
        """The topic was deleted and created again: drop the state of the deleted one."""
        if self.position is not None:
            self.reset(strategy)
        self.topic_id, self.is_paused, self.end, self.retry_at_ms = topic_id, False, -1, 0

    def reset(self, strategy: ResetStrategy) -> None:
        """Look up the position again; with the strategy `none` the caller must seek."""
        self.stage, self.reset_to, self.position = Stage.NEEDS_SEEK if strategy is NONE else Stage.RESETTING, strategy, None
        self.delivered_offset = -1
        self.retry_at_ms = 0
        self.preferred_replica = -1


class Subscriptions:
    """The table of assigned partitions. Its owner decides when to notify the group and to drop fetched records."""

    def __init__(self) -> None:
        self.kind = Kind.NONE
        self.topics: frozenset[str] = frozenset()
        """Topics subscribed to, or matched by the pattern."""
        self.pattern: re.Pattern[str] | None = None
        self.assigned: dict[TopicPartition, PartitionState] = {}

    @property
    def is_automatic(self) -> bool:
        """Whether the group assigns the partitions."""
        return self.kind in (Kind.TOPICS, Kind.PATTERN)

    def subscribe(self, topics: Iterable[str]) -> None:
        self._set_kind(Kind.TOPICS)
        self.topics = frozenset(topics)

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        self._set_kind(Kind.PATTERN)
        self.pattern, self.topics = pattern, frozenset()

    def assign_manually(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_kind(Kind.MANUAL)
        self.assign(partitions)

    def clear(self) -> None:
        self.kind, self.topics, self.pattern = Kind.NONE, frozenset(), None
        self.assigned = {}

    def _set_kind(self, kind: Kind) -> None:
        automatic = (Kind.TOPICS, Kind.PATTERN)
        if self.kind is not Kind.NONE and (self.kind in automatic) != (kind in automatic):
            raise IllegalStateException(f"the consumer is {self.kind.value}, it cannot also be {kind.value}: call unsubscribe() first")
        self.kind = kind
        if kind is not Kind.PATTERN:
            self.pattern = None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assigned partitions; those in both keep their state."""
        self.assigned = {tp: self.assigned.get(tp) or PartitionState(tp) for tp in partitions}

    def of(self, tp: TopicPartition) -> PartitionState:
        """The state of an assigned partition; raises IllegalStateException for others."""
        state = self.assigned.get(tp)
        if state is None:
            raise IllegalStateException(f"{tp} is not assigned to this consumer; it has {self.describe()}", topic_partition=tp)
        return state

    def describe(self) -> str:
        """The first few assigned partitions by name, and the number of the others."""
        return names_of(self.assigned.keys()) or "none"

    def matches(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics whose whole name the pattern matches."""
        assert self.pattern is not None, "only called for a pattern"
        return frozenset(topic for topic in topics if self.pattern.fullmatch(topic))

    def at(self, stage: Stage, steady_ms: int) -> list[PartitionState]:
        """Partitions at this stage that are not in back-off.

        Includes partitions whose `on_assign` callback is due: the callback may call `position`.
        """
        return [state for state in self.assigned.values() if state.stage is stage and state.retry_at_ms <= steady_ms]

    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """Id of the topic that each partition's position belongs to; zero if it is not known."""
        return {tp: state.topic_id for tp, state in self.assigned.items()}

    def delivered_ids(self) -> dict[TopicPartition, UUID]:
        """Id of the topic whose records the caller got last, for each partition with such records."""
        return {tp: state.delivered_id for tp, state in self.assigned.items() if state.delivered_id != ZERO_UUID}

    def consumed(self) -> dict[TopicPartition, Position]:
        """Positions that can be committed."""
        found = ((tp, state.consumed) for tp, state in self.assigned.items())
        return {tp: position for tp, position in found if position is not None}
