"""SaslAuthenticate: a token of a login, handled in `authentication.py`."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, result_of
from chaffinch.broker.core.events import RequestReceived
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest


def handle(broker: BrokerState, event: RequestReceived, request: SaslAuthenticateRequest, steady_ms: int) -> Result:
    return result_of(broker.authentication.authenticate(event, request, steady_ms), steady_ms)
