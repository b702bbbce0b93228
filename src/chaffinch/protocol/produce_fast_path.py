"""Fast path for Produce requests of one partition and their success responses, in addition to the compiled codec.

A broker reads a connection's requests and writes their responses; a producer's inline send writes requests and reads responses. The bytes
are the same as the codec's, for versions 9 to 13: 9 to 12 differ only in tagged fields, 13 has the topic's id in place of its name.
Together this saves a twentieth of the cost of a request on a busy broker (benchmarks/README.md). Anything unusual (a transactional id,
several partitions, names or tags of unusual length, an error, invalid bytes) returns None, and the compiled codec is used. A property test
compares the two.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as LayoutError
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.protocol.headers import request_head
from chaffinch.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.primitives import ZERO_UUID, Buffer, uvarint

KEY: Final = 0
FIRST_VERSION: Final = 9
LAST_VERSION: Final = 13
VERSION_WITH_TOPIC_IDS: Final = 13

_START: Final = Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
_CORRELATION_POSITION: Final = 4
_CLIENT_POSITION: Final = 8
_REQUEST: Final = Struct(">BBhiBB")
"""Header tags, transactional id, acks, timeout, topic count, length of the topic's name; lengths and counts are encoded plus one. With
topic ids the name length is missing: the last byte is the first one of the id."""
_ID_BYTES: Final = 16
NO_TAGS: Final = bytes(3)
"""Empty tag sections of partition, topic and request."""

_FRAMED: Final = Struct(">i4si")
"""Size of the frame, API key and version, correlation id."""
_RESPONSE: Final = Struct(">ii")
"""Size of the frame, correlation id."""
_ANSWER: Final = Struct(">BihqqqBBBBiB")
"""Partition count, index, error, base offset, append time, log start, no record errors, no message, tags, tags, throttle time, tags."""
_SIZE: Final = Struct(">i")

_AROUND_TOPIC_BYTES: Final = _RESPONSE.size - _SIZE.size + _ANSWER.size
"""Bytes counted by the frame's size, without the topic."""

_ONE: Final = 2
_NAME_BYTES_MAX: Final = 126
"""A longer name has a two-byte length."""


class _Head(NamedTuple):
    """The fields of a request before its partition."""

    version: int
    client_id: str
    acks: int
    timeout_ms: int
    name: str
    topic_id: UUID


@lru_cache(maxsize=512)
def _layout(head_bytes: int) -> Struct:
    """API key and version, correlation id, the bytes up to the partition, and its first bytes."""
    return Struct(f">4si{head_bytes}sBiBBB")


class RequestReader:
    """Reads the requests of one connection.

    A request usually has the same bytes as the previous one up to its partition. Those are not parsed again.
    """

    __slots__ = ("_bytes", "_bytes_before_records", "_head", "_layout", "_prefix")

    def __init__(self) -> None:
        self._prefix = self._bytes = b""  # Of the last request: key and version; the bytes from the correlation id to the partition.
        self._head = _Head(0, "", 0, 0, "", ZERO_UUID)
        self._layout = _layout(0)
        self._bytes_before_records = self._layout.size

    def read(self, frame: memoryview) -> tuple[int, int, str, ProduceRequest] | None:
        """(version, correlation id, client id, request) of a whole frame; None for another API or version, and for anything unusual."""
        try:
            prefix, correlation_id, head, partition_count, index, first, second, third = self._layout.unpack_from(frame)
            is_same_head = head == self._bytes and prefix == self._prefix
        except LayoutError:
            is_same_head = False
        if not is_same_head:
            if not self._parse_head(frame):
                return None
            prefix, correlation_id, head, partition_count, index, first, second, third = self._layout.unpack_from(frame)
        position = self._bytes_before_records
        if first < 128:
            size, position = first, position - 2
        elif second < 128:
            size, position = (first & 127) | second << 7, position - 1
        elif third < 128:
            size = (first & 127) | (second & 127) << 7 | third << 14
        else:
            return None
        end = position + size - 1
        if partition_count != _ONE or size == 0 or frame[end:] != NO_TAGS:
            return None
        version, client_id, acks, timeout_ms, name, topic_id = self._head
        data = PartitionProduceData(index=index, records=frame[position:end])
        topic = TopicProduceData(name=name, topic_id=topic_id, partitions=[data])
        return version, correlation_id, client_id, ProduceRequest(acks=acks, timeout_ms=timeout_ms, topics=[topic])

    def _parse_head(self, frame: memoryview) -> bool:
        """Parse the bytes before the partition; False for anything unusual."""
        try:
            key, version, _, client_size = _START.unpack_from(frame)
            if key != KEY or not FIRST_VERSION <= version <= LAST_VERSION or not 0 <= client_size <= _NAME_BYTES_MAX:
                return False
            has_id = version >= VERSION_WITH_TOPIC_IDS
            position = _START.size + client_size
            header_tags, transactional, acks, timeout_ms, topic_count, name_size = _REQUEST.unpack_from(frame, position)
            start = position + _REQUEST.size - has_id
            end = start + (_ID_BYTES if has_id else name_size - 1)
            if header_tags or transactional or topic_count != _ONE or not (has_id or 0 < name_size <= _NAME_BYTES_MAX):
                return False
            layout = _layout(end - _CLIENT_POSITION)
            if len(frame) < layout.size:
                return False
            client_id = str(frame[_START.size : position], "utf-8")
            name = "" if has_id else str(frame[start:end], "utf-8")
            topic_id = _topic_id(bytes(frame[start:end])) if has_id else ZERO_UUID
        except (LayoutError, ValueError):
            return False
        self._prefix, self._bytes = bytes(frame[:_CORRELATION_POSITION]), bytes(frame[_CLIENT_POSITION:end])
        self._head = _Head(version, client_id, acks, timeout_ms, name, topic_id)
        self._layout = layout
        self._bytes_before_records = layout.size
        return True


