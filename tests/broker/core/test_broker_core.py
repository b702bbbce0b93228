"""The core as a whole: order on a connection, faults, syncing, full disks, options."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaffinch.broker.core import options
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.counters import HELP, Counters
from chaffinch.broker.core.error_responses import error_response
from chaffinch.broker.core.events import RequestReceived, Respond
from chaffinch.broker.core.handlers import HANDLERS, PER_PARTITION_FAULTS
from chaffinch.broker.core.replicas.declared_replicas import DeclaredNodes, Node
from chaffinch.errors import ConfigException
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.server_connection import ReceivedRequest
from chaffinch.records import validation_rules
from chaffinch.storage.file_system import AlreadyLocked, MemoryFileSystem, StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import NOW_MS, Cluster, produce_request
from tools.markdown_tables import options_table

PRODUCER = ProducerIdentity(7, 0)


def waiting_fetch(wait_ms: int = 500) -> FetchRequest:
    requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)])


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders")
    return cluster


class TestOrder:
    def test_pipelined_requests_are_processed_in_order(self, cluster: Cluster) -> None:
        """As in Apache Kafka: what follows a waiting fetch on the same connection waits with it."""
        client = cluster.client()
        client.send(waiting_fetch())
        client.send(produce_request("orders", batch_of(b"a")))
        client.send(MetadataRequest(topics=None))
        assert client.answers == []
        assert cluster.partition("orders", 0).log.log_end_offset == 0
        cluster.advance(500)
        assert [type(answer).__name__ for answer in client.answers] == ["FetchResponse", "ProduceResponse", "MetadataResponse"]
        assert cluster.partition("orders", 0).log.log_end_offset == 1

    def test_request_behind_a_delayed_one_is_an_error(self, cluster: Cluster) -> None:
        """Shells keep it: a second queue here would be one that only tests use."""
        client = cluster.client()
        client.send(waiting_fetch())
        data = b"".join(client.connection.encode_request(produce_request("orders", batch_of(b"a")))[1])
        (request,) = client.server.receive(data)
        with pytest.raises(AssertionError, match="while the response to another is delayed"):
            cluster.core.apply(RequestReceived(connection_id=client.connection_id, request=request), NOW_MS)
        assert cluster.partition("orders", 0).log.log_end_offset == 0

    def test_pipelined_fetches_wait_one_after_another(self, cluster: Cluster) -> None:
        client, writer = cluster.client(), cluster.client()
        client.send(waiting_fetch())
        client.send(waiting_fetch())
        cluster.advance(500)
        assert len(client.answers) == 1
        writer.produce("orders", batch_of(b"a"))
        assert len(client.answers) == 2

    def test_waiting_fetch_does_not_delay_other_connections(self, cluster: Cluster) -> None:
        cluster.client().send(waiting_fetch())
        cluster.client().ask(MetadataRequest(topics=None))

    def test_closed_connection_drops_its_pending_requests(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.send(waiting_fetch())
        client.send(produce_request("orders", batch_of(b"a")))
        client.lose()
        cluster.advance(1000)
        assert cluster.partition("orders", 0).log.log_end_offset == 0


class TestFaults:
    def test_fault_for_one_partition_leaves_the_others(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", 2)
        cluster.core.faults.add(api="Produce", topic="orders", partition=1, error="NOT_ENOUGH_REPLICAS_AFTER_APPEND", count=2)
        client = cluster.client()
        request = produce_request("orders", batch_of(b"a"))
        request.topics[0].partitions += produce_request("orders", batch_of(b"b"), partition=1).topics[0].partitions
        for expected in ([0, 20], [0, 20], [0, 0]):
            answer = client.ask(request)
            assert [part.error_code for part in answer.responses[0].partition_responses] == expected
        assert not cluster.core.faults

    def test_request_that_matches_no_rule_passes(self, cluster: Cluster) -> None:
        cluster.topic("other")
        cluster.core.faults.add(topic="other")
        client = cluster.client()
        assert client.produce("orders", batch_of(b"a")).error_code == 0
        client.ask(MetadataRequest(topics=None))
        assert client.produce("other", batch_of(b"a")).error_code == 6

    @pytest.mark.parametrize(("action", "stored"), [("drop_before", 0), ("drop_after", 1)])
    def test_drop_rule_closes_the_connection(self, cluster: Cluster, action: str, stored: int) -> None:
        cluster.core.faults.add(action=action)
        client = cluster.client()
        client.send(produce_request("orders", batch_of(b"a")))
        assert client.closed is not None
        assert client.answers == []
        assert cluster.partition("orders", 0).log.log_end_offset == stored

    def test_batch_resent_after_a_lost_response_is_stored_once(self, cluster: Cluster) -> None:
        """The broker's half of exactly once: cut after the append, sent again on a new connection, old offset."""
        records = bytes(batch_of(b"a", b"b", identity=PRODUCER, sequence=0))
        cluster.core.faults.add(action="drop_after")
        cluster.client().send(produce_request("orders", records))
        again = cluster.client().produce("orders", records)
        assert (again.error_code, again.base_offset) == (0, 0)
        assert cluster.partition("orders", 0).log.log_end_offset == 2

    def test_batch_resent_after_a_restart_is_stored_once(self, cluster: Cluster) -> None:
        records = bytes(batch_of(b"a", b"b", identity=PRODUCER, sequence=0))
        cluster.client().produce("orders", records)
        cluster.restart()
        again = cluster.client().produce("orders", records)
        assert (again.error_code, again.base_offset) == (0, 0)
        assert cluster.partition("orders", 0).log.log_end_offset == 2

    def test_delay_rule_delays_the_response(self, cluster: Cluster) -> None:
        cluster.core.faults.add(action="delay", delay_ms=300)
        client = cluster.client()
        client.send(produce_request("orders", batch_of(b"a")))
        assert cluster.partition("orders", 0).log.log_end_offset == 1
        cluster.advance(299)
        assert client.answers == []
        cluster.advance(1)
        assert client.answers.pop().responses[0].partition_responses[0].error_code == 0

    def test_delay_rule_delays_a_waiting_fetch_further(self, cluster: Cluster) -> None:
        cluster.core.faults.add(api="Fetch", action="delay", delay_ms=300)
        client = cluster.client()
        client.send(waiting_fetch(100))
        cluster.advance(399)
        assert client.answers == []
        cluster.advance(1)
        assert len(client.answers) == 1

    def test_delay_rule_delays_a_fetch_served_early(self, cluster: Cluster) -> None:
        cluster.core.faults.add(api="Fetch", action="delay", delay_ms=300)
        client = cluster.client()
        client.send(waiting_fetch(10_000))
        cluster.advance(50)
        cluster.client().produce("orders", batch_of(b"a"))
        cluster.advance(299)
        assert client.answers == []
        cluster.advance(1)
        assert client.answers.pop().responses[0].partitions[0].records

    @pytest.mark.parametrize(
        "api", [api for api in APIS.values() if api.served and api.key not in PER_PARTITION_FAULTS], ids=lambda api: api.name
    )
    def test_error_response_is_encodable_in_every_version(self, api: Any) -> None:
        for version in api.served:
            request = ReceivedRequest(api=api, version=version, correlation_id=1, client_id="c", message=api.request())
            api.response.decode(b"".join(error_response(request, 41).encode(version)), version)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"api": "Producing"}, "Produce"),
            ({"api": "Produze"}, "did you mean Produce"),
            ({"action": "explode"}, "drop_after"),
            ({"action": "drop-after"}, "did you mean drop_after"),
            ({"action": "slow_down", "direction": "up"}, "answers, requests, both"),
            ({"action": "slow_down", "bytes_per_second": 0}, "bytes_per_second of a fault must be a whole number from 1"),
            ({"partition": -1}, "partition"),
            ({"partition": True}, "partition"),
            ({"topic": 5}, "topic of a fault must be a string, not 5"),
            ({"client_id": 5}, "client_id"),
            ({"error": "NONE"}, "not an error"),
            ({"error": "none at all"}, "unknown error 'none at all'"),
            ({"error": "NOT_LEADER"}, "NOT_LEADER_OR_FOLLOWER"),
            ({"count": 0}, "count"),
            ({"action": "delay", "delay_ms": -1}, "delay_ms of a fault must be a whole number from 0"),
        ],
        ids=str,
    )
    def test_invalid_rule_is_refused(self, cluster: Cluster, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigException, match=says):
            cluster.core.faults.add(**changes)


