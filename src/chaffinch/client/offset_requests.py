"""OffsetCommit and OffsetFetch requests of one group, valid for all versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from chaffinch.protocol.primitives import ZERO_UUID

VERSION_WITH_IDS: Final = 10
"""First version of both APIs with topics by id (Apache Kafka 4.2)."""
LAST_VERSION_WITH_NAMES: Final = 9
NO_IDS: Final[Mapping[TopicPartition, UUID]] = MappingProxyType({})


def offset_commit(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: Mapping[TopicPartition, UUID],
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    """An OffsetCommit request. With `topic_ids` (which may be empty) only versions with ids can carry it."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, committed in offsets.items():
        topic_id = topic_ids.get(tp, ZERO_UUID)
        topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic, topic_id=topic_id)).partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )


def offset_fetch(
    group_id: str,
    tps: Iterable[TopicPartition] | None,
    topic_ids: Mapping[TopicPartition, UUID] = NO_IDS,
    *,
    require_stable: bool = False,
) -> OffsetFetchRequest:
    """An OffsetFetch request. `tps` None: all partitions with a commit of the group. `topic_ids` as in `offset_commit`."""
    if tps is None:
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None)]
        return OffsetFetchRequest(group_id=group_id, topics=None, groups=groups, require_stable=require_stable)
    ids = {tp.topic: topic_id for tp, topic_id in topic_ids.items()}
    numbers: dict[str, list[int]] = {}
    for tp in tps:
        numbers.setdefault(tp.topic, []).append(tp.partition)
    with_ids = [
        OffsetFetchRequestTopics(name=topic, topic_id=ids.get(topic, ZERO_UUID), partition_indexes=found)
        for topic, found in numbers.items()
    ]
    return OffsetFetchRequest(
        group_id=group_id,
        topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=found) for topic, found in numbers.items()],
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=with_ids)],
        require_stable=require_stable,
    )
