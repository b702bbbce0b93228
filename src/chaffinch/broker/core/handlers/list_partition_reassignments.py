"""ListPartitionReassignments: returns no entries, since partitions are never reassigned. Kafka's tools request it before they describe
topics.
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse


def handle(broker: BrokerState, event: RequestReceived, request: object, steady_ms: int) -> Result:
    return ListPartitionReassignmentsResponse()