class TestFlushPolicy:
    """`always`: whatever is answered survives a loss of power; `os`: the death of the process."""

    @pytest.mark.parametrize(("policy", "kept"), [("always", 2), ("os", 0)])
    def test_flush_policy_decides_what_survives_a_loss_of_power(self, policy: str, kept: int) -> None:
        cluster = Cluster({"flush.policy": policy})
        cluster.topic("orders")
        if policy == "os":
            cluster.core.close()
            cluster.core = cluster._core()
        client = cluster.client()
        assert client.produce("orders", batch_of(b"a", b"b")).error_code == 0
        cluster.core.abandon()
        cluster.file_system.crash(lambda path, unsynced: 0)
        cluster.core = cluster._core()
        assert cluster.partition("orders", 0).log.log_end_offset == kept

    def test_one_sync_serves_several_requests(self) -> None:
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders")
        syncs: list[str] = []
        cluster.file_system.hook = lambda operation, path, size: syncs.append(path) if operation == "sync" else None
        client = cluster.client()
        syncs.clear()
        for _ in range(5):
            data = b"".join(client.connection.encode_request(produce_request("orders", batch_of(b"a")))[1])
            (request,) = client.server.receive(data)
            effects = cluster.core.apply(RequestReceived(connection_id=1, request=request), NOW_MS)
            assert isinstance(effects[0], Respond)
        assert syncs == []
        cluster.core.sync()
        assert len([path for path in syncs if path.endswith(".log")]) == 1

    def test_batch_with_failed_sync_is_not_acknowledged_when_repeated(self) -> None:
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders")
        batch = bytes(batch_of(b"a", identity=PRODUCER, sequence=0))
        clients = [cluster.client(), cluster.client()]

        def broken(operation: str, path: str, size: int) -> None:
            if operation == "sync" and path.endswith(".log"):
                raise StorageError(path, "sync", "input/output error")

        cluster.file_system.hook = broken
        with pytest.raises(StorageError):
            clients[0].produce("orders", batch)
        cluster.file_system.hook = None  # The next sync would succeed, but for what the failed one has lost.
        with pytest.raises(StorageError):
            clients[1].produce("orders", batch)
        assert cluster.core.counters.total("DuplicateBatchesPerSec") == 1
        cluster.core.abandon()
        cluster.file_system.crash(lambda path, unsynced: 0)
        cluster.clients.clear()
        cluster.core = cluster._core()
        assert cluster.client().produce("orders", batch).base_offset == 0

    def test_topic_deleted_before_the_sync_loses_no_response(self) -> None:
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders")
        client = cluster.client()
        effects: list[Any] = []
        for message in (produce_request("orders", batch_of(b"a")), DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000)):
            data = b"".join(client.connection.encode_request(message, 5)[1])
            (request,) = client.server.receive(data)
            effects += cluster.core.apply(RequestReceived(connection_id=1, request=request), NOW_MS)
        cluster.core.sync()
        assert [type(effect) for effect in effects] == [Respond, Respond]


