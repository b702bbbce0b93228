"""FindCoordinator: returns the node that coordinates a group or a transactional id."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.find_coordinator import (
    KEY_TYPE_GROUP,
    KEY_TYPE_TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

VERSION_WITH_SEVERAL_KEYS = 4


def handle(broker: BrokerState, event: RequestReceived, request: FindCoordinatorRequest, steady_ms: int) -> Result:
    if event.request.version >= VERSION_WITH_SEVERAL_KEYS:
        return FindCoordinatorResponse(coordinators=[_coordinator(broker, request.key_type, key) for key in request.coordinator_keys])
    found = _coordinator(broker, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code, error_message=found.error_message, node_id=found.node_id, host=found.host, port=found.port
    )


def _coordinator(broker: BrokerState, key_type: int, key: str) -> Coordinator:
    if key_type not in (KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION):
        return _none(key, codes.INVALID_REQUEST, f"coordinators of key type {key_type} do not exist here")
    if key_type == KEY_TYPE_TRANSACTION and not key:
        return _none(key, codes.INVALID_REQUEST, "a transactional id cannot be empty")
    node = broker.nodes.coordinator_of(key)
    if node is None:
        return _none(key, codes.COORDINATOR_NOT_AVAILABLE, "no node is running")
    return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port)


def _none(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code.number, error_message=message)