def write_response(message: ProduceResponse, correlation_id: int, version: int) -> bytes | None:
    """The frame of a success response for one partition; None for other versions and responses."""
    topics = message.responses
    if not FIRST_VERSION <= version <= LAST_VERSION or len(topics) != 1 or message.node_endpoints:
        return None
    topic: TopicProduceResponse = topics[0]
    if len(topic.partition_responses) != 1:
        return None
    answer: PartitionProduceResponse = topic.partition_responses[0]
    if answer.current_leader is not None or answer.error_message is not None or answer.record_errors:
        return None
    try:
        head = _response_head(topic, correlation_id, version)
        if head is None:
            return None
        base_offset, append_time_ms, log_start_offset = answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
        return head + _ANSWER.pack(
            _ONE, answer.index, answer.error_code, base_offset, append_time_ms, log_start_offset, 1, 0, 0, 0, message.throttle_time_ms, 0
        )
    except (LayoutError, ValueError, TypeError, AttributeError):
        return None  # The compiled encoder reports the invalid field.


@lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> UUID:
    """Cached: creating a UUID takes as long as reading the rest."""
    return UUID(bytes=data)


def _response_head(topic: TopicProduceResponse, correlation_id: int, version: int) -> bytes | None:
    """Everything before the partition."""
    topic_bytes = _topic_bytes(topic.topic_id if version >= VERSION_WITH_TOPIC_IDS else topic.name)
    return None if topic_bytes is None else _RESPONSE.pack(_AROUND_TOPIC_BYTES + len(topic_bytes), correlation_id) + topic_bytes


@lru_cache(maxsize=512)
def _topic_bytes(topic: str | UUID) -> bytes | None:
    """The bytes after the correlation id: header tags, topic count, the topic's name or id. None for a name of unusual length."""
    if isinstance(topic, UUID):
        return bytes((0, _ONE)) + topic.bytes
    name = topic.encode()
    return None if len(name) >= _NAME_BYTES_MAX else bytes((0, _ONE, len(name) + 1)) + name


@lru_cache(maxsize=1024)
def _length(records_bytes: int) -> bytes:
    """Encoded length of the records; small batches repeat a few lengths."""
    return uvarint(records_bytes + 1)


class PartitionRequests:
    """Encoder of Produce requests with one batch each for the same partition: all bytes except the correlation id and the batch are
    prepared once.

    Only the plainest success response is decoded; all others need the full decoder.
    """

    __slots__ = ("_answer_head", "_head", "_key_and_version", "_partition")

    def __init__(
        self, *, version: int, client_id: str | None, acks: int, timeout_ms: int, topic: str, topic_id: UUID, partition: int
    ) -> None:
        """Raises ValueError if the fast path does not support these requests."""
        topic_bytes = _topic_bytes(topic_id if version >= VERSION_WITH_TOPIC_IDS else topic)
        if topic_bytes is None or acks == 0 or not FIRST_VERSION <= version <= LAST_VERSION:
            raise ValueError(f"no plain request: version {version}, acks {acks}, topic {topic!r}")
        data = PartitionProduceData(index=partition, records=b"")
        topics = [TopicProduceData(name=topic, topic_id=topic_id, partitions=[data])]
        head = request_head(KEY, version, 0, client_id, is_flexible=True)
        ProduceRequest(acks=acks, timeout_ms=timeout_ms, topics=topics).encode_after(head, version)
        self._key_and_version = bytes(head[_SIZE.size : _SIZE.size + _CORRELATION_POSITION])
        without_records = len(uvarint(1)) + len(NO_TAGS)
        self._head = bytes(head[_FRAMED.size : -without_records])
        self._answer_head = topic_bytes
        self._partition = partition

    def frame(self, correlation_id: int, records: Buffer) -> bytes:
        """One request, whole."""
        size = len(records)
        length = _length(size)
        body_bytes = _FRAMED.size - _SIZE.size + len(self._head) + len(length) + size + len(NO_TAGS)
        framed = _FRAMED.pack(body_bytes, self._key_and_version, correlation_id)
        return b"".join((framed, self._head, length, records, NO_TAGS))

    def written_at(self, answer: bytes, correlation_id: int) -> tuple[int, int] | None:
        """(base offset, log append time) if `answer` is one whole frame with a success response to that request, without throttle time
        and tags.

        None for anything else.
        """
        head = self._answer_head
        start = _RESPONSE.size + len(head)
        if len(answer) != start + _ANSWER.size or answer[_RESPONSE.size : start] != head:
            return None
        if _RESPONSE.unpack_from(answer) != (len(answer) - _SIZE.size, correlation_id):
            return None
        count, index, error, base, append_ms, _, culprits, text, tags, topic_tags, throttle_ms, last = _ANSWER.unpack_from(answer, start)
        if error or throttle_ms or index != self._partition or count != _ONE or culprits != 1 or text or tags or topic_tags or last:
            return None
        return base, append_ms
