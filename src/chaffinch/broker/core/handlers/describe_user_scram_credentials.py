"""DescribeUserScramCredentials: there are no users here. `kafka-configs --describe` asks for them."""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, DescribeUserScramCredentialsRequest)
    times_named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(results=[_result(name, count) for name, count in times_named.items()])


def _result(name: str, times_named: int) -> DescribeUserScramCredentialsResult:
    if times_named > 1:
        code, message = codes.DUPLICATE_RESOURCE, f"user {name!r} is named {times_named} times in one request"
    else:
        code, message = codes.RESOURCE_NOT_FOUND, f"user {name!r} has no credentials: this broker asks for none"
    return DescribeUserScramCredentialsResult(user=name, error_code=code.number, error_message=message)
