"""TxnOffsetCommit: stores offsets of a group as pending until the transaction's marker (KIP-98), fenced by the group's metadata
(KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups import offset_rules
from chaffinch.broker.core.groups.assignors import TopicIdPartition
from chaffinch.broker.core.groups.offset_rules import Offsets
from chaffinch.broker.core.transactions.coordinator import NOT_WRITTEN
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition, kafka_id
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from chaffinch.storage.file_system import StorageError

VERSION_WITH_ABORTABLE = 4
VERSION_WITH_IMPLICIT_ADD = 5
VERSION_WITH_TOPIC_IDS = 6

_AS_GROUP_COORDINATOR = {codes.PRODUCER_FENCED: codes.INVALID_PRODUCER_EPOCH}
"""Coordinator error codes as the group coordinator returns them: a stale epoch is 47 here, as in Produce."""


def handle(broker: BrokerState, event: RequestReceived, request: TxnOffsetCommitRequest, steady_ms: int) -> Result:
    names = offset_rules.names(broker, request.topics, by_id=event.request.version >= VERSION_WITH_TOPIC_IDS)
    unwritten: StorageError | None = None
    try:
        request_error = _request_error(broker, event, request, offset_rules.topic_id_partitions(broker, request.topics, names), steady_ms)
    except StorageError as error:
        request_error, unwritten = NOT_WRITTEN, error

    def store(offsets: Offsets) -> None:
        broker.transactions.sync()
        broker.offsets.commit_pending(request.group_id, request.producer_id, offsets)
        broker.groups.committed(request.group_id, steady_ms)

    results, failure = offset_rules.commit(broker, request.group_id, request.topics, names, request_error, store, steady_ms=steady_ms)
    reason = f"offset of group {request.group_id!r} in the transaction of {request.transactional_id!r}"
    if request.generation_id >= 0:
        reason += f", from member {request.member_id!r} of generation {request.generation_id}"
    if unwritten is not None or failure is not None:
        reason += f": {unwritten or failure}"
    for topic, name, row in zip(request.topics, names, results, strict=True):
        for requested, code in zip(topic.partitions, row, strict=True):
            if code is not codes.NONE:
                tp = f"topic id {kafka_id(topic.topic_id)}" if name is None else TopicPartition(name, requested.partition_index)
                log_refusal(broker, event, steady_ms, subject=tp, code=code, reason=reason)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=requested.partition_index, error_code=code.number)
                    for requested, code in zip(topic.partitions, row, strict=True)
                ],
            )
            for topic, row in zip(request.topics, results, strict=True)
        ]
    )


def _request_error(
    broker: BrokerState, event: RequestReceived, request: TxnOffsetCommitRequest, partitions: Iterable[TopicIdPartition], steady_ms: int
) -> ErrorCode:
    """The error code of all offsets: checks the coordinator node, then the transaction, then the group member."""
    if not request.group_id:
        return codes.INVALID_GROUP_ID
    if not broker.is_coordinator(event.node_id, request.group_id):
        return codes.NOT_COORDINATOR
    code = _transaction_fault(broker, event, request, steady_ms)
    if code is not codes.NONE:
        return code
    return broker.groups.commit_fault(
        request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        version=event.request.version,
        partitions=partitions,
        is_transactional=True,
        steady_ms=steady_ms,
    )


def _transaction_fault(broker: BrokerState, event: RequestReceived, request: TxnOffsetCommitRequest, steady_ms: int) -> ErrorCode:
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    if event.request.version >= VERSION_WITH_IMPLICIT_ADD:
        code = broker.transactions.add_group(request.transactional_id, identity, request.group_id, steady_ms)
    else:
        code = broker.transactions.verify_group(request.transactional_id, identity, request.group_id)
    if code is codes.TRANSACTION_ABORTABLE and event.request.version < VERSION_WITH_ABORTABLE:
        return codes.INVALID_TXN_STATE
    return _AS_GROUP_COORDINATOR.get(code, code)
