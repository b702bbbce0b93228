"""Produce: one batch per partition goes through `append`, and each refusal comes back with all its reasons (KIP-467, KIP-579, KIP-135).

What an old client may hear: below version 8 there are no culprits and no text, and INVALID_RECORD and INVALID_COMPACTION_KEY become
INVALID_REQUEST (never CORRUPT_MESSAGE, which would be retried). `error.numbering` decides which numbers travel.
From version 13 on topics are known by their ids (KIP-516).

A few bytes may unpack to many, and a request may name ten thousand partitions: what takes long is done in several turns, between which
others are served. Partitions are independent: each finds things as they are in its turn, and when the connection is lost, the rest is left.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeGuard
from uuid import UUID

from chaffinch.broker.core.append import VERSION_WITH_IMPLICIT_ADD, AppendTerms, Outcome, append
from chaffinch.broker.core.broker_state import SILENCE, BrokerState, Close, Result, Waiting, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import disk_failure
from chaffinch.broker.core.replicas.acknowledgement import ACKS_ALL, Unacknowledged
from chaffinch.broker.core.topics.creation_rules import INTERNAL
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Numbering
from chaffinch.identifiers import NO_OFFSET, NO_TIMESTAMP, TopicPartition, partitions_in_words
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
from chaffinch.records.verdicts import Rejected
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.partition_log import AppendResult

VERSION_WITH_CULPRITS = 8
VERSION_WITH_LEADER = 10
VERSION_WITH_TOPIC_IDS = 13
ACKS = frozenset({-1, 0, 1})
ATTRIBUTES_POSITION = 22
"""The byte of a batch header that says whether the batch is transactional: the low one of the attributes."""

TURN_BYTES_MAX = 16 << 20
"""Records that are unpacked and checked in one turn, about 10 ms, and no more than the batch with which it is reached. More than nearly all
requests bring."""

PARTITION_BYTES = 64 << 10
"""What it costs beside its records to work on a partition, about: no more than 256 of them in one turn."""

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


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request, version = event.request.message, event.request.version
    assert isinstance(request, ProduceRequest)
    terms = AppendTerms(request.acks, version, request.transactional_id)
    refused_whole = None
    if request.transactional_id is not None or _may_be_transactional(request):
        refused_whole = _whole_refusal(request)
        if request.transactional_id is not None and version >= VERSION_WITH_IMPLICIT_ADD and refused_whole is None:
            terms.joining = _led_here(broker, event.node_id, request, version)
    topics = request.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        turns = _turns(broker, event, terms, fault, refused_whole, now_ms)
        return next(turns) or _rest(turns, now_ms)
    topic, response = topics[0], ProduceResponse()
    name = topic.name if version < VERSION_WITH_TOPIC_IDS else _name_of(broker, topic.topic_id)
    data = topic.partitions[0]
    refusal = refused_whole if fault is None else _scripted(fault, _place(topic, name, data)) or refused_whole
    answer = _answer(broker, event, topic, name, data, refusal, terms, response, now_ms)
    response.responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer]))
    return _result(broker, event, response, now_ms, has_refusal=answer.error_code != NO_ERROR)


_Turns: TypeAlias = Generator[Result | None, int, None]
"""Gives None, and is sent the time of the next turn, until all is done; then the result."""


def _turns(
    broker: BrokerState, event: RequestReceived, terms: AppendTerms, fault: Fault | None, refused_whole: Rejected | None, now_ms: int
) -> _Turns:
    """Work on a request with any number of partitions."""
    request, version = event.request.message, event.request.version
    assert isinstance(request, ProduceRequest)
    response, has_refusal = ProduceResponse(), False
    turn_end = broker.bytes_handled + TURN_BYTES_MAX
    for topic in _merged(request.topics):
        answers = []
        name = topic.name if version < VERSION_WITH_TOPIC_IDS else _name_of(broker, topic.topic_id)
        for data in _last_of_each(topic.partitions):
            if broker.bytes_handled >= turn_end:
                now_ms = yield None
                turn_end = broker.bytes_handled + TURN_BYTES_MAX
                name = topic.name if version < VERSION_WITH_TOPIC_IDS else _name_of(broker, topic.topic_id)  # It may be gone by now.
            broker.bytes_handled += PARTITION_BYTES
            refusal = refused_whole if fault is None else _scripted(fault, _place(topic, name, data)) or refused_whole
            answer = _answer(broker, event, topic, name, data, refusal, terms, response, now_ms)
            has_refusal = has_refusal or answer.error_code != NO_ERROR
            answers.append(answer)
        response.responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
    yield _result(broker, event, response, now_ms, has_refusal=has_refusal)


def _rest(turns: _Turns, now_ms: int) -> Waiting:
    """What is done when others have had their turn."""

    def answer(late_ms: int, is_last: bool) -> Result:
        return turns.send(late_ms) or _rest(turns, late_ms)

    return Waiting(deadline_ms=now_ms, keys=(), answer=answer, is_unfinished=True)


def _result(broker: BrokerState, event: RequestReceived, response: ProduceResponse, now_ms: int, *, has_refusal: bool) -> Result:
    """What becomes of a request that is done."""
    request = event.request.message
    assert isinstance(request, ProduceRequest)
    if request.acks == 0:
        return Close("a Produce request with acks=0 was refused") if has_refusal else SILENCE
    if request.acks == ACKS_ALL and broker.nodes.lagging:
        return _when_on_all_replicas(broker, event, response, now_ms + max(request.timeout_ms, 0))
    return response


def answer_for(index: int, result: AppendResult) -> PartitionProduceResponse:
    """The answer for a partition that took its batch."""
    return PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def _place(topic: TopicProduceData, name: str | None, data: PartitionProduceData) -> TopicPartition:
    """What a refusal calls a partition. No topic has a space in its name, so an unknown id is nobody's."""
    return TopicPartition(f"topic id {topic.topic_id}" if name is None else name, data.index)


