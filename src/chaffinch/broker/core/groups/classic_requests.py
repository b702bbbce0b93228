"""Requests of classic group members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the check of offset commits.

JoinGroup decides who becomes a member, and whether the others must join again. It follows Apache Kafka's GroupMetadataManager: clients
first receive a member id (KIP-394), static members return to their former slot (KIP-345), a returning leader with an unchanged subscription
may skip the assignment (KIP-814). The other requests follow its ClassicGroup.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chaffinch.broker.core.groups.classic_group import ClassicGroup, ClassicMember, Client, Protocols
from chaffinch.broker.core.groups.classic_rebalance import ClassicRebalance, current_assignment, current_generation
from chaffinch.broker.core.groups.classic_states import HEARTBEAT, KEEPS_SESSION_ON_COMMIT, REJOIN, SYNC, ClassicState, Rejoin, Sync
from chaffinch.broker.core.groups.context import Deferred, GroupContext, TimerKey, TimerKind
from chaffinch.broker.core.groups.group_journal import GroupJournal
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from chaffinch.protocol.messages.leave_group import MemberIdentity
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

VERSION_WITH_MEMBER_ID: Final = 4
VERSION_WITH_SKIP_ASSIGNMENT: Final = 9

NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait for its first generation; before that it has no id to send heartbeats with."""

JoinResult = JoinGroupResponse | Deferred[JoinGroupResponse]
SyncResult = SyncGroupResponse | Deferred[SyncGroupResponse]


