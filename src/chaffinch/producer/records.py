"""ProducerRecord and RecordMetadata: a record to send, and where it was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chaffinch.identifiers import NO_OFFSET, GroupMetadata, TopicPartition

__all__ = ["GroupMetadata", "Headers", "ProducerRecord", "RecordMetadata"]

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """One record to send. By default the key decides about the partition, and `timestamp_ms` (ms since 1970) is the time of `send`.

    Text is sent as UTF-8; a `value` of None is a tombstone. `headers`: (name, bytes or None) pairs, in order; names may occur twice.
    """

    topic: str
    value: bytes | str | None = None
    key: bytes | str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 if the broker did not report it (acks=0, or a duplicate batch that it has forgotten).

    `timestamp_ms` is the record's own, or the broker's if the topic uses LogAppendTime. `dropped`: an exception handler has dropped the
    record, which is not written.
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    timestamp_ms: int = -1
    dropped: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as a TopicPartition."""
        return TopicPartition(self.topic, self.partition)
