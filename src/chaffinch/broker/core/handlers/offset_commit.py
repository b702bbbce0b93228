"""OffsetCommit: offsets of a group, by a member of the current generation or epoch, or from outside while the group has no members."""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups import offset_rules
from chaffinch.broker.core.groups.assignors import TopicIdPartition
from chaffinch.broker.core.groups.offset_rules import Offsets
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

VERSION_WITH_TOPIC_IDS = 10


def handle(broker: BrokerState, event: RequestReceived, request: OffsetCommitRequest, steady_ms: int) -> Result:
    names = offset_rules.names(broker, request.topics, by_id=event.request.version >= VERSION_WITH_TOPIC_IDS)
    whole = _whole_fault(broker, event, request, offset_rules.places(broker, request.topics, names), steady_ms)
    if whole is not codes.NONE:
        reason = f"member {request.member_id!r}, generation or epoch {request.generation_id_or_member_epoch}"
        refuse(broker, event, steady_ms, place=f"group {request.group_id!r}", code=whole, reason=reason)

    def store(offsets: Offsets) -> None:
        broker.offsets.commit(request.group_id, offsets)
        broker.groups.committed(request.group_id, steady_ms)

    retention_ms = request.retention_time_ms
    results, failure = offset_rules.commit(
        broker, request.group_id, request.topics, names, whole, store, retention_time_ms=retention_ms, steady_ms=steady_ms
    )
    if failure is not None:
        refuse(broker, event, steady_ms, place=f"group {request.group_id!r}", code=offset_rules.NOT_WRITTEN, reason=str(failure))
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code.number)
                    for asked, code in zip(topic.partitions, row, strict=True)
                ],
            )
            for topic, row in zip(request.topics, results, strict=True)
        ]
    )


def _whole_fault(
    broker: BrokerState, event: RequestReceived, request: OffsetCommitRequest, places: Iterable[TopicIdPartition], steady_ms: int
) -> ErrorCode:
    if not broker.is_coordinator(event.node_id, request.group_id):
        return codes.NOT_COORDINATOR
    return broker.groups.commit_fault(
        request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        version=event.request.version,
        places=places,
        is_transactional=False,
        steady_ms=steady_ms,
    )
