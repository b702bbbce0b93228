"""Target cluster of the sink: cached clients per process, and topic snapshots (decision 40).

Spark reuses its Python workers, so a connection of one micro-batch serves the next. It is only a cache: no state of a query depends on
it, and a new worker connects again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from chaffinch import plain_text
from chaffinch.client.cluster import TopicState
from chaffinch.client.connections import FIRST_VERSION_WITH_ZSTD
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ApiException, codes
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.spark.options import ClientOptions, with_spark_names
from chaffinch.spark.refusals import Refusal, refusal_for, refusal_of
from chaffinch.spark.snapshot import (
    OFFSETS_RETENTION_MS_DEFAULT,
    TargetSnapshot,
    TopicSnapshot,
    topic_snapshot,
)
from chaffinch.spark.worker_cache import LruCache
from chaffinch.version import VERSION

_log = plain_text.logger(__name__)

UNKNOWN_TOPIC_TIMEOUT_MS = 1_000
"""Retry time for unknown topics: a new topic may not have reached every broker yet."""
UNKNOWN_TOPIC_PAUSE_MS = 100
_TOPIC_KEYS = [
    "cleanup.policy", "max.message.bytes", "message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
    "min.insync.replicas",
]  # fmt: skip
_REPLICATION_POLICY = "min.insync.replicas.policy"
_BROKER_KEYS = ["transaction.max.timeout.ms", "offsets.retention.minutes", _REPLICATION_POLICY]
CAPPED = "capped"
"""The policy that still writes such a topic. Apache Kafka does the same since 3.7, without a name for it."""

# Topics about which this process has logged a warning.
_logged: set[str] = set()
_clients: LruCache[ClientOptions, SyncClient] = LruCache(SyncClient.close)


def client_for(options: ClientOptions) -> SyncClient:
    """The cached client of this process for a cluster. It belongs to the one thread on which a Spark worker runs tasks and commits."""

    def connected() -> SyncClient:
        with with_spark_names():  # Certificate files are only read here.
            return SyncClient(
                options.bootstrap_servers,
                connections=options.connections,
                retry_backoff=options.retry_backoff,
                reconnect_backoff=options.reconnect_backoff,
                on_wait=lambda text: _log.warning("kafka.bootstrap.servers=%s: %s", ",".join(options.bootstrap_servers), text),
            )

    return _clients.get(options, connected)


def forget_client(options: ClientOptions) -> None:
    """Close the cached client, so that the next batch opens new connections after an error."""
    _clients.forget(options)


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def take_snapshot(client: SyncClient, topics: Sequence[tuple[str, str]], timeout_ms: int) -> TargetSnapshot:
    """Take snapshots of the topics, given as (name, option that names it), and of the broker's limits.

    Raises Refusal for a topic that does not exist or cannot be used, and if no broker responds within `timeout_ms`.
    """
    try:
        found = _topic_snapshots(client, [name for name, _ in topics], timeout_ms)
        for name, option in topics:
            state = found[name]
            if isinstance(state, ErrorCode):
                raise _unusable(client, name, option, state)
        configuration = _broker_configuration(client, timeout_ms)
    except ApiException as error:
        raise refusal_of(error) from None
    return TargetSnapshot(
        topics=tuple(state for state in found.values() if isinstance(state, TopicSnapshot)),
        reported_timeout_max_ms=int(timeout_max_ms) if (timeout_max_ms := configuration.get("transaction.max.timeout.ms")) else None,
        offsets_retention_ms=int(configuration.get("offsets.retention.minutes") or OFFSETS_RETENTION_MS_DEFAULT // 60_000) * 60_000,
        replication_policy=configuration.get(_REPLICATION_POLICY),
    )


def refresh_snapshot(client: SyncClient, snapshot: TargetSnapshot, topics: Iterable[TopicSnapshot], timeout_ms: int) -> TargetSnapshot:
    """Update ids and partition counts in the snapshot with one metadata request.

    A topic that no longer exists keeps its old values: the write to it fails. Raises Refusal if no broker responds within `timeout_ms`.
    """
    known = {topic.topic: topic for topic in (*snapshot.topics, *topics)}
    try:
        states = _topic_states(client, list(known), timeout_ms, UNKNOWN_TOPIC_TIMEOUT_MS)
    except ApiException as error:
        raise refusal_of(error) from None
    for name, state in states.items():
        if state is not None and state.partitions:
            known[name] = replace(known[name], topic_id=state.topic_id.bytes, partition_count=state.partition_count)
    return replace(snapshot, topics=tuple(known.values()))


def check_replication(topic: TopicSnapshot, policy: str | None) -> None:
    """Refuse a topic that can never satisfy acks=all if the broker reports that it rejects such writes. Otherwise log it once."""
    if topic.in_sync_min <= topic.replica_count or policy == CAPPED:
        return
    found = f"topic {topic.topic} has replication factor {topic.replica_count}, below its min.insync.replicas of {topic.in_sync_min}"
    if policy is not None:
        advice = "lower min.insync.replicas, or create the topic with more replicas"
        raise Refusal(Group.INVALID_CONFIGURATION, codes.INCONSISTENT_REPLICATION_FACTOR.name, f"{found}: {advice}")
    if topic.topic not in _logged:
        _logged.add(topic.topic)
        _log.warning("%s: brokers before 3.7 refuse every batch, later ones write it to the existing replicas", found)


def check_codec(client: SyncClient, codec: str, timeout_ms: int) -> None:
    """Refuse zstd if the broker is older than Apache Kafka 2.1, which does not support it; otherwise the commit would fail.

    A response without versions counts as support. The other codecs are older than the record format, so they need no check.
    """
    if codec != "zstd":
        return
    request = ApiVersionsRequest(client_software_name="chaffinch", client_software_version=VERSION)
    try:
        answer: ApiVersionsResponse = client.request(request, timeout_ms=timeout_ms)
    except ApiException as error:
        raise refusal_of(error) from None
    known = [found.max_version for found in answer.api_keys if found.api_key == api_of(ProduceRequest).key]
    if answer.error_code == codes.NONE.number and known and max(known) < FIRST_VERSION_WITH_ZSTD:
        brokers = ", ".join(str(address) for address in client.cluster.nodes.values())
        found = f"kafka.compression.type=zstd is not supported by a broker of {brokers}; it requires Apache Kafka 2.1"
        advice = "choose lz4, snappy, gzip or none"
        raise Refusal(Group.INVALID_CONFIGURATION, codes.UNSUPPORTED_COMPRESSION_TYPE.name, f"{found}: {advice}")


def find_topic(client: SyncClient, topic: str, timeout_ms: int, wait_ms: int = UNKNOWN_TOPIC_TIMEOUT_MS) -> TopicSnapshot | None:
    """Snapshot of one topic; None if there is no such topic for `wait_ms`. Raises ApiException or Refusal for other errors."""
    state = _topic_snapshots(client, [topic], timeout_ms, wait_ms)[topic]
    if isinstance(state, TopicSnapshot):
        return state
    if state in (codes.UNKNOWN_TOPIC_OR_PARTITION, codes.INVALID_TOPIC_EXCEPTION):
        return None
    raise refusal_for(state, f"topic {topic!r}: {state.text}")


def _unusable(client: SyncClient, name: str, option: str, code: ErrorCode) -> Refusal:
    if code is codes.UNKNOWN_TOPIC_OR_PARTITION:
        known = ", ".join(str(address) for address in client.cluster.nodes.values())
        text = f"topic {name!r} (option {option}) does not exist on {known}; create it, or correct the name"
        return Refusal(Group.INVALID_CONFIGURATION, code.name, text)
    return refusal_for(code, f"topic {name!r} (option {option}): {code.text}")


def _topic_snapshots(
    client: SyncClient, topics: Sequence[str], timeout_ms: int, wait_ms: int = UNKNOWN_TOPIC_TIMEOUT_MS
) -> dict[str, TopicSnapshot | ErrorCode]:
    """Each topic's snapshot, or the error code if there is none."""
    states = _topic_states(client, topics, timeout_ms, wait_ms)
    missing = [name for name, state in states.items() if state is None or not state.partitions]
    found: dict[str, TopicSnapshot | ErrorCode] = {}
    usable = [name for name in topics if name not in missing]
    configurations = _configurations(client, RESOURCE_TOPIC, usable, _TOPIC_KEYS, timeout_ms, None) if usable else {}
    for name, state in states.items():
        if state is None or not state.partitions:
            found[name] = codes.UNKNOWN_TOPIC_OR_PARTITION if state is None or state.code is codes.NONE else state.code
        else:
            replica_count = min(partition.replica_count for partition in state.partitions.values())
            found[name] = topic_snapshot(name, state.topic_id.bytes, state.partition_count, configurations.get(name, {}), replica_count)
    return found


