"""What a peer can do to the broker's port: nonsense, too much, too many, too slowly. It costs that connection and one line."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.connections import TURN_SECONDS_MAX
from chaffinch.broker.server import LOOPS_ARE_LOADED, SYNC_SUCCEEDED, BrokerServer, load_kernels
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records import kernels
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import TIMEOUT_SECONDS, SocketClient


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], config={"socket.request.max.bytes": 1 << 20, "queued.max.request.bytes": 3 << 20}) as broker:
        yield broker


def is_alive(broker: EmbeddedBroker) -> bool:
    with SocketClient(broker.bootstrap_servers) as client:
        return client.ask(MetadataRequest(topics=None)).error_code == 0


def header(api: int, version: int, size: int = 8) -> bytes:
    return struct.pack(">ihhi", size, api, version, 1)


NONSENSE = {
    "random": random.Random(1).randbytes(500),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "negative size": struct.pack(">i", -5) + b"abc",
    "too large": struct.pack(">i", (1 << 20) + 1),
    "empty frame": struct.pack(">i", 0),
    "unknown API": header(999, 0, 10) + b"\xff\xff",
    "unknown version": header(3, 99, 10) + b"\xff\xff",
    "Produce v0": header(0, 0, 10) + b"\xff\xff",
    "truncated body": header(3, 1, 12) + b"\xff\xff\x00\x00",
    "lying array": header(3, 1, 14) + b"\xff\xff" + struct.pack(">i", 2**31 - 1),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_closes_that_connection_and_leaves_one_line(broker: EmbeddedBroker, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    broker._call(lambda core: core.state.refusals.end())  # What the test before counted.
    with SocketClient(broker.bootstrap_servers) as bystander, caplog.at_level(logging.INFO, "chaffinch.broker"):
        with SocketClient(broker.bootstrap_servers, greet=False) as client:
            client.socket.sendall(data)
            assert client.is_closed_by_peer()
            port = client.socket.getsockname()[1]
        assert bystander.ask(MetadataRequest(topics=None)).error_code == 0
    (line,) = [record.getMessage() for record in caplog.records if str(port) in record.getMessage()]
    assert "closed" in line
    assert "Traceback" not in line


def test_what_came_before_the_nonsense_is_answered(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        good = b"".join(client.connection.encode_request(MetadataRequest(topics=None))[1])
        client.socket.sendall(good + NONSENSE["unknown API"])
        assert client.receive().error_code == 0
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("policy", ["os", "always"])
def test_all_that_came_before_the_nonsense_is_done_however_many_turns_it_takes(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("chaffinch.broker.connections.perf_counter", lambda: next(ticks) * 0.4 * TURN_SECONDS_MAX)
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": policy}) as broker, SocketClient(broker.bootstrap_servers) as client:
        request = b"".join(client.connection.encode_request(produce_request("orders", batch_of(b"a"), acks=0))[1])
        client.socket.sendall(50 * request + NONSENSE["unknown API"] + request)
        assert client.is_closed_by_peer()
        assert broker.counters("orders")["MessagesInPerSec"] == 50


def test_nonsense_waits_for_the_answers_before_it() -> None:
    with (
        EmbeddedBroker(topics=["orders"]) as broker,
        SocketClient(broker.bootstrap_servers) as client,
        SocketClient(broker.bootstrap_servers) as writer,
    ):
        asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=asked)]))
        good = b"".join(client.connection.encode_request(MetadataRequest(topics=None))[1])
        client.socket.sendall(good + NONSENSE["truncated body"] + good)
        wait_until(broker, lambda: any(peer.open_count == 4 for peer in broker._running.peers))
        writer.ask(produce_request("orders", batch_of(b"a")))
        assert client.receive().responses[0].partitions[0].records
        assert client.receive().topics[0].name == "orders"
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("nonsense", [NONSENSE["unknown API"], NONSENSE["negative size"]])
def test_who_sent_nonsense_and_goes_before_it_is_reached_leaves_nothing(nonsense: bytes) -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
            client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=asked)]))
            client.socket.sendall(nonsense)
            wait_until(broker, lambda: any(peer.open_count == 2 for peer in broker._running.peers))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Closing is a reset.
        wait_for_connections(broker, 0)
        assert broker._thread.call(lambda: broker._running._held.bytes_held) == 0


def test_a_lost_client_in_the_middle_of_a_frame(broker: EmbeddedBroker) -> None:
    for _ in range(20):
        with SocketClient(broker.bootstrap_servers, greet=False) as client:
            client.socket.sendall(struct.pack(">i", 900_000) + b"x" * 1000)
    assert is_alive(broker)
    assert broker._thread.call(lambda: broker._running._budget.bytes_reserved) <= 900_000 * 3


def test_unfinished_frames_are_bounded_together() -> None:
    """Thirty unfinished 99 MB requests stop an Apache Kafka with a 1 GiB heap; here the fourth of these is refused."""
    with EmbeddedBroker(config={"queued.max.request.bytes": 3 << 20}) as broker, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(SocketClient(broker.bootstrap_servers, greet=False)) for _ in range(4)]
        for client in clients:
            with contextlib.suppress(ConnectionError):  # The last one may be refused before it has said everything.
                client.socket.sendall(struct.pack(">i", 1 << 20) + b"x" * 1_000_000)
        closed, _, _ = select.select([client.socket for client in clients], [], [], TIMEOUT_SECONDS)
        assert len(closed) == 1
        assert is_alive(broker)


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    with EmbeddedBroker(config={"max.connections": 2}) as broker:
        address = broker.bootstrap_servers
        with SocketClient(address), SocketClient(address), SocketClient(address, greet=False) as third:
            assert third.is_closed_by_peer()
        assert is_alive_eventually(broker)


def is_alive_eventually(broker: EmbeddedBroker) -> bool:
    """The broker learns of a closed connection a moment after the client has closed it."""
    for _ in range(100):
        try:
            return is_alive(broker)
        except ConnectionError:
            continue
    return False


@pytest.mark.parametrize("bytes_per_second", [None, 1 << 30], ids=["at full speed", "slowed down, and hardly"])
def test_a_client_that_does_not_read_is_not_served_without_end(bytes_per_second: int | None) -> None:
    """Answers pile up to a limit, requests stay in the socket; when the client reads, it gets everything, in order."""
    config = {"connections.max.unread.bytes": 1 << 18}
    with (
        EmbeddedBroker(topics=["orders"], config=config) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as client,
    ):
        if bytes_per_second is not None:
            broker.faults.add(action="slow_down", bytes_per_second=bytes_per_second)
        client.ask(produce_request("orders", batch_of(b"x" * 500_000)))
        asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=asked)])
        for _ in range(200):
            client.send(request)
        served = broker.counters("orders")["TotalFetchRequestsPerSec"]
        assert is_alive(broker)
        assert served < 100
        for _ in range(200):
            assert len(client.receive().responses[0].partitions[0].records) > 500_000


def test_many_requests_in_one_write(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        client.socket.sendall(b"".join(b"".join(client.connection.encode_request(MetadataRequest(topics=[]))[1]) for _ in range(2000)))
        for _ in range(2000):
            client.receive()


def test_a_waiting_fetch_holds_back_what_follows_without_reading_on(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=200, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=asked)]))
        for _ in range(1000):
            client.send(MetadataRequest(topics=[]))
        assert type(client.receive()).__name__ == "FetchResponse"
        for _ in range(1000):
            assert type(client.receive()).__name__ == "MetadataResponse"


def test_a_fetch_held_back_until_its_client_read_on_is_answered_in_time() -> None:
    """The server looks for what the core waits for also after requests that came with no read."""
    is_answered = threading.Event()
    transport = SimpleNamespace(
        get_extra_info=lambda _name: ("127.0.0.1", 5000),
        set_write_buffer_limits=lambda high: None,
        get_write_buffer_size=lambda: 0,
        is_closing=lambda: False,
        pause_reading=lambda: None,
        resume_reading=lambda: None,
        writelines=lambda _parts: is_answered.set(),
        abort=lambda: None,
        close=lambda: None,
    )
    asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    fetch = FetchRequest(max_wait_ms=20, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=asked)])
    data = b"".join(ClientConnection("client").encode_request(fetch, 12)[1])

    def held_back(server: BrokerServer) -> None:
        peer = server._peer(0)
        peer.connection_made(cast(Any, transport))
        peer.pause_writing()
        peer.get_buffer(-1)[: len(data)] = data
        peer.buffer_updated(len(data))
        server._loop.call_soon(peer.resume_writing)

    with EmbeddedBroker(topics=["orders"]) as broker:
        broker._thread.call(lambda: held_back(broker._running))
        assert is_answered.wait(60)


def test_a_large_request_behind_a_waiting_fetch_stays_in_the_socket(broker: EmbeddedBroker) -> None:
    """What waits holds memory: a frame is read no further while an answer before it is waited for."""
    with SocketClient(broker.bootstrap_servers) as client:
        asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=300, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=asked)]))
        for _ in range(20):
            client.send(produce_request("missing", batch_of(b"x" * 900_000)))
        assert type(client.receive()).__name__ == "FetchResponse"
        for _ in range(20):
            assert client.receive().responses[0].partition_responses[0].error_code == 3


def send_many(client: SocketClient) -> None:
    for _ in range(100):
        client.send(produce_request("orders", batch_of(b"x" * 900_000)))


def test_what_waits_behind_a_waiting_fetch_is_bounded() -> None:
    """Nearly everything stays with the client: the broker reads on when the fetch is answered."""
    with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
        asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=asked)]))
        client.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            send_many(client)
        assert is_alive(broker)


def test_nothing_is_answered_whose_sync_failed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": "always"}) as broker, SocketClient(broker.bootstrap_servers) as client:

        def fail() -> None:
            raise StorageError("orders.log", "sync", "input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(broker._running.core, "sync", fail)
            client.send(produce_request("missing", batch_of(b"a")))
            with pytest.raises(ConnectionError):
                client.receive()
        assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text, "what is said of the request has nothing to do with the disk"
        caplog.clear()
        assert is_alive(broker)
        assert is_alive(broker)
        assert caplog.messages == [SYNC_SUCCEEDED]


def test_a_file_that_cannot_be_synced_is_said_once_and_lasts_until_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = EmbeddedBroker(topics=["orders"], data_dir=tmp_path, config={"flush.policy": "always"})
    try:
        real = os.fdatasync
        failed: list[int] = []

        def fail_once(descriptor: int) -> None:
            if failed or not os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
                return real(descriptor)
            failed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", fail_once)
        with SocketClient(broker.bootstrap_servers) as client, pytest.raises(ConnectionError):
            client.ask(produce_request("orders", batch_of(b"a")))
        for _ in range(2):
            with SocketClient(broker.bootstrap_servers, greet=False) as client, pytest.raises(ConnectionError):
                client.ask(client.connection.api_versions_request())
    finally:
        with contextlib.suppress(StorageError):
            broker.close()
    assert len(failed) == 1
    (said,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    assert said.startswith(f"cannot sync {tmp_path}/logs/orders")
    for part in ("Input/output error", "may be lost", "connections closed", "restart the broker"):
        assert part in said
    with EmbeddedBroker(data_dir=tmp_path) as again:
        assert is_alive(again)


def test_a_failure_of_the_broker_costs_one_connection(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = broker._running
    original = server.core.apply

    def fail_on_produce(event: object, now_ms: int) -> object:
        if getattr(getattr(event, "request", None), "api", None) is not None and event.request.api.key == 0:  # type: ignore[attr-defined]
            raise RuntimeError("a mistake of ours")
        return original(event, now_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(server.core, "apply", fail_on_produce)
    with SocketClient(broker.bootstrap_servers) as client:
        client.send(produce_request("orders", batch_of(b"a")))
        assert client.is_closed_by_peer()
    assert is_alive(broker)
    assert any("failed on its request" in record.getMessage() for record in caplog.records)


def test_idle_connections_are_closed() -> None:
    with EmbeddedBroker(config={"connections.max.idle.ms": 50}) as broker, SocketClient(broker.bootstrap_servers) as client:
        assert client.is_closed_by_peer()


def test_a_request_that_stays_incomplete() -> None:
    with EmbeddedBroker(config={"connections.max.unfinished.ms": 50}) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            client.socket.sendall(struct.pack(">i", 100) + b"x")
            assert client.is_closed_by_peer()
        assert is_alive(broker)


def fill_with_unread_answers(client: SocketClient, count: int = 60, size: int = 500_000) -> None:
    """Answers of so many bytes that the client asks for and does not read."""
    client.ask(produce_request("orders", batch_of(b"x" * size)))
    asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    with contextlib.suppress(ConnectionError):  # It may be disconnected before it has asked for all.
        for _ in range(count):
            client.send(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=asked)]))


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    config = {"connections.max.unread.ms": 100}
    with (
        EmbeddedBroker(topics=["orders"], config=config) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as client,
    ):
        fill_with_unread_answers(client)
        wait_for_connections(broker, 0)
        watch = broker._running._watch
        assert not watch._seen
        assert not watch._unread
        assert is_alive(broker)


def test_unread_answers_of_all_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with (
        EmbeddedBroker(topics=["orders"], config={"queued.max.response.bytes": 6 << 20, "message.max.bytes": 8 << 20}) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as first,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as second,
    ):
        for client in (first, second):
            fill_with_unread_answers(client, size=4_000_000)
        wait_for_connections(broker, 1)
        assert is_alive(broker)
    assert any("too many answers unread" in record.getMessage() for record in caplog.records)


def wait_for_connections(broker: EmbeddedBroker, count: int) -> None:
    """Until so few are left."""
    wait_until(broker, lambda: len(broker._running.peers) <= count)


@pytest.mark.parametrize("policy", ["os", "always"])
def test_nothing_behind_a_close_is_done(policy: str) -> None:
    """acks=0 that is refused closes the connection; what was pipelined behind it must not be carried out."""
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": policy}) as broker, SocketClient(broker.bootstrap_servers) as client:
        refused = produce_request("missing", batch_of(b"a"), acks=0)
        behind = produce_request("orders", batch_of(b"b"))
        client.socket.sendall(b"".join(b"".join(client.connection.encode_request(message)[1]) for message in (refused, behind)))
        assert client.is_closed_by_peer()
        assert broker.counters()["MessagesInPerSec"] == 0


def test_what_came_before_the_nonsense_is_answered_and_synced() -> None:
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": "always"}) as broker, SocketClient(broker.bootstrap_servers) as client:
        good = b"".join(client.connection.encode_request(produce_request("orders", batch_of(b"a")))[1])
        client.socket.sendall(good + NONSENSE["unknown API"])
        assert client.receive().responses[0].partition_responses[0].error_code == 0
        assert client.is_closed_by_peer()


def test_nine_bad_connections_are_a_line_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chaffinch.broker"), EmbeddedBroker() as broker:
        for _ in range(9):
            with SocketClient(broker.bootstrap_servers, greet=False) as client:
                client.socket.sendall(NONSENSE["empty frame"])
                assert client.is_closed_by_peer()
    lines = [message for record in caplog.records if "closed: " in (message := record.getMessage())]
    assert len(lines) <= 3
    assert sum(int(line.split(" more ")[0].split()[-1]) if " more since" in line else 1 for line in lines) == 9


class TestSlowDown:
    def test_answers_come_slowly_and_whole(self) -> None:
        with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
            broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=2000)
            assert client.ask(MetadataRequest(topics=None)).topics[0].name == "orders"
            for _ in range(3):
                client.send(MetadataRequest(topics=None))
            assert [client.receive().topics[0].name for _ in range(3)] == ["orders"] * 3
            assert is_alive(broker), "others are as fast as ever"

    @pytest.mark.parametrize("direction", ["answers", "requests", "both"])
    def test_one_byte_a_second(self, direction: str) -> None:
        with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
            broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=1, direction=direction)
            client.send(MetadataRequest(topics=None))
            wait_until_hit(broker)
            (peer,) = broker._thread.call(lambda: list(broker._running._peers.values()))
            assert (broker._thread.call(lambda: peer.unsent_bytes) > 0) == (direction != "requests")
            client.send(MetadataRequest(topics=None))
            wait_until(broker, lambda: peer.is_reading == (direction == "answers"))

    def test_requests_are_read_slowly(self) -> None:
        with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
            broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=1000, direction="requests")
            client.ask(MetadataRequest(topics=None))
            for _ in range(3):
                assert client.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 0

    @pytest.mark.parametrize(("direction", "pace"), [("answers", 1), ("requests", 1000), ("both", 1000)])
    def test_a_connection_that_dies_while_it_is_slow_leaves_nothing(self, direction: str, pace: int) -> None:
        with EmbeddedBroker(topics=["orders"]) as broker:
            with SocketClient(broker.bootstrap_servers) as client:
                broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=pace, direction=direction)
                for _ in range(3):
                    client.send(MetadataRequest(topics=None))
                wait_until_hit(broker)
                (peer,) = broker._thread.call(lambda: list(broker._running._peers.values()))
            wait_for_connections(broker, 0)
            assert (peer._slow_answers, peer._slow_requests, peer.unsent_bytes) == (None, None, 0)
            assert not broker._call(lambda core: core._unanswered)
            assert is_alive(broker)


def wait_until_hit(broker: EmbeddedBroker) -> None:
    wait_until(broker, lambda: not broker._running.core.faults)


def wait_until(broker: EmbeddedBroker, holds: Callable[[], bool]) -> None:
    """Each question is a turn of the broker's loop."""
    for _ in range(200_000):
        if broker._thread.call(holds):
            return
    raise AssertionError("it never came")


def test_a_peer_closed_while_it_reads_nothing_does_not_stay_for_ever() -> None:
    """A closed connection still has answers to send; its client has its time for reading them, and no more."""
    config = {"connections.max.unread.ms": 100}
    with (
        EmbeddedBroker(topics=["orders"], config=config) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as client,
    ):
        fill_with_unread_answers(client, 20)
        broker._thread.call(lambda: [peer.close() for peer in broker._running._peers.values()])
        wait_for_connections(broker, 0)


@pytest.mark.parametrize(
    ("is_there", "says"),
    [
        (True, ("INFO", LOOPS_ARE_LOADED)),
        (False, ("WARNING", "compiled loops are not to be had, much slower ones check records: no numba")),
    ],
)
def test_whether_it_works_at_full_speed_is_said(
    is_there: bool, says: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "load", lambda: is_there)
    monkeypatch.setattr(kernels, "missing_reason", lambda: "no numba")
    with caplog.at_level(logging.INFO, "chaffinch.broker"):
        load_kernels()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [says]
