"""One run of a query: runs `commit_batch` for batch after batch and carries out the yielded operations over the simulated network.

Faults can be injected at any step (`cuts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import RETRY_BACKOFF
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit import hanging_transactions, operations
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.messages import Rejection, StagedBatch, TaskOutcome
from chaffinch.spark.commit.plan import Commit, CommitPlan, CommitResult
from chaffinch.spark.commit.protocol import commit_batch
from chaffinch.spark.commit.retry_policy import RetryPolicy
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.dead_letter_headers import Origin
from chaffinch.spark.tasks.dead_letters import broker_dead_letter_batches
from simulation.brokers.broker_process import DOWN_MAX_MS
from simulation.callback_client import CallbackClient
from simulation.network import Network
from simulation.queries.cuts import Cut, CutKind
from simulation.queries.query import Query, inline, staged
from simulation.world import World

REQUEST_TIMEOUT_MS: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 500
BLOCK_MAX_MS: Final = 8_000
TRANSACTION_TIMEOUT_MS: Final = 6_000
AWAY_MS: Final = BLOCK_MAX_MS + 2_000
"""Longer than the commit waits for a broker."""
STALL_MS: Final = 2 * TRANSACTION_TIMEOUT_MS
RESTARTED_MS: Final = DOWN_MAX_MS[-1] + 300
"""By this time a broker that died is running again."""
PAUSES_MS: Final = {
    CutKind.SECOND_DRIVER: 0,
    CutKind.DRIVER_STALLS: STALL_MS,
    CutKind.ZOMBIE: STALL_MS,
    CutKind.BROKER_RESTARTS: RESTARTED_MS,
}
"""For cuts before an operation: how long the driver stalls before it performs the operation."""


class DriverOwner(Protocol):
    """Starts drivers and is notified of their ends: `supervisor.py`."""

    query: Query

    def start(self) -> None: ...
    def ended(self, driver: Driver) -> None: ...
    def cut_due(self, operation: operations.Operation) -> Cut | None: ...
    def made(self, kind: CutKind, step: operations.Step) -> None: ...
    def batch_finished(self, outcome: str) -> None: ...
    def cut_broker(self, kind: CutKind) -> None: ...


class Driver:
    """One run of a query: the commit protocol's shell over the simulated network."""

    def __init__(self, world: World, network: Network, bootstrap: Sequence[Address], supervisor: DriverOwner, actor: str) -> None:
        self.actor = actor
        self._world = world
        self._supervisor = supervisor
        self._query = supervisor.query
        self._client = CallbackClient(
            world, network, actor, bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS
        )
        self._commit: Commit | None = None
        self._batch_id = -1
        self._settled: list[operations.BatchResponse] = []
        self._waits_for_answer: operations.NextResponse | None = None
        self._after: CutKind | None = None
        self._asked_to_end = False
        self._is_dead = False

    # Batches ---------------------------------------------------------------------------------------------------------------------------

    def next_batch(self) -> None:
        if self._is_dead:
            return
        if self._query.is_done:
            self._end()
            return
        self._batch_id = self._query.committed + 1
        self._settled.clear()
        self._asked_to_end = False
        self._commit = commit_batch(self._plan(self._batch_id))
        self._advance(lambda commit: next(commit))

    def die(self, reason: str) -> None:
        """End the process, whatever it is doing."""
        if not self._is_dead:
            self._world.log(self.actor, reason)
            self._end()

    def _end(self) -> None:
        self._is_dead = True
        self._client.close()
        self._supervisor.ended(self)

    def _committed(self, result: CommitResult) -> None:
        query, batch_id = self._query, self._batch_id
        self._world.log(self.actor, f"batch {batch_id}: {result.outcome}")
        self._supervisor.batch_finished(result.outcome)
        query.outcomes.setdefault(batch_id, []).append(result.outcome)
        if result.outcome == "written":
            query.written_by[batch_id] = self.actor
        query.committed = max(query.committed, batch_id)
        self._world.after(0, self.next_batch)

    def _refused(self, refusal: Refusal) -> None:
        self._world.log(self.actor, f"batch {self._batch_id}: {refusal}")
        self._supervisor.batch_finished("refused")
        self._query.refusals.append(str(refusal))
        self._end()

    def _plan(self, batch_id: int) -> CommitPlan:
        query = self._query
        outcomes = tuple(
            TaskOutcome(context=TaskContextFacts(task=task), row_count=len(rows), batches=tuple(staged(rows, query.record_count_max)))
            for task, rows in enumerate(query.batches[batch_id])
        )
        return CommitPlan(
            query=query.name,
            batch_id=batch_id,
            wall_ms=self._world.steady_ms,
            writer_id=self.actor,
            outcomes=outcomes,
            target=TargetSnapshot(topics=()),
            transactional_id=query.transactional_id,
            group_id=query.transactional_id,
            marker_partition=query.marker_partition,
            is_stream=query.is_stream,
            digest=f"{batch_id:064x}" if query.has_checkpoint else "",
            has_checkpoint=query.has_checkpoint,
            tolerance=Tolerance(tolerates=True),
            writes_dead_letter_file=True,
            has_handler=query.has_handler,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            push_bytes_per_s=1e6,
            retry_policy=RetryPolicy(block_max_ms=BLOCK_MAX_MS, wait_ms=partial(RETRY_BACKOFF.wait_ms, rng=self._world.rng)),
        )

    # The generator ---------------------------------------------------------------------------------------------------------------------

    def _advance(self, step: Callable[[Commit], operations.Operation]) -> None:
        """Run the generator to its next operation and perform that."""
        assert self._commit is not None
        try:
            operation = step(self._commit)
        except StopIteration as done:
            self._committed(done.value)
        except Refusal as refusal:
            self._refused(refusal)
        else:
            self._begin(operation)

    def _begin(self, operation: operations.Operation) -> None:
        """Perform an operation, unless a cut comes first."""
        self._asked_to_end |= operation.step is operations.Step.END_TRANSACTION
        assert not (self._asked_to_end and operation.step is operations.Step.ABORT), (
            "an EndTxn without an answer is never turned into an abort"
        )
        cut = self._supervisor.cut_due(operation)
        if cut is None:
            self._perform(operation)
        elif cut.first is None:
            self._cut(cut.kind, operation)
        else:
            self._before(cut.first, operation, lambda: self._cut(cut.kind, operation))

    def _before(self, kind: CutKind, operation: operations.Operation, then: Callable[[], None]) -> None:
        """Inject a fault before an operation, which is then carried out."""
        self._supervisor.made(kind, operation.step)
        if kind in (CutKind.SECOND_DRIVER, CutKind.ZOMBIE):
            self._supervisor.start()
        elif kind is CutKind.BROKER_RESTARTS:
            self._supervisor.cut_broker(CutKind.BROKER_DIES_BEFORE)
        self._world.after(PAUSES_MS[kind], lambda: None if self._is_dead else then())

    def _cut(self, kind: CutKind, operation: operations.Operation) -> None:
        match kind:
            case _ if kind in PAUSES_MS:
                self._before(kind, operation, lambda: self._perform(operation))
            case CutKind.DRIVER_DIES_BEFORE:
                self._supervisor.made(kind, operation.step)
                self.die("dies")
            case CutKind.BROKER_DIES_BEFORE | CutKind.BROKER_DIES_DURING | CutKind.BROKER_AWAY:
                self._supervisor.made(kind, operation.step)
                self._supervisor.cut_broker(kind)
                self._perform(operation)
            case CutKind.FILE_FAILS | CutKind.STAGING_LOST:
                self._fail(kind, operation)
            case _:
                self._after = kind
                self._perform(operation)

    def _fail(self, kind: CutKind, operation: operations.Operation) -> None:
        """Let a file operation fail: as in `sink/commit_shell.py`, the generator gets an exception."""
        self._supervisor.made(kind, operation.step)
        refusal = Refusal(Group.APPLICATION_RECOVERABLE, "FILES", f"{operation.step.value}: {kind.value}")
        self._world.after(0, lambda: None if self._is_dead else self._advance(lambda commit: commit.throw(refusal)))

    def _reply(self, operation: operations.Operation, value: Any) -> None:
        """The operation is done: pass the result to the generator, unless a cut comes first."""
        if self._is_dead:
            return
        after, self._after = self._after, None
        if after in (CutKind.DRIVER_DIES_AFTER, CutKind.BROKER_DIES_AFTER):
            self._supervisor.made(after, operation.step)
        if after is CutKind.DRIVER_DIES_AFTER:
            self.die("dies")
            return
        if after is CutKind.FILE_UNSURE:
            self._fail(after, operation)
            return
        if after is CutKind.BROKER_DIES_AFTER:
            self._supervisor.cut_broker(after)
        reply = operations.Reply(steady_ms=self._world.steady_ms, value=value)
        self._world.after(0, lambda: None if self._is_dead else self._advance(lambda commit: commit.send(reply)))

    def _loses(self, kind: CutKind, step: operations.Step) -> bool:
        """Whether the current request or answer is to be lost."""
        if self._after is not kind:
            return False
        self._after = None
        self._made_after(kind, step)
        return True

    def _made_after(self, kind: CutKind, step: operations.Step) -> None:
        self._supervisor.made(kind, step)
        if kind is CutKind.BROKER_AWAY_AFTER:
            self._supervisor.cut_broker(kind)

    def _perform(self, operation: operations.Operation) -> None:
        if self._is_dead:
            return
        query = self._query
        match operation:
            case operations.SendRequest():
                self._ask(operation)
            case operations.SendBatch():
                self._send(operation)
                self._reply(operation, None)
            case operations.NextResponse():
                self._wait_for_answer(operation)
            case operations.CallHandler():
                self._reply(operation, self._left_out(operation))
            case operations.MakeDeadLetters():
                self._reply(operation, self._dead_letters(operation))
            case operations.WriteDeadLetters() | operations.NameDeadLetters():
                self._file_dead_letters(operation)
                self._reply(operation, None)
            case operations.ReadState():
                self._reply(operation, query.state)
            case operations.WriteState():
                # Converted to text and back, as with the file.
                query.state = CheckpointState.from_text(operation.state.to_text())
                self._reply(operation, None)
            case operations.FindHangingTransactions() | operations.CountPartitions() | operations.WriteMarkers():
                self._ask_leaders(operation)
            case operations.Wait():
                self._world.after(operation.ms, lambda: self._reply(operation, None))

    def _file_dead_letters(self, operation: operations.WriteDeadLetters | operations.NameDeadLetters) -> None:
        query, batch_id, writer_id = self._query, self._batch_id, operation.writer_id
        if isinstance(operation, operations.NameDeadLetters):
            if writer_id is None:
                query.dead_rows.pop(batch_id, None)
            elif (batch_id, writer_id) in query.pending:
                query.dead_rows[batch_id], query.dead_rows_of[batch_id] = query.pending[batch_id, writer_id], writer_id
            query.pending = {key: count for key, count in query.pending.items() if key[0] != batch_id}
        elif writer_id is None:
            query.dead_rows[batch_id], query.dead_rows_of[batch_id] = len(operation.rows), self.actor
        else:
            query.pending[batch_id, writer_id] = len(operation.rows)

    def _ask(self, operation: operations.SendRequest) -> None:
        to = operation.to
        if to.refresh:
            self._client.coordinators.forget(to.key, to.kind)

        def found(address: Address | None, reason: str) -> None:
            if address is None:
                self._reply(operation, operations.Lost(reason=reason, was_sent=False))
            elif self._loses(CutKind.REQUEST_LOST, operation.step):
                self._reply(operation, operations.Lost(reason="the request is lost"))
            else:
                self._client.request(address, operation.message, answered)

        def answered(event: ResponseReceived | RequestFailed) -> None:
            if isinstance(event, RequestFailed):
                self._reply(operation, operations.Lost(reason=event.reason, was_sent=event.was_sent))
            elif self._loses(CutKind.RESPONSE_LOST, operation.step) or self._loses(CutKind.BROKER_AWAY_AFTER, operation.step):
                self._client.disconnect(event.address)
                self._reply(operation, operations.Lost(reason="the response is lost"))
            else:
                self._reply(operation, event.message)

        self._client.with_coordinator(to.key, to.kind, found)

    def _ask_leaders(self, operation: operations.FindHangingTransactions | operations.CountPartitions | operations.WriteMarkers) -> None:
        """Our brokers do not forget the end of a transaction: WriteMarkers gets the response of a broker that does not support it."""
        match operation:
            case operations.FindHangingTransactions():
                self._find_hanging_transactions(operation)
            case operations.CountPartitions():
                self._reply(operation, 0)
            case operations.WriteMarkers(transactions=transactions):
                denied = frozenset(transaction.tp for transaction in transactions)
                self._reply(operation, operations.WriteMarkersResult(refused=codes.UNSUPPORTED_VERSION, denied=denied))

    def _find_hanging_transactions(self, operation: operations.FindHangingTransactions) -> None:
        """One request per partition, one after the other; if one is lost, all count as lost."""
        left, results = list(operation.partitions), list[operations.HangingTransactions]()

        def next_one() -> None:
            if left:
                self._client.with_leader(left[0], operation.refresh, found)
                return
            answered_tps = frozenset[TopicPartition]().union(*(one.answered for one in results))
            hanging = frozenset[operations.HangingTransaction]().union(*(one.hanging for one in results))
            self._reply(operation, operations.HangingTransactions(answered=answered_tps, hanging=hanging))

        def found(address: Address | None, reason: str) -> None:
            if address is None:
                self._reply(operation, operations.HangingTransactions(reason=reason))
            elif self._loses(CutKind.REQUEST_LOST, operation.step):
                self._reply(operation, operations.HangingTransactions(reason="the request is lost"))
            else:
                self._client.request(address, hanging_transactions.describe_producers_request([left.pop(0)]), answered)

        def answered(event: ResponseReceived | RequestFailed) -> None:
            if isinstance(event, RequestFailed):
                self._reply(operation, operations.HangingTransactions(reason=event.reason))
            elif self._loses(CutKind.RESPONSE_LOST, operation.step) or self._loses(CutKind.BROKER_AWAY_AFTER, operation.step):
                self._client.disconnect(event.address)
                self._reply(operation, operations.HangingTransactions(reason="the response is lost"))
            else:
                results.append(hanging_transactions.parse_response(event.message, operation.producer_id))
                next_one()

        next_one()

    # Batches on their way --------------------------------------------------------------------------------------------------------------

    def _send(self, operation: operations.SendBatch) -> None:
        data = bytearray(operation.batch.bytes.data or b"")
        if operation.record_indices is not None:
            gone = sorted(set(range(operation.batch.record_count)) - set(operation.record_indices))
            data = batches.without_records(data, gone) or data
        batches.patch_producer(data, 0, operation.identity, operation.base_sequence, is_transactional=True)
        where = operation.batch.topic_partition
        part = PartitionProduceData(index=where.partition, records=data)
        request = ProduceRequest(
            transactional_id=self._query.transactional_id,
            acks=-1,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[TopicProduceData(name=where.topic, partitions=[part])],
        )
        loses_response = self._after if self._after in (CutKind.RESPONSE_LOST, CutKind.BROKER_AWAY_AFTER) else None
        loses_request = self._loses(CutKind.REQUEST_LOST, operation.step)

        def found(address: Address | None, reason: str) -> None:
            if address is None:
                self._settle(operations.BatchResponse(send_id=operation.send_id, lost=operations.Lost(reason=reason, was_sent=False)))
            elif loses_request:
                self._settle(operations.BatchResponse(send_id=operation.send_id, lost=operations.Lost(reason="the request is lost")))
            else:
                self._client.request(address, request, answered)

        def answered(event: ResponseReceived | RequestFailed) -> None:
            if isinstance(event, RequestFailed):
                self._settle(
                    operations.BatchResponse(send_id=operation.send_id, lost=operations.Lost(reason=event.reason, was_sent=event.was_sent))
                )
            elif loses_response is not None:
                self._made_after(loses_response, operation.step)
                self._client.disconnect(event.address)
                self._settle(operations.BatchResponse(send_id=operation.send_id, lost=operations.Lost(reason="the response is lost")))
            else:
                self._settle(_read(operation.send_id, event.message.responses[0].partition_responses[0]))

        self._client.with_leader(where, operation.refresh, found)

    def _settle(self, answer: operations.BatchResponse) -> None:
        self._settled.append(answer)
        self._give_answer()

    def _wait_for_answer(self, operation: operations.NextResponse) -> None:
        def end() -> None:
            if self._waits_for_answer is operation:
                self._waits_for_answer = None
                self._reply(operation, None)

        self._waits_for_answer = operation
        self._give_answer()
        if operation.until_ms is not None:
            self._world.after(max(0, operation.until_ms - self._world.steady_ms), end)

    def _give_answer(self) -> None:
        if self._waits_for_answer is not None and self._settled:
            operation, self._waits_for_answer = self._waits_for_answer, None
            self._reply(operation, self._settled.pop(0))

    def _left_out(self, operation: operations.CallHandler) -> frozenset[int]:
        by_value = {row.value: row for row in self._query.rows()}
        columns = _blamed(operation)
        rows = [by_value[columns.value(index) or b""] for index in range(len(columns))]
        found = frozenset(culprit.row for culprit, row in zip(operation.culprits, rows, strict=True) if self._query.swallows(row))
        self._world.count("rows swallowed", len(found))
        return found

    def _dead_letters(self, operation: operations.MakeDeadLetters) -> operations.DeadLetters:
        rejections: list[Rejection] = list(operation.culprits)
        rows = _blamed(operation)
        origin = Origin(query=self._query.name, batch_id=self._batch_id, task=-1)
        found = broker_dead_letter_batches(rows, rejections, origin, self._query.dead_letter_target, self._world.steady_ms)
        self._world.count("dead letters", len(rejections))
        return operations.DeadLetters(
            batches=tuple(StagedBatch(topic_partition=where, record_count=count, bytes=inline(data)) for where, count, data in found),
            rows=tuple(inline(b"row") for _ in rejections),
        )


def _blamed(operation: operations.CallHandler | operations.MakeDeadLetters) -> RecordColumns:
    columns = batches.decode(bytearray(operation.batch.bytes.data or b""))
    return columns.take(np.array([culprit.row for culprit in operation.culprits], np.int64))


def _read(send_id: int, part: PartitionProduceResponse) -> operations.BatchResponse:
    """Parse one batch's response, as `sink/commit_shell.py` does."""
    message = part.error_message or ""
    culprits = tuple(
        (
            found.batch_index,
            codes.by_number(found.chaffinch_error_code or part.error_code, "kip", has_culprits=True),
            found.batch_index_error_message or message,
        )
        for found in part.record_errors
    )
    return operations.BatchResponse(
        send_id=send_id, code=codes.by_number(part.error_code, has_culprits=bool(culprits)), message=message, culprits=culprits
    )
