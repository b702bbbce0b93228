"""Test harness for a producer core without a shell: append records, read the requests, write the responses, advance the clock.

Records are single letters. A batch that was sent reads `abc@0/5`: values, base sequence, epoch; `abc` alone without idempotence. The rig
itself responds to requests for metadata, producer ids, coordinators, configurations and partitions of a transaction, unless a test holds
the request back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.errors import ErrorCode, KafkaException, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import record_size
from chaffinch.producer.core.batches.batch import NewRecord, ProducerBatch
from chaffinch.producer.core.batches.produce_requests import VERSION_WITH_TOPIC_IDS, ProduceSent
from chaffinch.producer.core.effects import AskHandler, CompleteBatch, CompleteCall, FailCall, FailRecords, Report, SendRequest
from chaffinch.producer.core.exception_handler import HandlerDecision, NonRetriableResponse, Question, RetriableResponse
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.partitioner import partition_of_key
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.protocol.client_connection import FinalizedFeatures
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from chaffinch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from chaffinch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponseTopic
from chaffinch.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.records import batch as record_batch
from chaffinch.records.columns import RecordColumns
from tests.client.scripted_server import metadata

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
RETURNS_0 = TopicPartition("returns", 0)
TOPICS = ("orders", "returns")
PORT = 9092
BROKER = Address("127.0.0.1", PORT)
PRODUCER_ID = 4711
VERSION_BY_NAME = 11
"""Version of Produce that sends topic names, used unless a request allows another one."""
KEYLESS = "_"
"""A record of this value is sent without a key."""


@dataclass
class Batch:
    """One batch as it was sent."""

    tp: TopicPartition
    values: str
    base_sequence: int
    epoch: int
    producer_id: int
    is_transactional: bool

    def __str__(self) -> str:
        return self.values if self.base_sequence < 0 else f"{self.values}@{self.base_sequence}/{self.epoch}"


@dataclass
class Answer:
    """Response to a batch: an error code, and culprits as indices or as (index, own error code)."""

    code: ErrorCode = codes.NONE
    culprits: Sequence[int | tuple[int, ErrorCode]] = ()
    message: str | None = None
    base_offset: int = 0
    numbering: Any = "apache"
    leader: tuple[int, int] | None = None
    """Node and epoch of the partition's leader as the response names them (KIP-951)."""


OK = Answer()
LOST = "connection lost after the request was sent"
NOT_SENT = "connection lost before the request was sent"
TIMED_OUT = "no answer in time"


