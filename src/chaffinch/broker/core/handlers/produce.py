"""Produce: appends one batch per partition; each refusal is answered with all its reasons (KIP-467, KIP-579, KIP-135).

For old clients: below version 8 a response has no culprits and no text, and INVALID_RECORD and INVALID_COMPACTION_KEY become
INVALID_REQUEST (never CORRUPT_MESSAGE, which clients would retry). `error.numbering` selects the numbers on the wire. From version 13 on
topics are identified by id (KIP-516).

A few bytes may decompress to many, and a request may name ten thousand partitions: long work is split into turns, between which other
requests are served. Partitions are independent: each is processed in the state of its turn, and if the connection is lost, the rest is not
processed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeGuard
from uuid import UUID

from chaffinch.broker.core.append import VERSION_WITH_IMPLICIT_ADD, AppendTerms, Outcome, append
from chaffinch.broker.core.broker_state import NO_RESPONSE, BrokerState, Close, DelayedResponse, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import disk_failure_message
from chaffinch.broker.core.replicas.acknowledgement import ACKS_ALL, Unacknowledged
from chaffinch.broker.core.topics.creation_rules import INTERNAL
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Numbering
from chaffinch.identifiers import NO_OFFSET, NO_TIMESTAMP, TopicPartition, format_partitions
from chaffinch.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chaffinch.protocol.primitives import Buffer, Records
from chaffinch.records import batch
from chaffinch.records.batch_header import ATTRIBUTE_TRANSACTIONAL, MAGIC, MAGIC_POSITION
from chaffinch.records.validation_result import Rejected
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.partition_log import AppendResult

VERSION_WITH_CULPRITS = 8
VERSION_WITH_LEADER = 10
VERSION_WITH_TOPIC_IDS = 13
ACKS = frozenset({-1, 0, 1})
ATTRIBUTES_POSITION = 22
"""Position of the low attributes byte in a batch header; it contains the transactional flag."""

TURN_BYTES_MAX = 16 << 20
"""Bytes of records decompressed and checked in one turn, about 10 ms; the batch that reaches it is still completed. More than nearly all
requests contain."""

PARTITION_BYTES = 64 << 10
"""Approximate cost of one partition in addition to its records: limits a turn to 256 partitions."""

NO_ERROR = codes.NONE.number
OUR_SOFTWARE = "chaffinch"

_INVALID_IN_OLD_VERSIONS = frozenset({codes.INVALID_RECORD, codes.INVALID_COMPACTION_KEY})
_NOT_FAILED = frozenset(
    {
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.MESSAGE_TOO_LARGE,
        codes.RECORD_LIST_TOO_LARGE,
        codes.CORRUPT_MESSAGE,
        codes.KAFKA_STORAGE_ERROR,
    }
)
"""Refusals that Kafka does not count in FailedProduceRequestsPerSec."""


def handle(broker: BrokerState, event: RequestReceived, request: ProduceRequest, steady_ms: int, fault: Fault | None = None) -> Result:
    work = _Work(broker, event, request, fault)
    topics = request.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        turns = work.turns(steady_ms)
        return next(turns) or _rest(turns, steady_ms)
    topic = topics[0]
    work.conclude(topic, [work.answer(topic, work.name_of(topic), topic.partitions[0], steady_ms)])
    return work.result(steady_ms)


_Turns: TypeAlias = Generator[Result | None, int, None]
"""Yields None until all is processed, then the result; receives the time of the next turn with `send`."""


def _rest(turns: _Turns, steady_ms: int) -> DelayedResponse:
    """Continue the work after other requests have had their turn."""

    def answer(late_ms: int, is_last: bool) -> Result:
        return turns.send(late_ms) or _rest(turns, late_ms)

    return DelayedResponse(deadline_ms=steady_ms, keys=(), answer=answer, is_unfinished=True)


class _Work:
    """One Produce request being processed, with its response so far."""

    __slots__ = ("broker", "event", "fault", "has_refusal", "request", "request_refusal", "response", "terms", "version")

    def __init__(self, broker: BrokerState, event: RequestReceived, request: ProduceRequest, fault: Fault | None) -> None:
        self.broker, self.event, self.request, self.fault = broker, event, request, fault
        self.version = event.request.version
        self.response = ProduceResponse()
        self.has_refusal = False
        self.terms = AppendTerms(request.acks, self.version, request.transactional_id)
        self.request_refusal: Rejected | None = None
        if request.transactional_id is not None or _may_be_transactional(request):
            self.request_refusal = _request_refusal(request)
            if request.transactional_id is not None and self.version >= VERSION_WITH_IMPLICIT_ADD and self.request_refusal is None:
                self.terms.partitions_to_add = self._led_here()

    def turns(self, steady_ms: int) -> _Turns:
        """Process a request with any number of partitions."""
        broker = self.broker
        turn_end = broker.bytes_handled + TURN_BYTES_MAX
        for topic in _merged(self.request.topics):
            answers = []
            name = self.name_of(topic)
            for data in _last_of_each(topic.partitions):
                if broker.bytes_handled >= turn_end:
                    steady_ms = yield None
                    turn_end = broker.bytes_handled + TURN_BYTES_MAX
                    name = self.name_of(topic)  # It may have been deleted.
                broker.bytes_handled += PARTITION_BYTES
                answers.append(self.answer(topic, name, data, steady_ms))
            self.conclude(topic, answers)
        yield self.result(steady_ms)

    def conclude(self, topic: TopicProduceData, answers: list[PartitionProduceResponse]) -> None:
        """Add the results of a topic's partitions to the response."""
        self.response.responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))

    def result(self, steady_ms: int) -> Result:
        """The result of a completely processed request."""
        if self.request.acks == 0:
            return Close("a Produce request with acks=0 was refused") if self.has_refusal else NO_RESPONSE
        if self.request.acks == ACKS_ALL and self.broker.nodes.lagging:
            return self._when_on_all_replicas(steady_ms + max(self.request.timeout_ms, 0))
        return self.response

    def name_of(self, topic: TopicProduceData | TopicProduceResponse) -> str | None:
        """A topic's name; None for an unknown topic id."""
        return topic.name if self.version < VERSION_WITH_TOPIC_IDS else self.broker.topics.name_of(topic.topic_id)

    def _led_here(self) -> list[TopicPartition]:
        """The partitions of the request that this node leads."""
        found = (
            self.broker.topics.partition(self.name_of(topic) or "", data.index)
            for topic in self.request.topics
            for data in topic.partitions
        )
        return [
            partition.topic_partition for partition in found if partition is not None and partition.replicas.leader == self.event.node_id
        ]

    def answer(self, topic: TopicProduceData, name: str | None, data: PartitionProduceData, steady_ms: int) -> PartitionProduceResponse:
        """Append one partition's records, or refuse them."""
        broker = self.broker
        outcome: Outcome | None = self.request_refusal
        if self.fault is not None and self.fault.covers(*_named_tp(topic, name, data)):
            outcome = Rejected(self.fault.error, "requested by a fault script")
        if outcome is None:
            partition = None if name is None else broker.topics.partition(name, data.index)
            if partition is None or partition.replicas.leader != self.event.node_id or name in INTERNAL or self.terms.acks not in ACKS:
                outcome = self._misplaced(topic, name, data.index)
            else:
                try:
                    assert not isinstance(data.records, list)  # Only outgoing requests hold lists.
                    outcome = append(broker, partition, data.records, self.terms, steady_ms)
                except StorageError as error:
                    message = disk_failure_message(partition.topic_partition)
                    outcome = Rejected(codes.KAFKA_STORAGE_ERROR, message, logged=str(error))
        if isinstance(outcome, AppendResult):
            return answer_for(data.index, outcome)
        self.has_refusal = True
        tp = _named_tp(topic, name, data)
        _count(broker, tp, outcome, data.records)
        return self._refusal_answer(tp, outcome, steady_ms)

    def _misplaced(self, topic: TopicProduceData, name: str | None, index: int) -> Rejected:
        """The reason why a partition accepts no records at all."""
        if name is None:
            return Rejected(codes.UNKNOWN_TOPIC_ID, f"no topic of this cluster has the id {topic.topic_id}")
        partition = self.broker.topics.partition(name, index)
        if partition is None:
            known, tp = self.broker.topics.get(name), TopicPartition(name, index)
            has = "" if known is None else f": topic {name} has {format_partitions(len(known.partitions))}"
            return Rejected(codes.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist on this cluster{has}")
        if name in INTERNAL:
            return Rejected(codes.INVALID_TOPIC_EXCEPTION, f"topic {name} belongs to the broker; clients cannot write to it")
        leader = partition.replicas.leader
        if leader != self.event.node_id:
            wrong = f"node {self.event.node_id} does not lead {partition.topic_partition}, node {leader} does"
            return Rejected(codes.NOT_LEADER_OR_FOLLOWER, wrong)
        return Rejected(codes.INVALID_REQUIRED_ACKS, f"acks={self.terms.acks}: it must be all (-1), 1 or 0")

    def _refusal_answer(self, tp: TopicPartition, refusal: Rejected, steady_ms: int) -> PartitionProduceResponse:
        broker, event, version = self.broker, self.event, self.version
        partition = broker.topics.partition(*tp)
        if refusal.code is not codes.UNKNOWN_TOPIC_OR_PARTITION or tp.topic:
            log_refusal(broker, event, steady_ms, subject=tp, code=refusal.code, reason=refusal.logged or refusal.message)
        code, culprits = refusal.response_errors(broker.numbering)
        answer = PartitionProduceResponse(
            index=tp.partition,
            error_code=number_for(code, version, broker.numbering),
            base_offset=NO_OFFSET,
            log_append_time_ms=NO_TIMESTAMP,
            log_start_offset=partition.log.log_start_offset if partition is not None and refusal.code not in _NOT_FAILED else NO_OFFSET,
        )
        if version >= VERSION_WITH_CULPRITS:
            sends_codes = event.client_software_name == OUR_SOFTWARE
            answer.error_message = refusal.message
            answer.record_errors = [
                BatchIndexAndErrorMessage(
                    batch_index=culprit.batch_index,
                    batch_index_error_message=culprit.message,
                    # Always the KIPs' numbers, whatever `error.numbering` says: 87 alone would not distinguish a null key from other
                    # errors.
                    chaffinch_error_code=culprit.code.number_kip if sends_codes else None,
                )
                for culprit in culprits
            ]
        if version >= VERSION_WITH_LEADER and partition is not None and refusal.code is codes.NOT_LEADER_OR_FOLLOWER:
            _name_leader(broker, partition, answer, self.response)
        return answer

    def _when_on_all_replicas(self, deadline_ms: int) -> Result:
        """The response once every in-sync replica has the batches, or once it is certain that this fails or takes too long."""
        broker, node_id, response = self.broker, self.event.node_id, self.response
        waiting: list[Unacknowledged] = []
        for topic in response.responses:
            for answer in topic.partition_responses:
                partition = broker.topics.partition(self.name_of(topic) or "", answer.index)
                if partition is not None and answer.error_code == NO_ERROR:
                    waiting.append(Unacknowledged(partition, answer))
        if all(stored.is_over(broker, node_id) for stored in waiting):
            return response

        def answer_late(late_ms: int, is_last: bool) -> ProduceResponse | None:
            if not is_last and not all(stored.is_over(broker, node_id) for stored in waiting):
                return None
            for stored in waiting:
                refusal = stored.refusal(broker, node_id)
                if refusal is not None:
                    refused = self._refusal_answer(stored.partition.topic_partition, refusal, late_ms)
                    stored.answer.error_code, stored.answer.error_message = refused.error_code, refused.error_message
                    stored.answer.current_leader = refused.current_leader
            return response

        keys = {stored.partition.topic_partition for stored in waiting}
        return DelayedResponse(deadline_ms=deadline_ms, keys=keys, answer=answer_late)


def _named_tp(topic: TopicProduceData, name: str | None, data: PartitionProduceData) -> TopicPartition:
    """The partition as named in refusals. Topic names contain no spaces, so the text for an unknown id matches no topic."""
    return TopicPartition(f"topic id {topic.topic_id}" if name is None else name, data.index)


def answer_for(index: int, result: AppendResult) -> PartitionProduceResponse:
    """The response for a partition whose batch was stored."""
    return PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def _merged(topics: Sequence[TopicProduceData]) -> Sequence[TopicProduceData]:
    """Merge topics that are named several times in a request."""
    merged: dict[tuple[str, UUID], TopicProduceData] = {}
    for topic in topics:
        known = merged.setdefault((topic.name, topic.topic_id), topic)
        if known is not topic:
            known.partitions = [*known.partitions, *topic.partitions]
    return list(merged.values())


def _request_refusal(request: ProduceRequest) -> Rejected | None:
    """The refusal of all partitions at once: transactional batches without a transactional id or of several producers."""
    producers = {
        batch.read_header(data.records).identity for topic in request.topics for data in topic.partitions if _is_transactional(data.records)
    }
    if producers and request.transactional_id is None:
        return Rejected(
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch was sent in a request without a transactional id"
        )
    if len(producers) > 1:
        return Rejected(codes.INVALID_PRODUCER_ID_MAPPING, f"transactional batches of {len(producers)} producers were sent in one request")
    return None


def _may_be_transactional(request: ProduceRequest) -> bool:
    """Whether any batch may be transactional, by one byte of each; `_is_transactional` checks exactly."""
    for topic in request.topics:
        for data in topic.partitions:
            records = data.records
            if not records or len(records) <= ATTRIBUTES_POSITION:
                continue
            if isinstance(records, list) or records[ATTRIBUTES_POSITION] & ATTRIBUTE_TRANSACTIONAL:
                return True
    return False


def _is_transactional(records: Records) -> TypeGuard[Buffer]:
    """Checks the first batch only, as in Apache Kafka. Data that is too short for a header or has another format is refused later, per
    partition.
    """
    if records is None or len(records) < batch.HEADER_BYTES or isinstance(records, list):
        return False
    return bool(records[ATTRIBUTES_POSITION] & ATTRIBUTE_TRANSACTIONAL) and records[MAGIC_POSITION] == MAGIC


def _last_of_each(partitions: Sequence[PartitionProduceData]) -> Sequence[PartitionProduceData]:
    """The last entry of each partition: for a partition named twice only the last batch counts, as in Apache Kafka."""
    return list({data.index: data for data in partitions}.values())


def number_for(code: ErrorCode, version: int, numbering: Numbering) -> int:
    """The wire number of an error in this version of Produce."""
    if version < VERSION_WITH_CULPRITS and code in _INVALID_IN_OLD_VERSIONS:
        return codes.INVALID_REQUEST.number
    return code.wire(numbering)


def _count(broker: BrokerState, tp: TopicPartition, refusal: Rejected, records: Records) -> None:
    if broker.topics.get(tp.topic) is None:
        return  # Names of nonexistent topics come from clients: counting them would fill the memory.
    broker.counters.add(tp.topic, "TotalProduceRequestsPerSec")
    for name, count in refusal.counts:
        broker.counters.add(tp.topic, name, count)
    if refusal.code is codes.MESSAGE_TOO_LARGE and refusal.counts:  # Not if a fault script caused it.
        broker.counters.add(tp.topic, "BytesRejectedPerSec", len(records or ()))
    if refusal.code not in _NOT_FAILED:
        broker.counters.add(tp.topic, "FailedProduceRequestsPerSec")
    elif refusal.code is codes.KAFKA_STORAGE_ERROR:
        broker.counters.add(tp.topic, "StorageErrorsPerSec")


def _name_leader(broker: BrokerState, partition: Partition, answer: PartitionProduceResponse, response: ProduceResponse) -> None:
    """Add the current leader to the response, so that the client need not request metadata (KIP-951)."""
    replicas = partition.replicas
    answer.current_leader = LeaderIdAndEpoch(leader_id=replicas.leader, leader_epoch=replicas.leader_epoch)
    node = broker.nodes.by_id(replicas.leader)
    if node is not None and all(endpoint.node_id != node.id for endpoint in response.node_endpoints):
        response.node_endpoints.append(NodeEndpoint(node_id=node.id, host=node.host, port=node.port))
