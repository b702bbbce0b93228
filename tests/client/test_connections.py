"""One connection without its socket: negotiation, deadlines, and whether a failed request may have reached the broker."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.connections import BrokerConnection, Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.errors import UnsupportedCompressionTypeException
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chaffinch.protocol.primitives import Buffer
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.old_formats.encoding import encode_message_set
from tests.client.scripted_server import ScriptedServer

HERE = Address("h", 1)


class Wire:
    """A connection and a server's end, joined by bytes that the test moves."""

    def __init__(self, *, features: tuple[str, ...] = ()) -> None:
        self.connection = BrokerConnection(HERE, client_id="me", request_timeout_ms=1000)
        self.server = ServerConnection()
        self.requests: list[Any] = []
        self.events: list[Any] = []
        self._versions = ScriptedServer(features=features)
        self._versions.__exit__(None, None, None)

    def open(self) -> None:
        self.connection.opened(0)
        self.to_server()
        self.answer(self._versions._default(self.requests[0].message))

    def to_server(self, count: int | None = None) -> None:
        data = b"".join(self.connection.buffers())[:count]
        self.events += self.connection.written(len(data))
        self.requests += self.server.receive(data)

    def answer(self, message: Any, steady_ms: int = 0, *, step: int | None = None) -> None:
        data = b"".join(self.server.encode_response(self.requests.pop(0), message))
        while data:
            buffer = self.connection.get_buffer()
            count = min(len(buffer), len(data), step or len(data))
            buffer[:count] = data[:count]
            self.events += self.connection.received(count, steady_ms)
            data = data[count:]


def produce(acks: int) -> ProduceRequest:
    parts: list[Buffer] = [b"a" * 70, memoryview(b"b" * 30)]
    partition = PartitionProduceData(index=0, records=parts)
    return ProduceRequest(acks=acks, timeout_ms=1, topics=[TopicProduceData(name="orders", partitions=[partition])])


def test_first_request_is_api_versions_with_the_software_name() -> None:
    wire = Wire()
    wire.connection.send(MetadataRequest(topics=[]), "token", 0)
    wire.connection.opened(0)
    wire.to_server()
    (request,) = wire.requests
    assert isinstance(request.message, ApiVersionsRequest)
    assert request.message.client_software_name == "chaffinch"
    wire.answer(wire._versions._default(request.message))
    assert wire.events == [Connected(address=HERE)]
    wire.to_server()
    assert [type(request.message) for request in wire.requests] == [MetadataRequest]
    assert wire.connection.is_negotiated


@pytest.mark.parametrize("step", [None, 1, 7])
def test_responses_match_requests_in_any_fragmentation(step: int | None) -> None:
    wire = Wire()
    wire.open()
    for token in "abc":
        wire.connection.send(MetadataRequest(topics=[]), token, 0)
    wire.to_server()
    for number in range(3):
        wire.answer(MetadataResponse(controller_id=number), step=step)
    answered = [event for event in wire.events if isinstance(event, ResponseReceived)]
    assert [(event.token, event.message.controller_id) for event in answered] == [("a", 0), ("b", 1), ("c", 2)]
    assert wire.connection.in_flight_count == 0


def test_announced_numbering_is_reported() -> None:
    wire = Wire(features=("chaffinch.error.numbering",))
    wire.open()
    wire.connection.send(MetadataRequest(topics=[]), "a", 0)
    wire.to_server()
    wire.answer(MetadataResponse())
    assert wire.events[-1].numbering == "kip"


def test_api_versions_is_retried_in_the_brokers_version() -> None:
    wire = Wire()
    wire.connection.opened(0)
    wire.to_server()
    wire.requests[0].version = 0  # As Kafka: who does not know the version answers in version 0.
    wire.answer(ApiVersionsResponse(error_code=35))
    assert not wire.events
    assert wire.connection.violation is None
    wire.to_server()
    wire.answer(wire._versions._default(wire.requests[0].message))
    assert wire.events == [Connected(address=HERE)]


def test_broker_without_common_api_versions_is_closed() -> None:
    wire = Wire()
    wire.connection.opened(0)
    for _ in range(3):
        wire.to_server()
        wire.requests[0].version = 0
        wire.answer(ApiVersionsResponse(error_code=35))
    assert wire.connection.violation is not None


def test_request_without_response_completes_with_its_last_byte() -> None:
    wire = Wire()
    wire.open()
    wire.events.clear()
    wire.connection.send(produce(0), "a", 0, expects_response=False)
    wire.to_server(10)
    assert not wire.events
    wire.to_server()
    assert wire.events == [RequestWritten(address=HERE, token="a")]
    assert wire.connection.deadline_ms is None


