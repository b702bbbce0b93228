"""ListConfigResources (key 74): the names of resources with configurations (KIP-1142).

Versions 0-1, flexible. Version 0 knows client metrics only (KIP-714); 1 requests types.
"""

from __future__ import annotations

from chaffinch.protocol.messages.describe_configs import RESOURCE_CLIENT_METRICS
from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible_since=0):
    """`resource_types` as in DescribeConfigs; empty for all types."""

    resource_types: list[int] = wire(Array(Int8), since=1)


class ConfigResource(Message):
    """One resource."""

    resource_name: str = wire(String)
    resource_type: int = wire(Int8, since=1, default=RESOURCE_CLIENT_METRICS)


class ListConfigResourcesResponse(Message, api_key=74, versions=(0, 1), flexible_since=0):
    """The resources of the requested types."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    config_resources: list[ConfigResource] = wire(Array(ConfigResource))
