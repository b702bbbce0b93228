"""SyncGroup, Heartbeat and LeaveGroup of classic groups, and whether a member may commit offsets. Follows Apache Kafka's ClassicGroup."""

from __future__ import annotations

from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.broker.core.groups.classic_rebalance import ClassicRebalance, current_assignment
from chaffinch.broker.core.groups.classic_states import HEARTBEAT, KEEPS_SESSION_ON_COMMIT, SYNC, ClassicState, Sync
from chaffinch.broker.core.groups.context import GroupContext
from chaffinch.broker.core.groups.tickets import Ticket
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.leave_group import MemberIdentity
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

SyncResult = SyncGroupResponse | Ticket[SyncGroupResponse]


class ClassicRequests:
    """The rules of what members say once they are members."""

    def __init__(self, context: GroupContext, rebalance: ClassicRebalance) -> None:
        self._context = context
        self._rebalance = rebalance

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, now_ms: int) -> SyncResult:
        """Raises StorageError when what the leader says cannot be written: all have to join again."""
        code = self._sync_fault(group, request)
        if code is not codes.NONE:
            return SyncGroupResponse(error_code=code.number)
        step = SYNC[group.state]
        if step is Sync.REFUSE:
            return SyncGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS.number)
        self._rebalance.synced(group, request.member_id)
        if step is Sync.CURRENT:
            return current_assignment(group, request.member_id)
        earlier = group.syncs.pop(request.member_id, None)
        if earlier is not None:
            self._context.answer(earlier, SyncGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS.number))
        ticket = group.syncs[request.member_id] = Ticket[SyncGroupResponse]()
        if group.leader == request.member_id:
            assignments = {assigned.member_id: bytes(assigned.assignment) for assigned in request.assignments}
            self._rebalance.assign(group, assignments, now_ms)
        return ticket

    def _sync_fault(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        """25, 82: not a member; 22: of another generation; 23: it believes in another protocol; 81: the assignments are too large."""
        code = group.member_fault(request.member_id, request.group_instance_id)
        if code is not codes.NONE:
            return code
        if request.generation_id != group.generation:
            return codes.ILLEGAL_GENERATION
        for named, known in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
            if named is not None and known is not None and named != known:
                return codes.INCONSISTENT_GROUP_PROTOCOL
        if not self._context.memory.has_room(sum(len(assigned.assignment) for assigned in request.assignments)):
            return codes.GROUP_MAX_SIZE_REACHED
        return codes.NONE

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        code = group.member_fault(request.member_id, request.group_instance_id)
        if code is not codes.NONE:
            return code
        if request.generation_id != group.generation:
            return codes.ILLEGAL_GENERATION
        self._rebalance.keep_session(group, request.member_id, now_ms)
        return HEARTBEAT[group.state]

    def leave(self, group: ClassicGroup, members: list[MemberIdentity], now_ms: int) -> list[ErrorCode]:
        """Each member's own result; the rebalance begins once, after all have gone."""
        results = [self._leave_one(group, identity) for identity in members]
        if codes.NONE in results:
            self._rebalance.after_removal(group, now_ms)
        return results

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        """A static member may be sent away by its instance id alone."""
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
        """22, 25, 82 for who is no member of the current generation; 27 between joining and the assignment.

        Without any of the three, offsets come from outside of the group: only while it is empty, or in a transaction of an old client.
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

    def committed(self, group: ClassicGroup, member_id: str, now_ms: int) -> None:
        """A member's commit counts as a heartbeat."""
        if group.state in KEEPS_SESSION_ON_COMMIT and member_id in group.members:
            self._rebalance.keep_session(group, member_id, now_ms)
