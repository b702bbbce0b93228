"""DescribeGroups (key 15): classic groups with their members.

Versions 0-6. Version 1 adds the throttle time; 3 authorized operations (KIP-430); 4 static members (KIP-345); 5 is the first flexible one;
6 returns GROUP_ID_NOT_FOUND, with a message, where earlier versions show a dead group (KIP-1043).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Buffer, Bytes, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible_since=5):
    """Sent to the groups' coordinator."""

    groups: list[str] = wire(Array(String))
    include_authorized_operations: bool = wire(Bool, since=3)


class DescribedGroupMember(Message):
    """`member_metadata` and `member_assignment` while the group is stable."""

    member_id: str = wire(String)
    group_instance_id: str | None = wire(String, since=4, nullable_since=4, default=None)
    client_id: str = wire(String)
    client_host: str = wire(String)
    member_metadata: Buffer = wire(Bytes)
    member_assignment: Buffer = wire(Bytes)


class DescribedGroup(Message):
    """`protocol_data` is the protocol chosen, while the group is stable."""

    error_code: int = wire(Int16)
    error_message: str | None = wire(String, since=6, nullable_since=6, default=None)
    group_id: str = wire(String)
    group_state: str = wire(String)
    protocol_type: str = wire(String)
    protocol_data: str = wire(String)
    members: list[DescribedGroupMember] = wire(Array(DescribedGroupMember))
    authorized_operations: int = wire(Int32, since=3, default=-(1 << 31))


class DescribeGroupsResponse(Message, api_key=15, versions=(0, 6), flexible_since=5):
    """One entry per requested group."""

    throttle_time_ms: int = wire(Int32, since=1)
    groups: list[DescribedGroup] = wire(Array(DescribedGroup))
