"""DescribeGroups: describes classic groups and their members. Groups of the consumer protocol are not found here: see
ConsumerGroupDescribe.
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.classic_group import ClassicGroup, ClassicMember
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.broker.core.groups.consumer_group import ConsumerGroup
from chaffinch.broker.core.response_size_limit import ResponseSizeLimit
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

VERSION_WITH_NOT_FOUND = 6
DEAD = "Dead"


def handle(broker: BrokerState, event: RequestReceived, request: DescribeGroupsRequest, steady_ms: int) -> Result:
    size_limit = ResponseSizeLimit(broker.settings)
    return DescribeGroupsResponse(
        groups=[size_limit.add(_group(broker, event, group_id, size_limit)) for group_id in dict.fromkeys(request.groups)]
    )


def _group(broker: BrokerState, event: RequestReceived, group_id: str, size_limit: ResponseSizeLimit) -> DescribedGroup:
    if not broker.is_coordinator(event.node_id, group_id):
        return DescribedGroup(group_id=group_id, error_code=codes.NOT_COORDINATOR.number)
    group = broker.groups.find(group_id)
    if isinstance(group, ClassicGroup):
        return _described(group, size_limit)
    if event.request.version < VERSION_WITH_NOT_FOUND:
        return DescribedGroup(group_id=group_id, group_state=DEAD)
    return DescribedGroup(
        group_id=group_id,
        group_state=DEAD,
        error_code=codes.GROUP_ID_NOT_FOUND.number,
        error_message=_not_a_classic_group(group_id, group),
    )


def _not_a_classic_group(group_id: str, group: ConsumerGroup | None) -> str:
    if group is None:
        return f"there is no classic group {group_id!r}"
    return f"group {group_id!r} is not a classic group, it uses the consumer protocol (KIP-848): use ConsumerGroupDescribe"


def _described(group: ClassicGroup, size_limit: ResponseSizeLimit) -> DescribedGroup:
    is_stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[size_limit.add(_member(group, member, is_stable)) for member in group.members.values()],
    )


def _member(group: ClassicGroup, member: ClassicMember, is_stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client.client_id,
        client_host=member.client.host,
        member_metadata=member.metadata(group.protocol) if is_stable else b"",
        member_assignment=member.assignment,
    )
