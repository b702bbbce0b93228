"""One question to many leaders: asked again where they moved, given up where time or hope is over."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.admin import many_brokers, offsets, options
from chaffinch.client.backoff import Backoff
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import NetworkException, Stored, TimeoutException, TopicAuthorizationException, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime.clock import ManualClock
from tests.client.scripted_server import HANG_UP, ScriptedServer, metadata

PLACES = [TopicPartition("orders", number) for number in range(3)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_brokers, "PAUSE_MS", 0)


def server_with(code_of: Callable[[int, int], Any]) -> ScriptedServer:
    """Answers ListOffsets number n (from 0) with `code_of(n, partition)`; HANG_UP hangs up. Offset: 10 times the partition."""
    asked: list[int] = []

    def script(server: ScriptedServer, message: Any) -> Any:
        if not isinstance(message, ListOffsetsRequest):
            return None
        turn = len(asked)
        asked.append(turn)
        answers = []
        for partition in message.topics[0].partitions:
            number = partition.partition_index
            code = code_of(turn, number)
            if code is HANG_UP:
                return HANG_UP
            answers.append(ListOffsetsPartitionResponse(partition_index=number, error_code=code.number, offset=10 * number))
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=answers)])

    return ScriptedServer(script)


def requested_of(server: ScriptedServer) -> list[list[int]]:
    """The partitions in each request."""
    requests = [message for message in server.seen if isinstance(message, ListOffsetsRequest)]
    return [[partition.partition_index for partition in request.topics[0].partitions] for request in requests]


def test_only_moved_partitions_are_requested_again() -> None:
    def code_of(turn: int, partition: int) -> Any:
        return codes.NOT_LEADER_OR_FOLLOWER if partition == 1 and turn < 2 else codes.NONE

    with server_with(code_of) as server, options.connect(bootstrap_servers=server.bootstrap_servers) as client:
        assert offsets.latest(client, PLACES) == {PLACES[0]: 0, PLACES[1]: 10, PLACES[2]: 20}
        assert requested_of(server) == [[0, 1, 2], [1], [1]]


def test_lost_connection_is_reopened() -> None:
    with (
        server_with(lambda turn, partition: codes.NONE if turn else HANG_UP) as server,
        options.connect(bootstrap_servers=server.bootstrap_servers) as client,
    ):
        assert offsets.latest(client, PLACES) == {PLACES[0]: 0, PLACES[1]: 10, PLACES[2]: 20}


def test_leader_that_left_the_cluster_is_looked_up_again() -> None:
    """It does not listen any more, and metadata names it until the client asks which nodes there are, before it connects again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = int(listener.getsockname()[1])
    has_left: list[bool] = []

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, MetadataRequest):
            if message.topics == []:
                has_left.append(True)
            ports, leader = ({1: server.port}, 1) if has_left else ({1: server.port, 2: gone}, 2)
            return metadata(server.topics, ports, leader_id=leader)
        return offsets_of_zero(message)

    backoff = Backoff(initial_ms=60_000, max_ms=60_000)
    with ScriptedServer(script) as server, SyncClient(server.bootstrap_servers, reconnect_backoff=backoff) as client:
        assert offsets.latest(client, PLACES) == dict.fromkeys(PLACES, 0)
        assert has_left


def test_final_code_is_raised_with_its_partition() -> None:
    with (
        server_with(lambda turn, partition: codes.TOPIC_AUTHORIZATION_FAILED if partition == 2 else codes.NONE) as server,
        options.connect(bootstrap_servers=server.bootstrap_servers) as client,
    ):
        with pytest.raises(TopicAuthorizationException) as raised:
            offsets.latest(client, PLACES)
        assert raised.value.topic_partition == PLACES[2]


def test_retries_end_at_the_timeout() -> None:
    """After the third answer, or while it is on its way."""
    clock = ManualClock()

    def code_of(turn: int, partition: int) -> Any:
        if partition == 0:
            clock.advance(400)
        return codes.NOT_LEADER_OR_FOLLOWER

    with server_with(code_of) as server, SyncClient(server.bootstrap_servers, clock=clock, timeout_ms=1_000) as client:
        with pytest.raises(TimeoutException, match="ListOffsets request to the leaders of 3 partitions failed after 1200 ms"):
            offsets.latest(client, PLACES)
        assert requested_of(server) == [[0, 1, 2]] * 3


def offsets_of_zero(message: Any) -> ListOffsetsResponse | None:
    """The answer for partitions without records; None to another request."""
    if not isinstance(message, ListOffsetsRequest):
        return None
    answers = [ListOffsetsPartitionResponse(partition_index=found.partition_index, offset=0) for found in message.topics[0].partitions]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=answers)])


def without_leader(partition: int, has_leader: Callable[[], bool]) -> ScriptedServer:
    """Empty partitions; one of them has no leader until `has_leader`."""

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, MetadataRequest):
            response = metadata(server.topics, {1: server.port})
            if not has_leader():
                response.topics[0].partitions[partition].leader_id = -1
            return response
        return offsets_of_zero(message)

    return ScriptedServer(script)


def test_leaderless_partitions_are_left_out_after_the_limit() -> None:
    clock = ManualClock()

    def not_yet() -> bool:
        clock.advance(100)
        return False

    with without_leader(1, not_yet) as server, SyncClient(server.bootstrap_servers, clock=clock, timeout_ms=60_000) as client:
        client.refresh_metadata(["orders"])
        assert offsets.latest(client, PLACES, leaderless_ms=500) == {PLACES[0]: 0, PLACES[2]: 0}
        assert clock.steady_ms() == 600
        assert requested_of(server) == [[0, 2]]


def test_partition_that_gets_a_leader_in_time_is_included() -> None:
    looks = iter([False, False, True])
    with without_leader(1, lambda: next(looks)) as server, options.connect(bootstrap_servers=server.bootstrap_servers) as client:
        client.refresh_metadata(["orders"])
        assert offsets.latest(client, PLACES, leaderless_ms=60_000) == dict.fromkeys(PLACES, 0)
        assert requested_of(server) == [[0, 1, 2]]


def test_no_partitions_need_no_request() -> None:
    with ScriptedServer() as server, options.connect(bootstrap_servers=server.bootstrap_servers) as client:
        assert offsets.latest(client, []) == {}
        assert server.seen == []


def test_last_code_without_a_response_is_the_reason() -> None:
    """Not REQUEST_TIMED_OUT, which names no address."""
    assert many_brokers.last_code(TimeoutException("no broker reachable at b:1 (refused)")) == "no broker reachable at b:1 (refused)"
    assert many_brokers.last_code(NetworkException("b:1: connection lost", stored=Stored.NO, api="ListOffsets")) == "b:1: connection lost"
    assert many_brokers.last_code(exception_for(codes.NOT_LEADER_OR_FOLLOWER)) == "NOT_LEADER_OR_FOLLOWER"
