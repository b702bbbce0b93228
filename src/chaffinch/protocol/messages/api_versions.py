"""ApiVersions (key 18): the APIs, versions and features of a broker.

Versions 0-4. Version 3 is the first flexible one and names the client's software (KIP-511) and features (KIP-584); version 4 equals 3 but
lets a feature's minimum be 0 (KIP-1022). The response header is always version 0, because the client cannot know the broker yet; a broker
that does not serve the requested version answers in version 0 with UNSUPPORTED_VERSION (35) and its ranges.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible_since=3):
    """The first request on a connection."""

    client_software_name: str = wire(String, since=3)
    client_software_version: str = wire(String, since=3)


class ApiVersion(Message):
    """The range of versions in which one API is served."""

    api_key: int = wire(Int16)
    min_version: int = wire(Int16)
    max_version: int = wire(Int16)


class SupportedFeatureKey(Message):
    """A feature that the broker supports, with its range of levels (KIP-584)."""

    name: str = wire(String, since=3)
    min_version: int = wire(Int16, since=3)
    max_version: int = wire(Int16, since=3)


class FinalizedFeatureKey(Message):
    """A finalized feature of the cluster, with its level (KIP-584)."""

    name: str = wire(String, since=3)
    max_version_level: int = wire(Int16, since=3)
    min_version_level: int = wire(Int16, since=3)


class ApiVersionsResponse(Message, api_key=18, versions=(0, 4), flexible_since=3):
    """The broker's APIs and features."""

    error_code: int = wire(Int16)
    api_keys: list[ApiVersion] = wire(Array(ApiVersion))
    throttle_time_ms: int = wire(Int32, since=1)
    supported_features: list[SupportedFeatureKey] = wire(Array(SupportedFeatureKey), since=3, tag=0)
    finalized_features_epoch: int = wire(Int64, since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = wire(Array(FinalizedFeatureKey), since=3, tag=2)
    zk_migration_ready: bool = wire(Bool, since=3, tag=3)
