"""TxnOffsetCommit: offsets of a group that wait for the transaction's marker (KIP-98, KIP-447)."""

from __future__ import annotations

from chaffinch.broker.core import offset_rules
from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.group_offsets import CommittedOffset
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from chaffinch.storage.file_system import StorageError

VERSION_WITH_ABORTABLE = 4
VERSION_WITH_IMPLICIT_ADD = 5

_AS_GROUP_COORDINATOR = {codes.PRODUCER_FENCED: codes.INVALID_PRODUCER_EPOCH}
"""The group's side of the coordinator's answers: a stale epoch is 47 here, as at append."""


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, TxnOffsetCommitRequest)
    whole = _whole_fault(broker, event, request, now_ms)
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
            broker.offsets.commit_pending(request.group_id, request.producer_id, offsets)
    except StorageError:
        results.update(dict.fromkeys(offsets, codes.NOT_COORDINATOR))
    for place, code in results.items():
        if code is not codes.NONE:
            refuse(broker, event, now_ms, place=place, code=code, reason=f"offset of {request.group_id!r} in {request.transactional_id!r}")
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=asked.partition_index,
                        error_code=results[TopicPartition(topic.name, asked.partition_index)].number,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _whole_fault(broker: BrokerState, event: RequestReceived, request: TxnOffsetCommitRequest, now_ms: int) -> ErrorCode:
    code = offset_rules.request_fault(broker, event.node_id, request.group_id, request.generation_id, request.member_id)
    if code is not codes.NONE:
        return code
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    if event.request.version >= VERSION_WITH_IMPLICIT_ADD:
        code = broker.transactions.add_group(request.transactional_id, identity, request.group_id, now_ms)
    else:
        code = broker.transactions.verify_group(request.transactional_id, identity, request.group_id)
    if code is codes.TRANSACTION_ABORTABLE and event.request.version < VERSION_WITH_ABORTABLE:
        return codes.INVALID_TXN_STATE
    return _AS_GROUP_COORDINATOR.get(code, code)
