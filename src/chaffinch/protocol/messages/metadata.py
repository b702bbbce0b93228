"""Metadata (key 3): brokers, topics, partitions and their leaders.

Versions 0-13. Version 1 adds controller and racks, and null instead of the empty list for "all topics"; 2 the cluster id; 4 automatic
creation (KIP-204); 5 offline replicas (KIP-112); 7 leader epochs (KIP-320); 8 authorized operations (KIP-430); 9 is the first flexible one
(KIP-482); 10 topic ids (KIP-516), usable in requests since 12; 11 drops the cluster's authorized operations (KIP-700); 13 a top-level error
code (KIP-1102).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, String, Uuid
from chaffinch.protocol.schema import Message, wire

OPERATIONS_UNKNOWN: Final = -(1 << 31)
"""Value if authorized operations were not requested."""


class MetadataRequestTopic(Message):
    """A topic requested by name or, since version 12, by id with name None."""

    topic_id: UUID = wire(Uuid, since=10, essential=True)
    name: str | None = wire(String, nullable_since=10)


class MetadataRequest(Message, api_key=3, versions=(0, 13), flexible_since=9):
    """`topics` None requests all topics (in version 0 the empty list does); the empty list requests brokers only."""

    topics: list[MetadataRequestTopic] | None = wire(Array(MetadataRequestTopic), nullable_since=1)
    allow_auto_topic_creation: bool = wire(Bool, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(Bool, since=8, until=10)
    include_topic_authorized_operations: bool = wire(Bool, since=8)


class MetadataResponseBroker(Message):
    """Address of a broker."""

    node_id: int = wire(Int32)
    host: str = wire(String)
    port: int = wire(Int32)
    rack: str | None = wire(String, since=1, nullable_since=1, default=None)


class MetadataResponsePartition(Message):
    """One partition; `leader_id` is -1 when there is none."""

    error_code: int = wire(Int16)
    partition_index: int = wire(Int32)
    leader_id: int = wire(Int32)
    leader_epoch: int = wire(Int32, since=7, default=-1)
    replica_nodes: list[int] = wire(Array(Int32))
    isr_nodes: list[int] = wire(Array(Int32))
    offline_replicas: list[int] = wire(Array(Int32), since=5)


class MetadataResponseTopic(Message):
    """One topic; `name` is None only for an unknown id."""

    error_code: int = wire(Int16)
    name: str | None = wire(String, nullable_since=12)
    topic_id: UUID = wire(Uuid, since=10)
    is_internal: bool = wire(Bool, since=1)
    partitions: list[MetadataResponsePartition] = wire(Array(MetadataResponsePartition))
    topic_authorized_operations: int = wire(Int32, since=8, default=OPERATIONS_UNKNOWN)


class MetadataResponse(Message, api_key=3, versions=(0, 13), flexible_since=9):
    """The cluster as known to one broker."""

    throttle_time_ms: int = wire(Int32, since=3)
    brokers: list[MetadataResponseBroker] = wire(Array(MetadataResponseBroker))
    cluster_id: str | None = wire(String, since=2, nullable_since=2, default=None)
    controller_id: int = wire(Int32, since=1, default=-1)
    topics: list[MetadataResponseTopic] = wire(Array(MetadataResponseTopic))
    cluster_authorized_operations: int = wire(Int32, since=8, until=10, default=OPERATIONS_UNKNOWN)
    error_code: int = wire(Int16, since=13)
