"""ListGroups (key 16): the groups that one node coordinates.

Versions 0-5. Version 1 adds the throttle time; 3 is the first flexible one; 4 states and a filter by them (KIP-518); 5 types and a filter
by them (KIP-848).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class ListGroupsRequest(Message, api_key=16, versions=(0, 5), flexible_since=3):
    """Empty filters match all groups."""

    states_filter: list[str] = wire(Array(String), since=4, essential=True)
    types_filter: list[str] = wire(Array(String), since=5, essential=True)


class ListedGroup(Message):
    """One group; `protocol_type` is empty for groups that only have offsets."""

    group_id: str = wire(String)
    protocol_type: str = wire(String)
    group_state: str = wire(String, since=4)
    group_type: str = wire(String, since=5)


class ListGroupsResponse(Message, api_key=16, versions=(0, 5), flexible_since=3):
    """The groups of one node."""

    throttle_time_ms: int = wire(Int32, since=1)
    error_code: int = wire(Int16)
    groups: list[ListedGroup] = wire(Array(ListedGroup))
