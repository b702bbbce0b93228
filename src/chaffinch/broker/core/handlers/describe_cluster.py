"""DescribeCluster: nodes, controller and cluster id (KIP-700); stopped nodes are reported as fenced (KIP-1073)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.security import authorized_operations
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

ENDPOINT_BROKERS = 1


def handle(broker: BrokerState, event: RequestReceived, request: DescribeClusterRequest, steady_ms: int) -> Result:
    if request.endpoint_type != ENDPOINT_BROKERS:
        return DescribeClusterResponse(
            error_code=codes.MISMATCHED_ENDPOINT_TYPE.number,
            error_message=f"this listener is for brokers, not for endpoint type {request.endpoint_type}",
            endpoint_type=request.endpoint_type,
        )
    shown = broker.nodes.nodes if request.include_fenced_brokers else broker.nodes.live
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, is_fenced=node.id in broker.nodes.stopped)
            for node in shown
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations.ON_CLUSTER
    return response
