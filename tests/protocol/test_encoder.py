"""Encoder: invalid values are named, records are passed on without copying."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker
from chaffinch.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.protocol.schema import Message
from chaffinch.protocol.violations import UnencodableMessage
from chaffinch.records.file_slice import Part


def produce(records: Any) -> ProduceRequest:
    return ProduceRequest(topics=[TopicProduceData(name="orders", partitions=[PartitionProduceData(index=1, records=records)])])


@pytest.mark.parametrize(
    ("message", "version", "field", "reason"),
    [
        pytest.param(ProduceRequest(acks=1 << 15), 9, "acks", "32768 does not fit int16 (-32768 to 32767)", id="int16"),
        pytest.param(ProduceRequest(timeout_ms=-(1 << 31) - 1), 9, "timeout_ms", "-2147483649 does not fit int32", id="second of a run"),
        pytest.param(ProduceRequest(acks="1"), 9, "acks", "'1' is not a valid int16", id="type"),  # type: ignore[arg-type]
        pytest.param(
            ProduceRequest(topics=[TopicProduceData(name="a"), TopicProduceData(name=None)]),  # type: ignore[arg-type]
            9,
            "topics[1].name",
            "None is not allowed",
            id="null string",
        ),
        pytest.param(ProduceRequest(topics=None), 9, "topics", "None is not allowed", id="null array"),  # type: ignore[arg-type]
        pytest.param(MetadataRequest(topics=None), 0, "topics", "None is not allowed", id="null before its version"),
        pytest.param(ProduceRequest(transactional_id=b"t"), 9, "transactional_id", "b't' is not a string", id="bytes"),  # type: ignore[arg-type]
        pytest.param(
            ProduceRequest(transactional_id="é" * 16384), 7, "transactional_id", "32768 bytes of UTF-8, limit 32767", id="long string"
        ),
        pytest.param(
            AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[1, 1 << 31])]),
            3,
            "v3_and_below_topics[0].partitions",
            "element 1: 2147483648 does not fit int32",
            id="list of integers",
        ),
        pytest.param(ProduceRequest(topics=[object()]), 9, "topics[0].name", "has no such field", id="foreign object"),  # type: ignore[list-item]
        pytest.param(DeleteTopicsRequest(topic_names=["a", None]), 5, "topic_names[1]", "NoneType", id="null in a list"),  # type: ignore[list-item]
        pytest.param(ProduceRequest(topics=5), 9, "topics", "5 is not a list", id="no list"),  # type: ignore[arg-type]
        pytest.param(MetadataRequest(topics=[MetadataRequestTopic(topic_id="x")]), 12, "topics[0].topic_id", "not a valid uuid", id="uuid"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(transactional_id="\ud800"), 9, "transactional_id", "surrogates not allowed", id="no UTF-8"),
        pytest.param(produce("abc"), 9, "topics[0].partitions[0].records", "'abc' is not bytes", id="text as records"),
        pytest.param(ProduceRequest(transactional_id="t"), 2, "transactional_id", "'t' needs version 3 or later", id="field to come"),
        pytest.param(
            InitProducerIdRequest(producer_id=7, producer_epoch=1), 2, "producer_id", "7 needs version 3 or later", id="field to come, int"
        ),
    ],
)
def test_value_out_of_range_is_named(message: Message, version: int, field: str, reason: str) -> None:
    with pytest.raises(UnencodableMessage) as caught:
        message.encode(version)
    error = caught.value
    assert (error.message_name, error.version, error.field) == (type(message).__name__, version, field)
    assert reason in error.reason
    assert str(error) == f"cannot encode {type(message).__name__} v{version}: {field}: {error.reason}"


def test_the_topic_id_of_a_metadata_request_is_not_dropped() -> None:
    from uuid import UUID

    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=UUID(int=1))])
    with pytest.raises(UnencodableMessage, match=r"topics\[0\].topic_id: .* needs version 10 or later"):
        request.encode(9)
    request.topics = [MetadataRequestTopic(topic_id=ZERO_UUID, name="orders")]
    assert request.encode(9)


def test_ignorable_fields_are_dropped_by_older_versions() -> None:
    response = MetadataResponse(cluster_id="c", brokers=[MetadataResponseBroker(rack="r")], throttle_time_ms=5)
    assert MetadataResponse.decode(b"".join(response.encode(0)), 0) == MetadataResponse(brokers=[MetadataResponseBroker()])


@pytest.mark.parametrize("version", [3, 9])
def test_records_are_not_copied(version: int) -> None:
    records = bytearray(b"batch")
    parts = produce(records).encode(version)
    assert [part is records for part in parts] == ([False, True] if version == 3 else [False, True, False])


@pytest.mark.parametrize("version", [3, 9])
def test_records_may_come_in_pieces(version: int) -> None:
    pieces: list[Any] = [b"one", bytearray(b"two"), b"", memoryview(b"three")]
    parts = produce(pieces).encode(version)
    assert [any(part is piece for part in parts) for piece in pieces] == [True, True, False, True]
    assert b"".join(parts) == b"".join(produce(b"onetwothree").encode(version))


@pytest.mark.parametrize("records", [None, b"", []])
@pytest.mark.parametrize("version", [3, 9])
def test_encoding_without_records_gives_one_buffer(records: Any, version: int) -> None:
    (body,) = produce(records).encode(version)
    decoded = ProduceRequest.decode(body, version).topics[0].partitions[0].records
    assert decoded is None if records is None else decoded == b""


def test_a_fetch_of_many_partitions_keeps_its_order() -> None:
    both: list[list[Part]] = [[b"%d" % index, b"!"] for index in range(300)]
    partitions = [PartitionData(partition_index=index, records=records) for index, records in enumerate(both)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=partitions)])
    decoded = FetchResponse.decode(b"".join(response.encode(12)), 12)
    assert [bytes(p.records) for p in decoded.responses[0].partitions] == [b"%d!" % index for index in range(300)]  # type: ignore[arg-type]


def test_the_head_comes_first() -> None:
    parts = produce(b"batch").encode_after(bytearray(b"head"), 9)
    assert parts[0][:4] == b"head"
    assert b"".join(parts)[4:] == b"".join(produce(b"batch").encode(9))


class TestCulpritCode:
    """KIP-467's list of culprits with the code of each: tag 1467, only when it is set."""

    @staticmethod
    def response(code: int | None) -> ProduceResponse:
        culprit = BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="m", chaffinch_error_code=code)
        partition = PartitionProduceResponse(error_code=87, record_errors=[culprit], current_leader=LeaderIdAndEpoch(leader_id=1))
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])

    def test_culprit_code_has_tag_1467(self) -> None:
        with_code, without = (b"".join(self.response(code).encode(9)) for code in (32, None))
        assert bytes.fromhex("00000003 02 6d 01 bb0b 02 0020") in with_code
        assert bytes.fromhex("00000003 02 6d 00") in without

    @pytest.mark.parametrize(("version", "seen"), [(8, None), (9, 32), (10, 32), (12, 32)])
    def test_culprit_code_is_carried_since_version_9(self, version: int, seen: int | None) -> None:
        decoded = ProduceResponse.decode(b"".join(self.response(32).encode(version)), version)
        assert decoded.responses[0].partition_responses[0].record_errors[0].chaffinch_error_code == seen
