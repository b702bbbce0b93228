"""AddPartitionsToTxn: the partitions a transaction will write. One unknown partition, and none is added.

Up to version 3 from clients, one transaction each; from version 4 on from brokers, several at once, some only to be verified (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.transactions.coordinator import NOT_WRITTEN
from chaffinch.broker.core.transactions.moves import travelling
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
class _Asked:
    """One transaction of a request, of whichever version."""

    transactional_id: str
    identity: ProducerIdentity
    places: Sequence[TopicPartition]
    verify_only: bool = False


def handle(broker: BrokerState, event: RequestReceived, request: AddPartitionsToTxnRequest, steady_ms: int) -> Result:
    version = event.request.version

    def results(
        topics: list[AddPartitionsToTxnTopic], transactional_id: str, identity: ProducerIdentity, verify_only: bool = False
    ) -> _Rows:
        places = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
        asked = _Asked(transactional_id=transactional_id, identity=identity, places=places, verify_only=verify_only)
        fates = _codes(broker, event, asked, steady_ms)
        return _rows(topics, lambda place: travelling(fates[place], "AddPartitionsToTxn", version))

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


def _codes(broker: BrokerState, event: RequestReceived, asked: _Asked, steady_ms: int) -> dict[TopicPartition, ErrorCode]:
    transactional_id, identity = asked.transactional_id, asked.identity
    unknown = {place for place in asked.places if broker.topics.partition(*place) is None}
    if unknown:
        code, reason = codes.UNKNOWN_TOPIC_OR_PARTITION, f"{', '.join(map(str, sorted(unknown)))} do not exist; no partition was added"
        refuse(broker, event, steady_ms, place=transactional_id, code=code, reason=reason)
        return {place: code if place in unknown else codes.OPERATION_NOT_ATTEMPTED for place in asked.places}
    if not broker.is_coordinator(event.node_id, transactional_id):
        return dict.fromkeys(asked.places, codes.NOT_COORDINATOR)
    if asked.verify_only:
        if not transactional_id:
            return dict.fromkeys(asked.places, codes.INVALID_REQUEST)
        return {place: broker.transactions.verify(transactional_id, identity, place) for place in asked.places}
    reason = f"from producer {identity.producer_id} epoch {identity.epoch}"
    try:
        code = broker.transactions.add_partitions(transactional_id, identity, asked.places, steady_ms)
    except StorageError as error:
        code, reason = NOT_WRITTEN, f"{reason}: {error}"
    if code not in (codes.NONE, codes.CONCURRENT_TRANSACTIONS):
        refuse(broker, event, steady_ms, place=transactional_id, code=code, reason=reason)
    return dict.fromkeys(asked.places, code)
