"""Nodes of a cluster: addresses, controller and cluster id (DescribeCluster, KIP-700)."""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.client import response_errors
from chaffinch.client.sync_client import SyncClient
from chaffinch.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from chaffinch.public_names import exported_from


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a cluster, as clients reach it.

    Attributes:
        node: id of the node.
        host: host name or address.
        port: port.
        rack: rack of the node; None without one.
        is_fenced: whether the controller has fenced it, because it has stopped for example (KIP-1073); False if the broker is older.
    """

    node: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster. `controller` is a node id; -1 if there is none. `nodes` are in the order of their ids."""

    cluster_id: str
    controller: int
    nodes: tuple[Node, ...]


def describe_cluster(client: SyncClient) -> Cluster:
    """The nodes of the cluster, including fenced ones.

    Args:
        client: client of `options.connect`.
    """
    answer: DescribeClusterResponse = client.request(
        DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    )
    response_errors.raise_for(answer)
    nodes = [
        Node(node=found.broker_id, host=found.host, port=found.port, rack=found.rack, is_fenced=found.is_fenced) for found in answer.brokers
    ]
    return Cluster(cluster_id=answer.cluster_id, controller=answer.controller_id, nodes=tuple(sorted(nodes, key=lambda found: found.node)))
