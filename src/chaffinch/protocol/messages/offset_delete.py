"""OffsetDelete (key 47): delete a group's offsets of topics that it does not read (KIP-496). Version 0, not flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class OffsetDeleteRequestPartition(Message):
    """One partition."""

    partition_index: int = wire(Int32)


class OffsetDeleteRequestTopic(Message):
    """Partitions of one topic."""

    name: str = wire(String)
    partitions: list[OffsetDeleteRequestPartition] = wire(Array(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(Message, api_key=47, versions=(0, 0)):
    """Sent to the group's coordinator."""

    group_id: str = wire(String)
    topics: list[OffsetDeleteRequestTopic] = wire(Array(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(Message):
    """Result of one partition's offset."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)


class OffsetDeleteResponseTopic(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[OffsetDeleteResponsePartition] = wire(Array(OffsetDeleteResponsePartition))


class OffsetDeleteResponse(Message, api_key=47, versions=(0, 0)):
    """`error_code` for the whole group; then no topics."""

    error_code: int = wire(Int16)
    throttle_time_ms: int = wire(Int32)
    topics: list[OffsetDeleteResponseTopic] = wire(Array(OffsetDeleteResponseTopic))
