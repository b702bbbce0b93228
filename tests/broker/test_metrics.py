"""The metrics: every line by the rules of the text format, every counter of the KIP, and numbers that are right."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.core.counters import HELP
from chaffinch.broker.http_listener import HttpListener
from chaffinch.broker.listeners import Address
from chaffinch.broker.metrics import PREFIX, Metrics
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.runtime.prometheus import CONTENT_TYPE, Family
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.http_client import ask
from tests.broker.socket_client import SocketClient

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")

KIP_467 = ("NoKeyCompactedTopicRecords", "InvalidMagicNumberRecords", "InvalidMessageCrcRecords", "NonIncreasingOffsetRecords")


def samples(text: str) -> dict[str, float]:
    """`name{labels}` -> value, having checked the format: families together, HELP and TYPE first and once, no series twice."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    families: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert re.fullmatch(NAME, name)
            assert name not in families
            families.append(name)
            kind = "counter" if name.endswith("_total") else "gauge"
            assert next(lines) == f"# TYPE {name} {kind}"
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == families[-1]
            series = f"{match[1]}{{{match[2]}}}" if match[2] else match[1]
            assert series not in found
            found[series] = float(match[3])
    return found


@pytest.fixture
def measured() -> Iterator[tuple[EmbeddedBroker, int]]:
    topics = {"compacted": {"cleanup.policy": "compact"}, "orders": {"partitions": 4, "replication": 2, "min.insync.replicas": 2}}
    with EmbeddedBroker(topics=topics, brokers=2) as broker:
        listener = broker._thread.run(
            HttpListener.start(Address(host="127.0.0.1", port=0), Metrics(broker._running), broker._running.log_rate_limited)
        )
        yield broker, listener.port
        broker._thread.call(listener.close)


def scraped(port: int) -> dict[str, float]:
    answer = ask(port, "GET", "/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    return samples(answer.body.decode())


def produce(broker: EmbeddedBroker, topic: str, *values: bytes) -> None:
    for address in broker.bootstrap_servers.split(","):  # One of them leads.
        with SocketClient(address) as client:
            client.ask(produce_request(topic, batch_of(*values, keys=[None] * len(values))))


def test_idle_broker_exports_every_counter(measured: tuple[EmbeddedBroker, int]) -> None:
    found = scraped(measured[1])
    for name in HELP:
        assert found[f"{PREFIX}AllTopics_{name}_total"] == 0
    assert found['chaffinch_nodes{state="running"}'] == 2
    assert found["chaffinch_topics"] == 2
    assert found["kafka_server_ReplicaManager_PartitionCount"] == 5
    assert found["chaffinch_connections"] == 0


def test_counters_are_exported_per_topic_and_in_total(measured: tuple[EmbeddedBroker, int]) -> None:
    broker, port = measured
    produce(broker, "compacted", b"a", b"b")
    produce(broker, "orders", b"a")
    found = scraped(port)
    assert found[f'{PREFIX}NoKeyCompactedTopicRecordsPerSec_total{{topic="compacted"}}'] == 2
    assert found[f"{PREFIX}AllTopics_NoKeyCompactedTopicRecordsPerSec_total"] == 2
    assert found[f'{PREFIX}MessagesInPerSec_total{{topic="orders"}}'] == 1
    assert f'{PREFIX}MessagesInPerSec_total{{topic="compacted"}}' not in found, "what was never counted is no series"
    assert found['chaffinch_topic_size_bytes{topic="orders"}'] > 60
    assert {f"{name}PerSec" for name in KIP_467} <= set(HELP)


def test_connections_requests_and_bytes_are_exported(measured: tuple[EmbeddedBroker, int]) -> None:
    broker, port = measured
    with SocketClient(broker.bootstrap_servers) as client:
        client.ask(produce_request("orders", batch_of(b"a")))
        found = scraped(port)
        assert (found["chaffinch_connections"], found["chaffinch_connections_accepted_total"]) == (1, 1)
        assert found['chaffinch_requests_total{api="Produce"}'] == 1
        assert found['chaffinch_requests_total{api="ApiVersions"}'] == 1
        moved = found["chaffinch_received_bytes_total"], found["chaffinch_answered_bytes_total"]
        assert min(moved) > 50
    with SocketClient(broker.bootstrap_servers):
        pass
    after = scraped(port)
    assert after["chaffinch_received_bytes_total"] > moved[0], "what closed connections moved is not forgotten"
    assert after["chaffinch_answered_bytes_total"] > moved[1]
    assert after["chaffinch_connections_accepted_total"] == 2


def test_replica_states_are_exported(measured: tuple[EmbeddedBroker, int]) -> None:
    broker, port = measured
    broker.stop_node(1)
    found = scraped(port)
    under = found["kafka_server_ReplicaManager_UnderReplicatedPartitions"]
    assert under == found["kafka_server_ReplicaManager_UnderMinIsrPartitionCount"] == 4
    assert (found['chaffinch_nodes{state="running"}'], found['chaffinch_nodes{state="stopped"}']) == (1, 1)
    broker.stop_node(0)
    assert scraped(port)["kafka_controller_KafkaController_OfflinePartitionsCount"] == 5


def test_deleted_topic_stays_in_the_totals(measured: tuple[EmbeddedBroker, int]) -> None:
    broker, port = measured
    produce(broker, "orders", b"a")
    with SocketClient(broker.bootstrap_servers) as client:
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], topic_names=["orders"], timeout_ms=1000))
    found = scraped(port)
    assert not [series for series in found if 'topic="orders"' in series]
    assert found[f"{PREFIX}AllTopics_MessagesInPerSec_total"] == broker.counters()["MessagesInPerSec"] == 1


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("POST", "/metrics", 405), ("HEAD", "/metrics", 200)])
def test_other_paths_and_methods_have_their_status(measured: tuple[EmbeddedBroker, int], method: str, path: str, status: int) -> None:
    assert ask(measured[1], method, path).status == status


def test_labels_and_texts_are_escaped() -> None:
    text = Family("x", "a\\b\nc", [({"l": 'say "a\\b"\n'}, 1.5)]).text
    assert text == '# HELP x a\\\\b\\nc\n# TYPE x gauge\nx{l="say \\"a\\\\b\\"\\n"} 1.5\n'
    assert list(samples(text).values()) == [1.5]


def test_requests_of_web_pages_are_refused() -> None:
    """With a domain that was made to point here a browser on this machine would read names of topics for it."""
    with EmbeddedBroker() as broker:
        metrics = Metrics(broker._running, "metrics-host")
        listener = broker._thread.run(HttpListener.start(Address(host="127.0.0.1", port=0), metrics, broker._running.log_rate_limited))
        for host in ("evil.example", "", "127.0.0.1.nip.io:80"):
            answer = ask(listener.port, "GET", "/metrics", host=host)
            assert (answer.status, "kafka_" in answer.body.decode()) == (403, False)
        for host in ("metrics-host:9100", "127.0.0.1", "localhost", "10.0.0.7:1"):
            assert ask(listener.port, "GET", "/metrics", host=host).status == 200
        broker._thread.call(listener.close)
