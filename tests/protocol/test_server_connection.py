"""Server connections: different arrivals of requests, order of responses, violations."""

from __future__ import annotations

import pytest

from chaffinch.protocol.apis import APIS
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.protocol.violations import MalformedMessage, ProtocolViolation, UnencodableMessage
from chaffinch.records.file_slice import FileSlice, Part
from tests.records.sources import BytesSource


def request_bytes(message: Message, version: int, client_id: str | None = "me") -> bytes:
    return b"".join(ClientConnection(client_id).encode_request(message, version)[1])


def produce(acks: int = -1, records: bytes = b"batch") -> ProduceRequest:
    return ProduceRequest(acks=acks, topics=[TopicProduceData(name="orders", partitions=[PartitionProduceData(records=records)])])


def received(connection: ServerConnection, *messages: tuple[Message, int]) -> list[ReceivedRequest]:
    return connection.receive(b"".join(request_bytes(message, version) for message, version in messages))


TWO = request_bytes(produce(), 9) + request_bytes(MetadataRequest(topics=None), 1, client_id=None)


class TestArrivals:
    @staticmethod
    def check(requests: list[ReceivedRequest]) -> None:
        first, second = requests
        assert (first.api.name, first.version, first.correlation_id, first.client_id) == ("Produce", 9, 0, "me")
        assert first.message == produce()
        assert (second.api.name, second.version, second.client_id) == ("Metadata", 1, None)
        assert second.message == MetadataRequest(topics=None)

    def test_whole_requests_are_read(self) -> None:
        self.check(ServerConnection().receive(TWO))

    def test_requests_arriving_byte_by_byte_are_read(self) -> None:
        connection = ServerConnection()
        self.check([request for byte in TWO for request in connection.receive(bytes([byte]))])

    def test_trailing_bytes_stay_pending(self) -> None:
        connection = ServerConnection()
        self.check(connection.receive(TWO + TWO[:7]))
        assert len(connection.receive(TWO[7:])) == 2

    def test_records_of_a_large_request_are_a_view_of_the_buffer(self) -> None:
        connection = ServerConnection()
        data = request_bytes(produce(records=b"x" * 300_000), 9)
        assert connection.receive(data[:1000]) == []
        buffer = connection.get_buffer()
        buffer[:] = data[1000:]
        (frame,) = connection.buffer_updated(len(buffer))
        request = connection.request(frame)
        assert isinstance(request.message, ProduceRequest)
        records = request.message.topics[0].partitions[0].records
        assert isinstance(records, memoryview)
        records[299_999] = ord("y")
        assert buffer[len(buffer) - 4] == ord("y")


class TestApiVersions:
    @staticmethod
    def response() -> ApiVersionsResponse:
        return ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])

    def test_client_software_is_remembered(self) -> None:
        connection = ServerConnection()
        assert (connection.client_software_name, connection.client_software_version) == ("", "")
        received(connection, (ApiVersionsRequest(client_software_name="chaffinch", client_software_version="1.2"), 3))
        assert (connection.client_software_name, connection.client_software_version) == ("chaffinch", "1.2")
        received(connection, (ApiVersionsRequest(), 0))
        assert connection.client_software_name == "chaffinch"

    @pytest.mark.parametrize("body", [b"", b"what a later version may hold"])
    def test_an_unknown_version_is_answered_in_version_0_with_error_35(self, body: bytes) -> None:
        frame = bytes.fromhex("0012 0063 0000002a ffff 00") + body
        connection = ServerConnection()
        (request,) = connection.receive(len(frame).to_bytes(4, "big") + frame)
        assert (request.version, request.unsupported_version, request.message) == (0, 99, ApiVersionsRequest())
        answer = b"".join(connection.encode_response(request, self.response()))
        assert answer == bytes.fromhex("00000010 0000002a 0023 00000001 0012 0000 0004")

    def test_a_known_version_keeps_the_brokers_error_code(self) -> None:
        connection = ServerConnection()
        (request,) = received(connection, (ApiVersionsRequest(), 3))
        answer = b"".join(connection.encode_response(request, self.response()))
        assert answer == bytes.fromhex("00000013 00000000 0000 02 0012 0000 0004 00 00000000 00")


