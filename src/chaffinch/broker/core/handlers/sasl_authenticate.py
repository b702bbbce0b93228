"""SaslAuthenticate: a token of a login. What comes of it is said by `authentication.py`."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, result_of
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, SaslAuthenticateRequest)
    return result_of(broker.authentication.authenticate(event, request, now_ms), now_ms)
