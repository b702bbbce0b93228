"""The fast path of Produce gives the result of the compiled codec, or leaves the frame to it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaffinch.protocol import produce_fast_path
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.headers import finish_frame, read_client_id, read_request_prefix, response_head
from chaffinch.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.violations import ProtocolViolation, UnencodableMessage

pytestmark = pytest.mark.long

VERSIONS = st.integers(produce_fast_path.FIRST_VERSION, produce_fast_path.LAST_VERSION)
NAMES = st.one_of(st.text(max_size=8), st.integers(120, 130).map("n".__mul__))
INT16, INT32, INT64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
RECORDS = st.one_of(st.none(), st.sampled_from([0, 1, 61, 125, 126, 127, 128, 16382, 16383, 16384, 70000, (1 << 21) - 1]).map(bytes))


def often(usual: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    return st.one_of(usual.map(lambda one: [one]), usual.map(lambda one: [one]), st.lists(usual, max_size=2))


REQUESTS = st.builds(
    ProduceRequest,
    transactional_id=st.one_of(st.none(), st.none(), st.just(""), st.just("me")),
    acks=INT16,
    timeout_ms=INT32,
    topics=often(
        st.builds(
            TopicProduceData,
            name=NAMES,
            topic_id=st.uuids(),
            partitions=often(st.builds(PartitionProduceData, index=INT32, records=RECORDS)),
        )
    ),
)
CULPRITS = st.lists(
    st.builds(
        BatchIndexAndErrorMessage,
        batch_index=INT32,
        batch_index_error_message=st.one_of(
            st.text(max_size=5), st.sampled_from([None, "", "w" * 126, "w" * 127, "w" * 16382, "w" * 16383])
        ),
        chaffinch_error_code=st.one_of(st.none(), st.just(45), INT16),
    ),
    max_size=3,
)
ANSWERS = st.builds(
    PartitionProduceResponse,
    index=INT32,
    error_code=INT16,
    base_offset=INT64,
    log_append_time_ms=INT64,
    log_start_offset=INT64,
    record_errors=st.one_of(st.just([]), CULPRITS),
    error_message=st.sampled_from([None, None, None, "", "wrong"]),
    current_leader=st.sampled_from([None, None, None, LeaderIdAndEpoch(leader_id=2)]),
)
RESPONSES = st.builds(
    ProduceResponse,
    responses=often(st.builds(TopicProduceResponse, name=NAMES, topic_id=st.uuids(), partition_responses=often(ANSWERS))),
    throttle_time_ms=INT32,
    node_endpoints=st.sampled_from([[], [], [], [NodeEndpoint(node_id=1, host="h", port=9)]]),
)


def frame_of(request: ProduceRequest, version: int, client_id: str | None = "me") -> bytes:
    return b"".join(ClientConnection(client_id).encode_request(request, version)[1])[4:]


def compiled(frame: bytes, version: int) -> tuple[int, int, str | None, ProduceRequest]:
    view = memoryview(frame)
    client_id, position = read_client_id(view, True)
    return version, read_request_prefix(view)[2], client_id, ProduceRequest.decode_from(view, position, version)[0]


def read(frame: bytes | bytearray) -> tuple[int, int, str, ProduceRequest] | None:
    return produce_fast_path.RequestReader().read(memoryview(frame))


@settings(max_examples=300, deadline=None)
@given(REQUESTS, VERSIONS, st.one_of(st.none(), NAMES))
def test_requests_are_read_as_the_compiled_decoder_reads_them(request: ProduceRequest, version: int, client_id: str | None) -> None:
    frame = frame_of(request, version, client_id)
    plain = read(frame)
    assert plain is None or plain == compiled(frame, version)


@settings(max_examples=300, deadline=None)
@given(st.data(), VERSIONS, st.integers(0, 6))
def test_damaged_requests_are_read_alike_or_left_to_the_compiled_decoder(data: st.DataObject, version: int, damage_count: int) -> None:
    request = ProduceRequest(
        topics=[TopicProduceData(name="orders", partitions=[PartitionProduceData(records=bytes(data.draw(st.integers(0, 300))))])]
    )
    frame = bytearray(frame_of(request, version))
    for _ in range(damage_count):
        position = data.draw(st.integers(8, len(frame) - 1))
        frame[position] = data.draw(st.one_of(st.integers(0, 4), st.integers(124, 132), st.integers(0, 255)))
    frame = frame[: data.draw(st.sampled_from([len(frame), len(frame) - 1, len(frame) // 2]))] + bytes(data.draw(st.integers(0, 2)))
    plain = read(frame)
    try:
        right = compiled(bytes(frame), version)
    except ProtocolViolation:
        assert plain is None
    else:
        assert plain is None or plain == right


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.tuples(REQUESTS, VERSIONS, st.sampled_from(["me", "you"])), min_size=1, max_size=3))
def test_earlier_requests_of_a_connection_change_nothing(data: st.DataObject, sent: list[tuple[ProduceRequest, int, str]]) -> None:
    reader = produce_fast_path.RequestReader()
    for request, version, client_id in data.draw(st.lists(st.sampled_from(sent), max_size=6)):
        frame = bytearray(frame_of(request, version, client_id))
        if data.draw(st.booleans()):
            frame[data.draw(st.integers(0, min(60, len(frame) - 1)))] ^= data.draw(st.integers(1, 255))
        frame = frame[: data.draw(st.sampled_from([len(frame), len(frame), 30, 7]))]
        assert reader.read(memoryview(frame)) == read(frame)


@pytest.mark.parametrize(("version", "named"), [(11, {"name": "orders"}), (13, {"topic_id": UUID(int=7)})])
def test_head_with_one_changed_bit_is_not_taken_from_the_cache(version: int, named: dict[str, Any]) -> None:
    """One is taken for that of the request before only if it is the same."""
    data = PartitionProduceData(records=bytes(20))
    frame = frame_of(ProduceRequest(acks=-1, topics=[TopicProduceData(partitions=[data], **named)]), version)
    reader = produce_fast_path.RequestReader()
    for bit in range(8 * (len(frame) - 20)):
        assert reader.read(memoryview(frame)) is not None
        other = bytearray(frame)
        other[bit // 8] ^= 1 << bit % 8
        assert reader.read(memoryview(other)) == read(other), f"bit {bit % 8} of byte {bit // 8}"


def test_repeated_head_is_decoded_once() -> None:
    reader, frame = (
        produce_fast_path.RequestReader(),
        frame_of(ProduceRequest(acks=1, topics=[TopicProduceData(partitions=[PartitionProduceData(records=b"r")])]), 12),
    )
    first, second = reader.read(memoryview(frame)), reader.read(memoryview(frame))
    assert first is not None
    assert second is not None
    assert first == second
    assert first[2] is second[2]


@pytest.mark.parametrize("size", [1, 126, 127, 128, 16382, 16383, 16384, (1 << 21) - 2])
@pytest.mark.parametrize(("version", "named"), [(11, {"name": "orders"}), (13, {"topic_id": UUID(int=7)})])
def test_usual_requests_take_the_fast_path(size: int, version: int, named: dict[str, Any]) -> None:
    request = ProduceRequest(acks=-1, topics=[TopicProduceData(partitions=[PartitionProduceData(records=bytes(size))], **named)])
    assert read(frame_of(request, version)) == compiled(frame_of(request, version), version)


@settings(max_examples=300, deadline=None)
@given(RESPONSES, VERSIONS, INT32)
def test_responses_are_written_as_the_compiled_encoder_writes_them(response: ProduceResponse, version: int, correlation_id: int) -> None:
    plain = produce_fast_path.write_response(response, correlation_id, version)
    assert plain is None or plain == b"".join(finish_frame(response.encode_after(response_head(0, correlation_id, True), version)))


@pytest.mark.parametrize("version", [9, 12, 13])
def test_usual_responses_take_the_fast_path(version: int) -> None:
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="orders", partition_responses=[PartitionProduceResponse(index=1, base_offset=7)])]
    )
    assert produce_fast_path.write_response(response, 5, version) is not None


@pytest.mark.parametrize("more", [{"error_message": "wrong"}, {"record_errors": [BatchIndexAndErrorMessage(batch_index=3)]}])
def test_refusals_are_left_to_the_compiled_encoder(more: dict[str, Any]) -> None:
    answer = PartitionProduceResponse(index=1, error_code=87, **more)
    response = ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[answer])])
    assert produce_fast_path.write_response(response, 5, 11) is None


@pytest.mark.parametrize("wrong", [{"index": 1 << 31}, {"base_offset": None}, {"error_code": 1.5}])
def test_value_out_of_range_is_left_to_the_compiled_encoder(wrong: dict[str, object]) -> None:
    answer = PartitionProduceResponse(index=1).replace(**wrong)
    response = ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[answer])])
    assert produce_fast_path.write_response(response, 5, 11) is None
    with pytest.raises(UnencodableMessage):
        response.encode(11)
