"""Metrics endpoint (`--metrics`): Prometheus text (exposition format 0.0.4) at `/metrics`.

Metrics named `kafka_` are those of Apache Kafka and the KIPs, written `kafka_<package>_<type>_<name>`; all others are Chaffinch's own. A
BrokerTopicStats counter has one series per topic that it has counted for, and a separate family for all topics together, so that sums do
not count twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaffinch.broker.core.counters import ALL_TOPICS, HELP
from chaffinch.broker.core.replicas.declared_replicas import NO_LEADER
from chaffinch.broker.core.transactions.moves import TransactionState
from chaffinch.broker.http_listener import Refused, Reply, Request, check_host
from chaffinch.broker.server import BrokerServer
from chaffinch.runtime.prometheus import CONTENT_TYPE, NO_LABELS, Family, single
from chaffinch.version import VERSION

PREFIX: Final = "kafka_server_BrokerTopicStats_"


class Metrics:
    """Request handler of the metrics port."""

    def __init__(self, server: BrokerServer, host: str = "") -> None:
        """`host`: the listening address. The Host header of requests may name it, or the addresses that clients of the broker use."""
        self._server = server
        self._names = {host, *(node.host for node in server.core.state.nodes.nodes)}

    async def __call__(self, request: Request) -> Reply:
        """Raises Refused."""
        check_host(request, self._names)
        if request.path != "/metrics":
            raise Refused(404, f"there is no {request.path}: only /metrics")
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, "/metrics is read-only: use GET or HEAD")
        return Reply(200, "".join(family.text for family in families(self._server)).encode(), CONTENT_TYPE)


def families(server: BrokerServer) -> Iterator[Family]:
    """All metrics of a running broker, in display order."""
    yield Family("chaffinch_build_info", "always 1; the version is its label", [({"version": VERSION}, 1)])
    yield from _broker_topic_stats(server)
    yield from _cluster(server)
    yield from _connections(server)


def _broker_topic_stats(server: BrokerServer) -> Iterator[Family]:
    counted = server.core.counters.counted()
    totals = server.core.counters.snapshot()[ALL_TOPICS]
    for name, help_text in HELP.items():
        series = [({"topic": topic}, counters[name]) for topic, counters in sorted(counted.items()) if name in counters]
        yield Family(f"{PREFIX}{name}_total", help_text, series)
        yield Family(f"{PREFIX}AllTopics_{name}_total", f"{help_text}, of all topics", [(NO_LABELS, totals[name])])


def _cluster(server: BrokerServer) -> Iterator[Family]:
    state = server.core.state
    partitions = list(state.topics.partitions())
    states = [state.nodes.state_of(node.id) for node in state.nodes.nodes]
    yield Family(
        "chaffinch_nodes", "declared nodes by state", [({"state": name}, states.count(name)) for name in ("running", "lagging", "stopped")]
    )
    yield single("chaffinch_topics", "topics", len(state.topics))
    yield single("kafka_server_ReplicaManager_PartitionCount", "partitions of all topics", len(partitions))
    yield single(
        "kafka_server_ReplicaManager_UnderReplicatedPartitions",
        "partitions with a replica that is not in sync",
        sum(len(partition.replicas.in_sync) < len(partition.replicas.assigned) for partition in partitions),
    )
    yield single(
        "kafka_server_ReplicaManager_UnderMinIsrPartitionCount",
        "partitions with fewer in-sync replicas than min.insync.replicas",
        sum(len(partition.replicas.in_sync) < partition.topic.config.in_sync_min for partition in partitions),
    )
    yield single(
        "kafka_controller_KafkaController_OfflinePartitionsCount",
        "partitions without a leader",
        sum(partition.replicas.leader == NO_LEADER for partition in partitions),
    )
    sizes = [({"topic": topic.name}, sum(partition.log.size_bytes for partition in topic.partitions)) for topic in state.topics]
    yield Family("chaffinch_topic_size_bytes", "bytes of a topic's logs", sizes)
    yield single("chaffinch_groups", "consumer groups with members", sum(bool(group.members) for group in state.groups))
    ongoing = sum(metadata.state is TransactionState.ONGOING for metadata in state.transactions)
    yield single("chaffinch_transactions_ongoing", "open transactions", ongoing)


def _connections(server: BrokerServer) -> Iterator[Family]:
    peers, connection_metrics = server.peers, server.connection_metrics
    yield single("chaffinch_connections", "open connections of clients", len(peers))
    yield single("chaffinch_connections_accepted_total", "connections of clients", connection_metrics.connections)
    logins = server.core.state.authentication.counts
    outcomes = [({"outcome": outcome}, logins[outcome]) for outcome in ("succeeded", "renewed", "failed", "expired")]
    yield Family("chaffinch_authentications_total", "logins and TLS handshakes by outcome; of the latter only those that failed", outcomes)
    yield Family(
        "chaffinch_requests_total", "requests by API", [({"api": api}, count) for api, count in sorted(connection_metrics.requests.items())]
    )
    yield single("chaffinch_received_bytes_total", "bytes of requests", connection_metrics.bytes_received(peers))
    yield single("chaffinch_answered_bytes_total", "bytes of responses", connection_metrics.bytes_answered(peers))
    yield single("chaffinch_unread_bytes", "bytes of responses that clients have not read", sum(peer.unsent_bytes for peer in peers))
