"""AddPartitionsToTxn (client versions): the partitions a transaction will write. One unknown partition, and none is added."""

from __future__ import annotations

from chaffinch.broker.core import transaction_codes
from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, AddPartitionsToTxnRequest)
    asked = [TopicPartition(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
    codes_by_partition = _codes(broker, event, request, asked, now_ms)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=transaction_codes.travelling(
                            codes_by_partition[TopicPartition(topic.name, index)], "AddPartitionsToTxn", event.request.version
                        ),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _codes(
    broker: BrokerState, event: RequestReceived, request: AddPartitionsToTxnRequest, asked: list[TopicPartition], now_ms: int
) -> dict[TopicPartition, ErrorCode]:
    transactional_id = request.v3_and_below_transactional_id
    unknown = {place for place in asked if broker.topics.partition(*place) is None}
    if unknown:
        code, reason = codes.UNKNOWN_TOPIC_OR_PARTITION, f"{', '.join(map(str, sorted(unknown)))} do not exist; no partition was added"
        refuse(broker, event, now_ms, place=transactional_id, code=code, reason=reason)
        return {place: code if place in unknown else codes.OPERATION_NOT_ATTEMPTED for place in asked}
    if not broker.is_coordinator(event.node_id, transactional_id):
        return dict.fromkeys(asked, codes.NOT_COORDINATOR)
    identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    code = broker.transactions.add_partitions(transactional_id, identity, asked, now_ms)
    if code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        refuse(
            broker, event, now_ms, place=transactional_id, code=code, reason=f"from producer {identity.producer_id} epoch {identity.epoch}"
        )
    return dict.fromkeys(asked, code)
