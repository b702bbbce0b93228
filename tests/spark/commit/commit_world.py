"""Test driver of commits: against the real broker core in memory, with a manual clock. Every operation can be interrupted.

`Broker` is the core with its disk. `Query` stands for Spark: micro-batches with their rows, a checkpoint that survives, runs that may end
at any step. `Cut` says where and how a run is disturbed. Nothing sleeps, nothing is random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import ConnectionLost, RequestReceived, Respond, TimePassed
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.client.backoff import RETRY_BACKOFF
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from chaffinch.protocol.server_connection import ReceivedRequest
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.control_batch import committed
from chaffinch.spark import snapshot
from chaffinch.spark.commit import complete_previous, hanging_transactions, operations
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.messages import StagedBatch, StagedBytes, TaskContextFacts, TaskOutcome
from chaffinch.spark.commit.plan import Commit, CommitPlan, CommitResult
from chaffinch.spark.commit.protocol import commit_batch
from chaffinch.spark.commit.retry_policy import RetryPolicy
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.tasks.dead_letter_headers import Origin
from chaffinch.spark.tasks.dead_letters import broker_dead_letter_batches, dead_letter_records
from chaffinch.storage.memory_files import MemoryFileSystem

BEGIN_MS = 1_700_000_000_000
TOPIC, DEAD = "orders", "orders-dead"
NODE = Node(id=0, host="broker.test", port=9092)


RETRY_POLICY = RetryPolicy(block_max_ms=60_000, wait_ms=lambda failures: RETRY_BACKOFF.wait_ms(failures, random.Random(failures)))


class Broker:
    """The broker core, its disk and the time."""

    offsets_partitions = 50
    """Partition count of `__consumer_offsets`, as of Apache Kafka; the embedded broker does not use the topic. 0: not reported."""
    markers_refused = codes.NONE
    """Error for writing end markers."""
    offsets_refused = codes.NONE
    """Error for requests about open transactions in `__consumer_offsets`."""

    def __init__(self, *, partitions: int = 2, config: dict[str, str] | None = None, settings: dict[str, Any] | None = None) -> None:
        self.files = MemoryFileSystem()
        self.settings = settings or {}
        self.steady_ms = BEGIN_MS
        self.connection = 0
        self.offset_epochs: dict[tuple[str, int], int] = {}
        """Epoch of a producer's last offsets of a group, which the embedded broker does not record."""
        self.core = self._started()
        self.core.create_topic(TOPIC, partitions, 1, config or {}, steady_ms=self.steady_ms)
        self.core.create_topic(DEAD, 1, 1, {}, steady_ms=self.steady_ms)

    def _started(self) -> BrokerCore:
        return BrokerCore(self.files, self.settings, nodes=[NODE], rng=random.Random(7), steady_ms=self.steady_ms)

    def kill(self) -> None:
        """SIGKILL, and a start on the same directory."""
        self.core.abandon()
        self.files.kill()
        self.core = self._started()

    def pass_time(self, by_ms: int) -> None:
        self.steady_ms += by_ms
        self.core.handle(TimePassed(), self.steady_ms)

    def ask(self, message: Any, version: int | None = None) -> Any:
        """The response; None when the connection was closed instead."""
        api = api_of(message)
        version = max(api.used) if version is None else version
        if isinstance(message, TxnOffsetCommitRequest):
            self.offset_epochs[message.group_id, message.producer_id] = message.producer_epoch
        self.connection += 1
        request = ReceivedRequest(api=api, version=version, correlation_id=1, client_id="test", message=message)
        event = RequestReceived(connection_id=self.connection, request=request, client_software_name="chaffinch")
        effects = self.core.handle(event, self.steady_ms)
        answers = [effect.message for effect in effects if isinstance(effect, Respond) and effect.connection_id == self.connection]
        self.core.handle(ConnectionLost(connection_id=self.connection), self.steady_ms)
        return answers[0] if answers else None

    def read(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """All committed (key, value) of a topic."""
        found = self.core.topics.get(topic)
        assert found is not None
        count = len(found.partitions)
        return [pair for partition in range(count) for pair in self.read_partition(TopicPartition(topic, partition))]

    def open_in(self, where: TopicPartition) -> list[Any]:
        """The producers that have something open in a partition."""
        (part,) = self.ask(hanging_transactions.describe_producers_request([where])).topics[0].partitions
        return [state for state in part.active_producers if state.current_txn_start_offset >= 0]

    def read_partition(self, where: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
        partition = FetchPartition(partition=where.partition, fetch_offset=0, partition_max_bytes=1 << 26)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, isolation_level=1, topics=[FetchTopic(topic=where.topic, partitions=[partition])]
        )
        data = self.ask(request).responses[0].partitions[0]
        assert data.error_code == 0
        records = data.records or b""
        if isinstance(records, list):
            records = b"".join(bytes(part) for part in records)
        aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
        pairs = []
        for view, is_visible in committed(batches.views(records), aborted):
            if is_visible:
                columns = batches.decode(view)
                pairs += [(columns.key(index), columns.value(index)) for index in range(len(columns))]
        return pairs


class Killed(Exception):
    """The committing process is gone."""


@dataclass(kw_only=True)
class Cut:
    """Disturbs a run at its `at`-th operation (0-based). `how`: see `Driver.perform`."""

    at: int
    how: str
    during: Callable[[], object] | None = None
    """For `how` = during: what happens between this operation and the next."""


@dataclass
class Driver:
    """Performs the operations of one commit."""

    broker: Broker
    query: Query
    cut: Cut | None = None
    steps: list[operations.Step] = field(default_factory=list)
    count: int = 0
    answers: list[operations.BatchResponse] = field(default_factory=list)
    result: CommitResult = field(init=False, repr=False)
    """Of `Query.commit`."""

    def run(self, plan: CommitPlan, protocol: Callable[[CommitPlan], Commit] = commit_batch) -> CommitResult:
        commit = protocol(plan)
        try:
            operation = next(commit)
            while True:
                self.steps.append(operation.step)
                try:
                    value = self.perform(operation)
                except Refusal as refusal:
                    operation = commit.throw(refusal)
                    continue
                operation = commit.send(operations.Reply(steady_ms=self.broker.steady_ms, value=value))
        except StopIteration as done:
            result: CommitResult = done.value
            return result

    def perform(self, operation: Any) -> Any:
        """`crash_before`, `crash_after`: the driver dies. `lose_request`, `lose_answer`: no answer comes. `broker_killed`: before it.
        `during`: something else happens after it."""
        cut = self.cut if self.cut is not None and self.cut.at == self.count else None
        self.count += 1
        how = cut.how if cut is not None else ""
        if how == "crash_before":
            raise Killed
        if how == "broker_killed":
            self.broker.kill()
        is_sent = how == "lose_request" and isinstance(
            operation,
            operations.SendRequest
            | operations.SendBatch
            | operations.FindHangingTransactions
            | operations.CountPartitions
            | operations.WriteMarkers,
        )
        value = None if is_sent else self.effect(operation)
        if how == "crash_after":
            raise Killed
        if cut is not None and cut.during is not None:
            cut.during()
        if how in ("lose_request", "lose_answer"):
            lost = operations.Lost(reason="cut by the test", was_sent=True)
            if isinstance(operation, operations.SendRequest | operations.CountPartitions):
                return lost
            if isinstance(operation, operations.FindHangingTransactions):
                return operations.HangingTransactions(reason=lost.reason)
            if isinstance(operation, operations.WriteMarkers):
                return operations.WriteMarkersResult(
                    reason=lost.reason, possibly_written=frozenset(transaction.tp for transaction in operation.transactions)
                )
            if isinstance(operation, operations.SendBatch):
                self.answers = [answer for answer in self.answers if answer.send_id != operation.send_id]
                self.answers.append(operations.BatchResponse(send_id=operation.send_id, lost=lost))
        return value

    def effect(self, operation: Any) -> Any:
        match operation:
            case operations.SendRequest():
                answer = self.broker.ask(operation.message)
                return operations.Lost(reason="connection closed") if answer is None else answer
            case operations.SendBatch():
                self.send(operation)
            case operations.NextResponse():
                return self.answers.pop(0)
            case operations.CallHandler():
                assert self.query.left_out is not None
                columns = batches.decode(bytes(operation.batch.bytes.data or b""))
                return frozenset(found.row for found in operation.culprits if columns.value(found.row) in self.query.left_out)
            case operations.MakeDeadLetters():
                return self.query.make_dead_letters(operation, self.broker)
            case operations.WriteDeadLetters():
                self.query.parquet[operation.writer_id] = operation.rows
            case operations.NameDeadLetters():
                self.query.parquet = {None: self.query.parquet.pop(operation.writer_id, ())}
            case operations.ReadState():
                return self.query.state
            case operations.WriteState():
                self.query.state = CheckpointState.from_text(operation.state.to_text())
            case operations.FindHangingTransactions() | operations.CountPartitions() | operations.WriteMarkers():
                return self.ask_leaders(operation)
            case operations.Wait():
                self.broker.pass_time(operation.ms)
        return None

    def ask_leaders(self, operation: operations.FindHangingTransactions | operations.CountPartitions | operations.WriteMarkers) -> Any:
        if isinstance(operation, operations.CountPartitions):
            return self.broker.offsets_partitions
        if isinstance(operation, operations.WriteMarkers):
            return self.write_markers(operation)
        if operation.partitions[0].topic == complete_previous.OFFSETS_TOPIC:
            return self.find_pending(operation)
        answer = self.broker.ask(hanging_transactions.describe_producers_request(operation.partitions))
        return (
            operations.HangingTransactions(reason="connection closed")
            if answer is None
            else hanging_transactions.parse_response(answer, operation.producer_id)
        )

    def groups(self, tp: TopicPartition, producer_id: int) -> list[str]:
        """Groups with pending offsets of a producer in a partition of `__consumer_offsets`."""
        pending = [group for group, number in self.broker.core.state.offsets.pending() if number == producer_id]
        return [group for group in pending if complete_previous.offsets_partition(group, self.broker.offsets_partitions) == tp.partition]

    def find_pending(self, operation: operations.FindHangingTransactions) -> operations.HangingTransactions:
        """The response of that partition's leader."""
        (tp,) = operation.partitions
        if self.broker.offsets_refused is not codes.NONE:
            return operations.HangingTransactions(answered=frozenset([tp]), refused=self.broker.offsets_refused)
        groups = self.groups(tp, operation.producer_id)
        epochs = [self.broker.offset_epochs[group, operation.producer_id] for group in groups]
        return operations.HangingTransactions(
            answered=frozenset([tp]), hanging=frozenset(operations.HangingTransaction(tp, epoch, 0) for epoch in epochs)
        )

    def write_markers(self, operation: operations.WriteMarkers) -> operations.WriteMarkersResult:
        if self.broker.markers_refused is not codes.NONE:
            return operations.WriteMarkersResult(
                refused=self.broker.markers_refused, denied=frozenset(transaction.tp for transaction in operation.transactions)
            )
        for transaction in operation.transactions:
            if transaction.tp.topic == complete_previous.OFFSETS_TOPIC:
                for group in self.groups(transaction.tp, operation.identity.producer_id):
                    self.broker.core.state.offsets.complete(group, operation.identity.producer_id, True)
        rows = [transaction for transaction in operation.transactions if transaction.tp.topic != complete_previous.OFFSETS_TOPIC]
        answer = self.broker.ask(complete_previous.write_markers_request(operation.identity, rows)) if rows else None
        said = (
            complete_previous.parse_response(answer)
            if answer is not None
            else operations.WriteMarkersResult(possibly_written=frozenset(transaction.tp for transaction in rows))
        )
        return replace(said, done=said.done | {transaction.tp for transaction in operation.transactions if transaction not in rows})

    def send(self, operation: operations.SendBatch) -> None:
        data = bytearray(operation.batch.bytes.data or b"")
        if operation.record_indices is not None:
            shortened = batches.without_records(data, [i for i in range(operation.batch.record_count) if i not in operation.record_indices])
            assert shortened is not None
            data = shortened
        batches.patch_producer(data, 0, operation.identity, operation.base_sequence, is_transactional=True)
        where = operation.batch.topic_partition
        part = PartitionProduceData(index=where.partition, records=memoryview(data))
        answer = self.broker.ask(
            ProduceRequest(
                transactional_id=self.query.transactional_id,
                acks=-1,
                timeout_ms=1000,
                topics=[TopicProduceData(name=where.topic, partitions=[part])],
            )
        )
        if answer is None:
            self.answers.append(operations.BatchResponse(send_id=operation.send_id, lost=operations.Lost(reason="connection closed")))
            return
        found = answer.responses[0].partition_responses[0]
        culprits = tuple(
            (
                culprit.batch_index,
                codes.by_number(culprit.chaffinch_error_code or found.error_code, "kip", has_culprits=True),
                culprit.batch_index_error_message or "",
            )
            for culprit in found.record_errors
        )
        code = codes.by_number(found.error_code, has_culprits=bool(culprits))
        self.answers.append(
            operations.BatchResponse(
                send_id=operation.send_id, code=code, message=found.error_message or "", culprits=culprits, byte_count=len(data)
            )
        )


def outcome(
    rows: Mapping[int, Sequence[tuple[bytes | None, bytes]]],
    *,
    task: int = 0,
    per_batch: int = 2,
    topic: str = TOPIC,
    compression: Compression = Compression.NONE,
    **fields: Any,
) -> TaskOutcome:
    """A task that staged these rows (by partition), `per_batch` to a record batch."""
    staged = []
    for partition, pairs in rows.items():
        for start in range(0, len(pairs), per_batch):
            part = pairs[start : start + per_batch]
            columns = RecordColumns.from_lists([key for key, _ in part], [value for _, value in part], [BEGIN_MS] * len(part))
            data = bytes(batches.encode(columns, is_transactional=True, compression=compression))
            where = TopicPartition(topic, partition)
            staged.append(StagedBatch(topic_partition=where, record_count=len(part), bytes=StagedBytes(data=data, byte_count=len(data))))
    facts = TaskContextFacts(task=task, query_id="q", run_id="r", batch_id=0)
    return TaskOutcome(context=facts, row_count=sum(map(len, rows.values())), batches=tuple(staged), **fields)


@dataclass
class Query:
    """One streaming query: its checkpoint and its batches. `committed` is what Spark has noted as done."""

    broker: Broker
    batches: list[tuple[TaskOutcome, ...]]
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(tolerates=False))
    dead_letter_topic: str | None = None
    left_out: frozenset[bytes] | None = None
    """Values that the user's handler drops; None: there is no handler."""
    transactional_id: str = "chaffinch-q"
    has_checkpoint: bool = True
    state: CheckpointState = field(default_factory=CheckpointState)
    parquet: dict[str | None, tuple[StagedBytes, ...]] = field(default_factory=dict)
    """The newest batch's file of dead letters under None, hidden files under their writers."""
    done: int = 0
    run_count: int = 0
    digests: dict[int, str] = field(default_factory=dict)

    def plan(self, batch_id: int, writer_id: str, **changes: Any) -> CommitPlan:
        fields: dict[str, Any] = {
            "query": "q",
            "batch_id": batch_id,
            "wall_ms": self.broker.steady_ms,
            "writer_id": writer_id,
            "outcomes": self.batches[batch_id],
            "transactional_id": self.transactional_id,
            "group_id": "chaffinch-q",
            "marker_partition": TopicPartition(TOPIC, 0),
            "is_stream": True,
            "digest": self.digests.get(batch_id, f"digest of {batch_id}") if self.has_checkpoint else "",
            "has_checkpoint": self.has_checkpoint,
            "tolerance": self.tolerance,
            "has_handler": self.left_out is not None,
            "target": snapshot.TargetSnapshot(topics=()),
            "push_bytes_per_s": 1e9,
            "retry_policy": RETRY_POLICY,
        }
        return CommitPlan(**{**fields, **changes})

    def commit(self, batch_id: int, cut: Cut | None = None, *, writer_id: str | None = None, **changes: Any) -> Driver:
        """One commit of one batch by a new driver. Raises its error."""
        driver = Driver(self.broker, self, cut)
        driver.result = driver.run(self.plan(batch_id, writer_id or f"run-{self.run_count}", **changes))
        return driver

    def run(self, cut: Cut | None = None, until: int | None = None) -> None:
        """A run of the query: all batches that Spark has not recorded as done. Dies at the cut."""
        self.run_count += 1
        while self.done < (len(self.batches) if until is None else until):
            driver = Driver(self.broker, self, cut)
            try:
                driver.run(self.plan(self.done, f"run-{self.run_count}"))
            finally:
                if cut is not None:
                    cut.at -= driver.count
            self.done += 1

    def make_dead_letters(self, operation: operations.MakeDeadLetters, broker: Broker) -> operations.DeadLetters:
        rejections = list(operation.culprits)
        columns = batches.decode(bytes(operation.batch.bytes.data or b""))
        picked = RecordColumns.concat([columns.slice(found.row, found.row + 1) for found in rejections])
        target = snapshot.TopicSnapshot(topic=DEAD, topic_id=bytes(16), partition_count=1) if self.dead_letter_topic else None
        made = broker_dead_letter_batches(picked, rejections, Origin(query="q", batch_id=0, task=-1), target, broker.steady_ms)
        staged = [
            StagedBatch(topic_partition=where, record_count=count, bytes=StagedBytes(data=bytes(data), byte_count=len(data)))
            for where, count, data in made
        ]
        return operations.DeadLetters(batches=tuple(staged))


def counted(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> Counter[bytes | None]:
    """Number of each value."""
    return Counter(value for _, value in pairs)


__all__ = ["DEAD", "TOPIC", "Broker", "Cut", "Driver", "Killed", "Query", "counted", "dead_letter_records", "outcome"]
