"""ListTransactions: lists the transactional ids of one coordinator, filtered by state, producer id, duration and pattern (KIP-664, 994,
1152).
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.topic_pattern import InvalidPattern, TopicPattern
from chaffinch.broker.core.transactions.metadata import TransactionMetadata
from chaffinch.broker.core.transactions.moves import TransactionState
from chaffinch.errors import codes
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse, ListTransactionsState

_STATES_BY_TITLE = {state.title: state for state in TransactionState}


def handle(broker: BrokerState, event: RequestReceived, request: ListTransactionsRequest, steady_ms: int) -> Result:
    unknown = [title for title in request.state_filters if title not in _STATES_BY_TITLE]
    states = {_STATES_BY_TITLE[title] for title in request.state_filters if title in _STATES_BY_TITLE}
    try:
        pattern = TopicPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except InvalidPattern as error:
        code, reason = codes.INVALID_REGULAR_EXPRESSION, f"invalid pattern: {error}"
        log_refusal(broker, event, steady_ms, subject=request.transactional_id_pattern, code=code, reason=reason)
        return ListTransactionsResponse(error_code=code.number, unknown_state_filters=unknown, transaction_states=[])

    producer_ids = set(request.producer_id_filters)

    def is_wanted(metadata: TransactionMetadata) -> bool:
        if producer_ids and metadata.producer_id not in producer_ids:
            return False
        if request.state_filters and metadata.state not in states:
            return False
        if request.duration_filter >= 0 and broker.wall.at(steady_ms) - metadata.started_ms <= request.duration_filter:
            return False
        return pattern is None or pattern.matches(metadata.transactional_id)

    return ListTransactionsResponse(
        error_code=codes.NONE.number,
        unknown_state_filters=unknown,
        transaction_states=[
            ListTransactionsState(
                transactional_id=metadata.transactional_id,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.title,
            )
            for metadata in broker.transactions
            if broker.is_coordinator(event.node_id, metadata.transactional_id) and is_wanted(metadata)
        ],
    )
