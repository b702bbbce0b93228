"""Deletion of records at the start of partitions, like `kafka-delete-records` (DeleteRecords, KIP-107)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from chaffinch.admin.many_brokers import PartitionAnswer, ask_leaders, by_topic
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.delete_records import (
    OFFSET_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

REPLICATION_TIMEOUT_MS: Final = 30_000
REASONS: Final = {
    codes.OFFSET_OUT_OF_RANGE.number: "the offset is beyond the end of the partition",
    codes.POLICY_VIOLATION.number: "only compaction removes records of this topic; add delete to its cleanup.policy",
}
"""Responses contain no message."""


def delete_records(client: SyncClient, offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    """Delete the records below an offset in each partition.

    Args:
        client: client of `options.connect`.
        offsets: the first offset to keep, by partition; None deletes all records.

    Returns:
        The first available offset of each partition afterwards.

    Raises:
        ApiException: for the first partition that is rejected; records of other partitions may have been deleted.
    """

    def request_for(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
        topics = [
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=number, offset=OFFSET_HIGH_WATERMARK if offset is None else offset)
                    for number in numbers
                    for offset in [offsets[TopicPartition(topic, number)]]
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        return DeleteRecordsRequest(topics=topics, timeout_ms=REPLICATION_TIMEOUT_MS)

    return ask_leaders(client, offsets, request_for, _read)


def _read(answer: DeleteRecordsResponse) -> Iterator[PartitionAnswer]:
    for topic in answer.topics:
        for found in topic.partitions:
            tp = TopicPartition(topic.name, found.partition_index)
            yield PartitionAnswer(tp, found.error_code, REASONS.get(found.error_code), found.low_watermark)
