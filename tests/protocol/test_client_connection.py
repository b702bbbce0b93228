"""Client connections: versions, correlation ids, and misbehaving brokers."""

from __future__ import annotations

import pytest

from chaffinch.errors.exceptions import UnsupportedVersionException
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.client_connection import FEATURE_NUMBERING, ApiVersionTable, ClientConnection
from chaffinch.protocol.frames import EAGER_BYTES_MAX
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from chaffinch.protocol.messages.describe_cluster import DescribeClusterRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.produce import ProduceRequest, ProduceResponse
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import CorrelationIdMismatch, MalformedMessage, ProtocolViolation

SERVED = [ApiVersion(api_key=api.key, min_version=api.served[0], max_version=api.served[-1]) for api in APIS.values()]


def introduced(response: ApiVersionsResponse) -> ClientConnection:
    """A client whose broker has answered ApiVersions."""
    client, server = ClientConnection("me", "chaffinch", "1.0"), ServerConnection()
    _, parts = client.encode_request(client.api_versions_request())
    (request,) = server.receive(b"".join(parts))
    assert (server.client_software_name, server.client_software_version) == ("chaffinch", "1.0")
    client.receive(b"".join(server.encode_response(request, response)))
    return client


class TestVersions:
    def test_the_highest_common_version_is_used(self) -> None:
        client = introduced(ApiVersionsResponse(api_keys=SERVED))
        _, parts = client.encode_request(ProduceRequest(acks=1))
        (request,) = ServerConnection().receive(b"".join(parts))
        assert request.version == APIS[0].used[-1]

    @pytest.mark.parametrize(("first", "last", "chosen"), [(0, 5, 5), (3, 3, 3), (5, 99, 11), (11, 20, 11), (0, 3, 3)])
    def test_choose_returns_the_highest_common_version(self, first: int, last: int, chosen: int) -> None:
        table = ApiVersionTable(ranges={0: (first, last)}, features={})
        assert table.choose(APIS[0]) == chosen
        assert table.has(APIS[0])

    def test_choose_stays_below_the_limit(self) -> None:
        table = ApiVersionTable(ranges={0: (3, 11)}, features={})
        assert table.choose(APIS[0], version_max=9) == 9
        with pytest.raises(UnsupportedVersionException):
            table.choose(APIS[0], version_max=2)

    def test_choose_returns_an_older_version_on_request(self) -> None:
        table = ApiVersionTable(ranges={0: (0, 11)}, features={})
        assert table.choose(APIS[0]) == 11
        assert table.choose(APIS[0], version_max=2) == 2
        with pytest.raises(UnsupportedVersionException):
            ApiVersionTable(ranges={0: (0, 2)}, features={}).choose(APIS[0])

    @pytest.mark.parametrize(("first", "last"), [(0, 2), (12, 13)])
    def test_no_common_version_is_unsupported(self, first: int, last: int) -> None:
        table = ApiVersionTable(ranges={0: (first, last)}, features={})
        assert not table.has(APIS[0])
        with pytest.raises(UnsupportedVersionException, match=rf"Produce: the broker offers versions {first} to {last}, .* 3 to 11"):
            table.choose(APIS[0])

    def test_api_missing_at_the_broker_is_unsupported(self) -> None:
        client = introduced(ApiVersionsResponse(api_keys=[row for row in SERVED if row.api_key != 60]))
        with pytest.raises(UnsupportedVersionException, match="DescribeCluster: the broker offers no version of it"):
            client.encode_request(DescribeClusterRequest())

    def test_request_before_api_versions_response_is_refused(self) -> None:
        client = ClientConnection("me")
        assert client.versions is None
        with pytest.raises(UnsupportedVersionException, match="send ApiVersions first"):
            client.encode_request(MetadataRequest())
        assert client.encode_request(MetadataRequest(), version=1)[0] == 0

    def test_an_older_broker_answers_in_version_0_and_gives_its_range(self) -> None:
        client = ClientConnection("me")
        client.encode_request(client.api_versions_request())
        (response,) = client.receive(bytes.fromhex("00000010 00000000 0023 00000001 0012 0000 0002"))
        assert (response.version, response.message.error_code) == (0, 35)  # type: ignore[attr-defined]
        assert client.versions is None
        _, parts = client.encode_request(client.api_versions_request())
        assert b"".join(parts)[4:8] == bytes.fromhex("0012 0002")

    def test_broker_without_range_gets_request_version_0(self) -> None:
        client = ClientConnection("me")
        client.encode_request(client.api_versions_request())
        client.receive(bytes.fromhex("0000000a 00000000 0023 00000000"))
        _, parts = client.encode_request(client.api_versions_request())
        assert b"".join(parts)[4:8] == bytes.fromhex("0012 0000")

    def test_refused_api_versions_version_is_not_repeated(self) -> None:
        client = ClientConnection("me")
        versions_requested = []
        for correlation_id in range(5):
            _, parts = client.encode_request(client.api_versions_request())
            versions_requested.append(int.from_bytes(b"".join(parts)[6:8], "big"))
            client.receive(bytes.fromhex(f"00000010 {correlation_id:08x} 0023 00000001 0012 0000 0063"))
        last = APIS[18].used[-1]
        assert versions_requested == [max(0, last - number) for number in range(5)]

    def test_another_error_leaves_the_versions_unknown(self) -> None:
        assert introduced(ApiVersionsResponse(error_code=42, api_keys=SERVED)).versions is None

    def test_features_are_read(self) -> None:
        client = introduced(
            ApiVersionsResponse(
                api_keys=SERVED,
                supported_features=[SupportedFeatureKey(name=FEATURE_NUMBERING, min_version=1, max_version=1)],
                finalized_features=[FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=1)],
                finalized_features_epoch=7,
            )
        )
        assert client.versions is not None
        assert client.versions.features == {FEATURE_NUMBERING: (1, 1)}
        assert client.versions.finalized == ({"transaction.version": 2}, 7)
        assert client.error_numbering == "kip"

    def test_broker_without_the_feature_uses_apache_numbering(self) -> None:
        client = introduced(ApiVersionsResponse(api_keys=SERVED))
        assert client.error_numbering == "apache"


