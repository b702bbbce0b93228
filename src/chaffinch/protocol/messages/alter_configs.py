"""AlterConfigs (key 33): replace all options of a resource (KIP-133), as was done before IncrementalAlterConfigs.

Versions 0-2; 2 is flexible.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class AlterableConfig(Message):
    """One option and its new value."""

    name: str = wire(String)
    value: str | None = wire(String, nullable_since=0)


class AlterConfigsResource(Message):
    """The options of one topic or broker; those not named get their defaults. `resource_type` as in DescribeConfigs."""

    resource_type: int = wire(Int8)
    resource_name: str = wire(String)
    configs: list[AlterableConfig] = wire(Array(AlterableConfig))


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible_since=2):
    """Resources to configure."""

    resources: list[AlterConfigsResource] = wire(Array(AlterConfigsResource))
    validate_only: bool = wire(Bool)


class AlterConfigsResourceResponse(Message):
    """Result of one resource's options."""

    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    resource_type: int = wire(Int8)
    resource_name: str = wire(String)


class AlterConfigsResponse(Message, api_key=33, versions=(0, 2), flexible_since=2):
    """One result per resource."""

    throttle_time_ms: int = wire(Int32)
    responses: list[AlterConfigsResourceResponse] = wire(Array(AlterConfigsResourceResponse))
