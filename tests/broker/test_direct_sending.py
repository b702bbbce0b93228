"""Fetch answers whose records are read as they are sent: whole and in order, whatever stands in their way."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from chaffinch import Consumer, Producer
from chaffinch.broker import direct_sending
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records import batch
from chaffinch.records.stretch import Stretch
from chaffinch.storage.file_system import DiskFile
from chaffinch.storage.files import StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient
from tests.broker.test_server import wait_until, wait_until_hit
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
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[asked])])


def values_of(answer: Any) -> list[bytes]:
    """Of all batches, whose checksums must be right."""
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0
    found = []
    for view in batch.views(partition.records):
        assert view.crc_is_valid()
        found.append(bytes(batch.decode(view).value_data))  # One record each.
    return found


def test_a_client_that_reads_slowly_gets_all_of_it(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES
        assert values_of(client.ask(fetch(offset=38), FETCH_VERSION)) == VALUES[38:]


def test_limits_are_kept_by_whole_batches(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        for bytes_max, count in ((1, 1), (200_000, 1), (399_999, 1), (401_000, 2), (2_000_000, 9)):
            assert values_of(client.ask(fetch(3, bytes_max), FETCH_VERSION)) == VALUES[3 : 3 + count], bytes_max


def test_answers_keep_their_order(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        for offset in range(3):
            client.send(MetadataRequest(topics=None))
            client.send(fetch(offset), FETCH_VERSION)
        for offset in range(3):
            assert client.receive().topics[0].name == "orders"
            assert values_of(client.receive()) == VALUES[offset:]


@pytest.mark.parametrize("count", [1, len(VALUES)])
def test_a_topic_that_goes_in_the_same_turn_was_still_read(broker: EmbeddedBroker, count: int) -> None:
    with SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        parts = [
            b"".join(client.connection.encode_request(*asked)[1])
            for asked in ((fetch(0, count * 201_000), FETCH_VERSION), (deletion(), None))
        ]
        client.socket.sendall(b"".join(parts))
        assert values_of(client.receive()) == VALUES[:count]
        assert client.receive().responses[0].error_code == 0


def waiting(offset: int = 0) -> FetchRequest:
    """It waits for more than there is."""
    asked = fetch(offset)
    asked.max_wait_ms, asked.min_bytes = 60_000, sum(map(len, VALUES[offset:])) + 100_000
    return asked


def deletion() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], topic_names=["orders"], timeout_ms=1000)


def test_a_deletion_behind_fetches_that_wait_cuts_none_of_them_off(broker: EmbeddedBroker) -> None:
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
        wait_until(broker, lambda: len(core._waits.waits) == 2 and any(peer._backlog for peer in broker._running._peers.values()))
        producer.ask(produce_request("orders", batch_of(VALUES[0])))
        assert values_of(one.receive()) == values_of(other.receive()) == [*VALUES, VALUES[0]]
        assert other.receive().responses[0].error_code == 0


def test_an_answer_that_is_delayed_on_purpose_was_read_before(broker: EmbeddedBroker) -> None:
    broker.faults.add("Fetch", action="delay", delay_ms=200)
    with SocketClient(broker.bootstrap_servers) as client, SocketClient(broker.bootstrap_servers) as other:
        client.send(fetch(), FETCH_VERSION)
        wait_until_hit(broker)
        assert other.ask(deletion()).responses[0].error_code == 0
        assert values_of(client.receive()) == VALUES


class Transport:
    """Has `waiting` bytes that the socket did not take, and notes what it is given."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.given: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return self.waiting + sum(map(len, self.given))

    def write(self, data: memoryview) -> None:
        self.given.append(bytes(data))


@pytest.mark.parametrize("waiting", [0, 1])
def test_nothing_overtakes_what_waits_in_the_transport(waiting: int) -> None:
    ours, theirs = socket.socketpair()
    transport = Transport(waiting)
    with ours, theirs:
        direct_sending.send(
            cast("Any", transport), ours.fileno(), [b"head", Stretch(lambda at, size: b"abcdef"[at : at + size], 1, 4), b"tail"]
        )
        ours.shutdown(socket.SHUT_WR)
        sent = b"".join(iter(lambda: theirs.recv(100), b""))
    assert (sent, transport.given) == ((b"headbcdetail", []) if not waiting else (b"", [b"head", b"bcde", b"tail"]))


def test_answers_slowed_down_on_purpose(broker: EmbeddedBroker) -> None:
    broker.faults.add("Fetch", action="slow_down", bytes_per_second=100_000_000)
    with SocketClient(broker.bootstrap_servers) as client:
        assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES


def test_nothing_is_lent_where_answers_wait_for_the_disk(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path, config={"flush.policy": "always"}) as broker:
        fill(broker)
        assert not broker._running.core.lends_files
        with SocketClient(broker.bootstrap_servers) as client:
            assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES


def test_under_tls_it_goes_through_the_transport(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    config = {"security.protocol": "SSL", "ssl.keystore.location": certificates.server}
    with EmbeddedBroker(topics=["orders"], config=config) as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SSL", "ssl.truststore.location": certificates.root}
        with Producer(options) as producer:
            for value in VALUES:
                producer.send("orders", value)
        with Consumer({**options, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8_000_000}) as consumer:
            consumer.assign([("orders", 0)])
            found: list[bytes] = []
            while len(found) < len(VALUES):
                found += consumer.poll_table(10).column("value").to_pylist()
    assert found == VALUES


def test_a_disk_that_fails_in_the_middle_costs_the_connection_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=tmp_path) as broker:
        fill(broker)
        read = DiskFile.read

        def failing(file: DiskFile, position: int, length: int) -> bytes:
            if position > 3_000_000:
                raise StorageError(file.path, "read", "Input/output error")
            return read(file, position, length)

        with SocketClient(broker.bootstrap_servers) as client:
            monkeypatch.setattr(DiskFile, "read", failing)
            client.send(fetch(), FETCH_VERSION)
            with pytest.raises(ConnectionResetError):
                client.receive()
        monkeypatch.undo()
        with SocketClient(broker.bootstrap_servers) as client:
            assert values_of(client.ask(fetch(), FETCH_VERSION)) == VALUES
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "in the middle of an answer" in told.getMessage()
    assert "Input/output error" in told.getMessage()
