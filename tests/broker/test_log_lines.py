"""Log lines of the broker for its operator: refused clients, and settings that will fail later."""

from __future__ import annotations

import logging

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.protocol.messages.describe_configs import RESOURCE_BROKER
from tests.broker.batches import batch_of
from tests.broker.core.configs.config_requests import alter, change
from tests.broker.core_client import Cluster, produce_request
from tests.broker.socket_client import SocketClient


def test_refusal_names_the_address_of_its_client(caplog: pytest.LogCaptureFixture) -> None:
    topics = {"orders": {"max.message.bytes": 100}}
    with (
        caplog.at_level(logging.INFO, "chaffinch.broker"),
        EmbeddedBroker(topics=topics) as broker,
        SocketClient(broker.bootstrap_servers) as client,
    ):
        client.ask(produce_request("orders", batch_of(b"a" * 1000)))
    assert any(" at 127.0.0.1 for orders-0: MESSAGE_TOO_LARGE: " in record.getMessage() for record in caplog.records)


def lines_of(cluster: Cluster) -> list[str]:
    return [line.text for line in cluster.core.state.refusals.take()]


def test_replicas_on_undeclared_nodes_are_logged() -> None:
    cluster = Cluster(nodes=3)
    for number in range(7):
        cluster.topic(f"t{number}", replication=3, min_insync_replicas="2")
    cluster.restart()
    assert lines_of(cluster) == []
    cluster.node_count = 1
    cluster.restart()
    (line,) = lines_of(cluster)
    assert line.startswith("7 topics with replicas on nodes that are not declared: t0, t1, t2, t3, t4 and 2 more. ")
    assert line.endswith("To run all of them, start with --brokers 3 (in Python brokers=3)")


def test_logs_without_a_topic_are_logged() -> None:
    cluster = Cluster()
    for name in ("kept", "lost"):
        cluster.topic(name)
    topic = cluster.core.topics.get("lost")
    assert topic is not None
    directory = topic.directory.removeprefix("logs/")
    journal = cluster.file_system.open("journals/cluster.journal")
    journal.truncate(journal.size - 7)
    cluster.file_system.make_directory("logs/lost+found")  # Where the disk of the logs is one of its own.
    cluster.restart()
    (line,) = [line for line in lines_of(cluster) if line.startswith("log directories without a topic")]
    assert f": {directory}. They are kept: " in line
    assert [topic.name for topic in cluster.core.topics] == ["kept"]


def test_min_insync_replicas_above_the_replication_factor_is_logged() -> None:
    cluster = Cluster({"min.insync.replicas": "2"})
    cluster.topic("m")
    cluster.topic("n", min_insync_replicas="1")
    (line,) = lines_of(cluster)
    assert line.startswith("1 topic with min.insync.replicas above the replication factor: m (2 of 1). acks=all can never succeed there")
    cluster.restart()
    assert lines_of(cluster) == [line]


def test_policy_capped_logs_no_mismatch() -> None:
    cluster = Cluster({"min.insync.replicas": "2", "min.insync.replicas.policy": "capped"})
    cluster.topic("m")
    assert lines_of(cluster) == []


@pytest.mark.parametrize(
    ("option", "instead"),
    [("listeners", "--listen"), ("advertised.listeners", "--advertise"), ("log.dirs", "--data-dir"), ("log.dir", "--data-dir")],
)
def test_kafka_option_with_another_name_is_logged_with_it(option: str, instead: str) -> None:
    (line,) = lines_of(Cluster({option: "x"}))
    assert line.startswith(f"option {option}=x is known to Apache Kafka and without effect here: use {instead}")


def test_refused_broker_option_is_logged_with_its_broker() -> None:
    cluster = Cluster()
    for name, resource in (("0", "broker 0"), ("", "all brokers")):
        alter(cluster.client(), change(name, RESOURCE_BROKER, num_partitions="0"))
        assert cluster.lines[-1].startswith(f"refused: IncrementalAlterConfigs from client 'test' for {resource}: ")
