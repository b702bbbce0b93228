"""Producer process of the simulation: the real `ProducerCore` behind a shell without threads, driven by a program.

The shell does the work of `sender_thread.py` and `producer.py`: it sends requests, passes events to the core, delivers outcomes, and blocks
callers that wait for metadata or memory. `ProducerUser` survives the process, with its ledger and the remaining work. It starts a new
process after a death, after a restart requested by the program, or next to the old process, which is then a zombie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException
from chaffinch.identifiers import GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import record_size
from chaffinch.producer.core.batches.batch import NewRecord, ProducerBatch
from chaffinch.producer.core.effects import (
    AskHandler,
    CompleteBatch,
    CompleteCall,
    Effect,
    FailCall,
    FailRecords,
    SendRequest,
    WakeCallers,
)
from chaffinch.producer.core.exception_handler import HandlerDecision, Question, RetriableResponse
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.core.refusals.record_errors import ScreenedErrors
from chaffinch.records.columns import RecordColumns
from simulation.network import Network
from simulation.programs.inline_send import InlineSendShell
from simulation.programs.program_process import ProgramProcess
from simulation.programs.programs import (
    GROUP_PARTITION,
    Burst,
    Call,
    Ledger,
    PlannedTransaction,
    Program,
    ProgramStep,
    Send,
    SentRecord,
    Sleep,
    Verb,
    group_of_producer,
    plain_program,
    transactional_program,
)
from simulation.records import Record
from simulation.transport import Transport
from simulation.wake_timer import WakeTimer
from simulation.world import World

CONNECT_TIMEOUT_MS: Final = 700
MAX_BLOCK_MS: Final = 10_000
WAITS_SHARE: Final = 0.6
"""Share of bursts whose callers wait, for a producer with inline send."""
CLOSE_TIMEOUT_MS: Final = 60_000
RESTART_MS_MAX: Final = 800
INCARNATIONS_MAX: Final = 60
HANDLER_MS: Final = 700
"""How long an exception handler sometimes takes: batches expire and responses arrive in the meantime."""
FAILED_OF: Final = 4
"""A handler lets one rejected record in this many fail."""
UNKNOWN_TOPIC_OF: Final = 12
"""Of records with an unknown topic, a handler lets one in this many fail, drops one and retries the others."""
BY_NUMBER: Final = {0: RetriableResponse.FAIL, 1: RetriableResponse.SWALLOW}
EMPTY_BURST: Final = Burst(records=(), as_table=False, pause_ms=0)
MakeProcess: TypeAlias = "Callable[[Any, str, Program], ProgramProcess]"
"""Takes a `ProducerUser`, the name of the incarnation and its program."""


class ProducerUser:
    """A user of producers. The incarnations consume `work`: a new one does not repeat what an earlier one has begun.

    `process`: the class of the incarnations, by default our own producer. `last`: the final burst of a producer without transactions.
    `has_handler`: it has an exception handler (KIP-1038) that drops most rejected records and retries most records of unknown topics.
    `has_inline_send`: its callers use inline send where possible.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        bootstrap: Sequence[Address],
        name: str,
        options: Mapping[str, Any],
        work: Iterator[Burst] | Iterator[PlannedTransaction],
        process: MakeProcess | None = None,
        *,
        last: Callable[[], Burst | None] = lambda: EMPTY_BURST,
        has_handler: bool = False,
        has_inline_send: bool = False,
    ) -> None:
        self.is_waiting = False
        """Everything is sent except the final burst."""
        self._last = last
        self.ledger = Ledger(name=name)
        self.has_handler = has_handler
        self.has_inline_send = has_inline_send
        self.options = {**options, "bootstrap.servers": ",".join(map(str, bootstrap)), "client.id": name}
        self.is_transactional = "transactional.id" in options
        self.world = world
        self.network = network
        self.ledger.delivery_timeout_ms = self.options["delivery.timeout.ms"]
        self._work: Any = work
        self._process = process or ProducerProcess
        self._incarnations = 0
        self._newest: ProgramProcess | None = None
        self._live_count = 0
        self._is_finished = False
        self._is_starting = False

    @property
    def name(self) -> str:
        return self.ledger.name

    @property
    def is_done(self) -> bool:
        """The work is done and no process is left, zombies included."""
        return self._is_finished and not self._live_count

    def start(self) -> None:
        """Start a new process; an older one that still lives is not informed."""
        self._is_starting = False
        self._incarnations += 1
        assert self._incarnations <= INCARNATIONS_MAX, f"{self.ledger.name} restarts for ever: {self.ledger.calls_failed[-3:]}"
        self._live_count += 1
        self._newest = self._process(self, f"{self.ledger.name}.{self._incarnations}", self.program())
        self._newest.resume()

    def program(self) -> Program:
        """The program of an incarnation."""
        return transactional_program(self.ledger, self._work) if self.is_transactional else plain_program(self._work, self._last_burst)

    def _last_burst(self) -> Burst | None:
        self.is_waiting = True
        return self._last()

    def kill(self) -> None:
        """SIGKILL to the newest process."""
        if self._newest is not None and not self._is_finished and not self._is_starting:
            self.world.count("producers killed")
            self._newest.die("killed")
            self._start_soon()

    def start_replacement(self) -> None:
        """Start another process while the newest still works, which makes it a zombie."""
        if self.is_transactional and not self._is_finished and not self._is_starting:
            self.world.count("producers made zombies")
            self.start()

    def finished(self, process: ProgramProcess) -> None:
        """The program ended. If it was that of a zombie, the newest process has the remaining work."""
        if process is self._newest:
            self._is_finished = True

    def ended(self) -> None:
        """A process is gone, for whatever reason."""
        self._live_count -= 1

    def request_restart(self, process: ProgramProcess) -> None:
        """The program cannot continue with this producer. A zombie, which was fenced, just ends."""
        self.world.count("producers restarted")
        process.die("its program needs a new producer")
        if process is self._newest:
            self._start_soon()

    def _start_soon(self) -> None:
        if not self._is_starting:
            self._is_starting = True
            self.world.after(self.world.rng.randint(1, RESTART_MS_MAX), self.start)


