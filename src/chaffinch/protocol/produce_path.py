"""Produce requests of one partition, and their answers, by hand: nearly everything that a busy producer sends.

The same bytes as the compiled codec reads and writes, in a third of the time, for versions 9 to 13: 9 to 12 differ in tagged fields only,
13 has the topic's id in place of its name.
Whatever is unusual (a transactional id, several partitions, names or tags of unusual length, bytes that make no
sense) gives None: the compiled codec decides then. A property test holds the two together.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as LayoutError
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.primitives import ZERO_UUID, Buffer, read_uvarint, uvarint
from chaffinch.protocol.record_errors import RecordErrors

KEY: Final = 0
FIRST_VERSION: Final = 9
LAST_VERSION: Final = 13
VERSION_WITH_TOPIC_IDS: Final = 13

_START: Final = Struct(">hhih")
"""API key, version, correlation id, length of the client's id."""
_CORRELATION_POSITION: Final = 4
_CLIENT_POSITION: Final = 8
_REQUEST: Final = Struct(">BBhiBB")
"""Tags of the header, transactional id, acks, timeout, count of topics, length of the topic's name; lengths and counts are one too high.
With ids there is no such length: the last byte is the first one of the id."""
_ID_BYTES: Final = 16
_TO_NAME: Final = Struct(">BhiBB")
_TO_ID: Final = Struct(">BhiB16sBi")
"""What is sent behind the header: the same as `_REQUEST`, and with ids up to the index."""
_PLACE: Final = Struct(">Bi")
NO_TAGS: Final = bytes(3)
"""Of partition, topic and request."""
_COPIED_BYTES_MAX: Final = 4096
"""Up to here another buffer for the system costs more than a copy."""

_RESPONSE: Final = Struct(">ii")
"""Size of the frame, correlation id."""
_ANSWER: Final = Struct(">BihqqqBBBBiB")
"""Count of partitions, index, error, base offset, append time, log start, no culprits, no text, tags, tags, throttle time, tags."""
_FATE: Final = Struct(">Bihqqq")
"""Count of partitions, index, error, base offset, append time, log start: what is before the culprits."""
_TAIL: Final = Struct(">BBiB")
"""Tags, tags, throttle time, tags: what is behind the text."""
_SIZE: Final = Struct(">i")

_AROUND_PLACE_BYTES: Final = _RESPONSE.size - _SIZE.size + _ANSWER.size
"""What the frame's size counts beside the place."""

_ONE: Final = 2
_NAME_BYTES_MAX: Final = 126
"""The length of a longer name takes two bytes."""


class _Head(NamedTuple):
    """What a request says before its partition."""

    version: int
    client_id: str
    acks: int
    timeout_ms: int
    name: str
    topic_id: UUID


@lru_cache(maxsize=512)
def _layout(head_bytes: int) -> Struct:
    """API key and version, correlation id, what follows up to the partition, and that one's first bytes."""
    return Struct(f">4si{head_bytes}sBiBBB")


class RequestReader:
    """Reads the requests of one connection.

    Nearly always one says the same as the one before it, up to its partition. What has the same bytes is not taken apart again.
    """

    __slots__ = ("_bytes", "_bytes_before_records", "_head", "_layout", "_prefix")

    def __init__(self) -> None:
        self._prefix = self._bytes = b""  # Of the last request: key and version; what follows its correlation id, up to the partition.
        self._head = _Head(0, "", 0, 0, "", ZERO_UUID)
        self._layout = _layout(0)
        self._bytes_before_records = self._layout.size

    def read(self, frame: memoryview) -> tuple[int, int, str, ProduceRequest] | None:
        """(version, correlation id, client id, request) of a whole frame; None for another API or version, and for anything unusual."""
        try:
            prefix, correlation_id, head, partition_count, index, first, second, third = self._layout.unpack_from(frame)
            is_known = head == self._bytes and prefix == self._prefix
        except LayoutError:
            is_known = False
        if not is_known:
            if not self._learn(frame):
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
        # Filled as the compiled decoder does: a constructor takes three times as long.
        data = PartitionProduceData.__new__(PartitionProduceData)
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
        return version, correlation_id, client_id, request

    def _learn(self, frame: memoryview) -> bool:
        """Take apart what is before the partition; False for anything unusual."""
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


