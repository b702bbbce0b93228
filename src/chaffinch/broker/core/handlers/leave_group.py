"""LeaveGroup: members leave a classic group, or a tool removes members of any group."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.handlers.group_responses import log_lines
from chaffinch.errors import codes
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

VERSION_WITH_SEVERAL_MEMBERS = 3


def handle(broker: BrokerState, event: RequestReceived, request: LeaveGroupRequest, steady_ms: int) -> Result:
    if not request.group_id:
        return LeaveGroupResponse(error_code=codes.INVALID_GROUP_ID.number)
    if not broker.is_coordinator(event.node_id, request.group_id):
        return LeaveGroupResponse(error_code=codes.NOT_COORDINATOR.number)
    if event.request.version < VERSION_WITH_SEVERAL_MEMBERS:
        (code,) = broker.groups.leave(request.group_id, [MemberIdentity(member_id=request.member_id)], steady_ms)
        log_lines(broker, steady_ms)
        return LeaveGroupResponse(error_code=code.number)
    results = broker.groups.leave(request.group_id, request.members, steady_ms)
    log_lines(broker, steady_ms)
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code.number)
            for member, code in zip(request.members, results, strict=True)
        ]
    )
