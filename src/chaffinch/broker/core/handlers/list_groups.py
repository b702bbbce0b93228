"""ListGroups: lists the groups that this node coordinates, filtered by state and type (KIP-518, KIP-848)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.classic_group import PROTOCOL_TYPE, ClassicGroup
from chaffinch.broker.core.groups.group_journal import Group
from chaffinch.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(broker: BrokerState, event: RequestReceived, request: ListGroupsRequest, steady_ms: int) -> Result:
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    listed = [_listed(group) for group in broker.groups if broker.is_coordinator(event.node_id, group.group_id)]
    return ListGroupsResponse(
        groups=[
            group
            for group in listed
            if (not states or group.group_state.lower() in states) and (not types or group.group_type.lower() in types)
        ]
    )


def _listed(group: Group) -> ListedGroup:
    is_classic = isinstance(group, ClassicGroup)
    protocol_type = (group.protocol_type or "") if isinstance(group, ClassicGroup) else PROTOCOL_TYPE
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=protocol_type,
        group_state=group.state.value,
        group_type="classic" if is_classic else "consumer",
    )
