"""What users hand over and get back: a record, where it was written, and the outcome of a whole table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chaffinch.identifiers import NO_OFFSET, GroupMetadata, TopicPartition

__all__ = ["GroupMetadata", "Headers", "ProducerRecord", "RecordMetadata"]

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """One record to send. Without `partition` the key decides; without `timestamp_ms`, ms since 1970, it is the time of `send`.

    Text is sent as UTF-8; a `value` of None is a tombstone. `headers`: pairs of a name and bytes or None, in order, names may recur.
    """

    topic: str
    value: bytes | str | None = None
    key: bytes | str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class RecordMetadata(NamedTuple):
    """Where a record is: `offset` -1 when the broker did not say (acks=0, or a repeated batch whose offsets it has forgotten).

    `timestamp_ms` is the record's own, or the broker's where the topic has LogAppendTime. `dropped`: it was set aside by an
    exception handler and written nowhere.
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    timestamp_ms: int = -1
    dropped: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one name."""
        return TopicPartition(self.topic, self.partition)
