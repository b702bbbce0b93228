"""DescribeProducers: the producer state of partitions, for tools that look for hanging transactions (KIP-664)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.replicas.leader_epochs import leadership_fault
from chaffinch.broker.core.response_size_limit import ResponseSizeLimit
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersState,
    DescribeProducersTopicResponse,
)


def handle(broker: BrokerState, event: RequestReceived, request: DescribeProducersRequest, steady_ms: int) -> Result:
    size_limit = ResponseSizeLimit(broker.settings)
    requested: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            DescribeProducersTopicResponse(
                name=name,
                partitions=[
                    size_limit.add(_partition(broker, event.node_id, TopicPartition(name, index), size_limit)) for index in indexes
                ],
            )
            for name, indexes in requested.items()
        ]
    )


def _partition(broker: BrokerState, node_id: int, tp: TopicPartition, size_limit: ResponseSizeLimit) -> DescribeProducersPartitionResponse:
    partition = broker.topics.partition(*tp)
    if partition is None:
        code, message = codes.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist"
        return DescribeProducersPartitionResponse(partition_index=tp.partition, error_code=code.number, error_message=message)
    code = leadership_fault(partition, node_id, allows_follower=True)
    if code is not codes.NONE:
        message = f"node {node_id} has no replica of {tp} that is in sync: node {partition.replicas.leader} leads it"
        return DescribeProducersPartitionResponse(partition_index=tp.partition, error_code=code.number, error_message=message)
    return DescribeProducersPartitionResponse(
        partition_index=tp.partition,
        error_code=codes.NONE.number,
        active_producers=[
            size_limit.add(
                DescribeProducersState(
                    producer_id=producer_id,
                    producer_epoch=state.epoch,
                    last_sequence=state.last_sequence,
                    last_timestamp=state.last_timestamp,
                    coordinator_epoch=state.coordinator_epoch,
                    current_txn_start_offset=state.first_offset,
                )
            )
            for producer_id, state in partition.log.producers.states()
        ],
    )
