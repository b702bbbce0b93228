"""DescribeCluster (key 60): brokers, controller and cluster id (KIP-700).

Versions 0-2, all flexible. Version 1 chooses between brokers and controllers (KIP-919); 2 shows fenced brokers (KIP-1073).
"""

from __future__ import annotations

from chaffinch.protocol.messages.metadata import OPERATIONS_UNKNOWN
from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class DescribeClusterRequest(Message, api_key=60, versions=(0, 2), flexible_since=0):
    """`endpoint_type`: 1 for brokers, 2 for controllers."""

    include_cluster_authorized_operations: bool = wire(Bool)
    endpoint_type: int = wire(Int8, since=1, default=1, essential=True)
    include_fenced_brokers: bool = wire(Bool, since=2)


class DescribeClusterBroker(Message):
    """Address of a broker."""

    broker_id: int = wire(Int32)
    host: str = wire(String)
    port: int = wire(Int32)
    rack: str | None = wire(String, nullable_since=0, default=None)
    is_fenced: bool = wire(Bool, since=2)


class DescribeClusterResponse(Message, api_key=60, versions=(0, 2), flexible_since=0):
    """The cluster as known to the responding node."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    endpoint_type: int = wire(Int8, since=1, default=1)
    cluster_id: str = wire(String)
    controller_id: int = wire(Int32, default=-1)
    brokers: list[DescribeClusterBroker] = wire(Array(DescribeClusterBroker))
    cluster_authorized_operations: int = wire(Int32, default=OPERATIONS_UNKNOWN)
