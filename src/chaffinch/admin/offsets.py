"""Offsets of partitions: the first, the next to be written, and that of a time (ListOffsets)."""

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
    """The offset of each partition's time: ms since 1970, OFFSET_EARLIEST or OFFSET_LATEST.

    Of a time: the first record that is not older; -1 where none is. With `read_committed` the latest is the last stable offset.
    `leaderless_ms` as `ask_leaders`.
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
    """The first offset that is still there, of each partition."""
    return list_offsets(client, dict.fromkeys(partitions, OFFSET_EARLIEST))


def latest(
    client: SyncClient,
    partitions: Iterable[TopicPartition],
    *,
    isolation: Isolation = "read_uncommitted",
    leaderless_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """The offset that comes next, of each partition; with `read_committed` the last stable offset. `leaderless_ms` as `ask_leaders`."""
    return list_offsets(client, dict.fromkeys(partitions, OFFSET_LATEST), isolation=isolation, leaderless_ms=leaderless_ms)
