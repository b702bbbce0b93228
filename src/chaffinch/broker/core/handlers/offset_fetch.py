"""OffsetFetch: a group's committed offsets; with `require_stable`, an offset that an open transaction may change is not given (KIP-447)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.group_offsets import CommittedOffset
from chaffinch.errors import codes
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

VERSION_WITH_GROUPS = 8

_NOTHING = CommittedOffset(offset=NO_OFFSET)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, OffsetFetchRequest)
    if event.request.version >= VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=[_group(broker, event.node_id, group, request.require_stable) for group in request.groups])
    if not broker.is_coordinator(event.node_id, request.group_id):
        return OffsetFetchResponse(error_code=codes.NOT_COORDINATOR.number)
    asked = None
    if request.topics is not None:
        asked = [TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=error_code,
                    )
                    for index, found, error_code in partitions
                ],
            )
            for name, partitions in _found(broker, request.group_id, asked, request.require_stable)
        ]
    )


def _group(broker: BrokerState, node_id: int, group: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
    if not broker.is_coordinator(node_id, group.group_id):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=codes.NOT_COORDINATOR.number)
    asked = None
    if group.topics is not None:
        asked = [TopicPartition(topic.name, index) for topic in group.topics for index in topic.partition_indexes]
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=error_code,
                    )
                    for index, found, error_code in partitions
                ],
            )
            for name, partitions in _found(broker, group.group_id, asked, require_stable)
        ],
    )


def _found(
    broker: BrokerState, group: str, asked: Iterable[TopicPartition] | None, require_stable: bool
) -> list[tuple[str, list[tuple[int, CommittedOffset, int]]]]:
    """(topic, [(partition, offset, error code)]); all that is committed or pending when nothing is asked for in particular."""
    unstable = broker.offsets.unstable_partitions(group) if require_stable else frozenset()
    places = sorted({*broker.offsets.fetch_all(group), *unstable}) if asked is None else asked
    result = []
    for topic, members in groupby(places, key=lambda place: place.topic):
        partitions = []
        for place in members:
            if place in unstable:
                partitions.append((place.partition, _NOTHING, codes.UNSTABLE_OFFSET_COMMIT.number))
            else:
                partitions.append((place.partition, broker.offsets.fetch(group, place) or _NOTHING, codes.NONE.number))
        result.append((topic, partitions))
    return result
