"""JoinGroup (key 11): become a member of a group's next generation (classic protocol).

Versions 0-9. Version 1 adds the rebalance timeout; 4 requires new members to rejoin with the id they received (KIP-394); 5 static members
(KIP-345); 6 is the first flexible one; 7 returns the protocol type (KIP-559); 8 has a reason (KIP-800); 9 may make the leader skip the
assignment (KIP-814).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Buffer, Bytes, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class JoinGroupRequestProtocol(Message):
    """One assignor that the member supports, with its metadata for the leader."""

    name: str = wire(String)
    metadata: Buffer = wire(Bytes)


class JoinGroupRequest(Message, api_key=11, versions=(0, 9), flexible_since=6):
    """`protocols` in order of preference; `member_id` is empty for a new member."""

    group_id: str = wire(String)
    session_timeout_ms: int = wire(Int32)
    rebalance_timeout_ms: int = wire(Int32, since=1, default=-1)
    member_id: str = wire(String)
    group_instance_id: str | None = wire(String, since=5, nullable_since=5, default=None, essential=True)
    protocol_type: str = wire(String)
    protocols: list[JoinGroupRequestProtocol] = wire(Array(JoinGroupRequestProtocol))
    reason: str | None = wire(String, since=8, nullable_since=8, default=None)


class JoinGroupResponseMember(Message):
    """A member as the leader sees it, with its metadata for the protocol chosen."""

    member_id: str = wire(String)
    group_instance_id: str | None = wire(String, since=5, nullable_since=5, default=None)
    metadata: Buffer = wire(Bytes)


class JoinGroupResponse(Message, api_key=11, versions=(0, 9), flexible_since=6):
    """`members` for the leader only."""

    throttle_time_ms: int = wire(Int32, since=2)
    error_code: int = wire(Int16)
    generation_id: int = wire(Int32, default=-1)
    protocol_type: str | None = wire(String, since=7, nullable_since=7, default=None)
    protocol_name: str | None = wire(String, nullable_since=7)
    leader: str = wire(String)
    skip_assignment: bool = wire(Bool, since=9)
    member_id: str = wire(String)
    members: list[JoinGroupResponseMember] = wire(Array(JoinGroupResponseMember))
