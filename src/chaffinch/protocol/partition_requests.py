"""Produce requests of one batch for one partition, over and over: all but the correlation id and the batch is written once.

For the versions of `produce_path` and acks other than 0. Of answers only the plainest is read, that the batch is written and nothing
else: whatever else came is for the whole decoder.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final
from uuid import UUID

from chaffinch.protocol import produce_path
from chaffinch.protocol.headers import request_head
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.primitives import Buffer, uvarint

_FRAMED: Final = Struct(">i4si")
"""Size of the frame, API key and version, correlation id."""
_TO_CORRELATION_BYTES: Final = 8
_SIZE_BYTES: Final = 4


@lru_cache(maxsize=1024)
def _length(records_bytes: int) -> bytes:
    """Of the records; small batches have mostly the same few."""
    return uvarint(records_bytes + 1)


class PartitionRequests:
    """Writes the requests of one connection for one partition, and reads their answers."""

    __slots__ = ("_answer_head", "_head", "_key_and_version", "_partition")

    def __init__(
        self, *, version: int, client_id: str | None, acks: int, timeout_ms: int, topic: str, topic_id: UUID, partition: int
    ) -> None:
        """ValueError where requests like these are none of `produce_path`."""
        data = PartitionProduceData(index=partition, records=b"")
        message = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topics=[TopicProduceData(name=topic, topic_id=topic_id, partitions=[data])]
        )
        answer_head = produce_path.answer_head(topic, topic_id, version)
        if answer_head is None or acks == 0 or not produce_path.FIRST_VERSION <= version <= produce_path.LAST_VERSION:
            raise ValueError(f"no plain request: version {version}, acks {acks}, topic {topic!r}")
        head = request_head(produce_path.KEY, version, 0, client_id, is_flexible=True)
        message.encode_after(head, version)
        self._key_and_version = bytes(head[_SIZE_BYTES:_TO_CORRELATION_BYTES])
        without_records = len(uvarint(1)) + len(produce_path.NO_TAGS)
        self._head = bytes(head[_FRAMED.size : -without_records])
        self._answer_head = answer_head
        self._partition = partition

    def frame(self, correlation_id: int, records: Buffer) -> bytes:
        """One request, whole."""
        size = len(records)
        length = _length(size)
        body_bytes = _FRAMED.size - _SIZE_BYTES + len(self._head) + len(length) + size + len(produce_path.NO_TAGS)
        framed = _FRAMED.pack(body_bytes, self._key_and_version, correlation_id)
        return b"".join((framed, self._head, length, records, produce_path.NO_TAGS))

    def written_at(self, answer: bytes, correlation_id: int) -> tuple[int, int] | None:
        """(base offset, log append time) where `answer` is one whole frame which says that the batch of that request is written, and
        nothing else that anybody should know; None for anything else."""
        return produce_path.read_plain_success(answer, correlation_id, self._answer_head, self._partition)