@dataclass
class Rig:
    """One core, brokers from 127.0.0.1:9092 on (the first is node 1), and two topics with `partitions` partitions each.

    The partitions are led by the nodes in turn.
    """

    options: dict[str, Any] = field(default_factory=dict)
    partitions: int = 2
    nodes: int = 1
    configs: dict[str, str] = field(default_factory=lambda: {"cleanup.policy": "delete", "min.insync.replicas": "1"})
    handler_responses: dict[str, NonRetriableResponse | RetriableResponse] | None = None
    """Responses of the exception handler by record value, FAIL for other records; None: no handler."""
    node_endpoints: tuple[int, ...] = ()
    """Nodes whose addresses each Produce response contains."""
    throttle_time_ms: int = 0
    topic_id: UUID = ZERO_UUID
    """Id of the topic in metadata; ZERO_UUID: brokers do not support topic ids."""
    produce_version: int = VERSION_WITH_TOPIC_IDS
    """Highest version of Produce that brokers support."""
    scripted: dict[type, list[Any]] = field(default_factory=dict)
    """Responses to the next requests of a class, used before the rig's own."""
    transaction_version: ClassVar[int] = 1
    """Transaction version of the cluster, as brokers report it."""
    hold: set[type] = field(default_factory=set)
    """Classes of requests that get no response until `release`."""

    def __post_init__(self) -> None:
        settings = parse_options({"bootstrap.servers": str(BROKER), "linger.ms": 0, "retry.backoff.ms": 100, **self.options})
        self.core = ProducerCore(
            settings, random.Random(7), questions=frozenset() if self.handler_responses is None else frozenset(Question)
        )
        self.steady_ms = 1_000_000
        self.open: list[SendRequest] = []
        """Produce requests without a response, in the order sent."""
        self.sent: list[Batch] = []
        self.requests: list[Any] = []
        """Every other request, in the order sent."""
        self.held: list[SendRequest] = []
        """Requests of the classes in `hold`."""
        self.handler_calls: list[str] = []
        """Calls of the exception handler: records and the name of their error."""
        self.defers_handler = False
        """The handler responds only in `complete_handler_call`; `pending_handler_calls` are its open calls."""
        self.pending_handler_calls: list[AskHandler] = []
        self.fates: dict[str, Any] = {}
        self.calls: dict[str, Any] = {}
        self.reports: list[str] = []
        self.epoch_given = 0
        self.leaders = {index: index % self.nodes + 1 for index in range(self.partitions)}
        self.leader_epochs = dict.fromkeys(self.leaders, 0)
        self.connect(self.transaction_version)
        self.step(events.TopicRequested(topic="orders"))

    # Events.

    def step(self, event: events.Event) -> None:
        """Let the core handle an event and all events that follow from it."""
        pending = [event]
        while pending:
            for effect in self.core.handle(pending.pop(0), self.steady_ms):
                if isinstance(effect, SendRequest):
                    pending += self._take(effect)
                elif isinstance(effect, AskHandler) and not self.defers_handler:
                    pending.append(self._handler_decided(effect))
                elif isinstance(effect, AskHandler):
                    self.pending_handler_calls.append(effect)
                else:
                    self._apply(effect)

    def connect(self, transaction_version: int, epoch: int = 0) -> None:
        """A connection opens; its broker reports the transaction version of the cluster."""
        features = FinalizedFeatures({"transaction.version": transaction_version} if transaction_version else {}, epoch)
        self.step(Connected(address=BROKER, features=features))

    def append(self, values: str, tp: TopicPartition = ORDERS_0) -> None:
        """Append records without a round of the core."""
        for value in values:
            key = None if value == KEYLESS else value.encode()
            content = value.encode()
            self.core.append(tp, new_record(key, content, value, tp.partition), self.steady_ms)

    def append_to_partition_of_key(self, value: str, partition_count: int, *, is_given: bool) -> None:
        """Append one record to the partition of its key. `is_given`: the caller named the partition."""
        content = value.encode()
        tp = TopicPartition("orders", partition_of_key(content, partition_count))
        self.core.append(tp, new_record(content, content, value, tp.partition if is_given else None), self.steady_ms)

    def send(self, values: str, tp: TopicPartition = ORDERS_0) -> None:
        """Append records as one batch, and run a round of the core."""
        self.append(values, tp)
        self.core.accumulator.queue_of(tp).close()
        self.step(events.TimePassed())

    def hand_over(self, *batches: str, tp: TopicPartition = ORDERS_0, chosen: bool = False) -> list[bool]:
        """Append ready-made batches of a table without a round of the core. Records that are capital letters have no key.

        Returns for each batch whether the core needs a round.
        """
        looks = []
        for values in batches:
            keys = [None if value.isupper() else value.encode() for value in values]
            columns = RecordColumns.from_lists(keys, [value.encode() for value in values], [1_700_000_000_000] * len(values))
            data = self.core.accumulator.encode_rows(columns)
            batch = ProducerBatch(
                topic_partition=tp,
                outcome_sink=list(values),
                rows=np.arange(len(values), dtype=np.int64),
                timestamps=columns.timestamps,
                data=data,
                created_ms=self.steady_ms,
                position=0,
                memory_bytes=len(data),
                key_valid=columns.key_valid,
                handed_over_ms=self.steady_ms,
                chosen=chosen,
            )
            looks.append(self.core.append_batch(batch, self.steady_ms))
        return looks

    def answer(self, *answers: Answer | str, request: int = 0) -> None:
        """Complete an open request: with one response per batch, in the order of the request, or one for all."""
        sent = self.open.pop(request)
        token: ProduceSent = sent.token
        version = min(self.produce_version, VERSION_BY_NAME if sent.version_max is None else sent.version_max)
        if answers[0] in (LOST, NOT_SENT, TIMED_OUT):
            was_sent = answers[0] != NOT_SENT
            is_timeout = answers[0] == TIMED_OUT
            self.step(
                RequestFailed(
                    address=sent.address, token=token, reason=answers[0], was_sent=was_sent, version=version, is_timeout=is_timeout
                )
            )
            return
        listed = [a for a in answers if isinstance(a, Answer)]
        if len(listed) == 1:
            listed *= len(token.batches)
        parts: dict[str, TopicProduceResponse] = {}
        for tp, answer in zip(token.batches, listed, strict=True):
            known = {"name": tp.topic} if version < VERSION_WITH_TOPIC_IDS else {"topic_id": token.topic_ids[tp.topic]}
            topic = parts.setdefault(tp.topic, TopicProduceResponse(**known))
            topic.partition_responses.append(_part(tp, answer))
        response = ProduceResponse(responses=list(parts.values()))
        for node in self.node_endpoints:
            response.node_endpoints.append(NodeEndpoint(node_id=node, host=BROKER.host, port=PORT + node - 1))
        response.throttle_time_ms = self.throttle_time_ms
        self.step(ResponseReceived(address=sent.address, token=token, message=response, numbering=listed[0].numbering, version=version))

    def move_leader(self, partition: int, node: int) -> None:
        """Another node leads the partition from now on. The core is not notified."""
        self.leaders[partition] = node
        self.leader_epochs[partition] += 1

    def written(self) -> None:
        """The open request, of acks=0, was written to the socket."""
        self.step(RequestWritten(address=BROKER, token=self.open.pop(0).token))

    def disconnect(self) -> None:
        self.step(Disconnected(address=BROKER, reason="refused"))

    def sleep(self, ms: int) -> None:
        """Advance the clock, with a round of the core at every deadline."""
        until_ms = self.steady_ms + ms
        for _ in range(10_000):
            deadline_ms = self.core.next_deadline_ms
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.steady_ms = max(self.steady_ms, deadline_ms)
            self.step(events.TimePassed())
        self.steady_ms = until_ms
        self.step(events.TimePassed())

    def release(self) -> None:
        """Send the rig's own response to the first held request."""
        effect = self.held.pop(0)
        self.step(ResponseReceived(address=effect.address, token=effect.token, message=self._answer_to(effect.message)))

    def complete_handler_call(self) -> None:
        """The exception handler returns from its first open call."""
        self.step(self._handler_decided(self.pending_handler_calls.pop(0)))

    def _handler_decided(self, effect: AskHandler) -> events.HandlerDecided:
        assert self.handler_responses is not None, "there is no handler to call"
        values = {index: effect.batch.outcome_sink[effect.batch.rows[index]] for index in effect.errors}
        self.handler_calls += ["".join(values.values()) + " " + "/".join(dict.fromkeys(error.name for error in effect.errors.values()))]
        responses = {index: self.handler_responses.get(value) for index, value in values.items()}
        swallowed = frozenset(
            i for i, response in responses.items() if response in (NonRetriableResponse.SWALLOW, RetriableResponse.SWALLOW)
        )
        retried = frozenset(i for i, response in responses.items() if response is RetriableResponse.RETRY)
        return events.HandlerDecided(batch=effect.batch, decision=HandlerDecision(swallowed=swallowed, retried=retried))

    def call(self, kind: type, name: str, **arguments: Any) -> Any:
        """Make a call of the producer under a name. Returns its outcome so far: None, "done" or the error."""
        if kind in (events.InitTransactionsCalled, events.SendOffsetsCalled, events.CommitCalled, events.AbortCalled):
            arguments.setdefault("deadline_ms", self.steady_ms + 60_000)
        self.step(kind(call=name, **arguments))
        return self.calls.get(name)

    # Outcomes.

    @property
    def trace(self) -> list[str]:
        """All batches sent so far."""
        return [str(batch) for batch in self.sent]

    def fate(self, values: str) -> list[str]:
        """Outcome of each record: its offset, or its error's class and whether it is stored; `open` if it has none yet."""
        return [self._fate(value) for value in values]

    def error(self, value: str) -> KafkaException:
        error = self.fates[value]
        assert isinstance(error, KafkaException)
        return error

    def _fate(self, value: str) -> str:
        fate = self.fates.get(value, "open")
        return f"{type(fate).__name__} {fate.stored.value}" if isinstance(fate, KafkaException) else str(fate)

    def _take(self, effect: SendRequest) -> list[events.Event]:
        message = effect.message
        if isinstance(message, ProduceRequest):
            self.open.append(effect)
            self.sent += [_batch(tp, data) for tp, data in _tps(message)]
            return []
        self.requests.append(message)
        if type(message) in self.hold:
            self.held.append(effect)
            return []
        answers = self.scripted.get(type(message))
        answer = answers.pop(0) if answers else self._answer_to(message)
        if answer in (LOST, NOT_SENT):
            return [RequestFailed(address=effect.address, token=effect.token, reason=answer, was_sent=answer == LOST)]
        return [ResponseReceived(address=effect.address, token=effect.token, message=answer)]

    def _apply(self, effect: Any) -> None:
        match effect:
            case CompleteBatch():
                for index, row in enumerate(effect.batch.rows):
                    self._end(effect.batch.outcome_sink[row], -1 if effect.base_offset < 0 else effect.base_offset + index)
            case FailRecords():
                for index, row in enumerate(effect.batch.rows):
                    error = effect.errors.get(index, effect.error)
                    if index in effect.dropped:
                        self._end(effect.batch.outcome_sink[row], "dropped")
                    elif error is not None:
                        self._end(effect.batch.outcome_sink[row], error)
            case CompleteCall():
                assert effect.call not in self.calls, f"{effect.call} ended twice"
                self.calls[effect.call] = "done"
            case FailCall():
                assert effect.call not in self.calls, f"{effect.call} ended twice"
                self.calls[effect.call] = effect.error
            case Report():
                self.reports.append(effect.text)

    def _end(self, value: str, fate: Any) -> None:
        assert value not in self.fates, f"record {value} ended twice: {self.fates[value]!r}, then {fate!r}"
        self.fates[value] = fate

    def _answer_to(self, message: Any) -> Any:
        match message:
            case MetadataRequest():
                assert message.topics is not None
                requested = [topic.name for topic in message.topics]
                known = {name: self.partitions for name in requested if name in TOPICS}
                answer = metadata(known, {n + 1: PORT + n for n in range(self.nodes)})
                for topic in answer.topics:
                    topic.topic_id = self.topic_id if topic.name == "orders" else ZERO_UUID
                    for part in topic.partitions:
                        part.leader_id = self.leaders.get(part.partition_index, 1)
                        part.leader_epoch = self.leader_epochs.get(part.partition_index, 0)
                unknown = codes.UNKNOWN_TOPIC_OR_PARTITION.number
                answer.topics += [MetadataResponseTopic(name=name, error_code=unknown) for name in requested if name not in TOPICS]
                return answer
            case InitProducerIdRequest():
                self.epoch_given = 0 if message.producer_id < 0 else message.producer_epoch + 1
                return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=self.epoch_given)
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(node_id=1, host=BROKER.host, port=BROKER.port)
            case AddPartitionsToTxnRequest():
                return added(message)
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse()
            case TxnOffsetCommitRequest():
                return committed(message)
            case EndTxnRequest():
                if not self.transaction_version > 1:
                    return EndTxnResponse()
                self.epoch_given = message.producer_epoch + 1
                return EndTxnResponse(producer_id=message.producer_id, producer_epoch=self.epoch_given)
            case DescribeConfigsRequest():
                rows = [DescribeConfigsResourceResult(name=name, value=value) for name, value in self.configs.items()]
                return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=rows)])
        raise AssertionError(f"the rig has no answer to {message}")


