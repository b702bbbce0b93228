"""What the leader of a classic group does for all of it: it shares the partitions out, watches the topics of all members, and sees to it
that no partition is left without a member.

A static leader that comes back is told who is in the group, and that its assignment stands (KIP-814): it watches the topics again, and
shares nothing out. Nobody watched them while it was away, so it looks whether what the topics have now is somebody's. Cooperative members
say what they have when they join; what eager ones have only the coordinator knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from chaffinch.consumer.core.assignors import ASSIGNORS, Assignor
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.group_protocol import MemberSubscription, decode_subscription, encode_assignment
from chaffinch.identifiers import TopicPartition

ORPHANS: Final = "partitions are nobody's: the member that was to give them up, so that others get them, came back without them"
"""Under a cooperative assignor a partition goes from one member to another in two rounds. The second one begins when its owner has given it
up. Where a static member dies in between, another process takes its place without a round, owns nothing, and so does not begin one."""

ADDED: Final = "partitions are nobody's: they were added while the leader of the group was away"


class GroupLeader:
    """`topics`: what all members subscribe to; empty for a member that does not lead.

    `is_cooperative`: the members keep what they have when they join, and so can tell; with a mixed list of assignors they do not."""

    def __init__(self, context: ConsumerContext, *, is_cooperative: bool) -> None:
        self.topics: frozenset[str] = frozenset()
        self.needs_describe = False
        """Whether the coordinator is to be asked what the other members have."""
        self.rejoin_reason = ORPHANS
        """Why the next round is asked for."""
        self._is_cooperative = is_cooperative
        self._context = context
        self._member_id = ""
        self._members: dict[str, MemberSubscription] = {}  # From JoinGroup to SyncGroup.
        self._assignor: Assignor | None = None
        self._has_returned = False
        self._counts: dict[str, int] = {}
        self._assigned: set[TopicPartition] = set()
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._reported_orphans: frozenset[TopicPartition] = frozenset()  # With the round that is under way.

    def end(self) -> None:
        """Another one leads, or nobody."""
        self.topics = frozenset()
        self.needs_describe = False
        self._members = {}

    def begin(self, answer: Any) -> None:
        """JoinGroup said that this member leads. Raises MalformedMessage for a member whose subscription cannot be read."""
        self._members = {member.member_id: decode_subscription(member.metadata, member.group_instance_id) for member in answer.members}
        self.topics = frozenset(topic for subscription in self._members.values() for topic in subscription.topics)
        self._member_id = answer.member_id
        self._assignor = ASSIGNORS[answer.protocol_name]
        self._has_returned = answer.skip_assignment

    @property
    def is_ready(self) -> bool:
        """Whether every topic was heard of; one that does not exist counts."""
        return not self._members or all(self._context.cluster.topic(topic) is not None for topic in self.topics)

    def assignments(self) -> dict[str, bytes]:
        """What SyncGroup brings to each member; empty for a member that does not lead."""
        self._counts, self._assigned = self._current_counts(), set()
        if not self._members or self._assignor is None:
            return {}
        if self._has_returned:
            return {}
        assignment_of = self._assignor.assign(self._members, self._counts)
        self._assigned.update(*assignment_of.values())
        return {member: encode_assignment(partitions) for member, partitions in assignment_of.items()}

    def next_rebalance_ms(self, assignment: tuple[TopicPartition, ...], steady_ms: int) -> int | None:
        """SyncGroup gave this member its assignment. When another round has to begin, unless one does by itself; None where each partition
        is somebody's."""
        members, self._members = self._members, {}
        requested, self._reported_orphans = self._reported_orphans, frozenset()
        if not members or self._assignor is None:
            return None
        if self._has_returned and not self._is_cooperative:
            self.needs_describe, self.rejoin_reason = len(members) > 1, ADDED
            return steady_ms if len(members) == 1 and self.has_unassigned(assignment) else None
        if not self._assignor.is_cooperative:
            return None
        self.rejoin_reason = ORPHANS
        everything = self._all_partitions()
        assigned = self._assigned
        if self._has_returned:
            subscriptions = {
                member: replace(subscription, owned=assignment) if member == self._member_id else subscription
                for member, subscription in members.items()
            }
            self._orphans = frozenset(everything.difference(*(subscription.owned for subscription in subscriptions.values())))
            if not self._orphans <= requested:
                return steady_ms  # Nobody may have them, and nobody knows whether another round is to come.
            # As it was shared out by this member's process before, from what the others said: some may have to give up what they had.
            assigned = set().union(*self._assignor.assign(subscriptions, self._counts).values())
        self._orphans = frozenset(everything.difference(assigned, assignment))
        if self._orphans <= requested:
            return None  # A member that does not give up what it is told to, whatever happens, would be asked for ever.
        # There is one to come, as soon as their owner polls.
        return steady_ms + int(self._context.settings["max.poll.interval.ms"])

    def _all_partitions(self) -> set[TopicPartition]:
        return {TopicPartition(topic, number) for topic, count in self._counts.items() for number in range(count)}

    def has_unassigned(self, assigned: Iterable[TopicPartition]) -> bool:
        """Whether the topics have more than these, which are all that members have."""
        return not self._all_partitions() <= set(assigned)

    def rebalance_requested(self) -> None:
        """This member begins another round."""
        self._reported_orphans = self._orphans

    @property
    def has_topic_changes(self) -> bool:
        """Whether topics have come, gone or grown since they were shared out."""
        return bool(self.topics) and self._current_counts() != self._counts

    def _current_counts(self) -> dict[str, int]:
        counts = ((topic, self._context.cluster.partition_count(topic)) for topic in self.topics)
        return {topic: count for topic, count in counts if count is not None}