def _led_here(broker: BrokerState, node_id: int, request: ProduceRequest, version: int) -> list[TopicPartition]:
    """The partitions of a request that this node leads."""
    places = []
    for topic in request.topics:
        name = topic.name if version < VERSION_WITH_TOPIC_IDS else _name_of(broker, topic.topic_id)
        for data in topic.partitions:
            partition = broker.topics.partition(name or "", data.index)
            if partition is not None and partition.replicas.leader == node_id:
                places.append(partition.topic_partition)
    return places


def _merged(topics: Sequence[TopicProduceData]) -> Sequence[TopicProduceData]:
    """A topic named twice in a request is one topic with the partitions of both."""
    merged: dict[tuple[str, UUID], TopicProduceData] = {}
    for topic in topics:
        known = merged.setdefault((topic.name, topic.topic_id), topic)
        if known is not topic:
            known.partitions = [*known.partitions, *topic.partitions]
    return list(merged.values())


def _name_of(broker: BrokerState, topic_id: UUID) -> str | None:
    known = broker.topics.by_id(topic_id)
    return None if known is None else known.name


def _scripted(fault: Fault, place: TopicPartition) -> Rejected | None:
    if not fault.covers(*place):
        return None
    return Rejected(fault.error, "asked for by a fault script")


def _when_on_all_replicas(broker: BrokerState, event: RequestReceived, response: ProduceResponse, deadline_ms: int) -> Result:
    """The answer once every in-sync replica has the batches, or it is certain that they will not in time."""
    waiting: list[Unacknowledged] = []
    for topic in response.responses:
        for answer in topic.partition_responses:
            partition = broker.topics.partition(topic.name or _name_of(broker, topic.topic_id) or "", answer.index)
            if partition is not None and answer.error_code == NO_ERROR:
                waiting.append(Unacknowledged(partition, answer))
    if all(stored.is_over(broker, event.node_id) for stored in waiting):
        return response

    def answer_late(late_ms: int, is_last: bool) -> ProduceResponse | None:
        if not is_last and not all(stored.is_over(broker, event.node_id) for stored in waiting):
            return None
        for stored in waiting:
            refusal = stored.refusal(broker, event.node_id)
            if refusal is not None:
                refused = _refusal_answer(broker, event, stored.partition.topic_partition, refusal, response, late_ms)
                stored.answer.error_code, stored.answer.error_message = refused.error_code, refused.error_message
                stored.answer.current_leader = refused.current_leader
        return response

    keys = {stored.partition.topic_partition for stored in waiting}
    return Waiting(deadline_ms=deadline_ms, keys=keys, answer=answer_late)