class ProducerProcess(ProgramProcess):
    """One incarnation: a core, its connections, and a running program."""

    def __init__(self, user: ProducerUser, actor: str, program: Program) -> None:
        super().__init__(user, actor, program)
        settings = parse_options(user.options)
        questions = frozenset(Question) if user.has_handler else frozenset()
        self._core = ProducerCore(settings, self._world.new_rng(), questions=questions)
        self._transport = Transport(
            self._world,
            user.network,
            actor,
            self._handle_all,
            request_timeout_ms=settings["request.timeout.ms"],
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            on_wake=self._on_wake,
        )
        self._inline_send = InlineSendShell(self._world, actor, self._core, self._transport, self) if user.has_inline_send else None
        self._blocked: Callable[[], bool] | None = None
        self._awaited: Call | None = None
        self._awaited_record: SentRecord | None = None
        # A batch larger than all the memory would wait for it forever; `tables/sending.py` limits batches in the same way.
        self._batch_bytes: int = min(settings["batch.size"], settings["buffer.memory"])
        self._timer = WakeTimer(self._world, actor, lambda: self.handle(events.TimePassed()))

    # The program -----------------------------------------------------------------------------------------------------------------------

    def _begin(self, step: ProgramStep) -> None:
        match step:
            case Sleep():
                self._world.after(step.ms, self.resume)
            case Send():
                self._transaction = step.transaction
                self._send_each(step.burst)
            case Call():
                self._call(step)

    def _close(self) -> None:
        self._transport.close()

    # Sending, as `Producer.send` and `send_table` do -------------------------------------------------------------------------------------

    def _send_each(self, burst: Burst) -> None:
        """Send record by record. Callers without metadata or memory wait up to max.block.ms; with inline send some await each outcome."""
        left = list(burst.records)
        waits = self._inline_send is not None and not burst.as_table and self._world.chance(WAITS_SHARE)
        began_ms = self._world.steady_ms

        def try_all() -> bool:
            nonlocal began_ms
            while left:
                if self._awaited_record is not None:  # Its caller waits for the outcome without a limit.
                    began_ms = self._world.steady_ms
                    return False
                count = self._try_table(left, began_ms) if burst.as_table else self._try_send(left[0], waits=waits)
                if not count and self._world.steady_ms - began_ms >= MAX_BLOCK_MS:
                    topic, partition = left[0].topic_partition
                    error = self._core.records_rejected(1, self._core.wait_causes.topic_timeout(topic, partition, MAX_BLOCK_MS))
                    self._note(left[0]).errors.append(error)
                    count = 1
                if not count:
                    return False
                if waits:
                    self._await(left[0])
                del left[:count]
            self._resume_soon()
            return True

        self._world.after(MAX_BLOCK_MS, self._wake)
        self._block(try_all)

    def _await(self, record: Record) -> None:
        """Let the caller wait for the outcome, unless there is one already."""
        sent = self._user.ledger.sent[record.number]
        self._awaited_record = sent if sent.ended_ms is None and not sent.errors else None

    def _try_send(self, record: Record, *, waits: bool) -> int:
        """Returns 1 when the record's `send` has returned, 0 while it has to wait."""
        refusal = self._refusal()
        if refusal is not None:
            self._note(record).errors.append(refusal)
            return 1
        size = record_size(record.key, record.value, ())
        if not self._has_partition(record) or not self._has_memory(size):
            return 0
        if self._inline_send is not None and self._inline_send.send(record, size, self._note, waits=waits):
            return 1
        topic, partition = record.topic_partition
        new = NewRecord(
            topic=topic,
            partition=partition,
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp_ms,
            size=size,
            future=self._note(record),
        )
        self._core.append(record.topic_partition, new, self._world.steady_ms)
        return 1

    def _try_table(self, records: Sequence[Record], handed_over_ms: int) -> int:
        """Returns how many records, all of one partition, went into a ready-made batch."""
        first = records[0]
        refusal = self._refusal()
        if refusal is not None:
            self._note(first).errors.append(refusal)
            return 1
        taken: list[Record] = []
        memory_bytes = 0
        for record in records:
            size = record_size(record.key, record.value, ())
            if record.topic_partition != first.topic_partition or (taken and memory_bytes + size > self._batch_bytes):
                break
            taken.append(record)
            memory_bytes += size
        if not self._has_partition(first) or not self._has_memory(memory_bytes):
            return 0
        goes = self._screened(taken, handed_over_ms)
        if goes:
            self._append_batch(goes, memory_bytes, handed_over_ms)
        return len(taken)

    def _screened(self, records: list[Record], handed_over_ms: int) -> list[Record]:
        """Returns the records to send; the others fail before they are encoded."""
        tp = records[0].topic_partition
        reason = self._core.screening.of_rows(tp.topic, handed_over_ms, self._world.steady_ms).get(tp.partition)
        keyless = [] if reason is None else [record for record in records if record.key is None]
        if reason is None or not keyless:
            return records
        rows = np.array([record.number for record in keyless], np.int64)
        for record, error in zip(keyless, ScreenedErrors(range(len(rows)), rows, tp, reason).values(), strict=True):
            sent = self._note(record)
            sent.errors.append(error)
            sent.ended_ms = self._world.steady_ms
        self._core.screening.failed(len(rows))
        self._world.count("records screened before they are encoded", len(rows))
        self._world.log(self.actor, f"records {rows.tolist()} of {tp} fail unsent")
        return [record for record in records if record.key is not None]

    def _append_batch(self, taken: Sequence[Record], memory_bytes: int, handed_over_ms: int) -> None:
        columns = RecordColumns.from_lists(
            [record.key for record in taken], [record.value for record in taken], [record.timestamp_ms for record in taken]
        )
        batch = ProducerBatch(
            topic_partition=taken[0].topic_partition,
            outcome_sink=[self._note(record) for record in taken],
            rows=np.arange(len(taken), dtype=np.int64),
            timestamps=columns.timestamps,
            data=self._core.accumulator.encode_rows(columns),
            created_ms=self._world.steady_ms,
            position=0,
            memory_bytes=memory_bytes,
            key_valid=columns.key_valid,
            handed_over_ms=handed_over_ms,
        )
        self._core.append_batch(batch, self._world.steady_ms)

    def _refusal(self) -> KafkaException | None:
        transaction = self._core.transaction
        return None if transaction is None else transaction.refusal_of_send()

    def _has_partition(self, record: Record) -> bool:
        topic, partition = record.topic_partition
        count = self._core.context.cluster.partition_count(topic)
        if count is not None and partition < count:
            return True
        self.handle(events.TopicRequested(topic=topic, is_stale=count is not None))
        return False

    def _has_memory(self, size: int) -> bool:
        self._core.callers.memory_waiters = int(not self._core.accumulator.has_memory_for(size))
        return not self._core.callers.memory_waiters

    # Calls -----------------------------------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> None:
        self._awaited = call
        deadline_ms = self._world.steady_ms + MAX_BLOCK_MS
        match call.verb:
            case Verb.INIT:
                event: events.Event = events.InitTransactionsCalled(call=call, deadline_ms=deadline_ms)
            case Verb.BEGIN:
                event = events.BeginTransactionCalled(call=call)
            case Verb.OFFSETS:
                offsets, group = self._offsets(call)
                event = events.SendOffsetsCalled(call=call, deadline_ms=deadline_ms, offsets=offsets, group=group)
            case Verb.COMMIT:
                event = events.CommitCalled(call=call, deadline_ms=deadline_ms)
            case Verb.ABORT:
                event = events.AbortCalled(call=call, deadline_ms=deadline_ms)
            case Verb.FLUSH:
                event = events.FlushCalled(call=call)
            case Verb.CLOSE:
                event = events.CloseCalled(call=call, deadline_ms=self._world.steady_ms + CLOSE_TIMEOUT_MS)
        self.handle(event)

    def _offsets(self, call: Call) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """The offsets that join the transaction, and their group."""
        return {GROUP_PARTITION: OffsetAndMetadata(call.offset)}, GroupMetadata(group_of_producer(self._user.ledger.name))

    # The core --------------------------------------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Pass one event to the core and run its effects."""
        self._handle_all((event,))

    def _handle_all(self, received: Sequence[events.Event]) -> None:
        """Pass all events of one moment to the core together, as in the sender thread."""
        if self._is_dead:
            return
        if self._inline_send is not None:
            self._inline_send.close()
        for effect in self._core.handle_all(received, self._world.steady_ms):
            self._perform(effect)
        self._timer.set(self._core.next_deadline_ms if self._inline_send is None else self._inline_send.open())

    def _on_wake(self) -> None:
        """The network has events: disable inline send first, and enable it in the round that follows."""
        if self._inline_send is not None and self._inline_send.is_open:
            self._inline_send.close()
            self._world.after(0, self.run_sender)

    def run_sender(self) -> None:
        """Wake the sender, for whatever reason."""
        self._handle_all(())

    def outcome_received(self, sent: SentRecord) -> None:
        """A record has its outcome."""
        sent.ended_ms = self._world.steady_ms
        if sent is self._awaited_record:
            self._awaited_record = None
            self._world.after(MAX_BLOCK_MS, self._wake)
            self._world.after(0, self._wake)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendRequest():
                self._transport.send(
                    effect.address,
                    effect.message,
                    effect.token,
                    timeout_ms=effect.timeout_ms,
                    version_max=effect.version_max,
                    expects_response=effect.expects_response,
                )
            case CompleteBatch():
                self._complete(effect)
            case FailRecords():
                self._fail(effect)
            case AskHandler():
                self._world.after(self._world.rng.choice((0, 0, HANDLER_MS)), lambda: self._answer(effect))
            case CompleteCall():
                self._returned(effect.call, None)
            case FailCall():
                self._returned(effect.call, effect.error)
            case WakeCallers():
                self._world.after(0, self._wake)

    def _complete(self, effect: CompleteBatch) -> None:
        numbers = []
        for index, row in enumerate(effect.batch.rows):
            sent: SentRecord = effect.batch.outcome_sink[row]
            sent.offsets.append(effect.base_offset + index if effect.base_offset >= 0 else -1)
            self.outcome_received(sent)
            numbers.append(sent.record.number)
        self._world.log(self.actor, f"records {numbers} are written in {effect.batch.topic_partition} from offset {effect.base_offset}")

    def _returned(self, call: Call, error: KafkaException | None) -> None:
        assert call is self._awaited, f"{self.actor}: {call} returns, awaited is {self._awaited}"
        self._awaited = None
        self._world.log(self.actor, f"{call.verb.value} {'returns' if error is None else f'raises {type(error).__name__}: {error}'}")
        self._resume_soon(error)

    def _fail(self, effect: FailRecords) -> None:
        if isinstance(effect.errors, ScreenedErrors):
            self._world.count("records screened", len(effect.errors))
        for index, row in enumerate(effect.batch.rows):
            sent: SentRecord = effect.batch.outcome_sink[row]
            error = effect.errors.get(index, effect.error)
            if index in effect.dropped or error is not None:
                self.outcome_received(sent)
            if index in effect.dropped:
                sent.drops += 1
                self._world.log(self.actor, f"record {sent.record.number} is dropped")
                self._world.count("records dropped")
            elif error is not None:
                sent.errors.append(error)
                self._world.log(self.actor, f"record {sent.record.number} failed, {error.stored.value}: {type(error).__name__}: {error}")
                self._world.count(f"records failed: {type(error).__name__}")

    def _answer(self, effect: AskHandler) -> None:
        """The decision of the exception handler."""
        records: dict[int, SentRecord] = {index: effect.batch.outcome_sink[effect.batch.rows[index]] for index in effect.errors}
        if effect.question is Question.REJECTED:
            decision = HandlerDecision(swallowed=frozenset(index for index, sent in records.items() if sent.record.number % FAILED_OF))
        else:
            for sent in records.values():
                sent.handler_response = BY_NUMBER.get(sent.record.number % UNKNOWN_TOPIC_OF, RetriableResponse.RETRY)
            decision = HandlerDecision(
                swallowed=frozenset(index for index, sent in records.items() if sent.handler_response is RetriableResponse.SWALLOW),
                retried=frozenset(index for index, sent in records.items() if sent.handler_response is RetriableResponse.RETRY),
            )
            self._world.count("records the handler retries", len(decision.retried))
        self.handle(events.HandlerDecided(batch=effect.batch, decision=decision))

    def _block(self, attempt: Callable[[], bool]) -> None:
        """Block the caller until `attempt` returns True."""
        self._blocked = attempt
        self._wake()

    def _wake(self) -> None:
        if self._blocked is None or self._is_dead:
            return
        attempt, self._blocked = self._blocked, None
        if not attempt() and self._blocked is None:
            self._blocked = attempt
        if self._inline_send is None or not self._inline_send.is_busy:
            self.handle(events.TimePassed())
        elif not self._core.accumulator.is_empty:
            self._inline_send.wakeup()
