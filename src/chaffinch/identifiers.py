"""Identifiers in a Kafka cluster: topic-partition, producer id and epoch, offset, group; and Kafka's sentinels for "none".

Internal; may change without notice.

Named tuples, because the cores use them as dictionary keys for every batch: they hash, compare and unpack at C speed. The sentinels are
taken from Kafka's message definitions; KIP-98 defines producer id, epoch and sequence.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.public_names import exported_from

NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1
# Special timestamps of ListOffsets (ListOffsetsRequest.json).
OFFSET_LATEST: Final = -1
OFFSET_EARLIEST: Final = -2
# Sequences run from 0 to 2**31 - 1 and then restart at 0 (KIP-98: int32, never negative).
SEQUENCE_MODULUS: Final = 2**31
# The largest epoch: a producer that reaches it needs a new producer id (KIP-360).
EPOCH_MAX: Final = 2**15 - 1


@exported_from("chaffinch")
class TopicPartition(NamedTuple):
    """One partition of a topic. `str()` gives Kafka's directory name, `orders-0`.

    Attributes:
        topic: name of the topic.
        partition: number of the partition, from 0; -1 in an error about a whole topic, whose `str()` is the topic's name.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        # Works for values of any type: other types are refused later, in a message with this text.
        return f"{self.topic}" if self.partition == -1 else f"{self.topic}-{self.partition}"


def pluralize(count: int, thing: str) -> str:
    """`1 partition`, `2 partitions`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def format_partitions(count: int) -> str:
    """The partitions of a topic with `count` of them: `partitions 0 to 2`, `partition 0 alone`."""
    return f"partitions 0 to {count - 1}" if count > 1 else "partition 0 alone"


def kafka_id(topic_id: UUID) -> str:
    """A topic id in Kafka's text form (base64)."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


class ProducerIdentity(NamedTuple):
    """Producer id (int64) and epoch (int16), as a record batch carries them; `NO_PRODUCER` when it carries none."""

    producer_id: int
    epoch: int


@exported_from("chaffinch")
class OffsetAndMetadata(NamedTuple):
    """A position to commit.

    Attributes:
        offset: offset of the *next* record to read, from 0.
        metadata: text that is stored with it; brokers allow 4096 bytes by default (`offset.metadata.max.bytes`).
        leader_epoch: leader epoch of the last record that was read; -1 if unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@exported_from("chaffinch")
class GroupMetadata(NamedTuple):
    """The consumer group whose offsets go into a transaction. Without a member only the group id is checked by the broker."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@exported_from("chaffinch")
class ConsumerGroupMetadata(GroupMetadata):
    """Group metadata of a Consumer, with the topic ids of the records that it returned last, by partition."""

    topic_ids: Mapping[TopicPartition, UUID] = MappingProxyType({})


NO_PRODUCER: Final = ProducerIdentity(-1, -1)


def sequence_add(sequence: int, count: int) -> int:
    """The sequence `count` records after `sequence` (before it, when `count` is negative), wrapping as brokers do."""
    return (sequence + count) % SEQUENCE_MODULUS
