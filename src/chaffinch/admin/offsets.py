"""Offsets of partitions: the first, the end, and the first after a time (ListOffsets)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from chaffinch.admin.many_brokers import PartitionAnswer, ask_leaders, by_topic
from chaffinch.client.sync_client import SyncClient
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.messages.fetch import ISOLATION_LEVELS
from chaffinch.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

Isolation = Literal["read_committed", "read_uncommitted"]


def list_offsets(
    client: SyncClient,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_uncommitted",
    timeout_ms: int | None = None,
    leaderless_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """Offsets of partitions by time.

    Args:
        client: client of `options.connect`.
        timestamps: for each partition ms since 1970, OFFSET_EARLIEST or OFFSET_LATEST.
        isolation: with `read_committed` OFFSET_LATEST is the last stable offset.
        timeout_ms: limit for all requests together; None: the client's timeout.
        leaderless_ms: partitions without a leader after this time are left out; None: they are waited for.

    Returns:
        For a timestamp, the offset of the first record that is not older, or -1 if there is none. For OFFSET_EARLIEST the first offset, for
        OFFSET_LATEST the end offset.

    Raises:
        UnknownTopicOrPartitionException: a partition does not exist.
    """

    def request_for(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=timestamps[TopicPartition(topic, number)]) for number in numbers
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        return ListOffsetsRequest(isolation_level=ISOLATION_LEVELS[isolation], topics=topics, timeout_ms=30_000)

    return ask_leaders(client, timestamps, request_for, _read, timeout_ms=timeout_ms, leaderless_ms=leaderless_ms)


def _read(answer: ListOffsetsResponse) -> Iterator[PartitionAnswer]:
    for topic in answer.topics:
        for found in topic.partitions:
            yield PartitionAnswer(TopicPartition(topic.name, found.partition_index), found.error_code, None, found.offset)


def earliest(client: SyncClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The first available offset of each partition. Raises the exceptions of `list_offsets`."""
    return list_offsets(client, dict.fromkeys(partitions, OFFSET_EARLIEST))


def latest(
    client: SyncClient,
    partitions: Iterable[TopicPartition],
    *,
    isolation: Isolation = "read_uncommitted",
    leaderless_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """The end offset of each partition: that of the next record. Arguments and exceptions are those of `list_offsets`."""
    return list_offsets(client, dict.fromkeys(partitions, OFFSET_LATEST), isolation=isolation, leaderless_ms=leaderless_ms)
