"""Fetch requests, and what comes back, in few words."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.records import batch


def fetch(
    offset: int = 0,
    *,
    topic: str = "orders",
    topic_id: UUID = ZERO_UUID,
    partitions: tuple[int, ...] = (0,),
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    committed: bool = False,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forget: tuple[int, ...] = (),
    replica_id: int = -1,
) -> FetchRequest:
    """One topic from one offset; `session` is (id, epoch). Versions up to 12 take the name, later ones the id."""
    requested = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes, current_leader_epoch=leader_epoch)
        for index in partitions
    ]
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=requested)] if requested else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forget))] if forget else [],
    )


def first(answer: Any) -> PartitionData:
    """The part of the first partition named."""
    result: PartitionData = answer.responses[0].partitions[0]
    return result


def partitions_of(answer: Any) -> list[int]:
    """Partitions named, in order."""
    return [data.partition_index for topic in answer.responses for data in topic.partitions]


def offsets(data: PartitionData) -> list[int]:
    """Base offsets of the batches."""
    assert isinstance(data.records, memoryview)
    return [view.header.base_offset for view in batch.views(data.records)]