class TestCorrelation:
    def test_ids_count_up_and_wrap(self) -> None:
        client = ClientConnection("me")
        client._correlation_id_next = 0x7FFF_FFFE
        assert [client.encode_request(MetadataRequest(), 1)[0] for _ in range(3)] == [0x7FFF_FFFE, 0x7FFF_FFFF, 0]

    def test_responses_are_matched_in_order(self) -> None:
        client, server = ClientConnection("me"), ServerConnection()
        sent = b"".join(b"".join(client.encode_request(MetadataRequest(), version)[1]) for version in (1, 9))
        encoded_responses = b"".join(b"".join(server.encode_response(request, MetadataResponse())) for request in server.receive(sent))
        assert client.open_count == 2
        responses = [response for byte in encoded_responses for response in client.receive(bytes([byte]))]
        assert [(response.correlation_id, response.version) for response in responses] == [(0, 1), (1, 9)]
        assert client.open_count == 0

    def test_acks_0_expects_no_response(self) -> None:
        client, server = ClientConnection("me"), ServerConnection()
        sent = b"".join(b"".join(client.encode_request(ProduceRequest(acks=acks), 9)[1]) for acks in (0, 1))
        assert client.open_count == 1
        (response,) = client.receive(b"".join(server.encode_response(server.receive(sent)[1], ProduceResponse())))
        assert response.correlation_id == 1

    def test_response_to_another_request_is_a_mismatch(self) -> None:
        client = ClientConnection("me")
        client.encode_request(MetadataRequest(), 1)
        with pytest.raises(CorrelationIdMismatch, match="correlation id 7, expected 0") as caught:
            client.receive(bytes.fromhex("00000004 00000007"))
        assert (caught.value.expected, caught.value.received) == (0, 7)

    def test_unrequested_response_is_a_mismatch(self) -> None:
        with pytest.raises(CorrelationIdMismatch, match="correlation id 7, but no request is open"):
            ClientConnection("me").receive(bytes.fromhex("00000004 00000007"))

    def test_responses_before_a_violation_are_kept(self) -> None:
        client, server = ClientConnection("me"), ServerConnection()
        (request,) = server.receive(b"".join(client.encode_request(MetadataRequest(), 1)[1]))
        answer = b"".join(server.encode_response(request, MetadataResponse()))
        for bad in ("00000004 00000007", "ffffffff"):
            client = ClientConnection("me")
            client.encode_request(MetadataRequest(), 1)
            with pytest.raises(ProtocolViolation) as caught:
                client.receive(answer + bytes.fromhex(bad))
            assert [response.message for response in caught.value.responses] == [MetadataResponse()]

    def test_the_first_violation_counts(self) -> None:
        client = ClientConnection("me")
        client.encode_request(MetadataRequest(), 1)
        with pytest.raises(CorrelationIdMismatch, match="correlation id 7, expected 0"):
            client.receive(bytes.fromhex("00000004 00000007 ffffffff"))

    def test_after_close_nothing_is_open(self) -> None:
        client = ClientConnection("me")
        client.encode_request(MetadataRequest(), 1)
        client.close()
        assert client.open_count == 0

    def test_malformed_body_names_the_field(self) -> None:
        client = ClientConnection("me")
        client.encode_request(MetadataRequest(), 1)
        with pytest.raises(MalformedMessage, match="malformed MetadataResponse v1: brokers at byte 4"):
            client.receive(bytes.fromhex("00000004 00000000"))

    def test_unencodable_request_is_not_open(self) -> None:
        client = ClientConnection("me")
        with pytest.raises(ValueError, match="acks"):
            client.encode_request(ProduceRequest(acks=1 << 20), 9)
        assert client.open_count == 0
        assert client.encode_request(ProduceRequest(acks=1), 9)[0] == 0


def test_large_response_is_read_into_a_bytearray() -> None:
    """A mapping, which servers read large requests into, costs a consumer of tables a fifth of its speed."""
    connection = ClientConnection("me")
    data = (4 * EAGER_BYTES_MAX).to_bytes(4) + bytes(EAGER_BYTES_MAX)
    while data:
        buffer = connection.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count], data = data[:count], data[count:]
        connection.buffer_updated(count)
    assert isinstance(connection.get_buffer().obj, bytearray)
