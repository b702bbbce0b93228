"""The answers of the transactions' APIs that say nothing but an error, for fault scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chaffinch.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)
from chaffinch.protocol.schema import Message


def _add_partitions(request: add_partitions_to_txn.AddPartitionsToTxnRequest, number: int) -> Message:
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        error_code=number,
        results_by_transaction=[
            add_partitions_to_txn.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=_added_topics(one.topics, number)
            )
            for one in request.transactions
        ],
        results_by_topic_v3_and_below=_added_topics(request.v3_and_below_topics, number),
    )


def _added_topics(
    topics: list[add_partitions_to_txn.AddPartitionsToTxnTopic], number: int
) -> list[add_partitions_to_txn.AddPartitionsToTxnTopicResult]:
    return [
        add_partitions_to_txn.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                add_partitions_to_txn.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=number)
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _describe(request: describe_transactions.DescribeTransactionsRequest, number: int) -> Message:
    states = [
        describe_transactions.DescribeTransactionsState(error_code=number, transactional_id=transactional_id)
        for transactional_id in request.transactional_ids
    ]
    return describe_transactions.DescribeTransactionsResponse(transaction_states=states)


def _describe_producers(request: describe_producers.DescribeProducersRequest, number: int) -> Message:
    return describe_producers.DescribeProducersResponse(
        topics=[
            describe_producers.DescribeProducersTopicResponse(
                name=topic.name,
                partitions=[
                    describe_producers.DescribeProducersPartitionResponse(partition_index=index, error_code=number)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _write_markers(request: write_txn_markers.WriteTxnMarkersRequest, number: int) -> Message:
    return write_txn_markers.WriteTxnMarkersResponse(
        markers=[
            write_txn_markers.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    write_txn_markers.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            write_txn_markers.WritableTxnMarkerPartitionResult(partition_index=index, error_code=number)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


ANSWERS: Mapping[str, Callable[[Any, int], Message]] = {
    "InitProducerId": lambda _, number: init_producer_id.InitProducerIdResponse(error_code=number, producer_epoch=-1),
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": lambda _, number: add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=number),
    "EndTxn": lambda _, number: end_txn.EndTxnResponse(error_code=number),
    "DescribeTransactions": _describe,
    "ListTransactions": lambda _, number: list_transactions.ListTransactionsResponse(error_code=number),
    "DescribeProducers": _describe_producers,
    "WriteTxnMarkers": _write_markers,
}
"""By the API's name: (request, number of the error) -> answer."""
