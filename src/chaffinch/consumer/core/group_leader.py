"""Group leader of a classic group: assigns partitions to members, watches the topics of all members, and finds unassigned partitions.

A static leader that returns gets the member list, and the current assignment remains valid (KIP-814). It watches the topics again and
assigns nothing. The topics were not watched while it was away, so it checks whether every partition is assigned. Cooperative members report
their partitions when they join; those of eager members are known only to the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from chaffinch.consumer.core.assignors import ASSIGNORS, Assignor
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.group_protocol import MemberSubscription, decode_subscription, encode_assignment
from chaffinch.identifiers import TopicPartition

ORPHANS: Final = "partitions are unassigned: the member that had to revoke them for others returned without them"
"""With a cooperative assignor a partition moves in two rebalances. The second one starts after its owner has revoked it.

If a static member dies in between, another process takes its identity without a rebalance. It owns nothing, and so starts no second one.
"""

ADDED: Final = "partitions are unassigned: they were added while the group leader was away"


class GroupLeader:
    """`topics`: subscriptions of all members; empty if this member does not lead.

    `is_cooperative`: members keep their partitions when they join, and so can report them. With a mixed list of assignors they cannot.
    """

    def __init__(self, context: ConsumerContext, *, is_cooperative: bool) -> None:
        self.topics: frozenset[str] = frozenset()
        self.needs_describe = False
        """Whether to request the assignments of the other members from the coordinator."""
        self.rejoin_reason = ORPHANS
        """Reason for the next rebalance."""
        self._is_cooperative = is_cooperative
        self._context = context
        self._member_id = ""
        self._members: dict[str, MemberSubscription] = {}  # From JoinGroup to SyncGroup.
        self._assignor: Assignor | None = None
        self._has_returned = False
        self._counts: dict[str, int] = {}
        self._assigned: set[TopicPartition] = set()
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._reported_orphans: frozenset[TopicPartition] = frozenset()  # Orphans when the current rebalance was started.

    def end(self) -> None:
        """Another member leads, or none."""
        self.topics = frozenset()
        self.needs_describe = False
        self._members = {}

    def begin(self, response: Any) -> None:
        """JoinGroup made this member the leader. Raises MalformedMessage if a member's subscription cannot be read."""
        self._members = {member.member_id: decode_subscription(member.metadata, member.group_instance_id) for member in response.members}
        self.topics = frozenset(topic for subscription in self._members.values() for topic in subscription.topics)
        self._member_id = response.member_id
        self._assignor = ASSIGNORS[response.protocol_name]
        self._has_returned = response.skip_assignment

    @property
    def is_ready(self) -> bool:
        """Whether metadata of every topic is known; a topic that does not exist counts as known."""
        return not self._members or all(self._context.cluster.topic(topic) is not None for topic in self.topics)

    def assignments(self) -> dict[str, bytes]:
        """The assignments that SyncGroup sends; empty if this member does not lead."""
        self._counts, self._assigned = self._current_counts(), set()
        if not self._members or self._assignor is None:
            return {}
        if self._has_returned:
            return {}
        assignment_of = self._assignor.assign(self._members, self._counts)
        self._assigned.update(*assignment_of.values())
        return {member: encode_assignment(partitions) for member, partitions in assignment_of.items()}

    def next_rebalance_ms(self, assignment: tuple[TopicPartition, ...], steady_ms: int) -> int | None:
        """When this leader, after SyncGroup, has to start another rebalance unless one starts by itself.

        None if every partition is assigned.
        """
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
                return steady_ms  # They may be unassigned, and no further rebalance may follow.
            # The assignment that this member's previous process made from the same subscriptions: some members may have to revoke
            # partitions.
            assigned = set().union(*self._assignor.assign(subscriptions, self._counts).values())
        self._orphans = frozenset(everything.difference(assigned, assignment))
        if self._orphans <= requested:
            return None  # Otherwise a member that never revokes its partitions would cause endless rebalances.
        # A rebalance follows when their owner polls.
        return steady_ms + int(self._context.settings["max.poll.interval.ms"])

    def _all_partitions(self) -> set[TopicPartition]:
        return {TopicPartition(topic, number) for topic, count in self._counts.items() for number in range(count)}

    def has_unassigned(self, assigned: Iterable[TopicPartition]) -> bool:
        """Whether the topics have partitions other than these, which are all that members have."""
        return not self._all_partitions() <= set(assigned)

    def rebalance_requested(self) -> None:
        """This member starts another rebalance."""
        self._reported_orphans = self._orphans

    @property
    def has_topic_changes(self) -> bool:
        """Whether topics were created, deleted or extended since the last assignment."""
        return bool(self.topics) and self._current_counts() != self._counts

    def _current_counts(self) -> dict[str, int]:
        counts = ((topic, self._context.cluster.partition_count(topic)) for topic in self.topics)
        return {topic: count for topic, count in counts if count is not None}