def _answer(
    broker: BrokerState,
    event: RequestReceived,
    topic: TopicProduceData,
    name: str | None,
    data: PartitionProduceData,
    refusal: Rejected | None,
    terms: AppendTerms,
    response: ProduceResponse,
    now_ms: int,
) -> PartitionProduceResponse:
    """Store what came for one partition, unless something speaks against it."""
    outcome: Outcome | None = refusal
    if outcome is None:
        partition = None if name is None else broker.topics.partition(name, data.index)
        if partition is None or partition.replicas.leader != event.node_id or name in INTERNAL or terms.acks not in ACKS:
            outcome = _misplaced(broker, event, topic, name, data.index, terms)
        else:
            try:
                assert not isinstance(data.records, list)  # Only requests that are to be sent hold lists.
                outcome = append(broker, partition, data.records, terms, now_ms)
            except StorageError as error:
                message = disk_failure(partition.topic_partition)
                outcome = Rejected(codes.KAFKA_STORAGE_ERROR, message, logged=str(error))
    if isinstance(outcome, AppendResult):
        return answer_for(data.index, outcome)
    place = _place(topic, name, data)
    _count(broker, place, outcome, data.records)
    return _refusal_answer(broker, event, place, outcome, response, now_ms)


def _misplaced(
    broker: BrokerState, event: RequestReceived, topic: TopicProduceData, name: str | None, index: int, terms: AppendTerms
) -> Rejected:
    """Why a partition takes nothing, whatever its records are."""
    if name is None:
        return Rejected(codes.UNKNOWN_TOPIC_ID, f"no topic of this cluster has the id {topic.topic_id}")
    partition = broker.topics.partition(name, index)
    if partition is None:
        known, place = broker.topics.get(name), TopicPartition(name, index)
        has = "" if known is None else f": topic {name} has {partitions_in_words(len(known.partitions))}"
        return Rejected(codes.UNKNOWN_TOPIC_OR_PARTITION, f"{place} does not exist on this cluster{has}")
    if name in INTERNAL:
        return Rejected(codes.INVALID_TOPIC_EXCEPTION, f"topic {name} belongs to the broker; clients cannot write it")
    leader = partition.replicas.leader
    if leader != event.node_id:
        wrong = f"node {event.node_id} does not lead {partition.topic_partition}, node {leader} does"
        return Rejected(codes.NOT_LEADER_OR_FOLLOWER, wrong)
    return Rejected(codes.INVALID_REQUIRED_ACKS, f"acks={terms.acks}: it must be all (-1), 1 or 0")


