"""EndTxn: commit or abort. When the answer is NONE, the decision is written down and the markers are too, or will be."""

from __future__ import annotations

from chaffinch.broker.core import transaction_codes
from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, EndTxnRequest)
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    if broker.is_coordinator(event.node_id, request.transactional_id):
        code = broker.transactions.end(request.transactional_id, identity, request.committed, now_ms)
    else:
        code = codes.NOT_COORDINATOR
    if code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        reason = f"{'commit' if request.committed else 'abort'} by producer {identity.producer_id} epoch {identity.epoch}"
        refuse(broker, event, now_ms, place=request.transactional_id, code=code, reason=reason)
    return EndTxnResponse(error_code=transaction_codes.travelling(code, "EndTxn", event.request.version))
