"""DescribeClientQuotas (key 48): limits of users and clients (KIP-546). Versions 0-1; 1 is flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Float64, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class ComponentData(Message):
    """Filter on one component of an entity: `match_type` 0 this name, 1 the default, 2 any name."""

    entity_type: str = wire(String)
    match_type: int = wire(Int8)
    match: str | None = wire(String, nullable_since=0)


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible_since=1):
    """`strict`: exclude entities with more components than the filter has."""

    components: list[ComponentData] = wire(Array(ComponentData))
    strict: bool = wire(Bool)


class EntityData(Message):
    """A component of an entity; the name is None for the default."""

    entity_type: str = wire(String)
    entity_name: str | None = wire(String, nullable_since=0)


class ValueData(Message):
    """One limit."""

    key: str = wire(String)
    value: float = wire(Float64)


class EntryData(Message):
    """An entity and its limits."""

    entity: list[EntityData] = wire(Array(EntityData))
    values: list[ValueData] = wire(Array(ValueData))


class DescribeClientQuotasResponse(Message, api_key=48, versions=(0, 1), flexible_since=1):
    """`entries` is None with an error."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    entries: list[EntryData] | None = wire(Array(EntryData), nullable_since=0)
