"""OffsetCommit: commits offsets of a group, by a member of the current generation or epoch, or from outside while the group has no
members.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
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
    request_error = _request_error(broker, event, request, offset_rules.topic_id_partitions(broker, request.topics, names), steady_ms)
    if request_error is not codes.NONE:
        reason = f"member {request.member_id!r}, generation or epoch {request.generation_id_or_member_epoch}"
        log_refusal(broker, event, steady_ms, subject=f"group {request.group_id!r}", code=request_error, reason=reason)

    def store(offsets: Offsets) -> None:
        broker.offsets.commit(request.group_id, offsets)
        broker.groups.committed(request.group_id, steady_ms)

    retention_ms = request.retention_time_ms
    results, failure = offset_rules.commit(
        broker, request.group_id, request.topics, names, request_error, store, retention_time_ms=retention_ms, steady_ms=steady_ms
    )
    if failure is not None:
        log_refusal(broker, event, steady_ms, subject=f"group {request.group_id!r}", code=offset_rules.NOT_WRITTEN, reason=str(failure))
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=requested.partition_index, error_code=code.number)
                    for requested, code in zip(topic.partitions, row, strict=True)
                ],
            )
            for topic, row in zip(request.topics, results, strict=True)
        ]
    )


def _request_error(
    broker: BrokerState, event: RequestReceived, request: OffsetCommitRequest, partitions: Iterable[TopicIdPartition], steady_ms: int
) -> ErrorCode:
    if not broker.is_coordinator(event.node_id, request.group_id):
        return codes.NOT_COORDINATOR
    return broker.groups.commit_fault(
        request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        version=event.request.version,
        partitions=partitions,
        is_transactional=False,
        steady_ms=steady_ms,
    )
