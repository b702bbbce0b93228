"""Rebalance of a classic group: waits for members to join, completes their delayed responses, stores assignments, removes members.

Follows Apache Kafka's GroupMetadataManager. The time is passed in; deadlines are kept in `Timers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.broker.core.groups.context import GroupContext, TimerKey, TimerKind
from chaffinch.broker.core.groups.group_journal import GroupJournal
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.join_group import JoinGroupResponse
from chaffinch.protocol.messages.sync_group import SyncGroupResponse
from chaffinch.storage.file_system import StorageError


class ClassicRebalance:
    """The state transitions of classic groups."""

    def __init__(self, context: GroupContext, journal: GroupJournal) -> None:
        self._context = context
        self._journal = journal

    # Before members have joined --------------------------------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, steady_ms: int) -> None:
        """After a change: start a rebalance, or complete the current one if possible."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, steady_ms)
        else:
            self.prepare(group, steady_ms)

    def prepare(self, group: ClassicGroup, steady_ms: int) -> None:
        """Start a rebalance: every member must join again. The first rebalance of a group waits a moment for more members."""
        if group.state is ClassicState.COMPLETING_REBALANCE:
            self._drop_assignments(group, steady_ms, codes.REBALANCE_IN_PROGRESS)
        group.unsynced = {}
        self._context.timers.cancel(TimerKey(group.group_id, TimerKind.SYNC))
        is_initial = group.state is ClassicState.EMPTY
        group.move_to(ClassicState.PREPARING_REBALANCE, self._context.wall.at(steady_ms))
        if is_initial:
            delay_ms = self._initial_delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_newcomer = False
            self._schedule(group, TimerKind.JOIN, steady_ms + delay_ms)
        elif group.has_all_joined:
            self._complete(group, steady_ms)
        else:
            self._schedule(group, TimerKind.JOIN, steady_ms + group.rebalance_timeout_ms)

    def complete_if_all_joined(self, group: ClassicGroup, steady_ms: int) -> None:
        """Complete a rebalance if all members have joined, unless it is the group's first."""
        is_waiting = group.state is ClassicState.PREPARING_REBALANCE and group.initial_remaining_ms is None
        if is_waiting and group.has_all_joined:
            self._complete(group, steady_ms)

    def join_due(self, group: ClassicGroup, steady_ms: int) -> None:
        """The join deadline has passed. In a group's first rebalance each new member extends it, up to the rebalance timeout."""
        remaining_ms = group.initial_remaining_ms
        if remaining_ms and group.has_newcomer:
            group.has_newcomer = False
            delay_ms = min(self._initial_delay_ms, remaining_ms)
            group.initial_remaining_ms = remaining_ms - delay_ms
            self._schedule(group, TimerKind.JOIN, steady_ms + delay_ms)
        else:
            self._complete(group, steady_ms)

    # The new generation -----------------------------------------------------------------------------------------------------------------

    def _complete(self, group: ClassicGroup, steady_ms: int) -> None:
        """Form the next generation of the members that joined; static members stay even if they did not join."""
        self._context.timers.cancel(TimerKey(group.group_id, TimerKind.JOIN))
        absent = [name for name, member in group.members.items() if name not in group.joins and member.instance_id is None]
        for member_id in absent:
            self._remove(group, member_id, "it did not join again in time")
        if group.members and not group.elect_leader():
            # Only static members, and none has joined: their session timeouts decide.
            self._schedule(group, TimerKind.JOIN, steady_ms + group.rebalance_timeout_ms)
            return
        group.initial_remaining_ms = None
        group.begin_generation(self._context.wall.at(steady_ms))
        if group.members:
            self._complete_joins(group, steady_ms)
            group.unsynced = dict.fromkeys(group.members)
            self._schedule(group, TimerKind.SYNC, steady_ms + group.rebalance_timeout_ms)
            return
        try:
            self._journal.put_classic(group, (), {})
        except StorageError as error:
            # After a restart the previous generation would be loaded; its members' sessions then time out.
            self._context.lines.append(f"group {group.group_id!r}: cannot store that the group is empty: {error}")

    def _complete_joins(self, group: ClassicGroup, steady_ms: int) -> None:
        joins, group.joins = group.joins, {}
        for member in group.members.values():
            deferred = joins.get(member.member_id)
            if deferred is not None:
                self._context.answer(deferred, current_generation(group, member.member_id))
            member.is_new = False
            self.extend_session(group, member.member_id, steady_ms)

    # Assignments ------------------------------------------------------------------------------------------------------------------------

    def assign(self, group: ClassicGroup, assignments: Mapping[str, bytes], steady_ms: int) -> None:
        """Store the leader's assignment, then complete the SyncGroup responses. Raises StorageError: all members must join again."""
        since_ms, group.state_since_ms = group.state_since_ms, self._context.wall.at(steady_ms)
        try:
            self._journal.put_classic(group, group.members.values(), assignments)
        except StorageError:
            group.state_since_ms = since_ms
            self._drop_assignments(group, steady_ms, codes.NOT_COORDINATOR)
            self.prepare(group, steady_ms)
            raise
        group.change_assignments(assignments)
        group.move_to(ClassicState.STABLE, group.state_since_ms)
        for member_id, deferred in list(group.syncs.items()):
            self._context.answer(deferred, current_assignment(group, member_id))
            self.extend_session(group, member_id, steady_ms)
        group.syncs = {}

    def mark_synced(self, group: ClassicGroup, member_id: str) -> None:
        """Record that the member has fetched its assignment."""
        group.unsynced.pop(member_id, None)
        if not group.unsynced:
            self._context.timers.cancel(TimerKey(group.group_id, TimerKind.SYNC))

    def sync_due(self, group: ClassicGroup, steady_ms: int) -> None:
        """Remove the members that joined but did not fetch their assignment in time."""
        if group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE) and group.unsynced:
            for member_id in list(group.unsynced):
                self._remove(group, member_id, "it did not request its assignment in time")
            self.prepare(group, steady_ms)

    def _drop_assignments(self, group: ClassicGroup, steady_ms: int, code: ErrorCode) -> None:
        group.change_assignments({})
        for member_id, deferred in list(group.syncs.items()):
            self._context.answer(deferred, SyncGroupResponse(error_code=code.number))
            self.extend_session(group, member_id, steady_ms)
        group.syncs = {}

    # Removing members -------------------------------------------------------------------------------------------------------------------

    def session_due(self, group: ClassicGroup, member_id: str, steady_ms: int) -> None:
        """The session of a member or pending member has expired. Members that wait for a response are kept, unless they are new."""
        if member_id in group.pending:
            group.remove(member_id)
            self.complete_if_all_joined(group, steady_ms)
            return
        member = group.members.get(member_id)
        if member is None or (not member.is_new and (member_id in group.joins or member_id in group.syncs)):
            return
        self._remove(group, member_id, "its session timed out")
        self.after_removal(group, steady_ms)

    def after_removal(self, group: ClassicGroup, steady_ms: int) -> None:
        """After members were removed: rebalance the others."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, steady_ms)
        elif group.state is not ClassicState.EMPTY:
            self.prepare(group, steady_ms)

    def _remove(self, group: ClassicGroup, member_id: str, reason: str) -> None:
        self._context.lines.append(LogLine(f"group {group.group_id!r}: member {member_id!r} is removed: {reason}", is_routine=True))
        self.forget(group, member_id)

    def forget(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member without a log line; its deferred responses fail with UNKNOWN_MEMBER_ID."""
        self.fail_deferred(group, member_id, codes.UNKNOWN_MEMBER_ID)
        group.remove(member_id)
        self._context.timers.cancel(TimerKey(group.group_id, TimerKind.SESSION, member_id))

    def fail_deferred(self, group: ClassicGroup, member_id: str, code: ErrorCode) -> None:
        join, sync = group.joins.pop(member_id, None), group.syncs.pop(member_id, None)
        if join is not None:
            self._context.answer(join, JoinGroupResponse(error_code=code.number))
        if sync is not None:
            self._context.answer(sync, SyncGroupResponse(error_code=code.number))

    def extend_session(self, group: ClassicGroup, member_id: str, steady_ms: int) -> None:
        """Restart the member's session timeout."""
        timeout_ms = group.members[member_id].session_timeout_ms
        self._context.timers.schedule(TimerKey(group.group_id, TimerKind.SESSION, member_id), steady_ms + timeout_ms)

    @property
    def _initial_delay_ms(self) -> int:
        delay_ms: int = self._context.settings["group.initial.rebalance.delay.ms"]
        return delay_ms

    def _schedule(self, group: ClassicGroup, kind: TimerKind, deadline_ms: int) -> None:
        self._context.timers.schedule(TimerKey(group.group_id, kind), deadline_ms)


def current_generation(group: ClassicGroup, member_id: str, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The JoinGroup response of a member; the leader also receives the list of members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=group.members_for_leader() if group.leader == member_id else [],
    )


def current_assignment(group: ClassicGroup, member_id: str) -> SyncGroupResponse:
    """The SyncGroup response of a member of a stable group."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=group.members[member_id].assignment
    )