def new_record(key: bytes | None, value: bytes | None, future: Any, partition: int | None = 0, **more: Any) -> NewRecord:
    """A record of topic `orders` as `send` appends it. The size is computed unless it is given."""
    known = {"topic": "orders", "timestamp_ms": 1_700_000_000_000, "size": record_size(key, value, more.get("headers", ())), **more}
    return NewRecord(key=key, value=value, future=future, partition=partition, **known)


def added(request: AddPartitionsToTxnRequest, code: ErrorCode = codes.NONE) -> AddPartitionsToTxnResponse:
    topics = [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code.number) for index in topic.partitions
            ],
        )
        for topic in request.v3_and_below_topics
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def committed(request: TxnOffsetCommitRequest, code: ErrorCode = codes.NONE) -> TxnOffsetCommitResponse:
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code.number)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


def _tps(message: ProduceRequest) -> list[tuple[TopicPartition, Any]]:
    return [(TopicPartition(topic.name, part.index), part.records) for topic in message.topics for part in topic.partitions]


def _batch(tp: TopicPartition, data: Any) -> Batch:
    (view,) = record_batch.views(bytes(data))
    assert view.crc_is_valid()
    columns = record_batch.decode(view)
    values = "".join((columns.value(i) or b"").decode() for i in range(columns.count))
    header = view.header
    return Batch(tp, values, header.base_sequence, header.producer_epoch, header.producer_id, header.is_transactional)


def _part(tp: TopicPartition, answer: Answer) -> PartitionProduceResponse:
    record_errors = []
    for culprit in answer.culprits:
        index, own = culprit if isinstance(culprit, tuple) else (culprit, None)
        number = None if own is None else own.wire("kip")
        record_errors.append(
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=f"bad {index}", chaffinch_error_code=number)
        )
    return PartitionProduceResponse(
        index=tp.partition,
        error_code=answer.code.wire(answer.numbering),
        base_offset=answer.base_offset if answer.code is codes.NONE or answer.base_offset > 0 else -1,
        record_errors=record_errors,
        error_message=answer.message,
        current_leader=None if answer.leader is None else LeaderIdAndEpoch(leader_id=answer.leader[0], leader_epoch=answer.leader[1]),
    )
