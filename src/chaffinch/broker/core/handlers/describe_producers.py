"""DescribeProducers: what a partition knows of its producers, for tools that look for hanging transactions (KIP-664)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersState,
    DescribeProducersTopicResponse,
)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, DescribeProducersRequest)
    return DescribeProducersResponse(
        topics=[
            DescribeProducersTopicResponse(
                name=topic.name,
                partitions=[_partition(broker, event.node_id, TopicPartition(topic.name, index)) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _partition(broker: BrokerState, node_id: int, place: TopicPartition) -> DescribeProducersPartitionResponse:
    partition = broker.topics.partition(*place)
    if partition is None:
        code, message = codes.UNKNOWN_TOPIC_OR_PARTITION, f"{place} does not exist"
        return DescribeProducersPartitionResponse(partition_index=place.partition, error_code=code.number, error_message=message)
    if partition.replicas.leader != node_id:
        code, message = codes.NOT_LEADER_OR_FOLLOWER, f"node {node_id} does not lead {place}, node {partition.replicas.leader} does"
        return DescribeProducersPartitionResponse(partition_index=place.partition, error_code=code.number, error_message=message)
    return DescribeProducersPartitionResponse(
        partition_index=place.partition,
        error_code=codes.NONE.number,
        active_producers=[
            DescribeProducersState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.first_offset,
            )
            for producer_id, state in partition.log.producers.states()
        ],
    )
