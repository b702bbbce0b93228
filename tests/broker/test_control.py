"""The control port: nodes and faults of a running broker over HTTP and JSON."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.control import Control
from chaffinch.broker.http_listener import HttpListener
from chaffinch.broker.listeners import Address
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.http_client import ask
from tests.broker.socket_client import SocketClient

BROKER_AND_PORT = tuple[EmbeddedBroker, int]


@pytest.fixture
def controlled() -> Iterator[BROKER_AND_PORT]:
    with EmbeddedBroker(topics={"orders": {"partitions": 3, "replication": 3}}, brokers=3) as broker:
        server = broker._running
        listener = broker._thread.run(
            HttpListener.start(Address(host="127.0.0.1", port=0), Control(server, "127.0.0.1"), server.log_rate_limited)
        )
        yield broker, listener.port
        broker._thread.call(listener.close)


def test_nodes_are_listed_stopped_and_started(controlled: BROKER_AND_PORT) -> None:
    broker, port = controlled
    nodes = ask(port, "GET", "/nodes").value
    assert [f"{node['host']}:{node['port']}" for node in nodes] == broker.bootstrap_servers.split(",")
    assert [(node["state"], node["leaders"], node["in_sync"]) for node in nodes] == [("running", 1, 3)] * 3
    answer = ask(port, "POST", "/nodes/1/stop", {})
    assert (answer.status, answer.value[1]["state"], answer.value[1]["leaders"]) == (200, "stopped", 0)
    assert ask(port, "POST", "/nodes/2/stop", {"abruptly": True}).value[2]["state"] == "lagging"
    assert broker.nodes() == {0: "running", 1: "stopped", 2: "lagging"}
    assert ask(port, "POST", "/nodes/1/start").value[1]["state"] == "running"
    assert broker.nodes()[1] == "running"


def test_last_node_can_be_stopped_and_started(controlled: BROKER_AND_PORT) -> None:
    broker, port = controlled
    for node_id in range(3):
        assert ask(port, "POST", f"/nodes/{node_id}/stop", {}).status == 200
    assert set(broker.nodes().values()) == {"stopped"}
    assert ask(port, "POST", "/nodes/2/start", {}).value[2]["leaders"] == 3


def test_faults_are_logged(controlled: BROKER_AND_PORT, caplog: pytest.LogCaptureFixture) -> None:
    _, port = controlled
    with caplog.at_level(logging.INFO, "chaffinch.broker"):
        ask(port, "POST", "/faults", {"api": "Fetch", "action": "delay", "delay_ms": 10, "client_id": "a\nb"})
        ask(port, "DELETE", "/faults/1")
        ask(port, "DELETE", "/faults")
    assert [record.getMessage() for record in caplog.records] == [
        'fault added: {"id": 1, "api": "Fetch", "action": "delay", "client_id": "a\\nb", "delay_ms": 10, "count": 1}',
        "fault 1 is cleared",
        "all faults are cleared",
    ]


def test_faults_are_added_listed_and_cleared(controlled: BROKER_AND_PORT) -> None:
    broker, port = controlled
    assert ask(port, "GET", "/faults").value == []
    given = {"topic": "orders", "error": "INVALID_RECORD", "count": 2, "client_id": "socket client"}
    (added,) = ask(port, "POST", "/faults", given).value
    assert added == {"id": 1, "api": "Produce", "action": "error", **given}
    assert broker.faults.list() == [added]
    with SocketClient(broker.bootstrap_servers) as client:
        assert client.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 87
    assert ask(port, "GET", "/faults").value[0]["count"] == 1
    ask(port, "POST", "/faults", {"api": "Fetch", "action": "delay", "delay_ms": 10})
    assert [fault["id"] for fault in ask(port, "DELETE", "/faults/1").value] == [2]
    assert ask(port, "DELETE", "/faults").value == []


def test_api_can_be_named_by_number(controlled: BROKER_AND_PORT) -> None:
    broker, port = controlled
    broker.faults.add(api=1)
    assert [fault["api"] for fault in ask(port, "POST", "/faults", {"api": 0}).value] == ["Fetch", "Produce"]


def test_rule_for_a_missing_topic_or_partition_has_a_note(controlled: BROKER_AND_PORT) -> None:
    _, port = controlled
    for given in ({"topic": "nosuchtopic"}, {"topic": "orders", "partition": 7}, {"topic": "orders", "partition": 2}):
        faults = ask(port, "POST", "/faults", given).value
    notes = [fault.get("note") for fault in faults]
    assert notes == ["topic nosuchtopic does not exist yet", "topic orders currently has 3 partitions", None]


BAD: dict[str, tuple[str, str, Any, int, str]] = {
    "unknown path": ("GET", "/topics", None, 404, "only /nodes and /faults"),
    "unknown node": ("POST", "/nodes/7/stop", {}, 404, "nodes 0 to 2"),
    "unknown node to start": ("POST", "/nodes/7/start", {}, 404, "nodes 0 to 2"),
    "no number": ("POST", "/nodes/x/stop", {}, 400, "expected the number of a node, not 'x'"),
    "a long number": ("POST", "/nodes/9999999999/stop", {}, 404, "node 9999999999 does not exist: this broker has nodes 0 to 2"),
    "a longer number": ("POST", "/nodes/" + "0" + "1" * 5000 + "/stop", {}, 404, "there is no node with a number of 5000 digits"),
    "a long number of a fault": ("DELETE", "/faults/9999999999", None, 404, "there is no fault 9999999999"),
    "a longer number of a fault": ("DELETE", "/faults/" + "1" * 21, None, 404, "there is no fault with a number of 21 digits"),
    "half a surrogate pair": ("POST", "/faults", {"client_id": "\ud800"}, 400, "no request can have '\\ud800'"),
    "half a surrogate pair in a topic": ("POST", "/faults", {"topic": "\ud800"}, 400, "topic name '\\ud800' has characters other"),
    "an API by a number that none has": ("POST", "/faults", {"api": 9999}, 400, "unknown API 9999"),
    "wrong method": ("GET", "/nodes/1/stop", None, 405, "use POST"),
    "wrong method for nodes": ("DELETE", "/nodes", None, 405, "use GET"),
    "wrong method for a fault": ("GET", "/faults/1", None, 405, "use DELETE"),
    "no boolean": ("POST", "/nodes/1/stop", {"abruptly": "yes"}, 400, "true or false"),
    "unknown field": ("POST", "/nodes/1/stop", {"abrupt": True}, 400, "unknown field 'abrupt', allowed: abruptly"),
    "a field where none is": ("POST", "/nodes/1/start", {"abruptly": True}, 400, "unknown field 'abruptly': start takes no fields"),
    "no delay": ("POST", "/faults", {"action": "delay"}, 400, "requires delay_ms"),
    "unknown field of a fault": ("POST", "/faults", {"errors": "X"}, 400, "allowed: api, topic"),
    "self is no field": ("POST", "/faults", {"self": 1}, 400, "unknown field 'self'"),
    "unknown error": ("POST", "/faults", {"error": "INVALIDRECORD"}, 400, "INVALID_RECORD"),
    "a list for a name": ("POST", "/faults", {"api": ["Produce"]}, 400, "unknown API"),
    "an object for a number": ("POST", "/faults", {"count": {}}, 400, "count of a fault must be a whole number"),
    "a huge number": ("POST", "/faults", {"count": 10**30}, 400, "whole number"),
    "no JSON": ("POST", "/faults", b"{", 400, "not JSON"),
    "no UTF-8": ("POST", "/faults", b"\xff", 400, "not JSON"),
    "deep JSON": ("POST", "/faults", b"[" * 60_000, 400, "not JSON"),
    "a list": ("POST", "/faults", [], 400, "must be a JSON object"),
    "unknown fault": ("DELETE", "/faults/5", None, 404, "there is no fault 5"),
}


@pytest.mark.parametrize(("method", "path", "body", "status", "says"), BAD.values(), ids=BAD)
def test_invalid_input_is_refused_with_one_line(
    controlled: BROKER_AND_PORT, method: str, path: str, body: Any, status: int, says: str
) -> None:
    broker, port = controlled
    answer = ask(port, method, path, body)
    assert answer.status == status
    assert says in answer.value["error"]
    assert "\n" not in answer.value["error"]
    assert set(broker.nodes().values()) == {"running"}
    assert broker.faults.list() == []


def test_requests_of_web_pages_are_refused(controlled: BROKER_AND_PORT) -> None:
    """What a browser sends without asking first is refused, and so is a name that was pointed here."""
    _, port = controlled
    refused = ask(port, "POST", "/faults", {}, content_type="text/plain")
    assert (refused.status, "send the header Content-Type: application/json" in refused.value["error"]) == (415, True)
    for host in (
        "evil.example",
        "evil.example:80",
        "",
        "[evil",
        "[evil]",
        "localhost@evil.example",
        "evil.example:80@localhost",
        "127.0.0.1.nip.io",
    ):
        assert ask(port, "POST", "/nodes/1/stop", {}, host=host).status == 403, host
    for host in ("localhost", f"localhost:{port}", "[::1]:80", "10.0.0.7"):
        assert ask(port, "GET", "/nodes", host=host).status == 200


def test_host_name_is_compared_case_insensitively(controlled: BROKER_AND_PORT) -> None:
    broker, _ = controlled
    listener = broker._thread.run(
        HttpListener.start(Address(host="127.0.0.1", port=0), Control(broker._running, "Build-Host"), broker._running.log_rate_limited)
    )
    assert ask(listener.port, "GET", "/nodes", host="build-host:9099").status == 200
    broker._thread.call(listener.close)


def test_node_whose_port_is_taken_stays_stopped(controlled: BROKER_AND_PORT, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, port = controlled
    ask(port, "POST", "/nodes/1/stop", {})

    def taken(new_connection: object) -> None:
        raise OSError(98, "cannot listen on port 9093 again: Address already in use")

    with monkeypatch.context() as broken:
        broken.setattr(broker._running._listeners[1], "start", taken)
        answer = ask(port, "POST", "/nodes/1/start", {})
        assert (answer.status, answer.value["error"]) == (409, "cannot listen on port 9093 again: Address already in use")
    assert broker.nodes()[1] == "stopped"
    assert ask(port, "POST", "/nodes/1/start", {}).status == 200


def test_disk_error_is_detailed_only_in_the_log(
    controlled: BROKER_AND_PORT, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, port = controlled

    def log_refusal(node_id: int, steady_ms: int, *, abruptly: bool) -> None:
        raise StorageError("/data/journals/cluster.journal", "append to", "No space left on device")

    monkeypatch.setattr(broker._running.core.state.membership, "stop", log_refusal)
    answer = ask(port, "POST", "/nodes/1/stop", {})
    reason = "the broker's disk failed for /nodes/1/stop; ask the operator for the details in the broker's log"
    assert (answer.status, answer.value["error"]) == (409, reason)
    assert "cannot append to /data/journals/cluster.journal: No space left on device" in caplog.text


def test_clients_are_served_during_an_unfinished_control_request(controlled: BROKER_AND_PORT) -> None:
    broker, port = controlled
    with socket.create_connection(("127.0.0.1", port)) as holding, SocketClient(broker.bootstrap_servers) as client:
        holding.sendall(b"POST /faults HTTP/1.1\r\ncontent-length: 60000\r\n\r\n")
        assert client.ask(produce_request("missing", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 3
