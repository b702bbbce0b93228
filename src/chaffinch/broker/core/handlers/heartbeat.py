"""Heartbeat: keeps the session of a classic group member alive."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.errors import codes
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(broker: BrokerState, event: RequestReceived, request: HeartbeatRequest, steady_ms: int) -> Result:
    if not request.group_id:
        code = codes.INVALID_GROUP_ID
    elif not broker.is_coordinator(event.node_id, request.group_id):
        code = codes.NOT_COORDINATOR
    else:
        code = broker.groups.heartbeat(request, steady_ms)
    return HeartbeatResponse(error_code=code.number)
