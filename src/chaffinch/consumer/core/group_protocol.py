"""Consumer protocol: encodes and decodes subscriptions and assignments, the payload of JoinGroup and SyncGroup for the type "consumer".

Written in version 3, read in any version: later versions begin with the fields of version 3 (ConsumerProtocol.java).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.consumer_protocol import (
    VERSION_MAX,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    CooperativeStickyUserData,
    StickyUserData,
    TopicPartitions,
)
from chaffinch.protocol.schema import Message
from chaffinch.protocol.violations import MalformedMessage

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1
_VERSION: Final = Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """Subscription of one member. `owned` was assigned to it in `generation` (-1: not reported)."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    user_data: bytes | None = None
    instance_id: str | None = None


def encode_subscription(subscription: MemberSubscription) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_grouped(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack or None,
    )
    return _VERSION.pack(VERSION_MAX) + _body(message, VERSION_MAX)


def decode_subscription(data: Any, instance_id: str | None = None) -> MemberSubscription:
    """Raises MalformedMessage."""
    found: ConsumerProtocolSubscription = _decode(ConsumerProtocolSubscription, data)
    return MemberSubscription(
        topics=tuple(found.topics),
        owned=tuple(_flat(found.owned_partitions)),
        generation=found.generation_id,
        rack=found.rack_id,
        user_data=None if found.user_data is None else bytes(found.user_data),
        instance_id=instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return _VERSION.pack(VERSION_MAX) + _body(ConsumerProtocolAssignment(assigned_partitions=_grouped(partitions)), VERSION_MAX)


def decode_assignment(data: Any) -> tuple[TopicPartition, ...]:
    """Empty bytes are an empty assignment. Raises MalformedMessage."""
    if not len(data):
        return ()
    found: ConsumerProtocolAssignment = _decode(ConsumerProtocolAssignment, data)
    return tuple(_flat(found.assigned_partitions))


def encode_sticky(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """User data of a sticky member: its last assignment."""
    return _body(StickyUserData(previous_assignment=_grouped(partitions), generation=generation), 1)


def decode_sticky(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """(partitions, generation). Unreadable data yields no partitions, as in Kafka: invalid data must not stop the group."""
    for version in (1, 0):
        try:
            found = StickyUserData.decode(data or b"", version)
            return tuple(_flat(found.previous_assignment)), found.generation
        except MalformedMessage:
            continue
    return (), NO_GENERATION


def encode_cooperative(generation: int) -> bytes:
    return _body(CooperativeStickyUserData(generation=generation), 0)


def decode_cooperative(data: bytes | None) -> int:
    try:
        return CooperativeStickyUserData.decode(data or b"", 0).generation
    except MalformedMessage:
        return NO_GENERATION


def _decode(kind: Any, data: Any) -> Any:
    if len(data) < _VERSION.size:
        raise MalformedMessage(kind.__name__, 0, "version", 0, f"{len(data)} bytes")
    version = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedMessage(kind.__name__, version, "version", 0, "versions are 0 or more")
    return kind.decode(memoryview(data)[_VERSION.size :], min(version, VERSION_MAX))


def _body(message: Message, version: int) -> bytes:
    return b"".join(message.encode(version))


def _grouped(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in found.items()]


def _flat(topics: Iterable[TopicPartitions]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)
