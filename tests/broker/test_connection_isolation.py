"""What one connection asks for, or suffers, costs the others nothing: no memory, no connection, no log full of its lines."""

from __future__ import annotations

import itertools
import logging
import random
from contextlib import ExitStack
from typing import Any

import pytest

from chaffinch.broker.connections import TURN_SECONDS_MAX
from chaffinch.broker.core.broker_state import DelayedResponse
from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.handlers import HANDLERS
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.batches import batch_of
from tests.broker.broker_probes import is_alive, wait_until
from tests.broker.core.test_broker_core import waiting_fetch
from tests.broker.core_client import Cluster, produce_request
from tests.broker.socket_client import SocketClient

UNREAD_MAX = 1 << 20
ANSWER_BYTES = 4_000_000
FETCH_VERSION = 12
FETCH = 1
INCOMPRESSIBLE = random.Random(1).randbytes(400_000)


def fetch(topic: str, wait_ms: int = 0, bytes_max: int = 50_000_000) -> FetchRequest:
    requested = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=bytes_max)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[requested])])


@pytest.mark.parametrize("policy", ["os", "always"])
@pytest.mark.parametrize("waits_first", [False, True])
def test_unread_large_responses_are_not_built(policy: str, waits_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for at once, directly or behind one that waits."""
    ticks = itertools.count()
    monkeypatch.setattr("chaffinch.broker.connections.perf_counter", lambda: next(ticks) * 0.4 * TURN_SECONDS_MAX)
    requested = [fetch("quiet", 60_000)] if waits_first else []
    requested += [fetch("large")] * 40
    with (
        EmbeddedBroker(topics=["large", "quiet"], config={"flush.policy": policy, "connections.max.unread.bytes": UNREAD_MAX}) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client,
        SocketClient(broker.bootstrap_servers) as writer,
    ):
        for _ in range(ANSWER_BYTES // 400_000):
            writer.ask(produce_request("large", batch_of(INCOMPRESSIBLE)))
        client.socket.sendall(b"".join(b"".join(client.connection.encode_request(one, FETCH_VERSION)[1]) for one in requested))
        server, port = broker._running, client.socket.getsockname()[1]
        (peer,) = (found for found in server.peers if found.address.endswith(f":{port}"))
        largest = 0

        def is_congested() -> bool:
            nonlocal largest
            largest = max(largest, peer.unsent_bytes + sum(records_bytes(effect) for effect in server._effect_runner.unsent))
            return bool(peer._congested)

        if waits_first:
            wait_until(broker, lambda: bool(server.core._waits.waits))
            writer.ask(produce_request("quiet", batch_of(b"a")))
        wait_until(broker, is_congested)
        for _ in range(20):
            broker._thread.call(is_congested)
        assert UNREAD_MAX < largest < 5 * ANSWER_BYTES
        for one in requested:
            records = client.receive().responses[0].partitions[0].records
            assert (len(records) > ANSWER_BYTES) == (one.topics[0].topic == "large")


def test_slow_readers_get_smaller_responses_and_stay_connected() -> None:
    """Each is entitled to an answer of 8 MB, which eight of them together are not."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(topics=["large"], config={"queued.max.response.bytes": 16 << 20}))
        writer = stack.enter_context(SocketClient(broker.bootstrap_servers))
        readers = [stack.enter_context(SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14)) for _ in range(8)]
        for _ in range(20):
            writer.ask(produce_request("large", batch_of(INCOMPRESSIBLE)))
        for reader in readers:
            reader.send(fetch("large"), FETCH_VERSION)
        for reader in readers:
            assert len(reader.receive().responses[0].partitions[0].records) > 400_000
        assert is_alive(broker)


def records_bytes(effect: Any) -> int:
    """Of the answer in an effect that waits for a sync."""
    answered = getattr(getattr(effect, "message", None), "responses", ())
    return sum(len(found.records or b"") for topic in answered for found in getattr(topic, "partitions", ()))


def fails_later(*_: object) -> DelayedResponse:
    """In place of what handles a request: its answer waits until something is written to `orders`, and fails then."""

    def fail(_steady_ms: int, _is_last: bool) -> None:
        raise RuntimeError("a mistake of ours")

    return DelayedResponse(deadline_ms=1 << 60, keys=(TopicPartition("orders", 0),), answer=fail)