def test_deadlines() -> None:
    wire = Wire()
    wire.open()
    assert wire.connection.deadline_ms is None
    wire.connection.send(MetadataRequest(topics=[]), "a", 100)
    wire.connection.send(MetadataRequest(topics=[]), "b", 100, timeout_ms=50)
    assert wire.connection.deadline_ms == 150
    assert not wire.connection.is_stuck(149)
    assert wire.connection.is_stuck(150)


def test_lost_connection_reports_which_requests_were_sent() -> None:
    wire = Wire()
    wire.open()
    wire.connection.send(produce(-1), "whole", 0)
    wire.to_server()
    wire.connection.send(produce(-1), "partly", 0)
    wire.to_server(5)
    wire.connection.send(produce(-1), "not at all", 0)
    events = wire.connection.lost("gone", steady_ms=5)
    failed = [event for event in events if isinstance(event, RequestFailed)]
    assert [(event.token, event.was_sent, event.is_timeout) for event in failed] == [
        ("whole", True, False),
        ("partly", True, False),
        ("not at all", False, False),
    ]
    assert events[-1] == Disconnected(address=HERE, reason="gone")
    assert not wire.connection.needs_write


def test_request_before_negotiation_was_not_sent() -> None:
    wire = Wire()
    wire.connection.opened(0)
    wire.connection.send(produce(-1), "waiting", 0)
    wire.to_server()
    failed, _ = wire.connection.lost("refused", steady_ms=2000)
    assert isinstance(failed, RequestFailed)
    assert (failed.was_sent, failed.is_timeout, failed.version) == (False, True, None)


def test_unencodable_request_fails_alone() -> None:
    wire = Wire()
    wire.connection.opened(0)
    wire.to_server()
    wire.answer(ApiVersionsResponse())
    (failed,) = wire.connection.send(MetadataRequest(topics=[]), "a", 0)
    assert isinstance(failed, RequestFailed)
    assert failed.is_unsupported
    assert "Metadata" in failed.reason


CODECS = [
    # Produce versions of the broker, record format, codec, whether it goes out
    *(((3, 6), 2, codec, codec is not Compression.ZSTD) for codec in Compression),
    ((3, 7), 2, Compression.ZSTD, True),
    ((0, 6), 1, Compression.NONE, True),
]


@pytest.mark.parametrize(("versions", "magic", "codec", "goes"), CODECS)
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "in pieces"])
def test_zstd_for_an_old_broker_fails_without_being_sent(
    versions: tuple[int, int], magic: int, codec: Compression, goes: bool, is_split: bool
) -> None:
    """Before Produce 7 (Kafka 2.1) brokers say no more than UNKNOWN_SERVER_ERROR."""
    wire = Wire()
    wire.connection.opened(0)
    wire.to_server()
    wire.answer(ApiVersionsResponse(api_keys=[ApiVersion(api_key=0, min_version=versions[0], max_version=versions[1])]))
    columns = RecordColumns.from_lists([b"k"], [b"v" * 99], [4 << 24])  # In format 1 its bytes lie where format 2 has the codec.
    data = batch.encode(columns, compression=codec) if magic == 2 else encode_message_set(columns, magic, codec)
    pieces: list[Buffer] = [data[:61], data[61:]]
    parts = PartitionProduceData(index=0, records=pieces if is_split else data)
    request = ProduceRequest(acks=1, timeout_ms=1, topics=[TopicProduceData(name="orders", partitions=[parts])])
    outcome = wire.connection.send(request, "token", 0, version_max=2 if magic == 1 else None)
    if goes:
        assert outcome == []
        return
    (failed,) = outcome
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, UnsupportedCompressionTypeException)
    assert (failed.was_sent, failed.reason) == (
        False,
        "h:1: the broker does not support compression.type zstd (it requires Apache Kafka 2.1): choose lz4, snappy, gzip or none",
    )


def test_invalid_bytes_are_a_violation() -> None:
    wire = Wire()
    wire.open()
    buffer = wire.connection.get_buffer()
    buffer[:8] = b"HTTP/1.1"
    wire.connection.received(8, 0)
    assert "Kafka protocol" in (wire.connection.violation or "")


def test_version_max_limits_the_version() -> None:
    wire = Wire()
    wire.open()
    wire.connection.send(produce(-1), "a", 0, version_max=11)
    wire.to_server()
    assert wire.requests[0].version == 11


@pytest.mark.parametrize(("version_max", "version"), [(11, 11), (13, 13), (None, 11)])
def test_outcome_has_the_version_of_the_request(version_max: int | None, version: int) -> None:
    wire = Wire()
    wire.open()
    for token in ("answered", "lost"):
        wire.connection.send(produce(-1), token, 0, version_max=version_max)
    wire.to_server()
    wire.answer(ProduceResponse())
    answered, lost = wire.events[-1], wire.connection.lost("gone")[0]
    assert isinstance(answered, ResponseReceived)
    assert isinstance(lost, RequestFailed)
    assert [(event.token, event.version) for event in (answered, lost)] == [("answered", version), ("lost", version)]
