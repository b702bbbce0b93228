"""ElectLeaders: returns leadership to the preferred replicas, or elects any running replica of partitions without a leader (KIP-183,
KIP-460).
"""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused, disk_refusal
from chaffinch.broker.core.replicas.declared_replicas import NO_LEADER
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.elect_leaders import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: ElectLeadersRequest, steady_ms: int) -> Result:
    if request.election_type not in (ELECTION_PREFERRED, ELECTION_UNCLEAN):
        return ElectLeadersResponse(error_code=codes.INVALID_REQUEST.number)
    all_partitions = request.topic_partitions is None
    requested: Iterable[TopicPartition]
    if request.topic_partitions is None:
        requested = [partition.topic_partition for partition in broker.topics.partitions()]
    else:
        requested = dict.fromkeys(TopicPartition(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions)
    by_topic: dict[str, list[PartitionResult]] = {}
    for tp in requested:
        result = _result(broker, event, tp, request.election_type, steady_ms)
        if not (all_partitions and result.error_code == codes.ELECTION_NOT_NEEDED.number):
            by_topic.setdefault(tp.topic, []).append(result)
    results = [ReplicaElectionResult(topic=topic, partition_result=results) for topic, results in by_topic.items()]
    return ElectLeadersResponse(replica_election_results=results)


def _result(broker: BrokerState, event: RequestReceived, tp: TopicPartition, election_type: int, steady_ms: int) -> PartitionResult:
    result = PartitionResult(partition_id=tp.partition)
    try:
        _elect(broker, tp, election_type)
    except RequestRefused as refused:
        result.error_code, result.error_message = refused.code.number, refused.message
    except StorageError as error:
        failed = disk_refusal(tp, error)
        result.error_code, result.error_message = failed.code.number, failed.message
        log_refusal(broker, event, steady_ms, subject=tp, code=failed.code, reason=failed.logged)
    return result


def _elect(broker: BrokerState, tp: TopicPartition, election_type: int) -> None:
    partition = broker.topics.partition(*tp)
    if partition is None:
        raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist")
    replicas = partition.replicas
    if election_type == ELECTION_UNCLEAN:
        if replicas.leader != NO_LEADER:
            raise RequestRefused(codes.ELECTION_NOT_NEEDED, f"node {replicas.leader} leads {tp}")
        running = [node_id for node_id in replicas.assigned if node_id not in broker.nodes.stopped]
        if not running:
            raise RequestRefused(codes.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {tp} is running")
        broker.membership.elect(partition, running[0])
        return
    preferred = replicas.assigned[0]
    if replicas.leader == preferred:
        raise RequestRefused(codes.ELECTION_NOT_NEEDED, f"node {preferred} leads {tp}")
    if preferred in broker.nodes.stopped or preferred not in replicas.in_sync:
        raise RequestRefused(codes.PREFERRED_LEADER_NOT_AVAILABLE, f"node {preferred} is not running")
    broker.membership.elect(partition, preferred)
