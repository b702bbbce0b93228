"""DescribeClientQuotas: returns no entries, since there are no quotas. `kafka-configs --describe` requests it for users and clients."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse


def handle(broker: BrokerState, event: RequestReceived, request: object, steady_ms: int) -> Result:
    return DescribeClientQuotasResponse(entries=[])
