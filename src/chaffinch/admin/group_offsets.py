"""Committed offsets of a group: read them, and set them from outside the group (OffsetFetch, OffsetCommit).

Setting works for a group without members, including one that never had a member (a simple group).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

from chaffinch.admin.many_brokers import by_topic
from chaffinch.client import response_errors
from chaffinch.client.offset_requests import VERSION_WITH_IDS, offset_commit, offset_fetch
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import Stored, UnsupportedVersionException, codes, exception_for
from chaffinch.identifiers import NO_OFFSET, OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.offset_fetch import OffsetFetchResponse
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.public_names import exported_from


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset.

    Attributes:
        offset: offset of the next record that the group reads.
        leader_epoch: leader epoch of the record before it; -1 if unknown.
        metadata: text stored by the member that committed.
    """

    offset: int
    leader_epoch: int
    metadata: str


def committed_offsets(
    client: SyncClient, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedOffset]:
    """Committed offsets of a group.

    Args:
        client: client of `options.connect`.
        group: id of the group.
        partitions: the partitions of interest; None for all with a commit.

    Returns:
        The commits by partition; partitions without a commit are missing.
    """
    wanted = None if partitions is None else list(partitions)
    if wanted == []:
        return {}
    answer: OffsetFetchResponse = client.coordinator_request(group, "group", offset_fetch(group, wanted))
    response_errors.raise_for(answer)
    topics = answer.groups[0].topics if answer.groups else answer.topics
    return {
        TopicPartition(topic.name, found.partition_index): CommittedOffset(
            offset=found.committed_offset, leader_epoch=found.committed_leader_epoch, metadata=found.metadata or ""
        )
        for topic in topics
        for found in topic.partitions
        if found.committed_offset != NO_OFFSET
    }


def commit_offsets(
    client: SyncClient, group: str, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID] = MappingProxyType({})
) -> None:
    """Set the committed offsets of a group without members.

    Coordinators before Apache Kafka 4.2 do not accept topic ids; with them the ids are compared with metadata before the commit.

    Args:
        client: client of `options.connect`.
        group: id of the group.
        offsets: offset of the next record to read, by partition.
        topic_ids: ids of the topics to which the offsets belong, as far as known.

    Raises:
        UnknownMemberIdException: the group has members, and only they may commit.
        UnknownTopicIdException: a topic has another id, because it was deleted and created again; its offsets are not committed.
    """
    known = {topic: topic_id for topic, topic_id in topic_ids.items() if topic_id != ZERO_UUID}
    names = by_topic(offsets)
    try:
        answer = _commit(client, group, offsets, {name: known[name] for name in names}) if names.keys() <= known.keys() else None
    except UnsupportedVersionException:
        answer = None
    if answer is None:
        cluster = client.refresh_metadata(names)
        for name in names:
            if name in known and cluster.topic_id(name) not in (None, ZERO_UUID, known[name]):
                raise exception_for(codes.UNKNOWN_TOPIC_ID, message=_created_again(name), stored=Stored.NO, api="OffsetCommit")
        answer = _commit(client, group, offsets, {})
    for code, message in response_errors.codes_in(answer):
        if code is codes.UNKNOWN_MEMBER_ID:
            message = f"group {group!r} has members, and only they can commit its offsets: stop them first"
        elif code is codes.UNKNOWN_TOPIC_ID:
            gone = {topic.topic_id for topic in answer.topics if any(part.error_code == code.number for part in topic.partitions)}
            message = _created_again(", ".join(name for name in names if known[name] in gone))
        raise exception_for(code, message=message or f"group {group!r}: {code.text}", api="OffsetCommit")


def _created_again(topic: str) -> str:
    return f"topic {topic!r} was deleted, and perhaps created again, since the offsets were read: they are invalid for a new topic"


def _commit(client: SyncClient, group: str, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID]) -> Any:
    """Commit with topic ids if they are given, otherwise with names."""
    committed = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
    ids = {tp: topic_ids[tp.topic] for tp in offsets} if topic_ids else {}
    version_max = VERSION_WITH_IDS if topic_ids else None
    return client.coordinator_request(group, "group", offset_commit(group, committed, ids), version_max=version_max)
