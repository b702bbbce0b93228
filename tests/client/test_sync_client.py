"""The blocking client against a scripted server: retries, time-outs, clear errors, and the window of a pipeline."""

from __future__ import annotations

import gc
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.admin import topics
from chaffinch.client import response_errors
from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Backoff
from chaffinch.client.connections import ResponseReceived
from chaffinch.client.pending_request import PendingRequest
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import (
    CoordinatorNotAvailableException,
    IllegalStateException,
    NetworkException,
    NotLeaderOrFollowerException,
    Stored,
    TimeoutException,
    UnknownTopicOrPartitionException,
    UnsupportedVersionException,
    codes,
)
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.primitives import Buffer
from tests.client.scripted_server import HANG_UP, STAY_SILENT, ScriptedServer, metadata

ORDERS_0 = TopicPartition("orders", 0)
QUICK = Backoff(initial_ms=1, max_ms=2)


def client_of(server: ScriptedServer | str, **options: Any) -> SyncClient:
    servers = server if isinstance(server, str) else server.bootstrap_servers
    return SyncClient(servers, **{"retry_backoff": QUICK, "reconnect_backoff": QUICK, "timeout_ms": 5_000, **options})


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def produce(text: bytes) -> ProduceRequest:
    parts: list[Buffer] = [text[:1], text[1:]]
    partition = PartitionProduceData(index=0, records=parts)
    return ProduceRequest(acks=-1, timeout_ms=1000, topics=[TopicProduceData(name="orders", partitions=[partition])])


def produced(offset: int, code: int = 0) -> ProduceResponse:
    partition = PartitionProduceResponse(index=0, base_offset=offset, error_code=code)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[partition])])


def times_out(words: str, call: Callable[[], object]) -> TimeoutException:
    """How a call ends that has some 50 ms, with these words in it or in its cause: on a busy machine not the first time."""
    for _ in range(100):
        with pytest.raises(TimeoutException) as caught:
            call()
        if words in f"{caught.value} {caught.value.__cause__!r}":
            return caught.value
    pytest.fail(f"no {words!r} in {caught.value!r}, {caught.value.__cause__!r}")


def test_metadata_and_leader() -> None:
    with ScriptedServer() as server, client_of(server) as client:
        assert client.refresh_metadata(["orders"]).partition_count("orders") == 3
        assert client.leader(ORDERS_0) == 1
        assert server.requests(ApiVersionsRequest)[0].client_software_name == "chaffinch"


def test_waiting_for_a_node_does_not_flood_other_nodes_with_metadata_requests() -> None:
    """Metadata may say where it is now: once for each attempt. It was asked for some 450 times a second."""
    ports = {2: closed_port()}

    def script(server: ScriptedServer, message: Any) -> Any:
        return metadata(server.topics, {1: server.port, **ports}) if isinstance(message, MetadataRequest) else None

    late = Backoff(initial_ms=60_000, max_ms=60_000)
    with ScriptedServer(script) as server, client_of(server, reconnect_backoff=late, timeout_ms=300) as client:
        with pytest.raises(TimeoutException, match="refused"):
            client.request(ListOffsetsRequest(topics=[]), 2)
        assert len(server.requests(MetadataRequest)) <= 4


def test_missing_leader_error_names_no_unreachable_broker() -> None:
    """The previous leader is unreachable, but the other nodes respond that the partition has no leader."""
    ports, led_by = {2: closed_port()}, [2, -1]

    def script(server: ScriptedServer, message: Any) -> Any:
        if not isinstance(message, MetadataRequest):
            return None
        return metadata(server.topics, {1: server.port, **ports}, leader_id=led_by.pop(0) if len(led_by) > 1 else led_by[0])

    with (
        ScriptedServer(script) as server,
        client_of(server, timeout_ms=300) as client,
        pytest.raises(TimeoutException, match=r"orders-0 failed after \d+ ms: (it has no leader|the last error was LEADER_NOT_AVAILABLE)"),
    ):
        client.leader_request(ORDERS_0, ListOffsetsRequest(topics=[]))


