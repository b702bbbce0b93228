"""Fetch answers whose records are read as they are sent: whole and in order, whatever stands in their way."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import random
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from chaffinch import Consumer, Producer, TopicPartition
from chaffinch.broker import file_sender
from chaffinch.broker.connections import Peer
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.broker.file_sender import FileSender, send_part
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records import batch
from chaffinch.records.file_slice import FileSlice
from chaffinch.storage import disk_reads
from chaffinch.storage.file_system import DiskFileSystem
from chaffinch.storage.files import StorageError
from chaffinch.storage.segment import RecordsFile
from tests.broker.batches import batch_of
from tests.broker.broker_probes import wait_until, wait_until_hit
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient
from tests.records.sources import BytesSource
from tests.support.certificates import Certificates

VALUES = [random.Random(number).randbytes(200_000) for number in range(40)]
"""8 MB: more than a socket takes at once."""

FETCH_VERSION = 12
"""The last that names topics."""


@pytest.fixture(params=["disk", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path if request.param == "disk" else None) as broker:
        fill(broker)
        yield broker


def fill(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        for value in VALUES:
            answer = client.ask(produce_request("orders", batch_of(value)))
            assert answer.responses[0].partition_responses[0].error_code == 0


def fetch(offset: int = 0, bytes_max: int = 50_000_000) -> FetchRequest:
    requested = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[requested])])


def values_of(answer: Any) -> list[bytes]:
    """Of all batches, whose checksums must be right."""
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0
    found = []
    for view in batch.views(partition.records):
        assert view.crc_is_valid()
        found.append(bytes(batch.decode(view).value_data))  # One record each.
    return found


def test_slow_client_gets_all_records(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES
        assert values_of(client.ask(fetch(offset=38), FETCH_VERSION)) == VALUES[38:]


def test_limits_apply_to_whole_batches(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        for bytes_max, count in ((1, 1), (200_000, 1), (399_999, 1), (401_000, 2), (2_000_000, 9)):
            assert values_of(client.ask(fetch(3, bytes_max), FETCH_VERSION)) == VALUES[3 : 3 + count], bytes_max


def test_responses_keep_their_order(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        for offset in range(3):
            client.send(MetadataRequest(topics=None))
            client.send(fetch(offset), FETCH_VERSION)
        for offset in range(3):
            assert client.receive().topics[0].name == "orders"
            assert values_of(client.receive()) == VALUES[offset:]


@pytest.mark.parametrize("count", [1, len(VALUES)])
def test_topic_deleted_in_the_same_turn_is_still_sent(broker: EmbeddedBroker, count: int) -> None:
    with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        parts = [
            b"".join(client.connection.encode_request(*requested)[1])
            for requested in ((fetch(0, count * 201_000), FETCH_VERSION), (deletion(), None))
        ]
        client.socket.sendall(b"".join(parts))
        assert values_of(client.receive()) == VALUES[:count]
        assert client.receive().responses[0].error_code == 0


def waiting(offset: int = 0) -> FetchRequest:
    """It waits for more than there is."""
    requested = fetch(offset)
    requested.max_wait_ms, requested.min_bytes = 60_000, sum(map(len, VALUES[offset:])) + 100_000
    return requested


def deletion() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], topic_names=["orders"], timeout_ms=1000)


def test_deletion_behind_waiting_fetches_truncates_none(broker: EmbeddedBroker) -> None:
    """One batch answers them all, and the deletion follows at once."""
    with (
        SocketClient(broker.bootstrap_servers) as one,
        SocketClient(broker.bootstrap_servers) as other,
        SocketClient(broker.bootstrap_servers) as producer,
    ):
        one.send(waiting(), FETCH_VERSION)
        other.send(waiting(), FETCH_VERSION)
        other.send(deletion())
        core = broker._running.core
        wait_until(broker, lambda: len(core._waits.waits) == 2 and any(peer._backlog for peer in broker._running.peers))
        producer.ask(produce_request("orders", batch_of(VALUES[0])))
        assert values_of(one.receive()) == values_of(other.receive()) == [*VALUES, VALUES[0]]
        assert other.receive().responses[0].error_code == 0


def test_delayed_response_is_read_before_the_deletion(broker: EmbeddedBroker) -> None:
    broker.faults.add("Fetch", action="delay", delay_ms=200)
    with SocketClient(broker.bootstrap_servers) as client, SocketClient(broker.bootstrap_servers) as other:
        client.send(fetch(), FETCH_VERSION)
        wait_until_hit(broker)
        assert other.ask(deletion()).responses[0].error_code == 0
        assert values_of(client.receive()) == VALUES


DATA = bytes(range(100))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RecordsFile]:
    opened = DiskFileSystem(tmp_path).open("records")
    opened.append([DATA])
    yield RecordsFile(opened)
    opened.close()


def received(socket_: socket.socket, count: int = 1000) -> bytes:
    socket_.settimeout(0)
    return socket_.recv(count)


class TestPart:
    @pytest.fixture
    def ends(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            yield ours, theirs

    def test_file_slice_is_sent_with_sendfile(
        self, ends: tuple[socket.socket, socket.socket], file: RecordsFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(RecordsFile, "read", None)
        found = FileSlice(file, 5, 25)
        assert (send_part(ends[0].fileno(), found, 10), len(found)) == (10, 15)
        assert (send_part(ends[0].fileno(), found, 100), len(found)) == (15, 0)
        assert received(ends[1]) == DATA[5:30]

    def test_other_sources_are_read_in_pieces(self, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_sender, "PIECE_BYTES", 10)
        found = FileSlice(BytesSource(DATA), 5, 25)
        assert [send_part(ends[0].fileno(), found, 100) for _ in range(3)] == [10, 10, 5]
        assert (received(ends[1]), len(found)) == (DATA[5:30], 0)

    def test_file_slice_is_read_when_sendfile_fails(
        self, ends: tuple[socket.socket, socket.socket], file: RecordsFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def log_refusal(*_: int) -> int:
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(os, "sendfile", log_refusal)
        assert send_part(ends[0].fileno(), FileSlice(file, 5, 25), 100) == 25
        assert received(ends[1]) == DATA[5:30]

    @pytest.mark.parametrize(("position", "length"), [(100, 1), (90, 20)])
    def test_truncated_file_raises_storage_error(
        self, ends: tuple[socket.socket, socket.socket], file: RecordsFile, position: int, length: int
    ) -> None:
        found = FileSlice(file, position, length)
        sent = send_part(ends[0].fileno(), found, 1000) if position < 100 else 0
        assert (sent, len(found)) == (100 - position, length - (100 - position))
        with pytest.raises(StorageError, match="ends here"):
            send_part(ends[0].fileno(), found, 1000)

    def test_full_socket_raises_blocking_io_error(self, ends: tuple[socket.socket, socket.socket], file: RecordsFile) -> None:
        filled = 0
        while True:
            try:
                filled += ends[0].send(bytes(10_000))
            except BlockingIOError:
                break
        found = FileSlice(file, 5, 25)
        with pytest.raises(BlockingIOError):
            send_part(ends[0].fileno(), found, 100)
        assert (len(found), bytes(found)) == (25, DATA[5:30])


def fail(error: Exception) -> None:
    raise AssertionError from error


class Transport:
    """Has `waiting` bytes that the socket did not take, and notes what it is given."""

    def __init__(self, socket_: socket.socket, waiting: int) -> None:
        self.socket = socket_
        self.waiting = waiting
        self.given: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        return self.waiting + sum(map(len, self.given))

    def write(self, data: bytes) -> None:
        self.given.append(bytes(data))


@pytest.mark.parametrize("waiting", [0, 1])
def test_parts_do_not_overtake_bytes_in_the_transport(waiting: int) -> None:
    ours, theirs = socket.socketpair()
    transport = Transport(ours, waiting)
    with ours, theirs:
        direct = FileSender(cast("Any", transport), pytest.fail, fail)
        direct.send([b"head", FileSlice(BytesSource(b"abcdef"), 1, 4), b"tail"])
        ours.shutdown(socket.SHUT_WR)
        sent = b"".join(iter(lambda: theirs.recv(100), b""))
    assert (sent, transport.given) == ((b"headbcdetail", []) if not waiting else (b"", [b"head", b"bcde", b"tail"]))


def test_one_turn_sends_a_limited_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much room the socket has: others have a turn, too."""
    monkeypatch.setattr(file_sender, "BYTES_PER_TURN", 1000)
    data = random.Random(1).randbytes(4500)

    async def send(ours: socket.socket) -> list[int]:
        is_over, left = asyncio.Event(), []
        direct = FileSender(cast("Any", Transport(ours, 0)), is_over.set, fail)
        proceed = direct._proceed

        def counted() -> None:
            proceed()
            left.append(direct.bytes_left)

        monkeypatch.setattr(direct, "_proceed", counted)
        direct.send([data[:100], FileSlice(BytesSource(data), 100, 4300), data[4400:]])
        await is_over.wait()
        return left

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        assert asyncio.run(send(ours)) == [3500, 2500, 1500, 500, 0]
        assert received(theirs, 10_000) == data


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def held_of(broker: EmbeddedBroker) -> dict[Any, Any]:
    """The files that its connections hold."""
    (partition,) = broker._running.core.topics.partitions()
    files = partition.log._file_system
    assert isinstance(files, DiskFileSystem)
    return files.held_files._files


