"""State of a consumer group (KIP-848): members, epochs, current and target assignments.

Members are immutable; a change of the group is a `Change`, which is first written to the journal and then applied. No clock, no I/O.
Follows Apache Kafka's ConsumerGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from chaffinch.broker.core.groups.assignors import Partitions, TopicIdPartition
from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.protocol.messages.consumer_group_heartbeat import EPOCH_LEAVE_FOR_A_WHILE

NO_PARTITIONS: Partitions = frozenset()
NEVER_LOOKED = -1
GROUP_BYTES = 2000
MEMBER_BYTES = 1000
"""Approximate memory overhead of a member or group, in addition to names and partitions, including journal entries."""


class MemberState(Enum):
    """Progress of a member towards its target assignment."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It must revoke partitions and has not confirmed that yet."""
    UNRELEASED = "unreleased"
    """Some partitions of its target are still owned by other members."""


class GroupState(Enum):
    """Values are the names shown to clients."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class TopicInfo:
    """The topic data that subscriptions need."""

    __slots__ = ("partition_count", "topic_id")

    def __init__(self, topic_id: UUID, partition_count: int) -> None:
        self.topic_id = topic_id
        self.partition_count = partition_count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicInfo) and (self.topic_id, self.partition_count) == (other.topic_id, other.partition_count)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member. `assigned`: partitions it may read; `revoking`: partitions it must give up but may still own; `since`: the epoch in which
    it received each of these partitions.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client: Client
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    since: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def has_left_for_a_while(self) -> bool:
        return self.epoch == EPOCH_LEAVE_FOR_A_WHILE

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def may_commit(self, epoch: int, partitions: Iterable[TopicIdPartition]) -> bool:
        """Whether the member may commit offsets in this epoch: the current one, or an older one for partitions that it has had since then
        (KIP-1251), since the response with the new epoch may still be on its way.
        """
        return epoch == self.epoch or (
            epoch < self.epoch and all(self.since.get(partition, self.epoch) <= epoch for partition in partitions)
        )

    @property
    def size_bytes(self) -> int:
        """Approximate memory size."""
        names = [self.member_id, self.instance_id or "", self.rack_id or "", self.pattern, self.client.client_id, *self.topics]
        return MEMBER_BYTES + sum(100 + len(name) for name in names) + 200 * (len(self.assigned) + len(self.revoking))


@dataclass(slots=True)
class Subscriptions:
    """Subscribed names and patterns with the number of their members: a joining or leaving member costs only its own subscription."""

    names: dict[str, int] = field(default_factory=dict)
    patterns: dict[str, int] = field(default_factory=dict)

    def after(self, members: Mapping[str, ConsumerMember], changes: Mapping[str, ConsumerMember | None]) -> Subscriptions:
        """The subscriptions after the changes; None removes a member."""
        result = Subscriptions(self.names.copy(), self.patterns.copy())
        result.follow(members, changes)
        return result

    def follow(self, members: Mapping[str, ConsumerMember], changes: Mapping[str, ConsumerMember | None]) -> None:
        """Like `after`, in place; `members` are those before the changes."""
        for member_id, member in changes.items():
            former = members.get(member_id)
            if former is not None and member is not None and (former.topics, former.pattern) == (member.topics, member.pattern):
                continue
            if member is not None:
                _add(self.names, member.topics)
                _add(self.patterns, (member.pattern,))
            if former is not None:
                _take(self.names, former.topics)
                _take(self.patterns, (former.pattern,))


def _add(counts: dict[str, int], keys: Iterable[str]) -> None:
    for key in keys:
        counts[key] = counts.get(key, 0) + 1


def _take(counts: dict[str, int], keys: Iterable[str]) -> None:
    for key in keys:
        if counts[key] == 1:
            del counts[key]
        else:
            counts[key] -= 1


@dataclass(slots=True, kw_only=True)
class Change:
    """A change of the group: None removes a member or a target; the other fields are new values of the group."""

    epoch: int
    assignment_epoch: int
    topics: Mapping[str, TopicInfo]
    members: dict[str, ConsumerMember | None] = field(default_factory=dict)
    targets: dict[str, Partitions | None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerGroup:
    """A consumer group. `topics`: the subscribed topics when the group's epoch was last checked."""

    group_id: str
    epoch: int = 0
    assignment_epoch: int = 0
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    topics_version: int = NEVER_LOOKED
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    _members_bytes: int = field(default=0, init=False)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def size_bytes(self) -> int:
        """Approximate memory size. A group without members counts too: as in Kafka, it stays until its offsets expire."""
        return GROUP_BYTES + 2 * len(self.group_id) + self._members_bytes

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics or topic in self.subscriptions.names

    def preferred_assignor(self, members: Mapping[str, ConsumerMember], offered: Sequence[str]) -> str:
        """The offered assignor with the most votes; the first one if no member requests any."""
        votes: dict[str, int] = {}
        for member in members.values():
            if member.assignor is not None and member.assignor in offered:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else offered[0]

    def change(self) -> Change:
        """An empty change."""
        return Change(epoch=self.epoch, assignment_epoch=self.assignment_epoch, topics=self.topics)

    def apply(self, change: Change) -> None:
        """Apply a change. A partition is owned by the member it is assigned to, until that member has revoked it."""
        self.epoch, self.assignment_epoch, self.topics = change.epoch, change.assignment_epoch, change.topics
        self.subscriptions.follow(self.members, change.members)
        # First remove all members, then add all: a partition may move between them in one change.
        for member_id in change.members:
            self._remove_member(member_id)
        for member in change.members.values():
            if member is not None:
                self._add_member(member)
        for member_id, target in change.targets.items():
            if target is None:
                self.targets.pop(member_id, None)
            else:
                self.targets[member_id] = target

    def _remove_member(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for partition in (*member.assigned, *member.revoking):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        del self.members[member_id]
        self._members_bytes -= member.size_bytes

    def _add_member(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        self._members_bytes += member.size_bytes
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for partition in (*member.assigned, *member.revoking):
            self.owners[partition] = member.member_id
