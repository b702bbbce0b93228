"""AddPartitionsToTxn (key 24): add partitions to a transaction that will write to them (KIP-98).

Versions 0-5. Version 3 is the first flexible one and the last for clients. 4, for brokers, carries several transactions and can also only
verify them (KIP-890); 5 may answer with TRANSACTION_ABORTABLE. Names with `v3_and_below` are Kafka's own.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class AddPartitionsToTxnTopic(Message):
    """Partitions of one topic."""

    name: str = wire(String)
    partitions: list[int] = wire(Array(Int32))


class AddPartitionsToTxnTransaction(Message):
    """One transaction of a broker's request."""

    transactional_id: str = wire(String, since=4)
    producer_id: int = wire(Int64, since=4)
    producer_epoch: int = wire(Int16, since=4)
    verify_only: bool = wire(Bool, since=4)
    topics: list[AddPartitionsToTxnTopic] = wire(Array(AddPartitionsToTxnTopic), since=4)


class AddPartitionsToTxnRequest(Message, api_key=24, versions=(0, 5), flexible_since=3):
    """`transactions` from version 4 on, the other fields before."""

    transactions: list[AddPartitionsToTxnTransaction] = wire(Array(AddPartitionsToTxnTransaction), since=4, essential=True)
    v3_and_below_transactional_id: str = wire(String, until=3)
    v3_and_below_producer_id: int = wire(Int64, until=3)
    v3_and_below_producer_epoch: int = wire(Int16, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire(Array(AddPartitionsToTxnTopic), until=3, essential=True)


class AddPartitionsToTxnPartitionResult(Message):
    """Result of one partition."""

    partition_index: int = wire(Int32)
    partition_error_code: int = wire(Int16)


class AddPartitionsToTxnTopicResult(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(Array(AddPartitionsToTxnPartitionResult))


class AddPartitionsToTxnResult(Message):
    """The topics of one transaction."""

    transactional_id: str = wire(String, since=4)
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(Array(AddPartitionsToTxnTopicResult), since=4)


class AddPartitionsToTxnResponse(Message, api_key=24, versions=(0, 5), flexible_since=3):
    """`results_by_transaction` from version 4 on, `results_by_topic_v3_and_below` before."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(Array(AddPartitionsToTxnResult), since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(Array(AddPartitionsToTxnTopicResult), until=3)
