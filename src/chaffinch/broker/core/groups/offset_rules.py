"""How the offsets of a request are committed, each for itself; shared by OffsetCommit and TxnOffsetCommit."""

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
"""Per topic and partition of the request, in its order."""
Failure: TypeAlias = StorageError | None
"""Why nothing could be written, where that is so."""

NOT_WRITTEN: Final = codes.NOT_COORDINATOR
"""Answer when the journal cannot be written: clients look the coordinator up and try again (Kafka maps KAFKA_STORAGE_ERROR so)."""

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
    """Check each offset and `store` the good ones, in one go. `request_error` refuses all; a topic without a name has an unknown id."""
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
    """The names of a request's topics; None for an id that no topic has."""
    return [broker.topics.name_of(topic.topic_id) if by_id else topic.name for topic in topics]


def topic_id_partitions(broker: BrokerState, topics: Sequence[Topic], names: Sequence[str | None]) -> Iterator[TopicIdPartition]:
    """Those of a request that exist, as members of KIP-848 have them."""
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
    """What refuses one offset: 100, 3, then what refuses all, then 12; as in Kafka, where partitions are looked up before the group is."""
    if name is None:
        return codes.UNKNOWN_TOPIC_ID
    if broker.topics.partition(name, index) is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if request_error is codes.NONE and metadata and _java_length(metadata) > broker.settings["offset.metadata.max.bytes"]:
        return codes.OFFSET_METADATA_TOO_LARGE
    return request_error


def _java_length(text: str) -> int:
    """Units of UTF-16: Kafka counts these, whatever its option is called."""
    return len(text.encode("utf-16-be")) // 2
