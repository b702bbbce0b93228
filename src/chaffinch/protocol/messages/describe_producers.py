"""DescribeProducers (key 61): producer state of partitions, with open transactions (KIP-664). Version 0, flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class DescribeProducersTopicRequest(Message):
    """Partitions of one topic."""

    name: str = wire(String)
    partition_indexes: list[int] = wire(Array(Int32))


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible_since=0):
    """Sent to the leaders of the partitions."""

    topics: list[DescribeProducersTopicRequest] = wire(Array(DescribeProducersTopicRequest))


class DescribeProducersState(Message):
    """One producer. -1 means none: no batch of this epoch, no marker, no open transaction."""

    producer_id: int = wire(Int64)
    producer_epoch: int = wire(Int32)
    last_sequence: int = wire(Int32, default=-1)
    last_timestamp: int = wire(Int64, default=-1)
    coordinator_epoch: int = wire(Int32)
    current_txn_start_offset: int = wire(Int64, default=-1)


class DescribeProducersPartitionResponse(Message):
    """The producers of one partition."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    active_producers: list[DescribeProducersState] = wire(Array(DescribeProducersState))


class DescribeProducersTopicResponse(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[DescribeProducersPartitionResponse] = wire(Array(DescribeProducersPartitionResponse))


class DescribeProducersResponse(Message, api_key=61, versions=(0, 0), flexible_since=0):
    """One result for each requested partition."""

    throttle_time_ms: int = wire(Int32)
    topics: list[DescribeProducersTopicResponse] = wire(Array(DescribeProducersTopicResponse))
