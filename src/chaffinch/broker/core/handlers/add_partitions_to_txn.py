"""AddPartitionsToTxn: adds partitions to a transaction. If one partition is unknown, none is added.

Up to version 3 clients send it, for one transaction. From version 4 on brokers send it, for several transactions, some only to be verified
(KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.transactions.coordinator import NOT_WRITTEN
from chaffinch.broker.core.transactions.moves import error_number
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from chaffinch.storage.file_system import StorageError

VERSION_WITH_TRANSACTIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requested:
    """One transaction of a request, of any version."""

    transactional_id: str
    identity: ProducerIdentity
    tps: Sequence[TopicPartition]
    verify_only: bool = False


def handle(broker: BrokerState, event: RequestReceived, request: AddPartitionsToTxnRequest, steady_ms: int) -> Result:
    version = event.request.version

    def results(
        topics: list[AddPartitionsToTxnTopic], transactional_id: str, identity: ProducerIdentity, verify_only: bool = False
    ) -> _Rows:
        tps = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
        requested = _Requested(transactional_id=transactional_id, identity=identity, tps=tps, verify_only=verify_only)
        results_by_tp = _codes(broker, event, requested, steady_ms)
        return _rows(topics, lambda tp: error_number(results_by_tp[tp], "AddPartitionsToTxn", version))

    if version < VERSION_WITH_TRANSACTIONS:
        identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        rows = results(request.v3_and_below_topics, request.v3_and_below_transactional_id, identity)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=results(
                    one.topics, one.transactional_id, ProducerIdentity(one.producer_id, one.producer_epoch), one.verify_only
                ),
            )
            for one in request.transactions
        ]
    )


_Rows = list[AddPartitionsToTxnTopicResult]


def _rows(topics: list[AddPartitionsToTxnTopic], number: Callable[[TopicPartition], int]) -> _Rows:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=number(TopicPartition(topic.name, index)))
                for index in dict.fromkeys(topic.partitions)
            ],
        )
        for topic in topics
    ]


def _codes(broker: BrokerState, event: RequestReceived, requested: _Requested, steady_ms: int) -> dict[TopicPartition, ErrorCode]:
    transactional_id, identity = requested.transactional_id, requested.identity
    unknown = {tp for tp in requested.tps if broker.topics.partition(*tp) is None}
    if unknown:
        code, reason = codes.UNKNOWN_TOPIC_OR_PARTITION, f"{', '.join(map(str, sorted(unknown)))} do not exist; no partition was added"
        log_refusal(broker, event, steady_ms, subject=transactional_id, code=code, reason=reason)
        return {tp: code if tp in unknown else codes.OPERATION_NOT_ATTEMPTED for tp in requested.tps}
    if not broker.is_coordinator(event.node_id, transactional_id):
        return dict.fromkeys(requested.tps, codes.NOT_COORDINATOR)
    if requested.verify_only:
        if not transactional_id:
            return dict.fromkeys(requested.tps, codes.INVALID_REQUEST)
        return {tp: broker.transactions.verify(transactional_id, identity, tp) for tp in requested.tps}
    reason = f"from producer {identity.producer_id} epoch {identity.epoch}"
    try:
        code = broker.transactions.add_partitions(transactional_id, identity, requested.tps, steady_ms)
    except StorageError as error:
        code, reason = NOT_WRITTEN, f"{reason}: {error}"
    if code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        log_refusal(broker, event, steady_ms, subject=transactional_id, code=code, reason=reason)
    return dict.fromkeys(requested.tps, code)
