"""A client for `connection_fuzzer`: it sends what the dice say, in whatever pieces, and holds the broker to what it may expect.

Its answers come in the order of its good requests, each with its correlation id, all of those before a broken one, and none after it. A
connection that was not broken stays. Bytes go through a real socket that never blocks.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from chaffinch.protocol.apis import Api, api_of
from chaffinch.protocol.client_connection import UNSUPPORTED_VERSION
from chaffinch.protocol.headers import API_VERSIONS_KEY, finish_frame, request_head
from chaffinch.protocol.messages.api_versions import ApiVersionsRequest
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chaffinch.protocol.schema import Message
from chaffinch.records import batch
from chaffinch.records.compression import Compression
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request

LARGE, QUIET, BOMBED = "large", "quiet", "bombed"
BOMB_PARTITIONS = 3
BOMB = batch_of(bytes(8 << 20), compression=Compression.ZSTD)
RECORDS = batch_of(b"v" * 100)
SMALL_BUFFER_BYTES = 4096
READ_BYTES = 1 << 16
ASKED_BYTES_MAX = 1 << 20
ABRUPTLY = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset."""


def _fetch(topic: str, *, wait_ms: int = 0, offset: int = 0, bytes_max: int = ASKED_BYTES_MAX) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max, topics=[FetchTopic(topic=topic, partitions=[partition])])


def _bomb(acks: int) -> ProduceRequest:
    """What takes the broker more than one turn to unpack."""
    partitions = [PartitionProduceData(index=index, records=BOMB) for index in range(BOMB_PARTITIONS)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topics=[TopicProduceData(name=BOMBED, partitions=partitions)])


def _join(group: str) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    return JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="", protocol_type="consumer", protocols=protocols
    )


