"""DescribeAcls: returns SECURITY_DISABLED, like Apache Kafka without an authorizer."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_acls import DescribeAclsResponse


def handle(broker: BrokerState, event: RequestReceived, request: object, steady_ms: int) -> Result:
    message = "this broker has no authorizer: all clients have all permissions"
    return DescribeAclsResponse(error_code=codes.SECURITY_DISABLED.number, error_message=message)