def test_delayed_response_that_fails_closes_only_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        EmbeddedBroker(topics=["orders"]) as broker,
        SocketClient(broker.bootstrap_servers) as other,
        SocketClient(broker.bootstrap_servers) as failing,
        SocketClient(broker.bootstrap_servers) as writer,
    ):
        waits = broker._running.core._waits.waits
        other.send(waiting_fetch(60_000), FETCH_VERSION)
        wait_until(broker, lambda: len(waits) == 1)
        monkeypatch.setitem(HANDLERS, FETCH, fails_later)
        failing.send(waiting_fetch(60_000), FETCH_VERSION)
        wait_until(broker, lambda: len(waits) == 2)
        assert writer.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 0
        assert failing.is_closed_by_peer()
        assert other.receive().responses[0].partitions[0].records


def test_repeated_failure_is_logged_with_one_traceback(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    with EmbeddedBroker(topics=["orders"]) as broker:
        monkeypatch.setitem(HANDLERS, FETCH, fail)
        for _ in range(30):
            with SocketClient(broker.bootstrap_servers) as client:
                client.send(waiting_fetch(), FETCH_VERSION)
                assert client.is_closed_by_peer()
        assert is_alive(broker)
        said = [record for record in caplog.records if "failed on its request" in record.getMessage()]
        assert [record.exc_info is not None for record in said[:1]] == [True]
        assert len(said) < 5
        assert all(record.exc_info is None for record in said[1:])


def test_reconnecting_producer_with_acks_0_is_rate_limited_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each of its batches is refused by closing, and it knows of no other reason to stop (KIP-579, Motivation)."""
    with EmbeddedBroker(topics=["orders"]) as broker, caplog.at_level(logging.INFO, "chaffinch.broker"):
        for _ in range(50):
            with SocketClient(broker.bootstrap_servers) as client:
                client.send(produce_request("missing", batch_of(b"a"), acks=0))
                assert client.is_closed_by_peer()
        closed = [line for line in caplog.messages if line.startswith("connection from") and "closed" in line]
        assert 1 <= len(closed) < 10


def test_connection_timeout_is_not_logged_as_a_failure(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def gone(descriptor: int, data: object) -> int:
        raise TimeoutError(110, "Connection timed out")

    with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
        client.ask(produce_request("orders", batch_of(bytes(500_000))))
        monkeypatch.setattr("chaffinch.broker.file_sender.os.write", gone)
        client.send(fetch("orders"), FETCH_VERSION)
        assert client.is_closed_by_peer()
        monkeypatch.undo()
        assert is_alive(broker)
    assert not [record for record in caplog.records if record.exc_info]


def test_core_raises_the_failure_of_a_delayed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.topic("orders")
    reader, writer = cluster.client(), cluster.client()
    monkeypatch.setitem(HANDLERS, FETCH, fails_later)
    reader.send(waiting_fetch())
    assert cluster.core.is_waiting(reader.connection_id)
    with pytest.raises(RuntimeError, match="a mistake of ours"):  # Each shell carries it out in its way.
        writer.produce("orders", batch_of(b"a"))
    assert cluster.partition("orders", 0).log.log_end_offset == 1
    assert not cluster.core.is_waiting(reader.connection_id)
    assert cluster.client().ask(MetadataRequest(topics=None)).topics[0].name == "orders"


@pytest.mark.parametrize(("after_s", "is_sent"), [(TURN_SECONDS_MAX * 0.9, False), (TURN_SECONDS_MAX * 1.1, True)])
def test_responses_are_collected_for_one_sync_for_a_limited_time(monkeypatch: pytest.MonkeyPatch, after_s: float, is_sent: bool) -> None:
    """Those of many connections together hold much memory, too."""
    now_s = [5.0]
    monkeypatch.setattr("chaffinch.broker.effect_runner.perf_counter", lambda: now_s[0])
    with EmbeddedBroker(config={"flush.policy": "always"}) as broker:
        server = broker._running

        def two_events() -> int:
            server._effect_runner.run_after_sync([LogLine("first")])
            now_s[0] += after_s
            server._effect_runner.run_after_sync([LogLine("second")])
            return len(server._effect_runner.unsent)

        assert broker._thread.call(two_events) == (0 if is_sent else 2)
