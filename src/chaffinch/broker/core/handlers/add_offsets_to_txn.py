"""AddOffsetsToTxn: adds a group's offsets to the transaction."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.transactions.coordinator import NOT_WRITTEN
from chaffinch.broker.core.transactions.moves import error_number
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: AddOffsetsToTxnRequest, steady_ms: int) -> Result:
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    reason = f"group {request.group_id!r}, producer {identity.producer_id} epoch {identity.epoch}"
    try:
        code = _code(broker, event, request, identity, steady_ms)
    except StorageError as error:
        code, reason = NOT_WRITTEN, f"{reason}: {error}"
    if code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        log_refusal(broker, event, steady_ms, subject=request.transactional_id, code=code, reason=reason)
    return AddOffsetsToTxnResponse(error_code=error_number(code, "AddOffsetsToTxn", event.request.version))


def _code(
    broker: BrokerState, event: RequestReceived, request: AddOffsetsToTxnRequest, identity: ProducerIdentity, steady_ms: int
) -> ErrorCode:
    if not broker.is_coordinator(event.node_id, request.transactional_id):
        return codes.NOT_COORDINATOR
    return broker.transactions.add_group(request.transactional_id, identity, request.group_id, steady_ms)
