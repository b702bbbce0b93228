"""EndTxn: commits or aborts a transaction. If the response is NONE, the decision is stored, and the markers are written now or later.

From version 5 on the client uses transaction version 2: the response has the identity for its next transaction (KIP-890).
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.transactions.coordinator import IdentityAnswer
from chaffinch.broker.core.transactions.moves import VERSION_WITH_EPOCH_BUMP, error_number
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

VERSION_WITH_IDENTITY = 5


def handle(broker: BrokerState, event: RequestReceived, request: EndTxnRequest, steady_ms: int) -> Result:
    version = event.request.version
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    if broker.is_coordinator(event.node_id, request.transactional_id):
        transaction_version = VERSION_WITH_EPOCH_BUMP if version >= VERSION_WITH_IDENTITY else 1
        answer = broker.transactions.end(request.transactional_id, identity, request.committed, steady_ms, transaction_version)
    else:
        answer = IdentityAnswer(codes.NOT_COORDINATOR)
    if answer.code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        reason = f"{'commit' if request.committed else 'abort'} by producer {identity.producer_id} epoch {identity.epoch}"
        if answer.failure is not None:
            reason += f": {answer.failure}"
        log_refusal(broker, event, steady_ms, subject=request.transactional_id, code=answer.code, reason=reason)
    return EndTxnResponse(
        error_code=error_number(answer.code, "EndTxn", version),
        producer_id=answer.identity.producer_id,
        producer_epoch=answer.identity.epoch,
    )
