"""OffsetFetch: returns a group's committed offsets; with `require_stable` no offset that an open transaction may change (KIP-447)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar
from uuid import UUID

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.offsets import CommittedOffset
from chaffinch.broker.core.response_size_limit import ResponseSizeLimit
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from chaffinch.protocol.primitives import ZERO_UUID

VERSION_WITH_ERROR_CODE = 2
VERSION_WITH_GROUPS = 8
VERSION_WITH_TOPIC_IDS = 10

Part = TypeVar("Part", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)
"""A partition's result, in the formats for one and for several groups."""

_NOTHING = CommittedOffset(offset=NO_OFFSET)


@dataclass(frozen=True, slots=True)
class _Requested:
    """Requested partitions of one topic; the name is None for an unknown id."""

    name: str | None
    topic_id: UUID
    indexes: Collection[int]


@dataclass(frozen=True, slots=True)
class _Found:
    """The results of one topic: (partition, offset, code)."""

    name: str
    topic_id: UUID
    partitions: Iterable[tuple[int, CommittedOffset, ErrorCode]]


def handle(broker: BrokerState, event: RequestReceived, request: OffsetFetchRequest, steady_ms: int) -> Result:
    size_limit = ResponseSizeLimit(broker.settings)
    if event.request.version >= VERSION_WITH_GROUPS:
        groups = [size_limit.add(_group(broker, event, group, request.require_stable, size_limit)) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    requested = None
    if request.topics is not None:
        requested = [_Requested(topic.name, ZERO_UUID, topic.partition_indexes) for topic in request.topics]
    request_error = codes.NONE if broker.is_coordinator(event.node_id, request.group_id) else codes.NOT_COORDINATOR
    if request_error is not codes.NONE and event.request.version >= VERSION_WITH_ERROR_CODE:
        return OffsetFetchResponse(error_code=request_error.number)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=found.name,
                partitions=[size_limit.add(_answered(OffsetFetchResponsePartition, *part)) for part in found.partitions],
            )
            for found in _found(broker, request.group_id, requested, request.require_stable, request_error)
        ]
    )


def _group(
    broker: BrokerState, event: RequestReceived, group: OffsetFetchRequestGroup, require_stable: bool, size_limit: ResponseSizeLimit
) -> OffsetFetchResponseGroup:
    code = codes.NOT_COORDINATOR
    if broker.is_coordinator(event.node_id, group.group_id):
        code = broker.groups.fetch_fault(group.group_id, group.member_id, group.member_epoch)
    if code is not codes.NONE:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code.number)
    requested = None if group.topics is None else [_requested(broker, topic, event.request.version) for topic in group.topics]
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=found.name,
                topic_id=found.topic_id,
                partitions=[size_limit.add(_answered(OffsetFetchResponsePartitions, *part)) for part in found.partitions],
            )
            for found in _found(broker, group.group_id, requested, require_stable, codes.NONE)
        ],
    )


def _answered(kind: type[Part], index: int, offset: CommittedOffset, code: ErrorCode) -> Part:
    return kind(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=code.number,
    )


def _requested(broker: BrokerState, topic: OffsetFetchRequestTopics, version: int) -> _Requested:
    if version < VERSION_WITH_TOPIC_IDS:
        return _Requested(topic.name, ZERO_UUID, topic.partition_indexes)
    return _Requested(broker.topics.name_of(topic.topic_id), topic.topic_id, topic.partition_indexes)


def _found(
    broker: BrokerState, group: str, requested: Iterable[_Requested] | None, require_stable: bool, request_error: ErrorCode
) -> Iterator[_Found]:
    """The results of a group; all committed offsets if no topics are named, as in Kafka. `request_error` refuses everything."""
    unstable = broker.offsets.unstable_partitions(group) if require_stable else frozenset()

    def partitions(topic: _Requested) -> Iterator[tuple[int, CommittedOffset, ErrorCode]]:
        for index in topic.indexes:
            tp = TopicPartition(topic.name or "", index)
            code = codes.UNKNOWN_TOPIC_ID if topic.name is None else codes.UNSTABLE_OFFSET_COMMIT if tp in unstable else request_error
            offset = broker.offsets.fetch(group, tp) if code is codes.NONE else None
            yield index, offset or _NOTHING, code

    for topic in _everything(broker, group) if requested is None else _each_once(requested):
        yield _Found(topic.name or "", topic.topic_id, partitions(topic))


def _each_once(requested: Iterable[_Requested]) -> Iterable[_Requested]:
    """Merge topics and partitions that are named several times."""
    indexes: dict[tuple[str | None, UUID], dict[int, None]] = {}
    for topic in requested:
        indexes.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.indexes))
    return (_Requested(*topic, once) for topic, once in indexes.items())


def _everything(broker: BrokerState, group: str) -> list[_Requested]:
    tps = sorted(broker.offsets.fetch_all(group))
    result = []
    for name, members in groupby(tps, key=lambda tp: tp.topic):
        topic = broker.topics.get(name)
        result.append(_Requested(name, ZERO_UUID if topic is None else topic.topic_id, [tp.partition for tp in members]))
    return result
