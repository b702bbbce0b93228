"""Offset commits, shared by OffsetCommit and TxnOffsetCommit: checks and stores each offset of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.groups.assignors import TopicIdPartition
from chaffinch.broker.core.groups.offsets import CommittedOffset
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequestTopic
from chaffinch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequestTopic
from chaffinch.storage.file_system import StorageError

Topic: TypeAlias = OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic
Offsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]
Results: TypeAlias = list[list[ErrorCode]]
"""Per topic and partition, in the order of the request."""
Failure: TypeAlias = StorageError | None
"""The reason why nothing could be written, if so."""

NOT_WRITTEN: Final = codes.NOT_COORDINATOR
"""Error code if the journal cannot be written: clients look up the coordinator and retry (Kafka maps KAFKA_STORAGE_ERROR to it)."""

DEFAULT_RETENTION: Final = -1


def commit(
    broker: BrokerState,
    group: str,
    topics: Sequence[Topic],
    names: Sequence[str | None],
    request_error: ErrorCode,
    store: Callable[[Offsets], None],
    *,
    retention_time_ms: int = DEFAULT_RETENTION,
    steady_ms: int,
) -> tuple[Results, Failure]:
    """Check each offset and `store` the valid ones together. `request_error` refuses all of them; a topic without a name has an unknown
    id.
    """
    results: Results = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    wall_ms = broker.wall.at(steady_ms)
    expires_ms = -1 if retention_time_ms == DEFAULT_RETENTION else wall_ms + retention_time_ms
    for topic, name in zip(topics, names, strict=True):
        results.append([])
        for requested in topic.partitions:
            code = _fault(broker, name, requested.partition_index, requested.committed_metadata, request_error)
            if code is codes.NONE:
                offsets[TopicPartition(name or "", requested.partition_index)] = CommittedOffset(
                    offset=requested.committed_offset,
                    leader_epoch=requested.committed_leader_epoch,
                    metadata=requested.committed_metadata or "",
                    committed_ms=wall_ms,
                    expires_ms=expires_ms,
                )
            results[-1].append(code)
    stored, failure = _store(broker, group, offsets, store)
    return [[stored if code is codes.NONE else code for code in row] for row in results], failure


def names(broker: BrokerState, topics: Sequence[Topic], *, by_id: bool) -> list[str | None]:
    """The topic names of a request; None for an unknown topic id."""
    return [broker.topics.name_of(topic.topic_id) if by_id else topic.name for topic in topics]


def topic_id_partitions(broker: BrokerState, topics: Sequence[Topic], names: Sequence[str | None]) -> Iterator[TopicIdPartition]:
    """The existing partitions of a request, identified by topic id as in KIP-848."""
    for topic, name in zip(topics, names, strict=True):
        for requested in topic.partitions:
            partition = broker.topics.partition(name or "", requested.partition_index)
            if partition is not None:
                yield TopicIdPartition(partition.topic.topic_id, requested.partition_index)


def _store(broker: BrokerState, group: str, offsets: Offsets, store: Callable[[Offsets], None]) -> tuple[ErrorCode, Failure]:
    if not offsets:
        return codes.NONE, None
    if not broker.offsets.has_capacity(group, offsets):
        return codes.INVALID_COMMIT_OFFSET_SIZE, None
    try:
        store(offsets)
    except StorageError as error:
        return NOT_WRITTEN, error
    return codes.NONE, None


def _fault(broker: BrokerState, name: str | None, index: int, metadata: str | None, request_error: ErrorCode) -> ErrorCode:
    """The error code of one offset: 100, 3, then the code of the whole request, then 12; as in Kafka, where partitions are looked up before
    the group.
    """
    if name is None:
        return codes.UNKNOWN_TOPIC_ID
    if broker.topics.partition(name, index) is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if request_error is codes.NONE and metadata and _java_length(metadata) > broker.settings["offset.metadata.max.bytes"]:
        return codes.OFFSET_METADATA_TOO_LARGE
    return request_error


def _java_length(text: str) -> int:
    """Length in UTF-16 units, which Kafka counts although its option says bytes."""
    return len(text.encode("utf-16-be")) // 2
