"""State of a classic group: members, leader, generation. The rules for requests are in `classic_requests` and `classic_rebalance`.

Follows Apache Kafka's ClassicGroup. No clock and no I/O. Member metadata is opaque, except for the subscribed topics.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from chaffinch.broker.core.groups.classic_states import MOVES, ClassicState
from chaffinch.broker.core.groups.context import Deferred
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from chaffinch.protocol.messages.sync_group import SyncGroupResponse

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The client of a member, as shown in group descriptions."""

    client_id: str
    host: str


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicMember:
    """A member of a classic group. `is_new` until its first generation is complete."""

    member_id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """The member's preferred protocol among those that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def size_bytes(self) -> int:
        """Approximate memory size."""
        names = len(self.member_id) + len(self.instance_id or "") + len(self.client.client_id)
        return 500 + names + len(self.assignment) + sum(len(name) + len(metadata) for name, metadata in self.protocols)


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicGroup:
    """A classic group. `protocol_type` None: the group never had members, it only has offsets.

    `members`, their protocols and assignments, and `pending` may be changed only by the methods below: sums over them are cached, so that a
    join costs the same for any number of members.
    """

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_since_ms: int
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # Instance id -> member id.
    pending: dict[str, None] = field(default_factory=dict)  # Member ids that were handed out and must be used to join again (KIP-394).
    joins: dict[str, Deferred[JoinGroupResponse]] = field(default_factory=dict)
    syncs: dict[str, Deferred[SyncGroupResponse]] = field(default_factory=dict)
    unsynced: dict[str, None] = field(default_factory=dict)  # Members that have not fetched their assignment in this generation.
    subscribed_topics: frozenset[str] | None = None
    initial_remaining_ms: int | None = None  # Remaining delay of the group's first rebalance; None in any other rebalance.
    has_newcomer: bool = False
    _members_bytes: int = field(default=0, init=False)
    _pending_bytes: int = field(default=0, init=False)
    _supporters: Counter[str] = field(default_factory=Counter, init=False)  # Protocol -> number of members that support it.

    # Queries ------------------------------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def has_all_joined(self) -> bool:
        return len(self.joins) == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def was_never_used(self) -> bool:
        """Whether the group has no member, never had one, and no member is about to join."""
        return self.protocol_type is None and not self.members and not self.pending

    @property
    def size_bytes(self) -> int:
        """Approximate memory size; 0 for a group that only has offsets, which are counted elsewhere."""
        if self.was_never_used:
            return 0
        return 1000 + 2 * len(self.group_id) + self._pending_bytes + self._members_bytes

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def member_fault(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """25: unknown member; 82: the instance id now belongs to another member."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is not None and current != member_id:
                return codes.FENCED_INSTANCE_ID
            if current is None:
                return codes.UNKNOWN_MEMBER_ID
        return codes.NONE if member_id in self.members else codes.UNKNOWN_MEMBER_ID

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members subscribe to the topic; if their subscriptions cannot be parsed, any topic counts."""
        return self.uses_consumer_protocol if self.subscribed_topics is None else topic in self.subscribed_topics

    def members_for_leader(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata(self.protocol)
            )
            for member in self.members.values()
        ]

    def selected_protocol(self) -> str:
        """The protocol with the most votes among those that every member supports. The group must have members."""
        candidates = self._common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    # Changes ------------------------------------------------------------------------------------------------------------------------

    def move_to(self, state: ClassicState, wall_ms: int) -> None:
        assert state in MOVES[self.state], f"group {self.group_id!r} cannot go from {self.state} to {state}"
        self.state = state
        self.state_since_ms = wall_ms

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member. The first member determines the protocol type and becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._remove_pending(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member. The caller must complete its deferred responses."""
        self._remove_pending(member_id)
        self.unsynced.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, old_id: str, member: ClassicMember) -> None:
        """Replace a static member with the same instance under a new member id; it keeps its position and leadership."""
        assert member.instance_id is not None
        self._count(self.members[old_id], -1)
        self._count(member, 1)
        self.members = {(member.member_id if key == old_id else key): value for key, value in self.members.items()}
        self.members[member.member_id] = member
        self.static_members[member.instance_id] = member.member_id
        if self.leader == old_id:
            self.leader = member.member_id
        if old_id in self.unsynced:
            del self.unsynced[old_id]
            self.unsynced[member.member_id] = None

    def add_pending(self, member_id: str) -> None:
        """Record a member id that was handed out; the client must join again with it."""
        self._remove_pending(member_id)
        self.pending[member_id] = None
        self._pending_bytes += _pending_bytes(member_id)

    def change_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def change_assignments(self, assignments: Mapping[str, bytes]) -> None:
        """Set the assignments of all members; a member without one gets an empty assignment."""
        for member in self.members.values():
            assignment = assignments.get(member.member_id, b"")
            self._members_bytes += len(assignment) - len(member.assignment)
            member.assignment = assignment

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, otherwise elect the first joined member. Returns False if no member has joined."""
        if self.leader is not None and self.leader not in self.joins and self.joins:
            self.leader = next(name for name in self.members if name in self.joins)
        return self.leader in self.joins

    def begin_generation(self, wall_ms: int) -> None:
        """Complete the rebalance: members now wait for the leader's assignment, or the group is empty."""
        self.generation += 1
        self.protocol = self.selected_protocol() if self.members else None
        self.remember_topics()
        self.move_to(ClassicState.COMPLETING_REBALANCE if self.members else ClassicState.EMPTY, wall_ms)
        self.unsynced = {}

    def remember_topics(self) -> None:
        """Cache the topics that the members subscribe to, if they can be parsed."""
        self.subscribed_topics = None
        if not self.uses_consumer_protocol:
            return
        each = [topics_of(member.metadata(self.protocol)) for member in self.members.values()]
        known = [topics for topics in each if topics is not None]
        if len(known) == len(each):
            self.subscribed_topics = frozenset[str]().union(*known)

    def _count(self, member: ClassicMember, sign: int) -> None:
        self._members_bytes += sign * member.size_bytes
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] += sign
            if not self._supporters[name]:
                del self._supporters[name]

    def _remove_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            del self.pending[member_id]
            self._pending_bytes -= _pending_bytes(member_id)

    def _common_protocols(self) -> frozenset[str]:
        each = [{name for name, _ in member.protocols} for member in self.members.values()]
        return frozenset(set.intersection(*each)) if each else frozenset()


def _pending_bytes(member_id: str) -> int:
    return 500 + 2 * len(member_id)


PROTOCOL_TYPE: Final = "consumer"


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """Parse the topics of a "consumer" protocol subscription; None for invalid bytes.

    Source: Apache Kafka's ConsumerProtocolSubscription: a version (int16), then an array of topic names, then data for assignors only.
    """
    try:
        _, count = struct.unpack_from(">hi", metadata, 0)
        position = 6
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            name = metadata[position : position + length]
            if length < 0 or len(name) != length:
                return None
            topics.append(name.decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
