"""InitProducerId: returns an identity for an idempotent producer, or the next one of a transactional id (KIP-98, KIP-360)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.transactions.coordinator import IdentityAnswer
from chaffinch.broker.core.transactions.moves import error_number
from chaffinch.errors import codes
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def handle(broker: BrokerState, event: RequestReceived, request: InitProducerIdRequest, steady_ms: int) -> Result:
    answer = _answer(broker, event, request, steady_ms)
    if answer.code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        reason = f"identity {request.producer_id}/{request.producer_epoch}, transaction.timeout.ms {request.transaction_timeout_ms}"
        if answer.failure is not None:
            reason += f": {answer.failure}"
        log_refusal(broker, event, steady_ms, subject=request.transactional_id, code=answer.code, reason=reason)
    return InitProducerIdResponse(
        error_code=error_number(answer.code, "InitProducerId", event.request.version),
        producer_id=answer.identity.producer_id,
        producer_epoch=answer.identity.epoch,
    )


def _answer(broker: BrokerState, event: RequestReceived, request: InitProducerIdRequest, steady_ms: int) -> IdentityAnswer:
    if request.transactional_id and not broker.is_coordinator(event.node_id, request.transactional_id):
        return IdentityAnswer(codes.NOT_COORDINATOR)
    if (request.producer_id == NO_PRODUCER.producer_id) != (request.producer_epoch == NO_PRODUCER.epoch):
        return IdentityAnswer(codes.INVALID_REQUEST)
    expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    return broker.transactions.init_producer_id(request.transactional_id, request.transaction_timeout_ms, steady_ms, expected)
