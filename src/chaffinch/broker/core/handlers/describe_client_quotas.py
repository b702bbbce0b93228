"""DescribeClientQuotas: nobody has limits here. `kafka-configs --describe` asks for users and clients."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    return DescribeClientQuotasResponse(entries=[])
