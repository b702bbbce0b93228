"""Produce (key 0): record batches for partitions, and for each partition an offset or an error.

Versions 0-13. Versions 0 and 1 carry message sets of magic 0 and 1; 2 adds the append time; 3 the transactional id and record batches
(KIP-98); 5 the log's start; 7 zstd (KIP-110); 8 the culprits of a rejected batch (KIP-467); 9 is the first flexible one; 10 names the new
leader (KIP-951); 11 and 12 have the same bytes (KIP-890); 13 has topic ids in place of names (KIP-516).

Kafka calls the two lists of the request `topic_data` and `partition_data`; here they are `topics` and `partitions`, as in other requests.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, Records, RecordsType, String, Uuid
from chaffinch.protocol.schema import Message, wire

CULPRIT_CODE_TAG: Final = 1467
"""Tag of the error code next to each culprit; only sent to clients whose software name is `chaffinch`."""


class PartitionProduceData(Message):
    """Record batches for one partition: one batch, since version 3."""

    index: int = wire(Int32)
    records: Records = wire(RecordsType, nullable_since=0)


class TopicProduceData(Message):
    """The partitions of one topic, known by name up to version 12 and by id from 13 on."""

    name: str = wire(String, until=12)
    topic_id: UUID = wire(Uuid, since=13)
    partitions: list[PartitionProduceData] = wire(Array(PartitionProduceData))


class ProduceRequest(Message, api_key=0, versions=(0, 13), flexible_since=9):
    """`acks`: 0: no response; 1: written by the leader; -1: written by all in-sync replicas."""

    transactional_id: str | None = wire(String, since=3, nullable_since=3, default=None, essential=True)
    acks: int = wire(Int16)
    timeout_ms: int = wire(Int32)
    topics: list[TopicProduceData] = wire(Array(TopicProduceData))


class BatchIndexAndErrorMessage(Message):
    """A culprit: a record, by its index in the batch, that caused the batch to be rejected (KIP-467)."""

    batch_index: int = wire(Int32, since=8)
    batch_index_error_message: str | None = wire(String, since=8, nullable_since=8, default=None)
    chaffinch_error_code: int | None = wire(Int16, since=9, tag=CULPRIT_CODE_TAG, default=None)


class LeaderIdAndEpoch(Message):
    """The partition's leader as known to the responding broker (KIP-951)."""

    leader_id: int = wire(Int32, default=-1)
    leader_epoch: int = wire(Int32, default=-1)


class PartitionProduceResponse(Message):
    """Result of one partition's batch."""

    index: int = wire(Int32)
    error_code: int = wire(Int16)
    base_offset: int = wire(Int64)
    log_append_time_ms: int = wire(Int64, since=2, default=-1)
    log_start_offset: int = wire(Int64, since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(Array(BatchIndexAndErrorMessage), since=8)
    error_message: str | None = wire(String, since=8, nullable_since=8, default=None)
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Message):
    """The partitions of one topic."""

    name: str = wire(String, until=12)
    topic_id: UUID = wire(Uuid, since=13)
    partition_responses: list[PartitionProduceResponse] = wire(Array(PartitionProduceResponse))


class NodeEndpoint(Message):
    """Address of a leader named in `current_leader` (KIP-951)."""

    node_id: int = wire(Int32)
    host: str = wire(String)
    port: int = wire(Int32)
    rack: str | None = wire(String, nullable_since=0, default=None)


class ProduceResponse(Message, api_key=0, versions=(0, 13), flexible_since=9):
    """Not sent at all for `acks` 0."""

    responses: list[TopicProduceResponse] = wire(Array(TopicProduceResponse))
    throttle_time_ms: int = wire(Int32, since=1)
    node_endpoints: list[NodeEndpoint] = wire(Array(NodeEndpoint), since=10, tag=0)