def test_coordinator_code_precedes_unreachable_brokers_in_the_error() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, FindCoordinatorRequest):
            return FindCoordinatorResponse(coordinators=[Coordinator(key="t", node_id=1, host="127.0.0.1", port=server.port)])
        return EndTxnResponse(error_code=codes.CONCURRENT_TRANSACTIONS.number) if isinstance(message, EndTxnRequest) else None

    with (
        ScriptedServer(script) as server,
        client_of(f"127.0.0.1:{closed_port()},{server.bootstrap_servers}", timeout_ms=300) as client,
        pytest.raises(TimeoutException, match=r"the last (answer|error) was CONCURRENT_TRANSACTIONS"),
    ):
        client.coordinator_request("t", "transaction", EndTxnRequest(transactional_id="t"))


def test_refused_connection_error_names_address_reason_and_time() -> None:
    port = closed_port()
    with client_of(f"127.0.0.1:{port}", timeout_ms=50) as client:
        error = times_out("refused", client.refresh_metadata)
    text = str(error)
    assert f"127.0.0.1:{port} (refused)" in text or "refused" in str(error.__cause__)
    assert len(re.findall(r"\b\d+ ms\b", text)) == 1, "how long it was tried is said once"
    assert error.stored is Stored.NO


def test_unknown_host_is_in_the_error() -> None:
    with client_of("nobody.invalid:9092", timeout_ms=30) as client:
        times_out("name not known", client.refresh_metadata)


def test_lost_connection_is_retried() -> None:
    hung_up: list[MetadataRequest] = []

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, MetadataRequest) and len(hung_up) < 2:
            hung_up.append(message)
            return HANG_UP
        return None

    with ScriptedServer(script) as server, client_of(server) as client:
        assert client.refresh_metadata(["orders"]).topics() == ["orders"]
    assert len(server.requests(MetadataRequest)) == 3


def test_request_and_response_are_freed_without_garbage_collection() -> None:
    """Not with the next collection of garbage: until then a process that pushes much would hold many times what is under way."""
    with ScriptedServer() as server, client_of(server) as client:
        gc.collect()
        gc.disable()
        try:
            before = gc.get_objects()
            client.refresh_metadata(["orders"])
            new = {id(found) for found in gc.get_objects()} - {id(found) for found in before}
            assert [found for found in gc.get_objects() if id(found) in new and type(found) in (PendingRequest, ResponseReceived)] == []
        finally:
            gc.enable()


def test_lost_connection_without_retries_is_possibly_stored() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        return HANG_UP if isinstance(message, MetadataRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        with pytest.raises(NetworkException, match="closed by the broker") as caught:
            client.request(MetadataRequest(topics=[]), retries=False)
        assert caught.value.stored is Stored.POSSIBLY


def test_silent_broker_ends_at_the_callers_timeout() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        return STAY_SILENT if isinstance(message, MetadataRequest) else None

    with ScriptedServer(script) as server, client_of(server, timeout_ms=60) as client, pytest.raises(TimeoutException):
        client.refresh_metadata()


def test_unsupported_api_fails_immediately() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, ApiVersionsRequest):
            return ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=3)])
        return None

    with ScriptedServer(script) as server, client_of(server) as client, pytest.raises(UnsupportedVersionException, match="Metadata"):
        client.refresh_metadata()


def test_peer_with_another_protocol_is_in_the_error() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        return HANG_UP

    with ScriptedServer(script) as server, client_of(server, timeout_ms=50) as client:
        times_out("closed by", client.refresh_metadata)