def write_request(message: ProduceRequest, head: bytearray, version: int) -> list[Buffer] | None:
    """The buffers of a request whose header is in `head`, in a version of this module; None, and `head` as it was, for anything unusual."""
    topics = message.topics
    if message.transactional_id is not None or len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic: TopicProduceData = topics[0]
    data: PartitionProduceData = topic.partitions[0]
    records = data.records
    if type(records) is not bytearray:
        return None
    try:
        if version >= VERSION_WITH_TOPIC_IDS:
            body = _TO_ID.pack(0, message.acks, message.timeout_ms, _ONE, topic.topic_id.bytes, _ONE, data.index)
        else:
            name = topic.name.encode()
            body = _TO_NAME.pack(0, message.acks, message.timeout_ms, _ONE, len(name) + 1) + name + _PLACE.pack(_ONE, data.index)
            if len(name) >= _NAME_BYTES_MAX:
                return None
    except (LayoutError, ValueError, TypeError, AttributeError):
        return None  # The compiled encoder says which field does not fit.
    head += body
    head += uvarint(len(records) + 1)
    if len(records) > _COPIED_BYTES_MAX:
        return [head, records, NO_TAGS]
    head += records
    head += NO_TAGS
    return [head]


def write_response(message: ProduceResponse, correlation_id: int, version: int) -> bytes | bytearray | None:
    """The whole frame of an answer for one partition; None for another version, and for anything unusual."""
    topics = message.responses
    if not FIRST_VERSION <= version <= LAST_VERSION or len(topics) != 1 or message.node_endpoints:
        return None
    topic: TopicProduceResponse = topics[0]
    if len(topic.partition_responses) != 1:
        return None
    answer: PartitionProduceResponse = topic.partition_responses[0]
    if answer.current_leader is not None:
        return None
    try:
        if answer.error_message is not None or answer.record_errors:
            return _with_reasons(message, topic, answer, correlation_id, version)
        head = _response_head(topic, correlation_id, version)
        if head is None:
            return None
        base_offset, append_time_ms, log_start_offset = answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
        return head + _ANSWER.pack(
            _ONE, answer.index, answer.error_code, base_offset, append_time_ms, log_start_offset, 1, 0, 0, 0, message.throttle_time_ms, 0
        )
    except (LayoutError, ValueError, TypeError, AttributeError):
        return None  # The compiled encoder says which field does not fit.


def _with_reasons(
    message: ProduceResponse, topic: TopicProduceResponse, answer: PartitionProduceResponse, correlation_id: int, version: int
) -> bytearray | None:
    """The frame of a refusal: with culprits, a text, or both."""
    head = _response_head(topic, correlation_id, version)
    if head is None:
        return None
    out = bytearray(head)
    out += _FATE.pack(_ONE, answer.index, answer.error_code, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)
    if not RecordErrors.of(answer.record_errors).write(out):
        return None
    if answer.error_message is None:
        out.append(0)
    else:
        text = answer.error_message.encode()
        out += uvarint(len(text) + 1)
        out += text
    out += _TAIL.pack(0, 0, message.throttle_time_ms, 0)
    _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
    return out


def read_response(frame: memoryview, position: int, version: int) -> ProduceResponse | None:
    """The answer for one partition whose body begins at `position`, in a version of this module; None for anything unusual."""
    data, start = bytes(frame[position:]), 1
    try:
        if data[0] != _ONE:
            return None
        if version >= VERSION_WITH_TOPIC_IDS:
            name, topic_id = "", _topic_id(data[start : start + _ID_BYTES])
            start += _ID_BYTES
        else:
            size = data[start]
            if not 0 < size <= _NAME_BYTES_MAX:
                return None
            name, topic_id = str(data[start + 1 : start + size], "utf-8"), ZERO_UUID
            start += size
        found = _read_plainly(data, start) if len(data) == start + _ANSWER.size else None
        found = found or _read_with_reasons(data, start)
    except (LayoutError, ValueError, IndexError):
        return None  # The compiled decoder says what is wrong.
    if found is None:
        return None
    answer, throttle_time_ms = found
    topic = TopicProduceResponse.__new__(TopicProduceResponse)  # As in `RequestReader.read`.
    topic.name, topic.topic_id, topic.partition_responses = name, topic_id, [answer]
    response = ProduceResponse.__new__(ProduceResponse)
    response.responses, response.throttle_time_ms, response.node_endpoints = [topic], throttle_time_ms, []
    return response


