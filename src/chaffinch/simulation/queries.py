"""A streaming query that writes through the Spark commit protocol, with everything of Spark's that matters taken away.

`Query` is what survives a driver: the rows of each batch (replayed identically, as Spark's offset log promises), Spark's own commit log,
and the checkpoint's state. `Driver` is one run of it: it drives `commit_batch` for batch after batch, doing what the generator yields over
the simulated network. A driver can be cut at any step (`Cut`); the query then starts another one, as `supervise` would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered, Failed
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.simulation.lookups import Lookups
from chaffinch.simulation.network import Network
from chaffinch.simulation.world import World
from chaffinch.spark.commit_messages import Rejection, StagedBatch, StagedBytes, TaskContextFacts, TaskOutcome
from chaffinch.spark.commit_protocol import Commit, CommitPlan, CommitResult, commit_batch
from chaffinch.spark.dead_letters import Origin
from chaffinch.spark.marker import CheckpointState
from chaffinch.spark.operations import (
    Ask,
    BatchAnswer,
    DeadLetters,
    Lost,
    NextAnswer,
    Operation,
    ReadState,
    Reply,
    SendBatch,
    SetAside,
    Step,
    Wait,
    WriteDeadLetters,
    WriteState,
)
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.task import broker_found
from chaffinch.spark.tolerance import Tolerance

REQUEST_TIMEOUT_MS: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 500
BLOCK_MAX_MS: Final = 8_000
TRANSACTION_TIMEOUT_MS: Final = 6_000
STALL_MS: Final = 2 * TRANSACTION_TIMEOUT_MS
RESTART_MS_MAX: Final = 1_000
RUNS_MAX: Final = 60
"""A query that needs more drivers than this is stuck."""
DEAD_LETTER_TOPIC: Final = "dead"


class CutKind(Enum):
    """What goes wrong at a step of the commit protocol."""

    DRIVER_DIES_BEFORE = "the driver dies before it"
    DRIVER_DIES_AFTER = "the driver dies when it is done"
    ANSWER_LOST = "its answer is lost"
    BROKER_DIES_BEFORE = "the broker dies before it"
    BROKER_DIES_DURING = "the broker dies in a disk operation of it"
    BROKER_DIES_AFTER = "the broker dies when it is done"
    DRIVER_STALLS = "the driver stalls beyond the transaction's time-out"
    SECOND_DRIVER = "a second driver starts"
    ZOMBIE = "the driver stalls, a second one does its work, the first goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """At the `occurrence`-th operation of `step`, counted from 0 over all drivers of the query since the cut before this one."""

    kind: CutKind
    step: Step
    occurrence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row to write. `is_bad`: the broker will refuse it."""

    number: int
    topic_partition: TopicPartition
    key: bytes | None
    value: bytes
    timestamp_ms: int
    is_bad: bool = False