def _topic_states(client: SyncClient, topics: Sequence[str], timeout_ms: int, wait_ms: int) -> dict[str, TopicState | None]:
    """The metadata of each topic. Requests are repeated for `wait_ms` while a topic is missing."""
    deadline_ms = wall_ms() + wait_ms
    while True:
        cluster = client.refresh_metadata(topics, timeout_ms=timeout_ms)
        states = {name: cluster.topic(name) for name in topics}
        if all(state is not None and state.partitions for state in states.values()) or wall_ms() >= deadline_ms:
            return states
        client.pause(UNKNOWN_TOPIC_PAUSE_MS)  # Brokers send no notification of a new topic.


def _broker_configuration(client: SyncClient, timeout_ms: int) -> dict[str, str | None]:
    """The broker's limits; empty if the principal may not read them."""
    node = min(client.cluster.nodes)
    found = _configurations(client, RESOURCE_BROKER, [str(node)], _BROKER_KEYS, timeout_ms, node)
    return found.get(str(node), {})


def _configurations(
    client: SyncClient, resource_type: int, names: Iterable[str], keys: list[str], timeout_ms: int, node: int | None
) -> dict[str, dict[str, str | None]]:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys) for name in names]
    )
    response: DescribeConfigsResponse = client.request(request, "any" if node is None else node, timeout_ms=timeout_ms)
    return {
        result.resource_name: {found.name: found.value for found in result.configs if found.name in keys}
        for result in response.results
        if result.error_code == 0
    }
