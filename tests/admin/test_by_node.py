"""One question to every node: nodes that have just started are waited for, within the client's time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.admin import many_brokers
from chaffinch.admin.groups import list_groups
from chaffinch.admin.transactions import list_transactions
from chaffinch.client.backoff import Backoff
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import (
    BrokerNotAvailableException,
    CoordinatorLoadInProgressException,
    GroupAuthorizationException,
    TimeoutException,
    codes,
)
from chaffinch.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse, ListTransactionsState
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime.clock import ManualClock
from tests.client.scripted_server import ScriptedServer, metadata

NO_PAUSE = Backoff(initial_ms=0, max_ms=0)
LOADS = codes.COORDINATOR_LOAD_IN_PROGRESS

GROUPS = ListGroupsResponse(groups=[ListedGroup(group_id="readers", protocol_type="consumer", group_state="Empty", group_type="classic")])
TRANSACTIONS = ListTransactionsResponse(
    transaction_states=[ListTransactionsState(transactional_id="payments", producer_id=7, transaction_state="Empty")]
)
QUESTIONS = pytest.mark.parametrize(
    ("ask", "request_type", "response", "name"),
    [
        (list_groups, ListGroupsRequest, GROUPS, "readers"),
        (list_transactions, ListTransactionsRequest, TRANSACTIONS, "payments"),
    ],
    ids=["groups", "transactions"],
)


def node(request_type: type, response: Any, *refusals: Any, clock: ManualClock | None = None) -> ScriptedServer:
    """Answers with the codes in turn, the last one for ever unless it is NONE: then as `response`. Each answer takes 400 ms of `clock`."""
    left = list(refusals)

    def script(server: ScriptedServer, message: Any) -> Any:
        if not isinstance(message, request_type):
            return None
        if clock is not None:
            clock.advance(400)
        code = left.pop(0) if len(left) > 1 else left[0]
        return response if code is codes.NONE else type(response)(error_code=code.number)

    return ScriptedServer(script)


@QUESTIONS
def test_loading_coordinator_is_retried(ask: Callable[[SyncClient], Any], request_type: type, response: Any, name: str) -> None:
    with (
        node(request_type, response, LOADS, codes.COORDINATOR_NOT_AVAILABLE, codes.NONE) as server,
        SyncClient(server.bootstrap_servers, retry_backoff=NO_PAUSE) as client,
    ):
        (found,) = ask(client)
        assert name in repr(found)
        assert len(server.requests(request_type)) == 3


@QUESTIONS
def test_loading_coordinator_times_out(ask: Callable[[SyncClient], Any], request_type: type, response: Any, name: str) -> None:
    """Until the third answer has come, or is on its way."""
    clock = ManualClock()
    with (
        node(request_type, response, LOADS, clock=clock) as server,
        SyncClient(server.bootstrap_servers, clock=clock, timeout_ms=1_000, retry_backoff=NO_PAUSE) as client,
        pytest.raises(TimeoutException, match=r"node 1 failed after 1200 ms: the last .* was COORDINATOR_LOAD_IN_PROGRESS") as raised,
    ):
        ask(client)
    assert isinstance(raised.value.__cause__, CoordinatorLoadInProgressException)


def test_final_code_is_raised_immediately() -> None:
    with node(ListGroupsRequest, GROUPS, codes.GROUP_AUTHORIZATION_FAILED) as server, SyncClient(server.bootstrap_servers) as client:
        with pytest.raises(GroupAuthorizationException):
            list_groups(client)
        assert len(server.requests(ListGroupsRequest)) == 1


@QUESTIONS
def test_node_that_leaves_the_cluster_is_not_requested(
    ask: Callable[[SyncClient], Any], request_type: type, response: Any, name: str
) -> None:
    """It does not listen any more; the second answer about the cluster is without it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = {2: int(listener.getsockname()[1])}

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, MetadataRequest):
            is_first = len(server.requests(MetadataRequest)) == 1
            return metadata(server.topics, {1: server.port, **(gone if is_first else {})})
        return response if isinstance(message, request_type) else None

    late = Backoff(initial_ms=60_000, max_ms=60_000)
    with ScriptedServer(script) as server, SyncClient(server.bootstrap_servers, reconnect_backoff=late) as client:
        (found,) = ask(client)
        assert name in repr(found)


def test_nodes_that_keep_leaving_end_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = ManualClock(), []

    def left(client: SyncClient, node: int, *_: object) -> None:
        asked.append(node)
        assert len(asked) < 10
        clock.advance(400)
        raise BrokerNotAvailableException(f"node {node} has left")

    monkeypatch.setattr(many_brokers, "_answer", left)
    monkeypatch.setattr(many_brokers, "PAUSE_MS", 0)
    with (
        ScriptedServer(lambda *_: None) as server,
        SyncClient(server.bootstrap_servers, clock=clock, timeout_ms=1_000) as client,
        pytest.raises(TimeoutException, match=r"to every node .*the last error was BROKER_NOT_AVAILABLE") as raised,
    ):
        list_groups(client)
    assert isinstance(raised.value.__cause__, BrokerNotAvailableException)
    assert asked == [1, 1, 1]
