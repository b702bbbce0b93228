"""The proxy that gives Apache Kafka faults on purpose, here before a broker of ours: `make interop` rests on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient
from tests.interop.fault_proxy import FaultProxy

UNKNOWN_TOPIC, NOT_LEADER = 3, 6


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"]) as running:
        yield running


@pytest.fixture
def proxy(broker: EmbeddedBroker) -> Iterator[FaultProxy]:
    with FaultProxy() as running:
        running.aim(broker.bootstrap_servers)
        yield running


def produced(proxy: FaultProxy) -> int:
    with SocketClient(proxy.address) as client:
        return int(client.ask(produce_request("orders", batch_of(b"v")), 9).responses[0].partition_responses[0].error_code)


def test_unmatched_requests_pass_through(proxy: FaultProxy, broker: EmbeddedBroker) -> None:
    proxy.change(lambda script: script.add(api="Metadata", action="drop_before", client_id="another"))
    assert produced(proxy) == 0
    assert broker.read("orders").num_rows == 1


@pytest.mark.parametrize(("action", "stored"), [("drop_before", 0), ("drop_after", 1)])
def test_connections_are_cut(proxy: FaultProxy, broker: EmbeddedBroker, action: str, stored: int) -> None:
    proxy.change(lambda script: script.add(api="Produce", action=action))
    with pytest.raises(ConnectionError):
        produced(proxy)
    assert broker.read("orders").num_rows == stored
    assert produced(proxy) == 0, "a rule hits as often as it says"


def test_error_rule_answers_without_the_broker(proxy: FaultProxy, broker: EmbeddedBroker) -> None:
    proxy.change(lambda script: script.add(api="Produce", action="error", error="NOT_LEADER_OR_FOLLOWER"))
    proxy.change(lambda script: script.add(api="Metadata", action="error", error="UNKNOWN_TOPIC_OR_PARTITION"))
    assert produced(proxy) == NOT_LEADER
    assert broker.read("orders").num_rows == 0
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    with SocketClient(proxy.address) as client:
        assert [client.ask(asked, 12).topics[0].error_code for _ in range(2)] == [UNKNOWN_TOPIC, 0]


def test_delayed_answer_arrives(proxy: FaultProxy) -> None:
    proxy.change(lambda script: script.add(api="Produce", action="delay", delay_ms=20))
    assert produced(proxy) == 0
    assert proxy.change(lambda script: len(script)) == 0


def test_answers_keep_the_order_of_their_requests(proxy: FaultProxy) -> None:
    """The second request's is there first."""
    proxy.change(lambda script: script.add(api="Produce", action="delay", delay_ms=50))
    proxy.change(lambda script: script.add(api="Produce", action="error", error="NOT_LEADER_OR_FOLLOWER"))
    with SocketClient(proxy.address) as client:
        for _ in range(2):
            client.send(produce_request("orders", batch_of(b"v")), 9)
        answers = [client.receive() for _ in range(2)]
    assert [answer.responses[0].partition_responses[0].error_code for answer in answers] == [0, NOT_LEADER]
