"""Declared nodes of a running broker that stop and start: ports, connections, and the answers of the other nodes."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker import listeners
from chaffinch.errors import ConfigException
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime import loop
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import TIMEOUT_SECONDS, SocketClient


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    topics = {"orders": {"partitions": 3, "replication": 3, "min.insync.replicas": 2}}
    with EmbeddedBroker(topics=topics, brokers=3, config={"replica.lag.time.max.ms": 3_600_000}) as broker:
        yield broker


def address(broker: EmbeddedBroker, node_id: int) -> str:
    return broker.bootstrap_servers.split(",")[node_id]


def refuses(broker: EmbeddedBroker, node_id: int) -> bool:
    host, _, port = address(broker, node_id).rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    return False


def leaders(broker: EmbeddedBroker, requested: int) -> dict[int, int]:
    with SocketClient(address(broker, requested)) as client:
        (topic,) = client.ask(MetadataRequest(topics=None)).topics
        return {partition.partition_index: partition.leader_id for partition in topic.partitions}


def led_by(broker: EmbeddedBroker, node_id: int, requested: int) -> int:
    return next(partition for partition, leader in leaders(broker, requested).items() if leader == node_id)


def code(client: SocketClient, partition: int, version: int | None = None) -> int:
    answer = client.ask(produce_request("orders", batch_of(b"a"), partition=partition), version)
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("abruptly", [False, True])
def test_stopped_node_refuses_connections_and_leads_nothing(broker: EmbeddedBroker, abruptly: bool) -> None:
    partition = led_by(broker, 1, 0)
    with SocketClient(address(broker, 1)) as victim, SocketClient(address(broker, 0)) as bystander:
        assert code(victim, partition) == 0
        broker.stop_node(1, abruptly=abruptly)
        assert victim.is_closed_by_peer()
        assert refuses(broker, 1)
        answer = bystander.ask(MetadataRequest(topics=None))
        assert [node.node_id for node in answer.brokers] == [0, 2]
    assert broker.nodes() == {0: "running", 1: "lagging" if abruptly else "stopped", 2: "running"}
    assert set(leaders(broker, 2).values()) == {0, 2}


def test_started_node_listens_on_its_port_again(broker: EmbeddedBroker) -> None:
    before = broker.bootstrap_servers
    for _ in range(3):
        broker.stop_node(1)
        assert refuses(broker, 1)
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", int(address(broker, 1).rpartition(":")[2])))
        broker.start_node(1)
        broker.start_node(1)
        assert not refuses(broker, 1)
    assert broker.bootstrap_servers == before
    assert set(broker.nodes().values()) == {"running"}


def test_produce_at_another_node_names_the_new_leader(broker: EmbeddedBroker) -> None:
    partition = led_by(broker, 1, 0)
    broker.stop_node(1)
    leader = leaders(broker, 0)[partition]
    with SocketClient(address(broker, 2 - leader)) as client:
        response = client.ask(produce_request("orders", batch_of(b"a"), partition=partition))
        answer = response.responses[0].partition_responses[0]
        assert (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (6, leader, 1)
        assert [f"{node.host}:{node.port}" for node in response.node_endpoints] == [address(broker, leader)]


def test_too_few_replicas_refuse_acks_all(broker: EmbeddedBroker) -> None:
    broker.stop_node(1)
    broker.stop_node(2)
    with SocketClient(address(broker, 0)) as client:
        assert code(client, 0) == 19
        broker.start_node(1)
        assert code(client, led_by(broker, 0, 1)) == 0


@pytest.mark.parametrize("policy", ["os", "always"])
def test_produce_waits_for_a_lagging_node(policy: str) -> None:
    with EmbeddedBroker(topics={"orders": {"replication": 2}}, brokers=2, config={"flush.policy": policy}) as broker:
        leader = led_leader(broker)
        broker.stop_node(1 - leader, abruptly=True)
        with SocketClient(address(broker, leader)) as client:
            client.send(produce_request("orders", batch_of(b"a")).replace(timeout_ms=60_000))
            with SocketClient(address(broker, leader)) as other:
                assert other.ask(produce_request("orders", batch_of(b"b"), acks=1)).responses[0].partition_responses[0].base_offset == 1
            broker.start_node(1 - leader)
            assert client.receive().responses[0].partition_responses[0].error_code == 0


def led_leader(broker: EmbeddedBroker) -> int:
    return leaders(broker, 0)[0]


def test_last_stopped_node_leads_after_all_return(broker: EmbeddedBroker) -> None:
    for node_id in range(3):
        broker.stop_node(node_id)
    assert all(refuses(broker, node_id) for node_id in range(3))
    for node_id in range(3):
        broker.start_node(node_id)
    assert set(leaders(broker, 0).values()) == {2}, "the last in-sync replica leads"


def test_restart_keeps_stopped_nodes_stopped(broker: EmbeddedBroker) -> None:
    broker.stop_node(1)
    broker.stop_node(2, abruptly=True)
    for kill in (True, False):
        broker.restart(kill=kill)
        assert broker.nodes() == {0: "running", 1: "stopped", 2: "stopped"}
        assert refuses(broker, 1)
        assert set(leaders(broker, 0).values()) == {0}
    broker.start_node(1)
    assert not refuses(broker, 1)


def test_missing_node_is_refused(broker: EmbeddedBroker) -> None:
    for change in (broker.stop_node, broker.start_node):
        with pytest.raises(ConfigException, match="node 3 does not exist"):
            change(3)
    assert set(broker.nodes().values()) == {"running"}


@pytest.fixture(params=["uvloop", "asyncio"])
def either_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop where it is installed, and the loop of those who have it not."""
    if request.param == "asyncio":
        monkeypatch.setattr(loop, "new_loop", asyncio.new_event_loop)


def connections(address: str, count: int) -> list[socket.socket]:
    """Which the broker need not have accepted yet."""
    host, _, port = address.rpartition(":")
    return [socket.create_connection((host, int(port)), TIMEOUT_SECONDS) for _ in range(count)]


def is_closed(connection: socket.socket) -> bool:
    with connection:
        try:
            return not connection.recv(1)
        except ConnectionResetError:
            return True


@pytest.mark.usefixtures("either_loop")
class TestConnectionsBeingAccepted:
    def test_stopping_node_closes_connections_being_accepted(self) -> None:
        with EmbeddedBroker(brokers=2) as broker:
            for _ in range(20):
                accepted = connections(address(broker, 1), 10)
                broker.stop_node(1)
                assert all(is_closed(connection) for connection in accepted)
                broker.start_node(1)

    def test_closing_broker_closes_connections_being_accepted(self) -> None:
        for _ in range(20):
            broker = EmbeddedBroker()
            accepted = connections(broker.bootstrap_servers, 10)
            broker.close()
            assert all(is_closed(connection) for connection in accepted)
        gc.collect()  # What was left open would be a ResourceWarning now.


def test_node_whose_port_is_lost_can_start_later(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(listener: socket.socket, target: object) -> None:
        raise OSError(98, "Address already in use")

    with SocketClient(address(broker, 1)) as client:
        with monkeypatch.context() as broken:
            broken.setattr(listeners, "_bind", taken)
            with pytest.raises(OSError, match="in use"):
                broker.stop_node(1)
        assert client.is_closed_by_peer()
    assert broker.nodes()[1] == "stopped"
    before = broker.bootstrap_servers
    broker.start_node(1)
    assert not refuses(broker, 1)
    assert broker.bootstrap_servers == before
