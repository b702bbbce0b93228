"""DescribeTransactions: state, producer, times and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.response_size_limit import ResponseSizeLimit
from chaffinch.broker.core.transactions.metadata import TransactionMetadata
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsState,
    DescribeTransactionsTopicData,
)


def handle(broker: BrokerState, event: RequestReceived, request: DescribeTransactionsRequest, steady_ms: int) -> Result:
    size_limit = ResponseSizeLimit(broker.settings)
    return DescribeTransactionsResponse(
        transaction_states=[
            size_limit.add(_state(broker, event.node_id, one, size_limit)) for one in dict.fromkeys(request.transactional_ids)
        ]
    )


def _state(broker: BrokerState, node_id: int, transactional_id: str, size_limit: ResponseSizeLimit) -> DescribeTransactionsState:
    metadata = broker.transactions.describe(transactional_id)
    if not transactional_id:
        return DescribeTransactionsState(error_code=codes.INVALID_REQUEST.number, transactional_id=transactional_id)
    if not broker.is_coordinator(node_id, transactional_id):
        return DescribeTransactionsState(error_code=codes.NOT_COORDINATOR.number, transactional_id=transactional_id)
    if metadata is None:
        return DescribeTransactionsState(error_code=codes.TRANSACTIONAL_ID_NOT_FOUND.number, transactional_id=transactional_id)
    return DescribeTransactionsState(
        error_code=codes.NONE.number,
        transactional_id=transactional_id,
        transaction_state=metadata.state.title,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.started_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[size_limit.add(topic) for topic in _topics(metadata)],
    )


def _topics(metadata: TransactionMetadata) -> list[DescribeTransactionsTopicData]:
    """The data partitions of a transaction: Apache Kafka also lists the `__consumer_offsets` partition of its groups, which does not exist
    here.
    """
    grouped = groupby(sorted(metadata.partitions), attrgetter("topic"))
    return [DescribeTransactionsTopicData(topic=topic, partitions=[tp.partition for tp in tps]) for topic, tps in grouped]
