"""Transactions: list, describe, find hanging ones, and abort them, like `kafka-transactions` (KIP-664), with typed results.

A transaction hangs in a partition if its coordinator no longer knows it. It is never completed, and readers of committed records wait at
it forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chaffinch.admin.many_brokers import PartitionAnswer, ask_leaders, ask_nodes, by_topic
from chaffinch.client import response_errors
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import InvalidTxnStateException, TransactionalIdNotFoundException, exception_for
from chaffinch.errors.handling import normalized_coordinator_code
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsState
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from chaffinch.protocol.messages.write_txn_markers import WriteTxnMarkersResponse as MarkersResponse
from chaffinch.public_names import exported_from

# Kafka's default of transaction.max.timeout.ms: no transaction of a running producer is older.
TRANSACTION_TIMEOUT_MAX_MS: Final = 900_000
# TransactionState.java.
STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead")
STATES_WITHOUT_END: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """One transactional id, as its coordinator lists it. `state` is one of `STATES`; `coordinator` is a node id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """One transactional id.

    Attributes:
        transactional_id: the id.
        producer_id: id of its current producer.
        producer_epoch: epoch of its current producer.
        state: one of `STATES`.
        timeout_ms: transaction timeout of the producer.
        started_ms: start of the open transaction, ms since 1970; None if there is none.
        partitions: the partitions in the open transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProducer:
    """Producer state in one partition.

    Attributes:
        topic_partition: the partition.
        producer_id: id of the producer.
        producer_epoch: epoch of its last batch.
        coordinator_epoch: epoch of the coordinator that wrote the last marker; -1 without one.
        last_sequence: sequence of its last record; -1 without one.
        last_timestamp_ms: time of its last batch, ms since 1970.
        transaction_start_offset: first offset of its open transaction; None if there is none.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int | None


def list_transactions(
    client: SyncClient, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), duration_min_ms: int | None = None
) -> list[TransactionListing]:
    """The transactional ids of all coordinators, in their order.

    Args:
        client: client of `options.connect`.
        states: only ids in one of these states (see `STATES`); all if empty.
        producer_ids: only ids of these producers; all if empty.
        duration_min_ms: only transactions that have been open for at least this time; None: all.

    Raises:
        InvalidTxnStateException: an unknown state.
        UnsupportedVersionException: a broker is too old to filter by duration.
    """
    found: list[TransactionListing] = []
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if duration_min_ms is None else duration_min_ms,
    )
    for node, answer in ask_nodes(client, request):
        if answer.unknown_state_filters:
            raise InvalidTxnStateException(
                f"unknown state {answer.unknown_state_filters[0]!r}; the states are {', '.join(STATES)}",
                api="ListTransactions",
            )
        found += [
            TransactionListing(
                transactional_id=entry.transactional_id, producer_id=entry.producer_id, state=entry.transaction_state, coordinator=node
            )
            for entry in answer.transaction_states
        ]
    return sorted(found, key=lambda listing: listing.transactional_id)


def describe_transaction(client: SyncClient, transactional_id: str) -> TransactionDescription:
    """Describe a transactional id.

    Args:
        client: client of `options.connect`.
        transactional_id: the id.

    Raises:
        TransactionalIdNotFoundException: the id was never used, or its coordinator has expired it.
    """
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = client.coordinator_request(transactional_id, "transaction", request)
    for code, _ in response_errors.codes_in(answer):
        raise exception_for(code, message=f"transactional id {transactional_id!r}: {code.text}", api="DescribeTransactions")
    state: DescribeTransactionsState = answer.transaction_states[0]
    # Brokers may return the start of a completed transaction.
    is_open = state.transaction_state in STATES_WITHOUT_END
    return TransactionDescription(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms if is_open and state.transaction_start_time_ms >= 0 else None,
        partitions=tuple(sorted(TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions)),
    )


