"""OffsetFetch (key 9): a group's committed offsets.

Versions 0-10. Version 2 adds null topics for "all" and a top-level error; 5 leader epochs (KIP-320); 6 is the first flexible one; 7 can
require stable offsets, which excludes open transactions (KIP-447); 8 requests several groups (KIP-709); 9 names the member (KIP-848);
10 has topic ids.
"""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, Int64, String, Uuid
from chaffinch.protocol.schema import Message, wire


class OffsetFetchRequestTopic(Message):
    """Partitions of one topic, up to version 7."""

    name: str = wire(String, until=7)
    partition_indexes: list[int] = wire(Array(Int32), until=7)


class OffsetFetchRequestTopics(Message):
    """Partitions of one topic, from version 8 on."""

    name: str = wire(String, since=8, until=9)
    topic_id: UUID = wire(Uuid, since=10, essential=True)
    partition_indexes: list[int] = wire(Array(Int32), since=8)


class OffsetFetchRequestGroup(Message):
    """One group; `topics` None requests all."""

    group_id: str = wire(String, since=8)
    member_id: str | None = wire(String, since=9, nullable_since=9, default=None)
    member_epoch: int = wire(Int32, since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire(Array(OffsetFetchRequestTopics), since=8, nullable_since=8)


class OffsetFetchRequest(Message, api_key=9, versions=(0, 10), flexible_since=6):
    """`group_id` and `topics` up to version 7, `groups` from 8 on; a caller that does not know the version fills both."""

    group_id: str = wire(String, until=7)
    topics: list[OffsetFetchRequestTopic] | None = wire(Array(OffsetFetchRequestTopic), until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = wire(Array(OffsetFetchRequestGroup), since=8)
    require_stable: bool = wire(Bool, since=7, essential=True)


class OffsetFetchResponsePartition(Message):
    """`committed_offset` -1 when there is none; up to version 7."""

    partition_index: int = wire(Int32, until=7)
    committed_offset: int = wire(Int64, until=7)
    committed_leader_epoch: int = wire(Int32, since=5, until=7, default=-1)
    metadata: str | None = wire(String, until=7, nullable_since=0)
    error_code: int = wire(Int16, until=7)


class OffsetFetchResponseTopic(Message):
    """The partitions of one topic, up to version 7."""

    name: str = wire(String, until=7)
    partitions: list[OffsetFetchResponsePartition] = wire(Array(OffsetFetchResponsePartition), until=7)


class OffsetFetchResponsePartitions(Message):
    """`committed_offset` -1 when there is none; from version 8 on."""

    partition_index: int = wire(Int32, since=8)
    committed_offset: int = wire(Int64, since=8)
    committed_leader_epoch: int = wire(Int32, since=8, default=-1)
    metadata: str | None = wire(String, since=8, nullable_since=8)
    error_code: int = wire(Int16, since=8)


class OffsetFetchResponseTopics(Message):
    """The partitions of one topic, from version 8 on."""

    name: str = wire(String, since=8, until=9)
    topic_id: UUID = wire(Uuid, since=10)
    partitions: list[OffsetFetchResponsePartitions] = wire(Array(OffsetFetchResponsePartitions), since=8)


class OffsetFetchResponseGroup(Message):
    """The offsets of one group."""

    group_id: str = wire(String, since=8)
    topics: list[OffsetFetchResponseTopics] = wire(Array(OffsetFetchResponseTopics), since=8)
    error_code: int = wire(Int16, since=8)


class OffsetFetchResponse(Message, api_key=9, versions=(0, 10), flexible_since=6):
    """`topics` and `error_code` up to version 7, `groups` from 8 on."""

    throttle_time_ms: int = wire(Int32, since=3)
    topics: list[OffsetFetchResponseTopic] = wire(Array(OffsetFetchResponseTopic), until=7)
    error_code: int = wire(Int16, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = wire(Array(OffsetFetchResponseGroup), since=8)
