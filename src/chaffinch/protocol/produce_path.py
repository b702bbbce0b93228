"""Produce requests of one partition, and their answers, by hand: nearly everything that a busy producer sends.

The same bytes as the compiled codec reads and writes, in a third of the time, for versions 9 to 13: 9 to 12 differ in tagged fields only,
13 has the topic's id in place of its name.
Whatever is unusual (a transactional id, several partitions, names or tags of unusual length, an error with its reasons, bytes that make no
sense) gives None: the compiled codec decides then. A property test holds the two together.
"""

from __future__ import annotations

from struct import Struct
from struct import error as LayoutError
from typing import Final
from uuid import UUID

from chaffinch.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.primitives import ZERO_UUID

KEY: Final = 0
FIRST_VERSION: Final = 9
LAST_VERSION: Final = 13
VERSION_WITH_TOPIC_IDS: Final = 13

_CLIENT: Final = Struct(">h")
_CLIENT_POSITION: Final = 8
_REQUEST: Final = Struct(">BBhiBB")
"""Tags of the header, transactional id, acks, timeout, count of topics, length of the topic's name; lengths and counts are one too high.
With ids there is no such length: the last byte is the first one of the id."""
_ID_BYTES: Final = 16
_PARTITION: Final = Struct(">BiBBB")
"""Count of partitions, index, and the first bytes of the records' length."""

_RESPONSE: Final = Struct(">iiBBB")
"""Size of the frame, correlation id, tags of the header, count of topics, length of the topic's name."""
_ANSWER: Final = Struct(">BihqqqBBBBiB")
"""Count of partitions, index, error, base offset, append time, log start, no culprits, no text, tags, tags, throttle time, tags."""
_RESPONSE_BYTES: Final = _RESPONSE.size - 4 + _ANSWER.size
_RESPONSE_WITH_ID: Final = Struct(">iiBB16s")
_RESPONSE_WITH_ID_BYTES: Final = _RESPONSE_WITH_ID.size - 4 + _ANSWER.size

_ONE: Final = 2
_NAME_BYTES_MAX: Final = 126
"""The length of a longer name takes two bytes."""


def read_request(frame: memoryview, version: int) -> tuple[str, ProduceRequest] | None:
    """(client id, request) of a whole frame whose API and version are those of this module; None for anything unusual."""
    has_id = version >= VERSION_WITH_TOPIC_IDS
    try:
        (client_size,) = _CLIENT.unpack_from(frame, _CLIENT_POSITION)
        if client_size < 0:
            return None
        position = _CLIENT_POSITION + 2 + client_size
        header_tags, transactional, acks, timeout_ms, topic_count, name_size = _REQUEST.unpack_from(frame, position)
        start = position + _REQUEST.size - has_id
        position = start + (_ID_BYTES if has_id else name_size - 1)
        if header_tags or transactional or topic_count != _ONE or not (has_id or 0 < name_size <= _NAME_BYTES_MAX):
            return None
        partition_count, index, first, second, third = _PARTITION.unpack_from(frame, position)
        client_id = str(frame[_CLIENT_POSITION + 2 : _CLIENT_POSITION + 2 + client_size], "utf-8")
        name = "" if has_id else str(frame[start:position], "utf-8")
        topic_id = UUID(bytes=bytes(frame[start:position])) if has_id else ZERO_UUID
    except (LayoutError, ValueError):
        return None
    if first < 128:
        size, position = first, position + 6
    elif second < 128:
        size, position = (first & 127) | second << 7, position + 7
    elif third < 128:
        size, position = (first & 127) | (second & 127) << 7 | third << 14, position + 8
    else:
        return None
    end = position + size - 1
    # The tags of partition, topic and request: none, and nothing behind them.
    if partition_count != _ONE or size == 0 or len(frame) != end + 3 or frame[end] or frame[end + 1] or frame[end + 2]:
        return None
    data = PartitionProduceData.__new__(
        PartitionProduceData
    )  # Filled as the compiled decoder does: a constructor takes three times as long.
    data.index = index
    data.records = frame[position:end]
    topic = TopicProduceData.__new__(TopicProduceData)
    topic.name = name
    topic.topic_id = topic_id
    topic.partitions = [data]
    request = ProduceRequest.__new__(ProduceRequest)
    request.transactional_id = None
    request.acks = acks
    request.timeout_ms = timeout_ms
    request.topics = [topic]
    return client_id, request


def write_response(message: ProduceResponse, correlation_id: int, version: int) -> bytes | None:
    """The whole frame of an answer for one partition without reasons, in a version of this module; None for anything unusual."""
    topics = message.responses
    if len(topics) != 1 or message.node_endpoints:
        return None
    topic: TopicProduceResponse = topics[0]
    if len(topic.partition_responses) != 1:
        return None
    answer: PartitionProduceResponse = topic.partition_responses[0]
    if answer.record_errors or answer.error_message is not None or answer.current_leader is not None:
        return None
    try:
        head = _response_head(topic, correlation_id, version)
        return (
            None
            if head is None
            else head
            + _ANSWER.pack(
                _ONE,
                answer.index,
                answer.error_code,
                answer.base_offset,
                answer.log_append_time_ms,
                answer.log_start_offset,
                1,
                0,
                0,
                0,
                message.throttle_time_ms,
                0,
            )
        )
    except (LayoutError, ValueError, TypeError, AttributeError):
        return None  # The compiled encoder says which field does not fit.


def _response_head(topic: TopicProduceResponse, correlation_id: int, version: int) -> bytes | None:
    """Everything before the partition."""
    if version >= VERSION_WITH_TOPIC_IDS:
        return _RESPONSE_WITH_ID.pack(_RESPONSE_WITH_ID_BYTES, correlation_id, 0, _ONE, topic.topic_id.bytes)
    name = topic.name.encode()
    if len(name) >= _NAME_BYTES_MAX:
        return None
    return _RESPONSE.pack(_RESPONSE_BYTES + len(name), correlation_id, 0, _ONE, len(name) + 1) + name
