"""WriteTxnMarkers (key 27): ends transactions in partitions; from coordinators, and from tools that end hanging ones (KIP-98, KIP-664).

Versions 0-2. Version 1 is the first flexible one; 2 adds the coordinator's transaction version, because markers of version 2 must have a
higher epoch than the records (KIP-1228).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class WritableTxnMarkerTopic(Message):
    """Partitions of one topic."""

    name: str = wire(String)
    partition_indexes: list[int] = wire(Array(Int32))


class WritableTxnMarker(Message):
    """One marker for some partitions. `transaction_result` False aborts."""

    producer_id: int = wire(Int64)
    producer_epoch: int = wire(Int16)
    transaction_result: bool = wire(Bool)
    topics: list[WritableTxnMarkerTopic] = wire(Array(WritableTxnMarkerTopic))
    coordinator_epoch: int = wire(Int32)
    transaction_version: int = wire(Int8, since=2)


class WriteTxnMarkersRequest(Message, api_key=27, versions=(0, 2), flexible_since=1):
    """Sent to the leaders of the partitions."""

    markers: list[WritableTxnMarker] = wire(Array(WritableTxnMarker))


class WritableTxnMarkerPartitionResult(Message):
    """Result of the marker in one partition."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)


class WritableTxnMarkerTopicResult(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[WritableTxnMarkerPartitionResult] = wire(Array(WritableTxnMarkerPartitionResult))


class WritableTxnMarkerResult(Message):
    """One producer's markers."""

    producer_id: int = wire(Int64)
    topics: list[WritableTxnMarkerTopicResult] = wire(Array(WritableTxnMarkerTopicResult))


class WriteTxnMarkersResponse(Message, api_key=27, versions=(0, 2), flexible_since=1):
    """One result for each requested marker."""

    markers: list[WritableTxnMarkerResult] = wire(Array(WritableTxnMarkerResult))