def answer_on_its_way(broker: EmbeddedBroker, client: SocketClient) -> Peer:
    """The client asked for everything and reads nothing yet: its connection, once there is no more room in between."""
    client.send(fetch(), FETCH_VERSION)
    port = client.socket.getsockname()[1]
    wait_until(broker, lambda: any(peer.unsent_bytes > 1_000_000 for peer in broker._running.peers))
    (peer,) = (found for found in broker._running.peers if found.address.endswith(f":{port}"))
    return peer


def test_unsent_file_slice_takes_no_memory(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
            peer = answer_on_its_way(broker, client)
            assert peer._transport is not None
            assert peer._transport.get_write_buffer_size() == 0
            assert len(held_of(broker)) == 1
            assert values_of(client.receive()) == VALUES
            wait_until(broker, lambda: not peer.unsent_bytes)
            assert not held_of(broker)


def test_topic_deleted_while_sending_is_sent_to_the_end(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        before = descriptors()
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client, SocketClient(broker.bootstrap_servers) as other:
            answer_on_its_way(broker, client)
            assert other.ask(deletion()).responses[0].error_code == 0
            assert values_of(client.receive()) == VALUES
            assert client.ask(MetadataRequest(topics=None)).topics == []
        wait_until(broker, lambda: not broker._running.peers)
        assert descriptors() <= before


def test_file_slice_without_a_descriptor_is_sent_by_the_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def log_refusal(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
            monkeypatch.setattr(os, "dup", log_refusal)
            peer = answer_on_its_way(broker, client)
            assert peer._transport is not None
            assert peer._transport.get_write_buffer_size() > 1_000_000
            monkeypatch.undo()
            assert values_of(client.receive()) == VALUES


@pytest.mark.parametrize("descriptors_max", [0, 256])
def test_file_slice_beyond_the_held_limit_waits_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptors_max: int) -> None:
    monkeypatch.setattr(disk_reads, "HELD_MAX", descriptors_max)
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client, SocketClient(broker.bootstrap_servers) as other:
            peer = answer_on_its_way(broker, client)
            assert peer._file_sender is not None
            assert len(peer._file_sender._held) == min(descriptors_max, 1)
            assert other.ask(deletion()).responses[0].error_code == 0
            assert values_of(client.receive()) == VALUES


def test_disconnected_client_leaves_no_descriptor_open(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        before = descriptors()
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
            answer_on_its_way(broker, client)
        wait_until(broker, lambda: not broker._running.peers)
        assert descriptors() <= before
        assert not held_of(broker)


def test_closed_connection_is_freed_without_the_collector(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        gc.collect()
        gc.disable()
        try:
            with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
                gone = weakref.ref(answer_on_its_way(broker, client))
            wait_until(broker, lambda: gone() is None)
        finally:
            gc.enable()


def test_stopped_broker_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = descriptors()
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
            answer_on_its_way(broker, client)
            broker.close()
    assert descriptors() <= before


def test_parts_added_while_sending_keep_their_order(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
            peer = answer_on_its_way(broker, client)

            def answer() -> None:
                peer._unsent.append(b"behind")
                peer.flush()

            broker._thread.call(answer)
            found = bytearray(client.socket.recv(4))
            size = int.from_bytes(found, "big")
            while len(found) < 4 + size + len(b"behind"):
                found += client.socket.recv(1 << 16)
            assert found.endswith(b"behind")
            assert VALUES[-1] in found


def test_connection_closed_while_sending_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may never read it."""
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
            peer = answer_on_its_way(broker, client)
            read: list[Any] = []

            def noting(*place: Any) -> bytes:
                read.append(place)
                return b""

            monkeypatch.setattr(disk_reads, "read", noting)
            broker._thread.call(peer.close)
            wait_until(broker, lambda: not broker._running.peers)
            assert not held_of(broker)
            assert not read
            with pytest.raises(ConnectionError):
                client.receive()


def test_throttled_response_has_all_records(broker: EmbeddedBroker) -> None:
    broker.faults.add("Fetch", action="slow_down", bytes_per_second=100_000_000)
    with SocketClient(broker.bootstrap_servers) as client:
        assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES


def test_flush_policy_always_lends_no_files(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path, config={"flush.policy": "always"}) as broker:
        fill(broker)
        assert not broker._running.core.lends_files
        with SocketClient(broker.bootstrap_servers) as client:
            assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES


def test_tls_response_is_sent_by_the_transport(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    config = {"security.protocol": "SSL", "ssl.keystore.location": certificates.server}
    with EmbeddedBroker(topics=["orders"], config=config) as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SSL", "ssl.truststore.location": certificates.root}
        with Producer(options) as producer:
            for value in VALUES:
                producer.send("orders", value)
        with Consumer({**options, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8_000_000}) as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            found: list[bytes] = []
            while len(found) < len(VALUES):
                found += consumer.poll_table(10).column("value").to_pylist()
    assert found == VALUES


def test_disk_error_while_sending_closes_the_connection_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        read = disk_reads.read
        sendfile = os.sendfile

        def failing(path: str, descriptor: int, position: int, length: int) -> bytes:
            if position + length > 3_000_000:
                raise StorageError(path, "read", "Input/output error")
            return read(path, descriptor, position, length)

        def failing_to_send(socket_: int, descriptor: int, position: int, count: int) -> int:
            if position + count > 3_000_000:
                raise OSError(errno.EIO, "Input/output error")
            return sendfile(socket_, descriptor, position, count)

        with SocketClient(broker.bootstrap_servers) as client:
            monkeypatch.setattr(disk_reads, "read", failing)
            monkeypatch.setattr(os, "sendfile", failing_to_send)
            client.send(fetch(), FETCH_VERSION)
            with pytest.raises(ConnectionResetError):
                client.receive()
        monkeypatch.undo()
        with SocketClient(broker.bootstrap_servers) as client:
            assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "in the middle of a response" in line.getMessage()
    assert "Input/output error" in line.getMessage()
