"""OffsetCommit for clients that manage their partitions themselves: no member, no generation."""

from __future__ import annotations

from chaffinch.broker.core import offset_rules
from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.group_offsets import CommittedOffset
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, OffsetCommitRequest)
    generation = request.generation_id_or_member_epoch
    whole = offset_rules.request_fault(broker, event.node_id, request.group_id, generation, request.member_id)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    results: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            place = TopicPartition(topic.name, asked.partition_index)
            results[place] = offset_rules.partition_fault(broker, place, asked.committed_metadata) if whole is codes.NONE else whole
            if results[place] is codes.NONE:
                offsets[place] = CommittedOffset(
                    offset=asked.committed_offset,
                    leader_epoch=asked.committed_leader_epoch,
                    metadata=asked.committed_metadata or "",
                    committed_ms=now_ms,
                )
    try:
        if offsets:
            broker.offsets.commit(request.group_id, offsets)
    except StorageError:
        results.update(dict.fromkeys(offsets, codes.NOT_COORDINATOR))
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=asked.partition_index,
                        error_code=results[TopicPartition(topic.name, asked.partition_index)].number,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
