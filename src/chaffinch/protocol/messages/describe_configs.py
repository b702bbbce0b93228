"""DescribeConfigs (key 32): configurations of topics and brokers (KIP-133).

Versions 0-4. Version 1 adds where a value comes from (KIP-226); 3 types and documentation (KIP-569); 4 is flexible.
"""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32

SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_DEFAULT_BROKER: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_GROUP: Final = 8

TYPE_BOOLEAN: Final = 1
TYPE_STRING: Final = 2
TYPE_INT: Final = 3
TYPE_SHORT: Final = 4
TYPE_LONG: Final = 5
TYPE_DOUBLE: Final = 6
TYPE_LIST: Final = 7
TYPE_CLASS: Final = 8
TYPE_PASSWORD: Final = 9


class DescribeConfigsResource(Message):
    """A topic or a broker; `configuration_keys` None requests all."""

    resource_type: int = wire(Int8)
    resource_name: str = wire(String)
    configuration_keys: list[str] | None = wire(Array(String), nullable_since=0)


class DescribeConfigsRequest(Message, api_key=32, versions=(0, 4), flexible_since=4):
    """Resources to describe."""

    resources: list[DescribeConfigsResource] = wire(Array(DescribeConfigsResource))
    include_synonyms: bool = wire(Bool, since=1)
    include_documentation: bool = wire(Bool, since=3)


class DescribeConfigsSynonym(Message):
    """Another source of this configuration; `source` is one of the SOURCE constants."""

    name: str = wire(String, since=1)
    value: str | None = wire(String, since=1, nullable_since=1)
    source: int = wire(Int8, since=1)


class DescribeConfigsResourceResult(Message):
    """One configuration; `config_source` is one of the SOURCE constants, `config_type` one of the TYPE constants."""

    name: str = wire(String)
    value: str | None = wire(String, nullable_since=0)
    read_only: bool = wire(Bool)
    config_source: int = wire(Int8, since=1, default=-1)
    is_default: bool = wire(Bool, until=0)
    is_sensitive: bool = wire(Bool)
    synonyms: list[DescribeConfigsSynonym] = wire(Array(DescribeConfigsSynonym), since=1)
    config_type: int = wire(Int8, since=3)
    documentation: str | None = wire(String, since=3, nullable_since=3, default=None)


class DescribeConfigsResult(Message):
    """The configurations of one resource."""

    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    resource_type: int = wire(Int8)
    resource_name: str = wire(String)
    configs: list[DescribeConfigsResourceResult] = wire(Array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(Message, api_key=32, versions=(0, 4), flexible_since=4):
    """One result per resource."""

    throttle_time_ms: int = wire(Int32)
    results: list[DescribeConfigsResult] = wire(Array(DescribeConfigsResult))
