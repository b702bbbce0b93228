"""DescribeTransactions (key 65): the coordinator's state of some transactional ids (KIP-664). Version 0, flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class DescribeTransactionsRequest(Message, api_key=65, versions=(0, 0), flexible_since=0):
    """Sent to the coordinator of the ids."""

    transactional_ids: list[str] = wire(Array(String))


class DescribeTransactionsTopicData(Message):
    """Partitions of one topic that are part of the transaction."""

    topic: str = wire(String)
    partitions: list[int] = wire(Array(Int32))


class DescribeTransactionsState(Message):
    """One transactional id. `transaction_start_time_ms` is -1 if no transaction was started since InitProducerId."""

    error_code: int = wire(Int16)
    transactional_id: str = wire(String)
    transaction_state: str = wire(String)
    transaction_timeout_ms: int = wire(Int32)
    transaction_start_time_ms: int = wire(Int64)
    producer_id: int = wire(Int64)
    producer_epoch: int = wire(Int16)
    topics: list[DescribeTransactionsTopicData] = wire(Array(DescribeTransactionsTopicData))


class DescribeTransactionsResponse(Message, api_key=65, versions=(0, 0), flexible_since=0):
    """One state for each requested id."""

    throttle_time_ms: int = wire(Int32)
    transaction_states: list[DescribeTransactionsState] = wire(Array(DescribeTransactionsState))
