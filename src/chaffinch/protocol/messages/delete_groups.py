"""DeleteGroups (key 42): delete groups without members, with their offsets (KIP-229). Versions 0-2; 2 is flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible_since=2):
    """Sent to the groups' coordinator."""

    groups_names: list[str] = wire(Array(String))


class DeletableGroupResult(Message):
    """Result of one group."""

    group_id: str = wire(String)
    error_code: int = wire(Int16)


class DeleteGroupsResponse(Message, api_key=42, versions=(0, 2), flexible_since=2):
    """One result per group."""

    throttle_time_ms: int = wire(Int32)
    results: list[DeletableGroupResult] = wire(Array(DeletableGroupResult))