def test_leader_request_refreshes_metadata_and_retries() -> None:
    answered = iter([produced(-1, 6), produced(-1, 19), produced(17)])

    def script(server: ScriptedServer, message: Any) -> Any:
        return next(answered) if isinstance(message, ProduceRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        answer = client.leader_request(ORDERS_0, produce(b"ab"))
        assert answer.responses[0].partition_responses[0].base_offset == 17
        assert len(server.requests(MetadataRequest)) == 2  # To find the leader, and because of code 6; 19 asks for nothing.


def test_leader_request_returns_final_codes_and_times_out_on_retriable_ones() -> None:
    codes = {"now": 87}

    def script(server: ScriptedServer, message: Any) -> Any:
        return produced(-1, codes["now"]) if isinstance(message, ProduceRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        assert [code.name for code, _ in response_errors.codes_in(client.leader_request(ORDERS_0, produce(b"ab")))] == ["INVALID_RECORD"]
        codes["now"] = 6
        error = times_out("NOT_LEADER_OR_FOLLOWER", lambda: client.leader_request(ORDERS_0, produce(b"ab"), timeout_ms=60))
        assert isinstance(error.__cause__, NotLeaderOrFollowerException)


@pytest.mark.parametrize(
    ("topic_partition", "text"), [(TopicPartition("ordres", 0), "ordres-0"), (TopicPartition("orders", 7), "partition 7 of topic 'orders'")]
)
def test_unknown_topic_and_partition(topic_partition: TopicPartition, text: str) -> None:
    with ScriptedServer() as server, client_of(server) as client, pytest.raises(UnknownTopicOrPartitionException, match=text):
        client.leader(topic_partition)


def test_coordinator_is_looked_up_again_after_a_move() -> None:
    answered = iter([EndTxnResponse(error_code=16), EndTxnResponse(error_code=51), EndTxnResponse()])
    found = iter([15, 0, 0])

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, FindCoordinatorRequest):
            assert message.key_type == 1
            code = next(found)
            return FindCoordinatorResponse(
                coordinators=[Coordinator(key="t", node_id=1, host="127.0.0.1", port=server.port, error_code=code)]
            )
        return next(answered) if isinstance(message, EndTxnRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        assert client.coordinator_request("t", "transaction", EndTxnRequest(transactional_id="t")) == EndTxnResponse()
        assert len(server.requests(FindCoordinatorRequest)) == 3
        assert client.coordinator("t", "transaction") == Address("127.0.0.1", server.port)
        assert len(server.requests(FindCoordinatorRequest)) == 3


def test_no_coordinator_times_out_with_the_last_code() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        return FindCoordinatorResponse(coordinators=[Coordinator(error_code=15)]) if isinstance(message, FindCoordinatorRequest) else None

    with ScriptedServer(script) as server, client_of(server, timeout_ms=40) as client:
        error = times_out("COORDINATOR_NOT_AVAILABLE", lambda: client.coordinator("g", "group"))
    assert isinstance(error.__cause__, CoordinatorNotAvailableException)


def created(code: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="new", error_code=code)])


def test_controller_is_looked_up_again_after_a_move() -> None:
    """Metadata of another broker may lag behind and name the old controller."""
    controllers = iter([1, 1, 1, 2])

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, MetadataRequest):
            return metadata({}, {1: first.port, 2: second.port}, leader_id=next(controllers))
        return created(41 if server is first else 0) if isinstance(message, CreateTopicsRequest) else None

    with ScriptedServer(script) as first, ScriptedServer(script) as second, client_of(first) as client:
        topics.create_topic(client, "new")
        assert (len(first.requests(CreateTopicsRequest)), len(second.requests(CreateTopicsRequest))) == (3, 1)


def test_not_controller_is_retried_until_the_timeout() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        return created(41) if isinstance(message, CreateTopicsRequest) else None

    with ScriptedServer(script) as server, client_of(server, timeout_ms=60) as client:
        error = times_out("NOT_CONTROLLER", lambda: topics.create_topic(client, "new"))
    assert "CreateTopics request to the controller" in str(error)


