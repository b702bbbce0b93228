"""SaslHandshake: selects a mechanism before a login, handled in `authentication.py`."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, result_of
from chaffinch.broker.core.events import RequestReceived
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest


def handle(broker: BrokerState, event: RequestReceived, request: SaslHandshakeRequest, steady_ms: int) -> Result:
    return result_of(broker.authentication.handshake(event, request, steady_ms), steady_ms)