class TestViolations:
    @pytest.mark.parametrize(
        ("header", "message"),
        [
            ("03e7 0000 00000001 ffff", "API key 999 is not served (version 0, correlation id 1)"),
            ("ffff 0000 00000001 ffff", "API key -1 is not served"),
            ("0000 000e 00000001 ffff 00", "Produce v14 is not served, only versions 0 to 13"),
            ("0001 0003 00000001 ffff", "Fetch v3 is not served"),
            ("0003 ffff 00000001 ffff", "Metadata v-1 is not served"),
            ("0003 0000 00000001 ff", "malformed RequestHeader v1: client_id at byte 8: 2 bytes needed, 1 left"),
            ("0003 0000", "frame of 4 bytes refused, allowed: 8 to "),
            ("", "frame of 0 bytes refused, allowed: 8 to "),
            ("0003 0001 00000001 ffff 7fffffff", "malformed MetadataRequest v1: topics at byte 14: 2147483647 elements"),
        ],
    )
    def test_messages_name_what_was_refused(self, header: str, message: str) -> None:
        frame = bytes.fromhex(header)
        with pytest.raises(ProtocolViolation) as caught:
            ServerConnection().receive(len(frame).to_bytes(4, "big") + frame)
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize("bad", ["00000004 03e70000", "ffffffff", "7fffffff"])
    def test_requests_before_a_violation_are_kept(self, bad: str) -> None:
        connection = ServerConnection()
        data = TWO + bytes.fromhex(bad)
        connection.get_buffer()[: len(data)] = data
        with pytest.raises(ProtocolViolation) as caught:
            connection.buffer_updated(len(data))
        assert [connection.request(frame).api.name for frame in caught.value.frames] == ["Produce", "Metadata"]

    def test_malformed_request_fails_when_it_is_decoded(self) -> None:
        connection = ServerConnection()
        data = TWO + bytes.fromhex("00000009 0000 0009 00000001 ff") + TWO
        connection.get_buffer()[: len(data)] = data
        frames = connection.buffer_updated(len(data))
        assert (len(frames), len(connection.open_requests)) == (5, 0)
        assert [connection.request(frame).api.name for frame in frames[:2]] == ["Produce", "Metadata"]
        assert len(connection.open_requests) == 2
        with pytest.raises(MalformedMessage):
            connection.request(frames[2])

    def test_frame_above_the_limit_is_refused(self) -> None:
        with pytest.raises(ProtocolViolation, match="allowed: 8 to 50"):
            ServerConnection(50).receive(request_bytes(produce(records=b"x" * 100), 9))


class TestOrder:
    """Kafka works on one request of a connection at a time, so clients match responses to requests by their order."""

    def test_a_response_waits_for_earlier_ones(self) -> None:
        connection = ServerConnection()
        first, second, third = received(connection, (produce(), 9), (MetadataRequest(), 9), (FindCoordinatorRequest(), 1))
        assert len(connection.open_requests) == 3
        assert connection.encode_response(third, FindCoordinatorResponse()) == []
        assert connection.encode_response(second, MetadataResponse()) == []
        parts = connection.encode_response(first, ProduceResponse())
        expected = [
            b"".join(ServerConnection().encode_response(request, message))
            for request, message in ((first, ProduceResponse()), (second, MetadataResponse()), (third, FindCoordinatorResponse()))
        ]
        assert b"".join(parts) == b"".join(expected)
        assert not connection.open_requests

    def test_file_slice_is_loaded_before_its_response_waits(self) -> None:
        file = bytearray(b"records")
        connection = ServerConnection()
        first, second = received(connection, (MetadataRequest(), 9), (FetchRequest(topics=[]), 12))
        records: list[Part] = [FileSlice(BytesSource(file), 0, 7)]
        answer = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[PartitionData(records=records)])])
        assert connection.response_parts(second, answer) == []
        file[:] = b"another"
        assert any(bytes(part) == b"records" for part in connection.response_parts(first, MetadataResponse()))

    def test_acks_0_request_delays_no_response(self) -> None:
        connection = ServerConnection()
        first, second = received(connection, (produce(acks=0), 9), (MetadataRequest(), 9))
        assert (first.expects_response, second.expects_response) == (False, True)
        assert connection.encode_response(second, MetadataResponse()) != []

    def test_a_request_that_is_never_answered_can_be_skipped(self) -> None:
        connection = ServerConnection()
        first, second = received(connection, (produce(), 9), (MetadataRequest(), 9))
        assert connection.encode_response(second, MetadataResponse()) == []
        assert b"".join(connection.skip_response(first)) == b"".join(ServerConnection().encode_response(second, MetadataResponse()))

    def test_a_response_that_cannot_be_encoded_can_be_tried_again(self) -> None:
        connection = ServerConnection()
        (request,) = received(connection, (MetadataRequest(), 9))
        with pytest.raises(UnencodableMessage):
            connection.encode_response(request, MetadataResponse(controller_id=1 << 40))
        assert connection.encode_response(request, MetadataResponse()) != []

    def test_after_close_nothing_is_open(self) -> None:
        connection = ServerConnection()
        received(connection, (MetadataRequest(), 9))
        connection.close()
        assert not connection.open_requests


@pytest.mark.parametrize("api", APIS.values(), ids=repr)
def test_every_served_version_round_trips(api: object) -> None:
    assert api in APIS.values()
    for version in api.served:  # type: ignore[attr-defined]
        client, server = ClientConnection("me"), ServerConnection()
        _, parts = client.encode_request(api.request(), version)  # type: ignore[attr-defined]
        (request,) = server.receive(b"".join(parts))
        assert (request.api, request.version, request.message) == (api, version, api.request())  # type: ignore[attr-defined]
        if not request.expects_response:
            continue
        (response,) = client.receive(b"".join(server.encode_response(request, api.response())))  # type: ignore[attr-defined]
        assert (response.api, response.version, response.message) == (api, version, api.response())  # type: ignore[attr-defined]