@dataclass(slots=True, kw_only=True)
class Query:
    """What survives its drivers. `batches[i]` are the rows of batch i, one list per task."""

    name: str
    batches: Sequence[Sequence[Sequence[Row]]]
    marker_partition: TopicPartition
    dead_letter_target: TopicSnapshot
    record_count_max: int = 4
    """Records per staged batch: small, so that there are several per partition."""
    has_checkpoint: bool = True
    committed: int = -1
    """Spark's own commit log: the newest batch that Spark believes to be done."""
    state: CheckpointState = field(default_factory=CheckpointState)
    dead_rows: dict[int, int] = field(default_factory=dict)
    """The Parquet files: batch id -> how many parts."""
    outcomes: dict[int, list[str]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.committed == len(self.batches) - 1

    @property
    def transactional_id(self) -> str:
        """Also the name of the marker's group."""
        return f"chaffinch-{self.name}"

    def rows(self) -> list[Row]:
        return [row for tasks in self.batches for rows in tasks for row in rows]


class Supervisor:
    """Keeps one driver of a query running until the query is done; more than one when a cut asks for it."""

    def __init__(
        self,
        world: World,
        network: Network,
        bootstrap: Sequence[Address],
        query: Query,
        *,
        cuts: Sequence[Cut] = (),
        cut_broker: Callable[[CutKind], None] | None = None,
    ) -> None:
        self.query = query
        self.run_count = 0
        self._world = world
        self._network = network
        self._bootstrap = bootstrap
        self._cuts = list(cuts)
        self._cut_broker = cut_broker or (lambda _kind: None)
        self._occurrences = 0
        self._live: list[Driver] = []
        self._is_starting = False

    @property
    def is_done(self) -> bool:
        return self.query.is_done and not self._live

    def start(self) -> None:
        """Start one more driver."""
        self._is_starting = False
        if self.query.is_done and self.run_count:
            return
        self.run_count += 1
        assert self.run_count <= RUNS_MAX, f"{self.query.name} is not done after {RUNS_MAX} drivers: {self.query.refusals[-3:]}"
        who = f"{self.query.name}.{self.run_count}"
        self._world.tell(who, "starts")
        driver = Driver(self._world, self._network, self._bootstrap, self, who)
        self._live.append(driver)
        driver.next_batch()

    def ended(self, driver: Driver) -> None:
        """A driver is gone, for whatever reason: while the query is not done there has to be one."""
        self._live.remove(driver)
        if not self._live and not self.query.is_done and not self._is_starting:
            self._is_starting = True
            self._world.after(self._world.dice.randint(1, RESTART_MS_MAX), self.start)

    @property
    def name(self) -> str:
        return self.query.name

    def kill(self) -> None:
        """SIGKILL to the newest driver that runs, if one does."""
        if self._live:
            self._world.count("drivers killed")
            self._live[-1].die("killed")

    def start_beside(self) -> None:
        """Start another driver from the same checkpoint while one runs."""
        if self._live:
            self._world.count("second drivers")
            self.start()

    def cut_due(self, step: Step) -> Cut | None:
        """The next of the cuts, if this operation is the one. They come one after the other."""
        if not self._cuts or step is not self._cuts[0].step:
            return None
        self._occurrences += 1
        if self._occurrences <= self._cuts[0].occurrence:
            return None
        self._occurrences = 0
        cut = self._cuts.pop(0)
        self._world.tell(self.query.name, f"cut at {step.value}: {cut.kind.value}")
        self._world.count(f"cut: {cut.kind.value}")
        return cut

    def cut_broker(self, kind: CutKind) -> None:
        self._cut_broker(kind)


class Driver:
    """One run of a query: the commit protocol's shell over the simulated network."""

    def __init__(self, world: World, network: Network, bootstrap: Sequence[Address], supervisor: Supervisor, who: str) -> None:
        self.who = who
        self._world = world
        self._supervisor = supervisor
        self._query = supervisor.query
        self._client = Lookups(world, network, who, bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS)
        self._commit: Commit | None = None
        self._batch_id = -1
        self._settled: list[BatchAnswer] = []
        self._is_waiting_for_answer = False
        self._after: CutKind | None = None
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
        self._commit = commit_batch(self._plan(self._batch_id))
        self._advance(lambda commit: next(commit))

    def die(self, reason: str) -> None:
        """The process is gone in the middle of whatever it did."""
        if not self._is_dead:
            self._world.tell(self.who, reason)
            self._end()

    def _end(self) -> None:
        self._is_dead = True
        self._client.close()
        self._supervisor.ended(self)

    def _committed(self, result: CommitResult) -> None:
        query, batch_id = self._query, self._batch_id
        self._world.tell(self.who, f"batch {batch_id}: {result.outcome}")
        self._world.count(f"batches {result.outcome}")
        query.outcomes.setdefault(batch_id, []).append(result.outcome)
        query.committed = max(query.committed, batch_id)
        self._world.after(0, self.next_batch)

    def _refused(self, refusal: Refusal) -> None:
        self._world.tell(self.who, f"batch {self._batch_id}: {refusal}")
        self._world.count("batches refused")
        self._query.refusals.append(str(refusal))
        self._end()

    def _plan(self, batch_id: int) -> CommitPlan:
        query = self._query
        outcomes = tuple(
            TaskOutcome(context=TaskContextFacts(task=task), row_count=len(rows), batches=tuple(_staged(rows, query.record_count_max)))
            for task, rows in enumerate(query.batches[batch_id])
        )
        return CommitPlan(
            batch_id=batch_id,
            wall_ms=self._world.now_ms,
            writer_id=self.who,
            outcomes=outcomes,
            target=TargetSnapshot(topics=()),
            transactional_id=query.transactional_id,
            group_id=query.transactional_id,
            marker_partition=query.marker_partition,
            is_stream=True,
            digest=f"{batch_id:064x}" if query.has_checkpoint else "",
            has_checkpoint=query.has_checkpoint,
            tolerance=Tolerance(tolerates=True),
            writes_dead_letter_file=True,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            push_bytes_per_s=1e6,
            block_max_ms=BLOCK_MAX_MS,
        )

    # The generator ---------------------------------------------------------------------------------------------------------------------

    def _advance(self, step: Callable[[Commit], Operation]) -> None:
        """Let the generator go on to its next operation, and perform that."""
        assert self._commit is not None
        try:
            operation = step(self._commit)
        except StopIteration as done:
            self._committed(done.value)
        except Refusal as refusal:
            self._refused(refusal)
        else:
            self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        """Perform an operation, unless the cut comes first."""
        cut = self._supervisor.cut_due(operation.step)
        self._after = None if cut is None else cut.kind
        match self._after:
            case CutKind.DRIVER_DIES_BEFORE:
                self.die("dies")
            case CutKind.BROKER_DIES_BEFORE | CutKind.BROKER_DIES_DURING:
                self._supervisor.cut_broker(self._after)
                self._perform(operation)
            case CutKind.DRIVER_STALLS:
                self._world.after(STALL_MS, lambda: self._perform(operation))
            case CutKind.SECOND_DRIVER:
                self._supervisor.start()
                self._perform(operation)
            case CutKind.ZOMBIE:
                self._supervisor.start()
                self._world.after(STALL_MS, lambda: self._perform(operation))
            case _:
                self._perform(operation)

    def _reply(self, value: Any) -> None:
        """The operation is done: the generator hears of it, unless the cut comes first."""
        if self._is_dead:
            return
        after, self._after = self._after, None
        if after is CutKind.DRIVER_DIES_AFTER:
            self.die("dies")
            return
        if after is CutKind.BROKER_DIES_AFTER:
            self._supervisor.cut_broker(after)
        reply = Reply(now_ms=self._world.now_ms, value=value)
        self._world.after(0, lambda: None if self._is_dead else self._advance(lambda commit: commit.send(reply)))

    def _perform(self, operation: Operation) -> None:
        if self._is_dead:
            return
        query = self._query
        match operation:
            case Ask():
                self._ask(operation)
            case SendBatch():
                self._send(operation)
                self._reply(None)
            case NextAnswer():
                self._is_waiting_for_answer = True
                self._give_answer()
            case SetAside():
                self._reply(self._dead_letters(operation))
            case WriteDeadLetters():
                query.dead_rows[self._batch_id] = len(operation.rows)
                self._reply(None)
            case ReadState():
                self._reply(query.state)
            case WriteState():
                # Through its text, as the file would.
                query.state = CheckpointState.from_text(operation.state.to_text())
                self._reply(None)
            case Wait():
                self._world.after(operation.ms, lambda: self._reply(None))

    def _ask(self, operation: Ask) -> None:
        to = operation.to
        if to.refresh:
            self._client.coordinators.forget(to.key, to.kind)

        def found(address: Address | None, reason: str) -> None:
            if address is None:
                self._reply(Lost(reason=reason, was_sent=False))
            else:
                self._client.request(address, operation.message, answered)

        def answered(event: Answered | Failed) -> None:
            if isinstance(event, Answered) and self._after is CutKind.ANSWER_LOST:
                self._client.disconnect(event.address)
                self._reply(Lost(reason="the answer is lost"))
            elif isinstance(event, Answered):
                self._reply(event.message)
            else:
                self._reply(Lost(reason=event.reason, was_sent=event.was_sent))

        self._client.with_coordinator(to.key, to.kind, found)

    # Batches on their way --------------------------------------------------------------------------------------------------------------

    def _send(self, operation: SendBatch) -> None:
        data = bytearray(operation.batch.bytes.data or b"")
        if operation.kept is not None:
            gone = sorted(set(range(operation.batch.record_count)) - set(operation.kept))
            data = batches.without(data, gone) or data
        batches.patch_producer(data, 0, operation.identity, operation.base_sequence, is_transactional=True)
        where = operation.batch.topic_partition
        part = PartitionProduceData(index=where.partition, records=data)
        request = ProduceRequest(
            transactional_id=self._query.transactional_id,
            acks=-1,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[TopicProduceData(name=where.topic, partitions=[part])],
        )
        loses_answer = self._after is CutKind.ANSWER_LOST

        def found(address: Address | None, reason: str) -> None:
            if address is None:
                self._settle(BatchAnswer(ticket=operation.ticket, lost=Lost(reason=reason, was_sent=False)))
            else:
                self._client.request(address, request, answered)

        def answered(event: Answered | Failed) -> None:
            if isinstance(event, Failed):
                self._settle(BatchAnswer(ticket=operation.ticket, lost=Lost(reason=event.reason, was_sent=event.was_sent)))
            elif loses_answer:
                self._client.disconnect(event.address)
                self._settle(BatchAnswer(ticket=operation.ticket, lost=Lost(reason="the answer is lost")))
            else:
                self._settle(_read(operation.ticket, event.message.responses[0].partition_responses[0]))

        self._client.with_leader(where, operation.refresh, found)

    def _settle(self, answer: BatchAnswer) -> None:
        self._settled.append(answer)
        self._give_answer()

    def _give_answer(self) -> None:
        if self._is_waiting_for_answer and self._settled:
            self._is_waiting_for_answer = False
            self._reply(self._settled.pop(0))

    def _dead_letters(self, operation: SetAside) -> DeadLetters:
        rejections: list[Rejection] = list(operation.culprits)
        columns = batches.decode(bytearray(operation.batch.bytes.data or b""))
        rows = columns.take(np.array([culprit.row for culprit in rejections], np.int64))
        origin = Origin(query=self._query.name, batch_id=self._batch_id, task=-1)
        found = broker_found(rows, rejections, origin, self._query.dead_letter_target, self._world.now_ms)
        self._world.count("rows set aside", len(rejections))
        return DeadLetters(
            batches=tuple(StagedBatch(topic_partition=where, record_count=count, bytes=_inline(data)) for where, count, data in found),
            rows=tuple(_inline(b"row") for _ in rejections),
        )


def _staged(rows: Sequence[Row], record_count_max: int) -> list[StagedBatch]:
    """Encoded batches of a task's rows, in their order per partition."""
    by_partition: dict[TopicPartition, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.topic_partition, []).append(row)
    staged = []
    for topic_partition, found in by_partition.items():
        for start in range(0, len(found), record_count_max):
            part = found[start : start + record_count_max]
            columns = RecordColumns.from_lists([row.key for row in part], [row.value for row in part], [row.timestamp_ms for row in part])
            data = batches.encode(columns, is_transactional=True)
            staged.append(StagedBatch(topic_partition=topic_partition, record_count=len(part), bytes=_inline(data)))
    return staged


def _inline(data: bytes | bytearray) -> StagedBytes:
    return StagedBytes(data=bytes(data), byte_count=len(data))


def _read(ticket: int, part: PartitionProduceResponse) -> BatchAnswer:
    """The broker's words about one batch, as `commit_shell.py` reads them."""
    message = part.error_message or ""
    culprits = tuple(
        (
            found.batch_index,
            codes.by_number(found.chaffinch_error_code or part.error_code, "kip", has_culprits=True),
            found.batch_index_error_message or message,
        )
        for found in part.record_errors
    )
    return BatchAnswer(
        ticket=ticket, code=codes.by_number(part.error_code, has_culprits=bool(culprits)), message=message, culprits=culprits
    )
