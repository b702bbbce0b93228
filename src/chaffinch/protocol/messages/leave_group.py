"""LeaveGroup (key 13): members leave, or are removed (classic protocol).

Versions 0-5. Version 1 adds the throttle time; 3 names several members, static ones too (KIP-345); 4 is the first flexible one; 5 gives a
reason (KIP-800).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class MemberIdentity(Message):
    """A leaving member; a static one may be identified by its instance id alone."""

    member_id: str = wire(String, since=3)
    group_instance_id: str | None = wire(String, since=3, nullable_since=3, default=None)
    reason: str | None = wire(String, since=5, nullable_since=5, default=None)


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible_since=4):
    """`member_id` up to version 2, `members` from 3 on."""

    group_id: str = wire(String)
    member_id: str = wire(String, until=2)
    members: list[MemberIdentity] = wire(Array(MemberIdentity), since=3)


class MemberResponse(Message):
    """Result of one member."""

    member_id: str = wire(String, since=3)
    group_instance_id: str | None = wire(String, since=3, nullable_since=3, default=None)
    error_code: int = wire(Int16, since=3)


class LeaveGroupResponse(Message, api_key=13, versions=(0, 5), flexible_since=4):
    """Up to version 2 the member's error is the response's own."""

    throttle_time_ms: int = wire(Int32, since=1)
    error_code: int = wire(Int16)
    members: list[MemberResponse] = wire(Array(MemberResponse), since=3)