def test_controller_request_returns_retriable_codes() -> None:
    """REQUEST_TIMED_OUT of CreateTopics: the topic may be there, and would be refused as one that exists."""

    def script(server: ScriptedServer, message: Any) -> Any:
        return created(7) if isinstance(message, CreateTopicsRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        with pytest.raises(TimeoutException, match="REQUEST_TIMED_OUT"):
            topics.create_topic(client, "new")
        assert len(server.requests(CreateTopicsRequest)) == 1


def test_controller_request_waits_for_a_controller() -> None:
    controllers = iter([-1, -1, 1])

    def script(server: ScriptedServer, message: Any) -> Any:
        if isinstance(message, MetadataRequest):
            return metadata({}, {1: server.port}, leader_id=next(controllers, -1))
        return created(0) if isinstance(message, CreateTopicsRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        topics.create_topic(client, "new")
    with ScriptedServer(script) as server, client_of(server, timeout_ms=60) as client:
        times_out("the cluster has no controller", lambda: topics.create_topic(client, "new"))


def test_pause_moves_bytes_with_the_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark keeps one client for several threads, and its connections bear one at a time."""
    with ScriptedServer(lambda server, message: None) as server, client_of(server) as client:
        pump, pumped = client.pump, []

        def with_the_lock_held(wait_ms: int) -> None:
            threading.Condition(client.lock).notify(0)  # A RuntimeError for a thread that does not hold it.
            pumped.append(wait_ms)
            pump(wait_ms)

        monkeypatch.setattr(client, "pump", with_the_lock_held)
        client.pause(1)
    assert pumped


def test_raise_for() -> None:
    with pytest.raises(NotLeaderOrFollowerException):
        response_errors.raise_for(produced(-1, 6))
    response_errors.raise_for(produced(3))
    assert not list(response_errors.codes_in(ListOffsetsResponse()))
    assert ListOffsetsRequest() is not None


def test_pipeline_keeps_order_and_window() -> None:
    sent = iter(range(100))

    def script(server: ScriptedServer, message: Any) -> Any:
        return produced(next(sent)) if isinstance(message, ProduceRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client, client.pipeline(client.leader(ORDERS_0), window=3) as pipeline:
        received = []
        for i in range(100):
            received += pipeline.send(produce(b"x" * (1 + i)))
            assert len(pipeline.pending) <= 3
        received += pipeline.finish()
        assert [answer.responses[0].partition_responses[0].base_offset for answer in received] == list(range(100))
        requests = server.requests(ProduceRequest)
        assert [len(r.topics[0].partitions[0].records) for r in requests] == list(range(1, 101))


def test_broken_pipeline_returns_responses_and_pending_requests() -> None:
    sent = iter(range(100))

    def script(server: ScriptedServer, message: Any) -> Any:
        if not isinstance(message, ProduceRequest):
            return None
        number = next(sent)
        return produced(number) if number < 2 else HANG_UP

    with ScriptedServer(script) as server, client_of(server) as client:
        pipeline = client.pipeline("any", window=10)
        received = []
        for _ in range(4):
            received += pipeline.send(produce(b"ab"))
        with pytest.raises(NetworkException) as caught:
            pipeline.finish()
        received += pipeline.take_responses()
        assert caught.value.stored is Stored.POSSIBLY
        assert len(received) == 2
        assert len(pipeline.pending) == 2


def test_unfinished_pipeline_is_an_error() -> None:
    def script(server: ScriptedServer, message: Any) -> Any:
        return STAY_SILENT if isinstance(message, ProduceRequest) else None

    with ScriptedServer(script) as server, client_of(server) as client:
        pipeline = client.pipeline("any")
        pipeline.send(produce(b"ab"))
        with pytest.raises(IllegalStateException, match="were abandoned without a response"), pipeline:
            pass


def test_use_after_close() -> None:
    with ScriptedServer() as server:
        client = client_of(server)
        client.close()
        client.close()
        with pytest.raises(IllegalStateException, match="closed"):
            client.refresh_metadata()
