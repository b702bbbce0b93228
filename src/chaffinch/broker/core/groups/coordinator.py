"""Group coordinator: all groups of the cluster, of either protocol, with their deadlines. Called by the request handlers.

A group is classic or uses the consumer protocol. It changes its protocol when a member of the other kind joins the empty group; unlike
Apache Kafka, groups with members cannot be migrated. A group that only has offsets is a classic group without members. Groups and their
members survive a restart; members must then send a heartbeat within their session timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.groups.assignors import TopicIdPartition
from chaffinch.broker.core.groups.classic_group import ClassicGroup, Client
from chaffinch.broker.core.groups.classic_rebalance import ClassicRebalance
from chaffinch.broker.core.groups.classic_requests import ClassicRequests, JoinResult, SyncResult, refusal
from chaffinch.broker.core.groups.consumer_group import ConsumerGroup, MemberState
from chaffinch.broker.core.groups.consumer_rules import ConsumerRules
from chaffinch.broker.core.groups.consumer_subscriptions import SubscribedTopics, Topics
from chaffinch.broker.core.groups.context import GroupContext, RandomSource, TimerKey, TimerKind
from chaffinch.broker.core.groups.group_journal import Group, GroupJournal
from chaffinch.broker.core.groups.group_options import GroupConfigs
from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.consumer_group_heartbeat import (
    EPOCH_JOIN,
    EPOCH_LEAVE,
    EPOCH_LEAVE_FOR_A_WHILE,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest
from chaffinch.protocol.messages.leave_group import MemberIdentity
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.wall_time import WallTime

DUE_PER_CALL = 100
"""Deadlines processed in one call of `run_due`; the rest follows immediately, after the requests that arrived in the meantime."""

VERSION_OF_CONSUMER_GROUPS = 9
"""First version of OffsetCommit for members of KIP-848 groups."""
TXN_VERSION_WITH_EPOCH_ERRORS = 6
"""First version of TxnOffsetCommit that returns the errors of KIP-848 (KIP-1319)."""
NO_GENERATION = -1

RETRY_MS = 1000
"""Retry interval for removing a member if the journal could not be written (full disk)."""


def not_a_consumer_group(group_id: str, group: Group | None) -> str:
    """Message of GROUP_ID_NOT_FOUND when a KIP-848 group is requested."""
    if group is None or group.is_empty:
        return f"there is no consumer group {group_id!r}"
    uses = "uses the classic protocol (its members have group.protocol=classic)"
    return f"group {group_id!r} is not a consumer group, it {uses}. Stop all its members first, or choose another group.id"


class GroupCoordinator:
    """See the module docstring. A `ScheduledTask` of the broker."""

    def __init__(
        self,
        journal: Journal,
        offsets: GroupOffsets,
        topics: Topics,
        settings: Mapping[str, Any],
        configs: GroupConfigs,
        rng: RandomSource,
        changed: list[Hashable],
        wall: WallTime,
        steady_ms: int,
    ) -> None:
        self.configs = configs
        self._context = GroupContext(settings=settings, configs=configs, rng=rng, changed=changed, wall=wall)
        self._offsets = offsets
        self._journal = GroupJournal(journal)
        self._rebalance = ClassicRebalance(self._context, self._journal)
        self._requests = ClassicRequests(self._context, self._journal, self._rebalance)
        self._consumers = ConsumerRules(self._context, self._journal, SubscribedTopics(topics))
        self._groups = self._journal.load()
        for group_id in offsets.groups():
            self.committed(group_id, steady_ms)
        for loaded in list(self._groups.values()):
            self._begin_sessions(loaded, steady_ms)
            self._note(loaded)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    # The classic protocol -------------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, version: int, client: Client, steady_ms: int) -> JoinResult:
        """Handle JoinGroup; the response may be deferred. A group is created when a client without a member id joins. Raises
        StorageError.
        """
        group = self._groups.get(request.group_id)
        if group is None and request.member_id:
            return refusal(request, codes.UNKNOWN_MEMBER_ID)
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return refusal(request, codes.INCONSISTENT_GROUP_PROTOCOL)
            self._journal.remove(group)
            group = None
        if group is None:
            group = ClassicGroup(group_id=request.group_id, state_since_ms=self._context.wall.at(steady_ms))
            self._groups[request.group_id] = group
        result = self._requests.join(group, request, version, client, steady_ms)
        self._note(group)
        return result

    def sync(self, request: SyncGroupRequest, steady_ms: int) -> SyncResult:
        """Handle SyncGroup; the response may be deferred. Raises StorageError: the group's members must join again."""
        group = self._groups.get(request.group_id)
        if not isinstance(group, ClassicGroup) or group.is_empty:
            return SyncGroupResponse(error_code=codes.UNKNOWN_MEMBER_ID.number)
        try:
            return self._requests.sync(group, request, steady_ms)
        finally:
            self._note(group)

    def heartbeat(self, request: HeartbeatRequest, steady_ms: int) -> ErrorCode:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            return codes.UNKNOWN_MEMBER_ID
        return self._requests.heartbeat(group, request, steady_ms)

    def leave(self, group_id: str, members: list[MemberIdentity], steady_ms: int) -> list[ErrorCode]:
        """Remove members. Returns one result per member."""
        group = self._groups.get(group_id)
        if group is None:
            return [codes.UNKNOWN_MEMBER_ID] * len(members)
        if isinstance(group, ClassicGroup):
            results = self._requests.leave(group, members, steady_ms)
        else:
            results = [self._evict(group, identity) for identity in members]
        self._note(group)
        return results

    def _evict(self, group: ConsumerGroup, identity: MemberIdentity) -> ErrorCode:
        try:
            self._consumers.evict(group, identity)
        except RequestRefused as refused:
            return refused.code
        except StorageError as error:
            self._context.lines.append(f"group {group.group_id!r}: member {identity.member_id!r} cannot be removed: {error}")
            return codes.NOT_COORDINATOR
        return codes.NONE

    # The consumer protocol ------------------------------------------------------------------------------------------------------------

    def consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: Client, steady_ms: int) -> ConsumerGroupHeartbeatResponse:
        """Raises RequestRefused, StorageError."""
        group = self._groups.get(request.group_id)
        former = group if isinstance(group, ClassicGroup) and group.is_empty else None
        if request.member_epoch == EPOCH_JOIN and (group is None or former is not None):
            group = ConsumerGroup(group_id=request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise RequestRefused(codes.GROUP_ID_NOT_FOUND, not_a_consumer_group(request.group_id, group))
        if request.member_epoch in (EPOCH_LEAVE, EPOCH_LEAVE_FOR_A_WHILE):
            answer = self._consumers.leave(group, request)
        else:
            answer = self._consumers.heartbeat(group, request, client, steady_ms)
        if former is not None:  # Its journal entry has been overwritten.
            self._end_pending(former)
        self._groups[request.group_id] = group
        self._note(group)
        return answer

    def _end_pending(self, group: ClassicGroup) -> None:
        for member_id in list(group.pending):
            self._rebalance.forget(group, member_id)

    # Offsets --------------------------------------------------------------------------------------------------------------------------

    def commit_fault(
        self,
        group_id: str,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        partitions: Iterable[TopicIdPartition],
        is_transactional: bool,
        steady_ms: int,
    ) -> ErrorCode:
        """Whether offsets of these partitions may be committed: by a member of the current generation or epoch, or from outside while the
        group is empty.
        """
        supports_epochs = version >= (TXN_VERSION_WITH_EPOCH_ERRORS if is_transactional else VERSION_OF_CONSUMER_GROUPS)
        group = self._groups.get(group_id)
        if group is None:
            if generation < 0:
                return codes.NONE
            return codes.GROUP_ID_NOT_FOUND if supports_epochs else codes.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            code = self._requests.commit_fault(group, member_id, instance_id, generation, is_transactional=is_transactional)
            if code is codes.NONE and not is_transactional:
                self._requests.committed(group, member_id, steady_ms)
            return code
        is_anonymous = generation == NO_GENERATION and not member_id and instance_id is None
        if (generation < 0 and group.is_empty) or (is_transactional and is_anonymous):
            return codes.NONE
        member = group.members.get(member_id)
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        if not is_transactional and not supports_epochs:
            return codes.UNSUPPORTED_VERSION
        if member.may_commit(generation, partitions):
            return codes.NONE
        return codes.STALE_MEMBER_EPOCH if supports_epochs else codes.ILLEGAL_GENERATION

    def fetch_fault(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """For OffsetFetch: whether a consumer group member that identifies itself exists and sent the current epoch."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or (member_id is None and epoch < 0):
            return codes.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        return codes.NONE if member.epoch == epoch else codes.STALE_MEMBER_EPOCH

    def committed(self, group_id: str, steady_ms: int) -> None:
        """After a commit: create the group if it does not exist."""
        if group_id not in self._groups:
            self._groups[group_id] = ClassicGroup(group_id=group_id, state_since_ms=self._context.wall.at(steady_ms))

    # Deleting groups ------------------------------------------------------------------------------------------------------------------

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group and its offsets. 69: it does not exist; 68: it has members. Raises StorageError."""
        group = self._groups.get(group_id)
        if group is None:
            return codes.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return codes.NON_EMPTY_GROUP
        self._offsets.forget_group(group_id)
        self.forget(group)
        return codes.NONE

    def forget(self, group: Group) -> None:
        """Delete a group without members and offsets. Raises StorageError."""
        self._journal.remove(group)
        if isinstance(group, ClassicGroup):
            self._end_pending(group)
        del self._groups[group.group_id]
        self._context.memory.note(group.group_id, 0)

    # Deadlines ------------------------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        return self._context.timers.next_deadline_ms

    def run_due(self, steady_ms: int) -> Sequence[str | LogLine]:
        """Remove members whose sessions timed out, and continue rebalances whose deadlines passed. Returns lines to log."""
        for _ in range(DUE_PER_CALL):
            key = self._context.timers.due(steady_ms)
            if key is None:
                break
            group = self._groups.get(key.group_id)
            if group is not None:
                self._due(group, key, steady_ms)
                self._note(group)
        return self.take_log_lines()

    def take_log_lines(self) -> list[str | LogLine]:
        """The lines to log since the last call."""
        lines, self._context.lines[:] = list(self._context.lines), []
        return lines

    def _due(self, group: Group, key: TimerKey, steady_ms: int) -> None:
        if isinstance(group, ClassicGroup):
            _CLASSIC_DUE[key.kind](self._rebalance, group, key.member_id, steady_ms)
            return
        member = group.members.get(key.member_id)
        if member is None or (key.kind is TimerKind.REVOCATION and member.state is not MemberState.UNREVOKED):
            return
        text = f"group {group.group_id!r}: member {member.member_id!r} is removed: {_REASONS[key.kind]}"
        self._context.lines.append(LogLine(text, is_routine=True))
        try:
            self._consumers.remove(group, member.member_id)
        except StorageError as error:
            self._context.lines.append(f"group {group.group_id!r}: the removal cannot be written: {error}")
            self._context.timers.schedule(key, steady_ms + RETRY_MS)

    # Internal -------------------------------------------------------------------------------------------------------------------------

    def _note(self, group: Group) -> None:
        """Record a group's memory. A group that no client ever joined is dropped: many such groups must not fill the memory."""
        self._context.memory.note(group.group_id, group.size_bytes)
        if isinstance(group, ClassicGroup) and group.was_never_used and not self._offsets.has_offsets(group.group_id):
            self._groups.pop(group.group_id, None)

    def _begin_sessions(self, group: Group, steady_ms: int) -> None:
        timers = self._context.timers
        if isinstance(group, ClassicGroup):
            for member_id in group.members:
                self._rebalance.extend_session(group, member_id, steady_ms)
            return
        session_ms = self.configs.session_timeout_ms(group.group_id)
        for member in group.members.values():
            timers.schedule(TimerKey(group.group_id, TimerKind.SESSION, member.member_id), steady_ms + session_ms)
            if member.state is MemberState.UNREVOKED:
                deadline_ms = steady_ms + member.rebalance_timeout_ms
                timers.schedule(TimerKey(group.group_id, TimerKind.REVOCATION, member.member_id), deadline_ms)


_CLASSIC_DUE: Mapping[TimerKind, Callable[[ClassicRebalance, ClassicGroup, str, int], None]] = {
    TimerKind.SESSION: lambda rebalance, group, member_id, steady_ms: rebalance.session_due(group, member_id, steady_ms),
    TimerKind.JOIN: lambda rebalance, group, _, steady_ms: rebalance.join_due(group, steady_ms),
    TimerKind.SYNC: lambda rebalance, group, _, steady_ms: rebalance.sync_due(group, steady_ms),
}

_REASONS: Mapping[TimerKind, str] = {
    TimerKind.SESSION: "its session timed out",
    TimerKind.REVOCATION: "it did not revoke partitions in time",
}