def _read_plainly(data: bytes, start: int) -> tuple[PartitionProduceResponse, int] | None:
    """(answer, throttle time) where it has neither culprits nor text; else None."""
    count, index, error, base, append_ms, log_start, culprits, text, tags, topic_tags, throttle_ms, last = _ANSWER.unpack_from(data, start)
    if count != _ONE or culprits != 1 or text or tags or topic_tags or last:
        return None
    answer = PartitionProduceResponse.__new__(PartitionProduceResponse)  # As in `RequestReader.read`.
    answer.index, answer.error_code, answer.base_offset = index, error, base
    answer.log_append_time_ms, answer.log_start_offset = append_ms, log_start
    answer.record_errors, answer.error_message, answer.current_leader = [], None, None
    return answer, throttle_ms


def _read_with_reasons(data: bytes, start: int) -> tuple[PartitionProduceResponse, int] | None:
    """(answer, throttle time) of a refusal, or of any other answer; None for anything unusual."""
    partition_count, index, error_code, base_offset, log_append_time_ms, log_start_offset = _FATE.unpack_from(data, start)
    count, start = read_uvarint(data, start + _FATE.size)
    found = RecordErrors.read(data, start, count - 1) if count else None
    if found is None or partition_count != _ONE:
        return None
    errors, start = found
    size, start = read_uvarint(data, start)
    text = str(data[start : start + size - 1], "utf-8") if size else None
    partition_tags, topic_tags, throttle_time_ms, tags = _TAIL.unpack_from(data, start + max(0, size - 1))
    if partition_tags or topic_tags or tags:
        return None
    answer = PartitionProduceResponse(
        index=index,
        error_code=error_code,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
        record_errors=errors,
        error_message=text,
    )
    return answer, throttle_time_ms


@lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> UUID:
    """Remembered: it takes as long to make one as to read the rest."""
    return UUID(bytes=data)


def read_plain_success(answer: bytes, correlation_id: int, head: bytes, partition: int) -> tuple[int, int] | None:
    """(base offset, log append time) of a whole frame that says of one partition that its batch is written, and nothing else: no throttle
    time, no tag. `head`: `answer_head` of its topic. None for anything else."""
    start = _RESPONSE.size + len(head)
    if len(answer) != start + _ANSWER.size or answer[_RESPONSE.size : start] != head:
        return None
    if _RESPONSE.unpack_from(answer) != (len(answer) - _SIZE.size, correlation_id):
        return None
    count, index, error, base, append_ms, _, culprits, text, tags, topic_tags, throttle_ms, last = _ANSWER.unpack_from(answer, start)
    if error or throttle_ms or index != partition or count != _ONE or culprits != 1 or text or tags or topic_tags or last:
        return None
    return base, append_ms


def answer_head(name: str, topic_id: UUID, version: int) -> bytes | None:
    """What an answer about one topic has between its correlation id and the partition; None for a name of unusual length."""
    return _place(topic_id if version >= VERSION_WITH_TOPIC_IDS else name)


def _response_head(topic: TopicProduceResponse, correlation_id: int, version: int) -> bytes | None:
    """Everything before the partition."""
    place = answer_head(topic.name, topic.topic_id, version)
    return None if place is None else _RESPONSE.pack(_AROUND_PLACE_BYTES + len(place), correlation_id) + place


@lru_cache(maxsize=512)
def _place(topic: str | UUID) -> bytes | None:
    """What follows the correlation id: tags of the header, count of topics, the topic's name or id. None for a name of unusual length."""
    if isinstance(topic, UUID):
        return bytes((0, _ONE)) + topic.bytes
    name = topic.encode()
    return None if len(name) >= _NAME_BYTES_MAX else bytes((0, _ONE, len(name) + 1)) + name