class TestFullDisk:
    def test_full_disk_refuses_writes_until_there_is_space(self, cluster: Cluster) -> None:
        client = cluster.client()

        def full(operation: str, path: str, size: int) -> None:
            if operation == "append":
                raise StorageError(path, "append to", "no space left")

        cluster.file_system.hook = full
        refused = client.produce("orders", batch_of(b"a"))
        assert (refused.error_code, "ask the operator for the details" in (refused.error_message or "")) == (56, True)
        assert cluster.lines[-1].endswith("no space left")
        cluster.file_system.hook = None
        assert client.produce("orders", batch_of(b"a")).base_offset == 0


def test_second_core_on_a_directory_is_refused() -> None:
    cluster = Cluster()
    with pytest.raises(AlreadyLocked):
        cluster._core()
    cluster.core.close()
    cluster._core()


def test_every_served_api_has_a_handler() -> None:
    assert set(HANDLERS) == {api.key for api in APIS.values() if api.served}


def test_the_same_seed_gives_the_same_cluster() -> None:
    def ids(seed: int) -> list[Any]:
        cluster = Cluster(seed=seed)
        cluster.topic("orders", 3)
        return [cluster.core.state.cluster_id, cluster.topic_named("orders").topic_id]

    assert ids(1) == ids(1) != ids(2)


class TestOptions:
    def test_defaults_are_those_of_apache_kafka_4_3(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        config = cluster.topic_named("orders").config
        assert (config.batch_bytes_max, config.timestamp_after_max_ms, config.in_sync_min) == (1_048_588, 3_600_000, 1)
        assert (config.log.segment_bytes, config.compression_type, config.is_compacted) == (1 << 30, "producer", False)

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ({"num.partition": 1}, "num.partitions"),
            ({"num.partitions": 0}, "at least 1"),
            ({"error.numbering": "roman"}, "apache, kip"),
            ({"flush.policy": "never"}, "os, always"),
            ({"log.cleanup.policy": "compress"}, "compact"),
        ],
        ids=str,
    )
    def test_invalid_options_are_refused_before_the_directory_is_used(self, config: dict[str, Any], says: str) -> None:
        file_system = MemoryFileSystem()
        with pytest.raises(ConfigException, match=says):
            BrokerCore(file_system, config, nodes=[Node(id=0, host="h", port=1)], rng=random.Random(1), steady_ms=0)
        assert file_system.list("") == []

    def test_printed_table_names_every_option(self) -> None:
        text = options_table(options.BROKER_OPTIONS.options)
        assert all(option.name in text for option in options.BROKER_OPTIONS.options)

    def test_counters_of_batch_rules_exist(self) -> None:
        assert {rule.counter for rule in validation_rules.BATCH_RULES if rule.counter} <= set(HELP)


class TestCounters:
    def test_unknown_counter_is_an_error(self) -> None:
        with pytest.raises(AssertionError):
            Counters().add("t", "NoSuchCounter")

    def test_topics_that_do_not_exist_are_not_counted(self, cluster: Cluster) -> None:
        cluster.client().produce("missing", batch_of(b"a"))
        assert set(cluster.core.counters.snapshot()) == {""}


class TestDeclaredNodes:
    def test_replicas_are_spread_evenly(self) -> None:
        nodes = DeclaredNodes([Node(id=number, host="h", port=number) for number in range(5)])
        replicas = nodes.assign(10, 3, 2)
        assert all(len(set(assigned)) == 3 for assigned in replicas)
        counts = [sum(node in assigned for assigned in replicas) for node in range(5)]
        assert counts == [6] * 5

    def test_coordinator_and_controller_are_missing_without_nodes(self) -> None:
        nodes = DeclaredNodes([Node(id=0, host="h", port=1)], {0})
        assert nodes.coordinator_of("x") is None
        assert nodes.controller_id == -1
