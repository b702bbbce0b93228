"""SyncGroup (key 14): the leader sends all assignments, the other members receive theirs (classic protocol).

Versions 0-5. Version 1 adds the throttle time; 3 static members (KIP-345); 4 is the first flexible one; 5 checks protocol type and name
(KIP-559).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Buffer, Bytes, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class SyncGroupRequestAssignment(Message):
    """The assignment of one member, as encoded by the group's protocol."""

    member_id: str = wire(String)
    assignment: Buffer = wire(Bytes)


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible_since=4):
    """`assignments` from the leader only."""

    group_id: str = wire(String)
    generation_id: int = wire(Int32)
    member_id: str = wire(String)
    group_instance_id: str | None = wire(String, since=3, nullable_since=3, default=None, essential=True)
    protocol_type: str | None = wire(String, since=5, nullable_since=5, default=None)
    protocol_name: str | None = wire(String, since=5, nullable_since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = wire(Array(SyncGroupRequestAssignment))


class SyncGroupResponse(Message, api_key=14, versions=(0, 5), flexible_since=4):
    """The assignment of the requesting member."""

    throttle_time_ms: int = wire(Int32, since=1)
    error_code: int = wire(Int16)
    protocol_type: str | None = wire(String, since=5, nullable_since=5, default=None)
    protocol_name: str | None = wire(String, since=5, nullable_since=5, default=None)
    assignment: Buffer = wire(Bytes)
