"""ElectLeaders (key 43): elect the preferred replicas as leaders (KIP-183).

Versions 0-2. Version 1 adds other kinds of election and a top-level error (KIP-460); 2 is flexible.
"""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire

ELECTION_PREFERRED: Final = 0
ELECTION_UNCLEAN: Final = 1


class TopicPartitions(Message):
    """The partitions of one topic."""

    topic: str = wire(String)
    partitions: list[int] = wire(Array(Int32))


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible_since=2):
    """`topic_partitions` None means all."""

    election_type: int = wire(Int8, since=1, essential=True)
    topic_partitions: list[TopicPartitions] | None = wire(Array(TopicPartitions), nullable_since=0)
    timeout_ms: int = wire(Int32, default=60_000)


class PartitionResult(Message):
    """Result of one partition's election."""

    partition_id: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)


class ReplicaElectionResult(Message):
    """The partitions of one topic."""

    topic: str = wire(String)
    partition_result: list[PartitionResult] = wire(Array(PartitionResult))


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible_since=2):
    """One result per partition; if all were requested, only those whose leader changed or whose election failed."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16, since=1)
    replica_election_results: list[ReplicaElectionResult] = wire(Array(ReplicaElectionResult))
