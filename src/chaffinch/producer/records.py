"""ProducerRecord and RecordMetadata: a record to send, and where it was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chaffinch.identifiers import NO_OFFSET, GroupMetadata, TopicPartition
from chaffinch.public_names import exported_from

__all__ = ["GroupMetadata", "Headers", "ProducerRecord", "RecordMetadata"]

Headers = Sequence[tuple[str, bytes | None]]


@exported_from("chaffinch")
@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """One record to send.

    Attributes:
        topic: name of the topic.
        value: bytes, text (sent as UTF-8), None for a tombstone, or a value for the serializer.
        key: the same types; by default its hash selects the partition.
        partition: number of the partition; None: the option `partitioner` decides.
        timestamp_ms: ms since 1970; None: the time of `send`.
        headers: (name, bytes or None) pairs in order; names may occur more than once.
    """

    topic: str
    value: bytes | str | None = None
    key: bytes | str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


@exported_from("chaffinch")
class RecordMetadata(NamedTuple):
    """Where a record was written.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: offset of the record; -1 if the broker did not return it (acks=0, or a duplicate batch that it has forgotten).
        timestamp_ms: ms since 1970: the record's timestamp, or the broker's if the topic uses LogAppendTime.
        dropped: whether an exception handler has dropped the record, so that it is not written.
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
