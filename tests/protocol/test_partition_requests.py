"""Prepared Produce requests equal those of the codec, and plain responses are read like the codec reads them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.protocol import produce_fast_path
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.headers import finish_frame, response_head
from chaffinch.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.produce_fast_path import PartitionRequests

TOPIC_ID = UUID(int=7)
VERSIONS = range(9, 14)


def requests_of(version: int, topic: str = "orders", client_id: str | None = "me", acks: int = -1, partition: int = 3) -> PartitionRequests:
    return PartitionRequests(
        version=version, client_id=client_id, acks=acks, timeout_ms=30_000, topic=topic, topic_id=TOPIC_ID, partition=partition
    )


@given(
    version=st.sampled_from(VERSIONS),
    records=st.binary(max_size=300),
    earlier=st.integers(0, 3),
    topic=st.text("ab.-_é", min_size=1, max_size=60),
    client_id=st.none() | st.text(max_size=20),
    acks=st.sampled_from((-1, 1)),
    partition=st.integers(0, 2**31 - 1),
)
def test_frames_are_those_of_the_usual_encoder(
    version: int, records: bytes, earlier: int, topic: str, client_id: str | None, acks: int, partition: int
) -> None:
    connection = ClientConnection(client_id)
    for _ in range(earlier):
        connection.take_correlation_id()
    data = PartitionProduceData(index=partition, records=bytearray(records))
    topics = [TopicProduceData(name=topic, topic_id=TOPIC_ID, partitions=[data])]
    number, parts = connection.encode_request(ProduceRequest(acks=acks, timeout_ms=30_000, topics=topics), version)
    repeated = requests_of(version, topic, client_id, acks, partition)
    assert repeated.frame(number, bytearray(records)) == b"".join(parts)


def answer(version: int, *, correlation_id: int = 5, topic: str = "orders", throttle_ms: int = 0, **fields: Any) -> bytes:
    part = PartitionProduceResponse(**{"index": 3, "base_offset": 17, "log_append_time_ms": -1, "log_start_offset": 2} | fields)
    has_id = version >= 13
    topic_response = TopicProduceResponse(
        name="" if has_id else topic, topic_id=TOPIC_ID if has_id else UUID(int=0), partition_responses=[part]
    )
    message = ProduceResponse(responses=[topic_response], throttle_time_ms=throttle_ms)
    parts = finish_frame(message.encode_after(response_head(produce_fast_path.KEY, correlation_id, is_flexible=True), version))
    return b"".join(parts)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("append_ms", "base"), [(-1, 0), (1_700_000_000_000, 2**62)])
def test_plain_response_is_read(version: int, append_ms: int, base: int) -> None:
    frame = answer(version, base_offset=base, log_append_time_ms=append_ms)
    assert requests_of(version).written_at(frame, 5) == (base, append_ms)


LEADER = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
FIELDS_BEYOND_PLAIN: list[dict[str, object]] = [
    {"error_code": 7},
    {"error_code": 46},
    {"error_message": "no"},
    {"index": 4},
    {"throttle_ms": 1},
    {"correlation_id": 6},
]


@pytest.mark.parametrize(
    ("version", "changed"),
    [
        *((version, changed) for version in VERSIONS for changed in FIELDS_BEYOND_PLAIN),
        *(
            (version, changed)
            for version in range(10, 14)
            for changed in ({"current_leader": LEADER}, {"error_code": 6, "current_leader": LEADER})
        ),
    ],
    ids=str,
)
def test_response_with_more_fields_is_left_to_the_whole_decoder(version: int, changed: dict[str, Any]) -> None:
    assert requests_of(version).written_at(answer(version, **changed), 5) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_response_with_wrong_length_is_left_to_the_whole_decoder(version: int) -> None:
    whole = answer(version)
    for size in range(len(whole)):
        assert requests_of(version).written_at(whole[:size], 5) is None
    assert requests_of(version).written_at(whole + b"\0", 5) is None


def test_response_about_another_topic_is_left_to_the_whole_decoder() -> None:
    assert requests_of(9).written_at(answer(9, topic="orderz"), 5) is None


@pytest.mark.parametrize(("version", "acks", "topic"), [(8, 1, "orders"), (14, 1, "orders"), (9, 0, "orders"), (9, 1, "o" * 200)])
def test_request_that_is_not_plain_is_refused(version: int, acks: int, topic: str) -> None:
    with pytest.raises(ValueError, match="no plain request"):
        requests_of(version, topic, acks=acks)