def describe_producers(client: SyncClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[PartitionProducer]]:
    """Producer states in partitions (DescribeProducers, since Kafka 2.8).

    Args:
        client: client of `options.connect`.
        partitions: the partitions.

    Returns:
        The states by partition, in the order of the producer ids.
    """

    def request_for(asked: list[TopicPartition]) -> DescribeProducersRequest:
        topics = [DescribeProducersTopicRequest(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(asked).items()]
        return DescribeProducersRequest(topics=topics)

    return ask_leaders(client, list(partitions), request_for, _read_producers)


def _read_producers(answer: DescribeProducersResponse) -> Iterator[PartitionAnswer]:
    for topic in answer.topics:
        for found in topic.partitions:
            tp = TopicPartition(topic.name, found.partition_index)
            producers = [
                PartitionProducer(
                    topic_partition=tp,
                    producer_id=state.producer_id,
                    producer_epoch=state.producer_epoch,
                    coordinator_epoch=state.coordinator_epoch,
                    last_sequence=state.last_sequence,
                    last_timestamp_ms=state.last_timestamp,
                    transaction_start_offset=None if state.current_txn_start_offset == NO_OFFSET else state.current_txn_start_offset,
                )
                for state in sorted(found.active_producers, key=lambda state: state.producer_id)
            ]
            yield PartitionAnswer(tp, found.error_code, found.error_message, producers)


def find_hanging(
    client: SyncClient, partitions: Iterable[TopicPartition], *, wall_ms: int, older_than_ms: int = TRANSACTION_TIMEOUT_MAX_MS
) -> list[PartitionProducer]:
    """Hanging transactions: open in a partition, older than a running producer can have, and unknown to every coordinator.

    Args:
        client: client of `options.connect`.
        partitions: the partitions to search.
        wall_ms: the current time, ms since 1970.
        older_than_ms: minimum time since the producer's last batch.

    Returns:
        The producers with such a transaction, by partition and producer id.
    """
    suspects = [
        producer
        for producers in describe_producers(client, partitions).values()
        for producer in producers
        if producer.transaction_start_offset is not None and wall_ms - producer.last_timestamp_ms > older_than_ms
    ]
    if not suspects:
        return []
    listed = list_transactions(client, producer_ids=sorted({producer.producer_id for producer in suspects}))
    known: set[tuple[int, TopicPartition]] = set()
    for listing in listed:
        try:
            description = describe_transaction(client, listing.transactional_id)
        except TransactionalIdNotFoundException:
            continue
        if description.state in STATES_WITHOUT_END:
            known |= {(description.producer_id, tp) for tp in description.partitions}
    return sorted(
        (producer for producer in suspects if (producer.producer_id, producer.topic_partition) not in known),
        key=lambda producer: (producer.topic_partition, producer.producer_id),
    )


def open_transaction_at(client: SyncClient, tp: TopicPartition, start_offset: int) -> PartitionProducer:
    """The producer whose open transaction starts at an offset.

    Args:
        client: client of `options.connect`.
        tp: the partition.
        start_offset: first offset of the transaction.

    Raises:
        InvalidTxnStateException: there is none; the message lists the offsets at which open transactions start.
    """
    producers = _with_open_transactions(client, tp)
    for producer in producers:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = ", ".join(str(producer.transaction_start_offset) for producer in producers)
    hint = f"open transactions start at {starts}" if starts else "none is open there"
    raise InvalidTxnStateException(f"no open transaction starts at offset {start_offset} of {tp}; {hint}", api="DescribeProducers")


def check_open(client: SyncClient, tp: TopicPartition, producer_id: int) -> None:
    """Check that a producer has an open transaction in a partition, because brokers write an abort marker for any producer id.

    Args:
        client: client of `options.connect`.
        tp: the partition.
        producer_id: id of the producer.

    Raises:
        InvalidTxnStateException: it has none; the message lists the producers with an open transaction.
        UnsupportedVersionException: the broker is older than Kafka 2.8.
    """
    having = [producer.producer_id for producer in _with_open_transactions(client, tp)]
    if producer_id not in having:
        hint = f"open transactions belong to {', '.join(map(str, having))}" if having else "none is open there"
        raise InvalidTxnStateException(f"producer {producer_id} has no open transaction in {tp}; {hint}", api="DescribeProducers")


def _with_open_transactions(client: SyncClient, tp: TopicPartition) -> list[PartitionProducer]:
    return [found for found in describe_producers(client, [tp])[tp] if found.transaction_start_offset is not None]


def abort_in_partition(client: SyncClient, tp: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
    """Write an abort marker into one partition, bypassing the coordinator. Use it only for hanging transactions.

    Args:
        client: client of `options.connect`.
        tp: the partition.
        producer_id: id of the producer.
        producer_epoch: epoch of the producer in the partition.
        coordinator_epoch: epoch of the coordinator in the partition; negative without one.
    """
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        # Without a previous marker of this producer the partition has no coordinator epoch.
        coordinator_epoch=max(0, coordinator_epoch),
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
    )

    def read(answer: MarkersResponse) -> Iterator[PartitionAnswer]:
        for result in answer.markers:
            for topic in result.topics:
                for found in topic.partitions:
                    yield PartitionAnswer(TopicPartition(topic.name, found.partition_index), found.error_code, None, None)

    ask_leaders(client, [tp], lambda asked: WriteTxnMarkersRequest(markers=[marker] if asked else []), read)


def terminate(client: SyncClient, transactional_id: str) -> None:
    """Abort the open transaction of a transactional id and fence its producer, by initializing a new producer (KIP-939).

    Args:
        client: client of `options.connect`.
        transactional_id: the id.

    Raises:
        TransactionalIdNotFoundException: the id was never used, or its coordinator has expired it.
    """
    describe_transaction(client, transactional_id)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    answer = client.coordinator_request(transactional_id, "transaction", request)
    for code, _ in response_errors.codes_in(answer):
        error_code = normalized_coordinator_code(code)
        raise exception_for(error_code, message=f"transactional id {transactional_id!r}: {error_code.text}", api="InitProducerId")
