"""DescribeAcls (key 29): access control lists (KIP-140).

Versions 0-3. Version 1 adds pattern types (KIP-290); 2 is the first flexible one; 3 supports users (KIP-373).
"""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire

PATTERN_LITERAL: Final = 3


class DescribeAclsRequest(Message, api_key=29, versions=(0, 3), flexible_since=2):
    """A filter; None matches any."""

    resource_type_filter: int = wire(Int8)
    resource_name_filter: str | None = wire(String, nullable_since=0)
    pattern_type_filter: int = wire(Int8, since=1, default=PATTERN_LITERAL, essential=True)
    principal_filter: str | None = wire(String, nullable_since=0)
    host_filter: str | None = wire(String, nullable_since=0)
    operation: int = wire(Int8)
    permission_type: int = wire(Int8)


class AclDescription(Message):
    """One permission or prohibition."""

    principal: str = wire(String)
    host: str = wire(String)
    operation: int = wire(Int8)
    permission_type: int = wire(Int8)


class DescribeAclsResource(Message):
    """The access rules of one resource."""

    resource_type: int = wire(Int8)
    resource_name: str = wire(String)
    pattern_type: int = wire(Int8, since=1, default=PATTERN_LITERAL)
    acls: list[AclDescription] = wire(Array(AclDescription))


class DescribeAclsResponse(Message, api_key=29, versions=(0, 3), flexible_since=2):
    """The rules that match the filter."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    resources: list[DescribeAclsResource] = wire(Array(DescribeAclsResource))