GOOD: tuple[tuple[Callable[[], Message], int], ...] = (
    (lambda: ApiVersionsRequest(client_software_name="fuzz", client_software_version="1"), 3),
    (lambda: ApiVersionsRequest(), 0),
    (lambda: MetadataRequest(topics=[MetadataRequestTopic(name=LARGE)]), 9),
    (lambda: MetadataRequest(topics=None), 4),
    (lambda: produce_request(LARGE, RECORDS), 9),
    (lambda: produce_request(LARGE, RECORDS, acks=1), 7),
    (lambda: produce_request(LARGE, RECORDS, acks=0), 9),
    (lambda: _fetch(LARGE), 12),
    (lambda: _fetch(LARGE, bytes_max=1), 6),
    (lambda: FindCoordinatorRequest(key="group", key_type=0), 3),
    (
        lambda: ListOffsetsRequest(
            topics=[ListOffsetsTopic(name=LARGE, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        ),
        6,
    ),
)
"""Requests and their versions; those that wait are beside."""
WAITING: tuple[tuple[Callable[[], Message], int], ...] = (
    (lambda: _fetch(QUIET, wait_ms=5000, offset=1 << 40), 12),
    (lambda: _fetch(QUIET, wait_ms=30_000), 12),
    (lambda: _bomb(0), 9),
    (lambda: _bomb(-1), 9),
    (lambda: _join("group-a"), 3),
    (lambda: _join("group-b"), 3),
)
BROKEN = (
    bytes.fromhex("0000000a 03e7 0000 00000001 ffff"),  # No such API.
    bytes.fromhex("0000000a 0003 7fff 00000001 ffff"),  # No such version.
    bytes.fromhex("0000000e 0003 0001 00000001 ffff 7fffffff"),  # A list that is longer than its frame.
    bytes.fromhex("00000003 000300"),  # No room for a header.
    bytes.fromhex("ffffffff"),
    bytes.fromhex("7fffffff"),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # How TLS begins.
)
CLAIM = (1 << 20).to_bytes(4, "big")
"""The beginning of a request that never comes to its end."""

Expected = tuple[int, Api, int]


class Client:
    """`port`: where the broker listens. The broker identifies it by `name`, its own port."""

    def __init__(self, rng: random.Random, port: int) -> None:
        self._rng = rng
        self._socket = socket.socket()
        self.reads = rng.choice((0, 10, 1000, READ_BYTES))
        """Bytes at a time."""
        if self.reads < READ_BYTES:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.name = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._outgoing = bytearray()
        self._received = bytearray()
        self._expected: deque[Expected] = deque()
        self._piece = rng.choice((1, 7, 200, 5000, 1 << 20))
        self._ends_in: str | None = None  # What was sent last of all: nonsense, or part of a request.
        self._has_sent_more = False  # Behind nonsense: the system may throw away what was answered then.
        self._has_shut = False
        self.answered = 0
        self.is_closed = False
        """By itself, or by the broker."""
        self.was_closed_by_broker = False

    @property
    def is_done(self) -> bool:
        """Nothing more will come from either side but the end that is due."""
        return self.is_closed or (not self._outgoing and not self._expected and not self._ends_in and not self._has_shut)

    @property
    def is_unfinished(self) -> bool:
        """The broker waits for the rest of a request."""
        return self._ends_in == "claim"

    def hurry(self) -> None:
        """From now on it reads what it can: with little room for it the system takes its time."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def act(self) -> None:
        """One thing that a client may do."""
        if self.is_closed:
            return
        what = self._rng.random()
        if what < 0.35:
            self._think_of_requests()
        elif what < 0.7:
            self.send()
        elif what < 0.97:
            self.read(self.reads)
        elif what < 0.98:
            self._shut()
        elif what < 0.99:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPTLY)
            self.close()
        else:
            self.close()

    def _think_of_requests(self) -> None:
        if self._ends_in is not None:
            if self._ends_in == "nonsense" and self._rng.random() < 0.3:
                self._outgoing += self._rng.randbytes(self._rng.choice((1, 100, 100_000)))
                self._has_sent_more = True
            return
        for _ in range(self._rng.choice((1, 1, 2, 5, 30, 400))):
            self.ask(*self._rng.choice(WAITING if self._rng.random() < 0.1 else GOOD))
        if self._rng.random() < 0.07:
            self._outgoing += self._rng.choice(BROKEN)
            self._ends_in = "nonsense"
        elif self._rng.random() < 0.03:
            self._outgoing += CLAIM + self._rng.randbytes(self._rng.choice((0, 9, 70_000)))
            self._ends_in = "claim"

    def ask(self, make: Callable[[], Message], version: int) -> None:
        """Have a good request sent."""
        message = make()
        api = api_of(message)
        correlation_id = self._rng.randrange(2**31)
        head = request_head(api.key, version, correlation_id, "fuzz", version >= api.flexible_since)
        self._outgoing += b"".join(finish_frame(message.encode_after(head, version)))
        if getattr(message, "acks", 1) != 0:
            self._expected.append((correlation_id, api, version))

    def send(self, piece: int | None = None) -> None:
        """What the system takes of the next piece."""
        if self.is_closed or self._has_shut or not self._outgoing:
            return
        try:
            sent = self._socket.send(self._outgoing[: piece or self._piece])
        except BlockingIOError:
            return
        except OSError:
            self._ended()
            return
        del self._outgoing[:sent]

    def read(self, count: int = READ_BYTES) -> None:
        """What is there, up to `count` bytes, and what it says."""
        if self.is_closed or not count:
            return
        try:
            data = self._socket.recv(count)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._ended()
            return
        self._received += data
        self._look()

    def _look(self) -> None:
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            frame = bytes(self._received[4:end])
            del self._received[:end]
            assert self._expected, f"{self.name}: an answer to nothing"
            self._check(frame, *self._expected.popleft())
            self.answered += 1

    def _check(self, frame: bytes, correlation_id: int, api: Api, version: int) -> None:
        found = int.from_bytes(frame[:4], "big")
        assert found == correlation_id, f"{self.name}: answer {found}, expected {correlation_id} ({api.name} v{version}) next"
        position = 4 + (version >= api.flexible_since and api.key != API_VERSIONS_KEY)
        message, end = api.response.decode_from(memoryview(frame), position, version)
        assert end == len(frame)
        assert getattr(message, "error_code", 0) != UNSUPPORTED_VERSION
        _check_content(message)

    def _ended(self) -> None:
        """The broker has closed the connection: was it right?"""
        assert self._ends_in == "nonsense" or self._has_shut, f"{self.name}: closed, and it has sent no nonsense"
        if not self._has_sent_more and not self._has_shut:
            assert not self._outgoing, f"{self.name}: closed before the nonsense came"
            assert not self._expected, f"{self.name}: closed with {len(self._expected)} good requests not answered"
        self.was_closed_by_broker = True
        self.close()

    def _shut(self) -> None:
        """Nothing more will be sent: a half-open connection."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # The broker was first.
            self._ended()
        else:
            self._has_shut = True

    def close(self) -> None:
        self._socket.close()
        self.is_closed = True


def _check_content(message: Any) -> None:
    if isinstance(message, ProduceResponse):
        assert not any(partition.error_code for partition in message.responses[0].partition_responses), message
    elif isinstance(message, FetchResponse):
        for topic in message.responses:
            for partition in topic.partitions:
                assert partition.error_code in (0, 1), partition  # 1: its offset is not there yet.
                records = partition.records or b""
                assert not isinstance(records, list)
                whole = batch.views(records, may_be_cut_short=True)
                assert all(view.crc_is_valid() for view in whole)