class ClassicRequests:
    """Handles requests of classic group members."""

    def __init__(self, context: GroupContext, journal: GroupJournal, rebalance: ClassicRebalance) -> None:
        self._context = context
        self._journal = journal
        self._rebalance = rebalance

    def join(self, group: ClassicGroup, request: JoinGroupRequest, version: int, client: Client, steady_ms: int) -> JoinResult:
        """Handle JoinGroup; the response may be deferred. The request's fields are already validated. Raises StorageError: then nothing has
        changed.
        """
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        code = self._fault(group, request, protocols)
        if code is not codes.NONE:
            if code is codes.GROUP_MAX_SIZE_REACHED:
                self._reject_full(group, request.member_id, steady_ms)
            return refusal(request, code)
        if request.member_id:
            return self._rejoin(group, request, protocols, client, steady_ms)
        member_id = f"{request.group_instance_id or client.client_id}-{self._context.new_id()}"
        if request.group_instance_id is not None and request.group_instance_id in group.static_members:
            return self._rejoin_static(group, request, protocols, member_id, version, steady_ms)
        if request.group_instance_id is None and version >= VERSION_WITH_MEMBER_ID:
            group.add_pending(member_id)
            self._context.timers.schedule(
                TimerKey(group.group_id, TimerKind.SESSION, member_id), steady_ms + max(request.session_timeout_ms, 0)
            )
            return JoinGroupResponse(error_code=codes.MEMBER_ID_REQUIRED.number, member_id=member_id, protocol_name=None)
        return self._add(group, request, protocols, member_id, client, steady_ms)

    def _fault(self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols) -> ErrorCode:
        """81: the group is full; 23: the member's protocols are incompatible with the others."""
        size_bytes = sum(len(name) + len(metadata) for name, metadata in protocols)
        if not self._has_free_slot(group, request.member_id) or not self._context.memory.has_capacity(size_bytes):
            return codes.GROUP_MAX_SIZE_REACHED
        if not group.supports(request.protocol_type, protocols):
            return codes.INCONSISTENT_GROUP_PROTOCOL
        return codes.NONE

    def _has_free_slot(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has a free slot for this member. During a rebalance only joined members count, which also enforces a lowered
        limit. A pending member that never joins occupies no slot.
        """
        size_max: int = self._context.settings["group.max.size"]
        if group.state is ClassicState.EMPTY:
            return True
        if group.state is ClassicState.PREPARING_REBALANCE:
            return member_id in group.joins or len(group.joins) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _reject_full(self, group: ClassicGroup, member_id: str, steady_ms: int) -> None:
        """A member that is refused because the group is full gives up: the others need not wait for it, nor rebalance if it was not a
        member yet.
        """
        if member_id in group.members:
            self._rebalance.forget(group, member_id)
            self._rebalance.after_removal(group, steady_ms)
        elif member_id in group.pending:
            self._rebalance.forget(group, member_id)
            self._rebalance.complete_if_all_joined(group, steady_ms)

    # New members ------------------------------------------------------------------------------------------------------------------------

    def _add(
        self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, member_id: str, client: Client, steady_ms: int
    ) -> JoinResult:
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client=client,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
            is_new=True,
        )
        if group.initial_remaining_ms is not None:
            group.has_newcomer = True
        group.add(member, request.protocol_type)
        deferred = self._wait(group, member_id)
        self._context.timers.schedule(TimerKey(group.group_id, TimerKind.SESSION, member_id), steady_ms + NEW_MEMBER_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(group, steady_ms)
        return deferred

    # Rejoining members --------------------------------------------------------------------------------------------------------------------

    def _rejoin(self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, client: Client, steady_ms: int) -> JoinResult:
        member_id = request.member_id
        if member_id in group.pending and request.group_instance_id is None:
            return self._add(group, request, protocols, member_id, client, steady_ms)
        code = group.member_fault(member_id, request.group_instance_id)
        if code is not codes.NONE:
            return refusal(request, code)
        member = group.members[member_id]
        is_leader = group.state is ClassicState.STABLE and group.leader == member_id
        step = REJOIN[group.state, is_leader or member.protocols != protocols]
        if step is Rejoin.UNKNOWN:
            return refusal(request, codes.UNKNOWN_MEMBER_ID)
        if step is Rejoin.CURRENT:
            return current_generation(group, member_id)
        group.change_protocols(member, protocols)
        _update(member, request)
        deferred = self._wait(group, member_id)
        self._rebalance.prepare_or_complete(group, steady_ms)
        return deferred

    # Static members -----------------------------------------------------------------------------------------------------------------------

    def _rejoin_static(
        self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, member_id: str, version: int, steady_ms: int
    ) -> JoinResult:
        """A static member was restarted: it replaces its former self under a new member id, and a client still using the old id is
        fenced.
        """
        old_id = group.static_members[request.group_instance_id or ""]
        old, old_leader = group.members[old_id], group.leader
        new = replace(old, member_id=member_id, protocols=protocols)
        _update(new, request)
        members = [new if member is old else member for member in group.members.values()]
        is_quiet = group.state is ClassicState.STABLE and _selected(members) == group.protocol
        if is_quiet:
            self._journal.put_classic(
                _led_by(group, old_id, member_id), members, {member.member_id: member.assignment for member in members}
            )
        self._rebalance.fail_deferred(group, old_id, codes.FENCED_INSTANCE_ID)
        group.replace_static(old_id, new)
        self._context.timers.cancel(TimerKey(group.group_id, TimerKind.SESSION, old_id))
        self._rebalance.extend_session(group, member_id, steady_ms)
        if not is_quiet:
            deferred = self._wait(group, member_id)
            self._rebalance.prepare_or_complete(group, steady_ms)
            return deferred
        if version >= VERSION_WITH_SKIP_ASSIGNMENT:
            return current_generation(group, member_id, skip_assignment=group.leader == member_id)
        # Return the old leader's id, so that a returning leader considers itself a follower and does not assign again.
        answer = current_generation(group, member_id)
        return answer.replace(leader=old_leader or "", members=[])

    def _wait(self, group: ClassicGroup, member_id: str) -> Deferred[JoinGroupResponse]:
        """Create a deferred JoinGroup response. An earlier one of this member fails, since the client no longer waits for it."""
        earlier = group.joins.pop(member_id, None)
        if earlier is not None:
            self._context.answer(earlier, JoinGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS.number, member_id=member_id))
        deferred = group.joins[member_id] = Deferred[JoinGroupResponse]()
        return deferred

    # Requests of members ----------------------------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, steady_ms: int) -> SyncResult:
        """Handle SyncGroup. Raises StorageError if the assignment cannot be stored: all members must join again."""
        code = self._sync_fault(group, request)
        if code is not codes.NONE:
            return SyncGroupResponse(error_code=code.number)
        step = SYNC[group.state]
        if step is Sync.REFUSE:
            return SyncGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS.number)
        self._rebalance.mark_synced(group, request.member_id)
        if step is Sync.CURRENT:
            return current_assignment(group, request.member_id)
        earlier = group.syncs.pop(request.member_id, None)
        if earlier is not None:
            self._context.answer(earlier, SyncGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS.number))
        deferred = group.syncs[request.member_id] = Deferred[SyncGroupResponse]()
        if group.leader == request.member_id:
            assignments = {assigned.member_id: bytes(assigned.assignment) for assigned in request.assignments}
            self._rebalance.assign(group, assignments, steady_ms)
        return deferred

    def _sync_fault(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        """25, 82: not a member; 22: other generation; 23: other protocol; 81: the assignments are too large."""
        code = group.member_fault(request.member_id, request.group_instance_id)
        if code is not codes.NONE:
            return code
        if request.generation_id != group.generation:
            return codes.ILLEGAL_GENERATION
        for named, known in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
            if named is not None and known is not None and named != known:
                return codes.INCONSISTENT_GROUP_PROTOCOL
        if not self._context.memory.has_capacity(sum(len(assigned.assignment) for assigned in request.assignments)):
            return codes.GROUP_MAX_SIZE_REACHED
        return codes.NONE

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, steady_ms: int) -> ErrorCode:
        code = group.member_fault(request.member_id, request.group_instance_id)
        if code is not codes.NONE:
            return code
        if request.generation_id != group.generation:
            return codes.ILLEGAL_GENERATION
        self._rebalance.extend_session(group, request.member_id, steady_ms)
        return HEARTBEAT[group.state]

    def leave(self, group: ClassicGroup, members: list[MemberIdentity], steady_ms: int) -> list[ErrorCode]:
        """Remove members. Returns one result per member; a single rebalance follows."""
        results = [self._leave_one(group, identity) for identity in members]
        if codes.NONE in results:
            self._rebalance.after_removal(group, steady_ms)
        return results

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        """Remove one member; a static member may be named by its instance id alone."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        if member_id not in group.pending:
            code = group.member_fault(member_id, instance_id)
            if code is not codes.NONE:
                return code
        self._rebalance.forget(group, member_id)
        return codes.NONE

    def commit_fault(
        self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, *, is_transactional: bool
    ) -> ErrorCode:
        """22, 25, 82 if the sender is not a member of the current generation; 27 between joining and the assignment.

        Commits without member id, instance id and generation come from outside the group: they are allowed only while it is empty, or in a
        transaction of an old client.
        """
        is_empty = group.state is ClassicState.EMPTY
        if generation < 0 and is_empty:
            return codes.NONE
        if generation >= 0 or member_id or instance_id is not None:
            code = group.member_fault(member_id, instance_id)
            if code is not codes.NONE:
                return code
            if generation != group.generation:
                return codes.ILLEGAL_GENERATION
        elif not is_transactional:
            return codes.UNKNOWN_MEMBER_ID
        if not is_transactional and group.state is ClassicState.COMPLETING_REBALANCE:
            return codes.REBALANCE_IN_PROGRESS
        return codes.NONE

    def committed(self, group: ClassicGroup, member_id: str, steady_ms: int) -> None:
        """An offset commit of a member counts as a heartbeat."""
        if group.state in KEEPS_SESSION_ON_COMMIT and member_id in group.members:
            self._rebalance.extend_session(group, member_id, steady_ms)


def refusal(request: JoinGroupRequest, code: ErrorCode) -> JoinGroupResponse:
    """A refused JoinGroup. For a full group the response has no member id, as in Kafka."""
    member_id = "" if code is codes.GROUP_MAX_SIZE_REACHED else request.member_id
    return JoinGroupResponse(error_code=code.number, member_id=member_id, protocol_name=None)


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """The rebalance timeout; version 0 has none and uses the session timeout."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def _update(member: ClassicMember, request: JoinGroupRequest) -> None:
    member.rebalance_timeout_ms = rebalance_timeout_ms(request)
    member.session_timeout_ms = request.session_timeout_ms


def _selected(members: list[ClassicMember]) -> str:
    return ClassicGroup(group_id="", state_since_ms=0, members={member.member_id: member for member in members}).selected_protocol()


def _led_by(group: ClassicGroup, old_id: str, new_id: str) -> ClassicGroup:
    """A copy of the group with the new leader, for its journal entry."""
    return replace(group, leader=new_id if group.leader == old_id else group.leader)
