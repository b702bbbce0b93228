"""IncrementalAlterConfigs (key 44): change single configurations (KIP-339). Versions 0-1; 1 is flexible."""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire

OPERATION_SET: Final = 0
OPERATION_DELETE: Final = 1
OPERATION_APPEND: Final = 2
OPERATION_SUBTRACT: Final = 3


class AlterableConfig(Message):
    """One change; `config_operation` is one of the OPERATION constants."""

    name: str = wire(String)
    config_operation: int = wire(Int8)
    value: str | None = wire(String, nullable_since=0)


class AlterConfigsResource(Message):
    """The changes of one topic or broker; `resource_type` as in DescribeConfigs."""

    resource_type: int = wire(Int8)
    resource_name: str = wire(String)
    configs: list[AlterableConfig] = wire(Array(AlterableConfig))


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible_since=1):
    """Changes to make."""

    resources: list[AlterConfigsResource] = wire(Array(AlterConfigsResource))
    validate_only: bool = wire(Bool)


class AlterConfigsResourceResponse(Message):
    """Result of one resource's changes."""

    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    resource_type: int = wire(Int8)
    resource_name: str = wire(String)


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=(0, 1), flexible_since=1):
    """One result per resource."""

    throttle_time_ms: int = wire(Int32)
    responses: list[AlterConfigsResourceResponse] = wire(Array(AlterConfigsResourceResponse))