def _whole_refusal(request: ProduceRequest) -> Rejected | None:
    """What refuses every partition at once: transactional batches without or with several producers."""
    producers = {
        batch.read_header(data.records).identity for topic in request.topics for data in topic.partitions if _is_transactional(data.records)
    }
    if producers and request.transactional_id is None:
        return Rejected(codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch came in a request without a transactional id")
    if len(producers) > 1:
        return Rejected(codes.INVALID_PRODUCER_ID_MAPPING, f"transactional batches of {len(producers)} producers came in one request")
    return None


def _may_be_transactional(request: ProduceRequest) -> bool:
    """Whether any batch may be, by one byte of each; `_is_transactional` looks closely."""
    for topic in request.topics:
        for data in topic.partitions:
            records = data.records
            if not records or len(records) <= ATTRIBUTES_POSITION:
                continue
            if isinstance(records, list) or records[ATTRIBUTES_POSITION] & ATTRIBUTE_TRANSACTIONAL:
                return True
    return False


def _is_transactional(records: Records) -> TypeGuard[Buffer]:
    """By the first batch, as in Apache Kafka; bytes too short for a header or of another format are refused later, each on its own."""
    if records is None or len(records) < batch.HEADER_BYTES or isinstance(records, list):
        return False
    return bool(records[ATTRIBUTES_POSITION] & ATTRIBUTE_TRANSACTIONAL) and records[MAGIC_POSITION] == MAGIC


def _last_of_each(partitions: Sequence[PartitionProduceData]) -> Sequence[PartitionProduceData]:
    """The same partition twice in a request: one answer, one batch, the last one, as in Apache Kafka."""
    return list({data.index: data for data in partitions}.values())


def _refusal_answer(
    broker: BrokerState, event: RequestReceived, place: TopicPartition, refusal: Rejected, response: ProduceResponse, now_ms: int
) -> PartitionProduceResponse:
    version = event.request.version
    partition = broker.topics.partition(*place)
    if refusal.code is not codes.UNKNOWN_TOPIC_OR_PARTITION or place.topic:
        refuse(broker, event, now_ms, place=place, code=refusal.code, reason=refusal.logged or refusal.message)
    code, culprits = refusal.travelling(broker.numbering)
    answer = PartitionProduceResponse(
        index=place.partition,
        error_code=number_for(code, version, broker.numbering),
        base_offset=NO_OFFSET,
        log_append_time_ms=NO_TIMESTAMP,
        log_start_offset=partition.log.log_start_offset if partition is not None and refusal.code not in _NOT_FAILED else NO_OFFSET,
    )
    if version >= VERSION_WITH_CULPRITS:
        tells_codes = event.client_software_name == OUR_SOFTWARE
        answer.error_message = refusal.message
        answer.record_errors = [
            BatchIndexAndErrorMessage(
                batch_index=culprit.batch_index,
                batch_index_error_message=culprit.message,
                # The KIPs' numbers whatever `error.numbering` says: 87 would not tell a null key from another fault.
                chaffinch_error_code=culprit.code.number_kip if tells_codes else None,
            )
            for culprit in culprits
        ]
    if version >= VERSION_WITH_LEADER and partition is not None and refusal.code is codes.NOT_LEADER_OR_FOLLOWER:
        _name_leader(broker, partition, answer, response)
    return answer


def number_for(code: ErrorCode, version: int, numbering: Numbering) -> int:
    """The number under which an error travels in this version of Produce."""
    if version < VERSION_WITH_CULPRITS and code in _INVALID_IN_OLD_VERSIONS:
        return codes.INVALID_REQUEST.number
    return code.wire(numbering)


def _count(broker: BrokerState, place: TopicPartition, refusal: Rejected, records: Records) -> None:
    if broker.topics.get(place.topic) is None:
        return  # Names of topics that do not exist come from outside: counting them would fill the memory.
    broker.counters.add(place.topic, "TotalProduceRequestsPerSec")
    for name, count in refusal.counts:
        broker.counters.add(place.topic, name, count)
    if refusal.code is codes.MESSAGE_TOO_LARGE and refusal.counts:  # Not by a fault script.
        broker.counters.add(place.topic, "BytesRejectedPerSec", len(records or ()))
    if refusal.code not in _NOT_FAILED:
        broker.counters.add(place.topic, "FailedProduceRequestsPerSec")
    elif refusal.code is codes.KAFKA_STORAGE_ERROR:
        broker.counters.add(place.topic, "StorageErrorsPerSec")


def _name_leader(broker: BrokerState, partition: Partition, answer: PartitionProduceResponse, response: ProduceResponse) -> None:
    """Say who leads, so that the client need not ask for metadata (KIP-951)."""
    replicas = partition.replicas
    answer.current_leader = LeaderIdAndEpoch(leader_id=replicas.leader, leader_epoch=replicas.leader_epoch)
    node = broker.nodes.by_id(replicas.leader)
    if node is not None and all(endpoint.node_id != node.id for endpoint in response.node_endpoints):
        response.node_endpoints.append(NodeEndpoint(node_id=node.id, host=node.host, port=node.port))
