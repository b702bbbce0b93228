"""Heartbeat (key 12): keeps a member of a classic group alive.

Versions 0-4. Version 1 adds the throttle time; 3 static members (KIP-345); 4 is flexible.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible_since=4):
    """Sent within the session timeout of the member."""

    group_id: str = wire(String)
    generation_id: int = wire(Int32)
    member_id: str = wire(String)
    group_instance_id: str | None = wire(String, since=3, nullable_since=3, default=None, essential=True)


class HeartbeatResponse(Message, api_key=12, versions=(0, 4), flexible_since=4):
    """REBALANCE_IN_PROGRESS: the member must join again."""

    throttle_time_ms: int = wire(Int32, since=1)
    error_code: int = wire(Int16)
