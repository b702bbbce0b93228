"""ProducerCore: the producer without I/O. Events and the time go in, effects come out. It has no clock, socket, thread or random source.

It connects the parts: `accumulator` fills batches, `batch_sender` sends them, `response_handler` handles responses, `completer` ends
batches, and `transactions/` decides what may be sent. Records are appended by `append` and `append_batch` (the hot path); everything else
is an event. The caller serializes all calls with a lock.

Each event is followed by the same round, `_advance`: expire old batches, request metadata, an identity or the transaction's next step,
send ready batches, and complete waiting calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Rng
from chaffinch.client.connections import Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition, pluralize
from chaffinch.producer.core import events
from chaffinch.producer.core.auxiliary_requests import IDENTITY_TOKEN, AuxiliaryRequests, IdentityManager
from chaffinch.producer.core.batch_sender import BatchSender
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES, Accumulator, Appended, OpenBatch
from chaffinch.producer.core.batches.batch import BatchFutures, NewRecord, ProducerBatch
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.callers import Callers
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import Effect, FailCall, WakeCallers
from chaffinch.producer.core.exception_handler import Question
from chaffinch.producer.core.options import compression_level
from chaffinch.producer.core.partitioner import MURMUR2, Availability, Partitioner, Rule, partition_of_key
from chaffinch.producer.core.produce_response_handler import ProduceResponseHandler
from chaffinch.producer.core.recreated_topics import RecreatedTopics
from chaffinch.producer.core.refusals.errors import as_abortable
from chaffinch.producer.core.refusals.screening import Screening
from chaffinch.producer.core.refusals.wait_causes import WaitCauses
from chaffinch.producer.core.retrying_request import Waiter
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.producer.core.wait_logs import OUTAGE, BatchWaitLog, OutageLog, RequestWaitLog
from chaffinch.records.columns import RECORD_OVERHEAD_BYTES
from chaffinch.records.compression import from_name
from chaffinch.settings import Settings


class ProducerCore:
    """One producer. `handle` takes an event and returns effects, to be executed in order; `next_deadline_ms` says when to call it next."""

    def __init__(self, settings: Settings, rng: Rng, *, questions: frozenset[Question] = frozenset(), rule: Rule | str = MURMUR2) -> None:
        """`questions`: cases that the exception handler decides (effect AskHandler). `rule`: the partitioner."""
        self.context = context = ProducerContext(settings, rng, questions)
        self.transaction = context.transaction
        self.accumulator = Accumulator(
            batch_bytes=settings["batch.size"],
            linger_ms=settings["linger.ms"],
            memory_bytes=settings["buffer.memory"],
            compression=from_name(settings["compression.type"]),
            level=compression_level(settings),
        )
        self.availability = Availability(settings, context, self.accumulator)
        self.partitioner = Partitioner(
            rng,
            self.availability.loads,
            batch_bytes=settings["batch.size"],
            rule=rule,
            ignores_keys=settings["partitioner.ignore.keys"],
            is_adaptive=settings["partitioner.adaptive.partitioning.enable"],
        )
        self._needs_round = False
        self.identity = identity = IdentityManager(context)
        self.outstanding = outstanding = Outstanding(context, self.accumulator)
        self.callers = callers = Callers(outstanding)
        self.wait_causes = WaitCauses(context, outstanding, identity.retrying_request)
        self.screening = Screening(context)
        self.completer = completer = BatchCompleter(context, outstanding, callers, self.wait_causes)
        self.response_handler = ProduceResponseHandler(context, outstanding, completer, self.screening)
        self.batch_sender = BatchSender(context, outstanding, completer, self.screening, identity)
        self.recreated_topics = RecreatedTopics(context, outstanding, completer, self.response_handler, self.partitioner, self.availability)
        self.requests = AuxiliaryRequests(context, identity, self.response_handler, completer, self.recreated_topics)
        self.outage_log = OutageLog(context, outstanding)
        self.batch_wait_log = BatchWaitLog(context, outstanding, self.wait_causes)
        self.request_wait_log = RequestWaitLog(context, identity.retrying_request, self._waiters)
        self.inline_request: Any = None
        """The record that is being sent inline, past the core (`inline_send.py`), if there is one."""
        self.allows_inline_send = (
            settings["linger.ms"] == 0 and settings["compression.type"] == "none" and context.is_idempotent and self.transaction is None
        )
        """Whether a record may be sent inline, on its caller's thread, while no other record is outstanding."""
        self._tps: dict[str, list[TopicPartition]] = {}
        """Cached TopicPartitions of the topics in use, valid for `_tps_version` of the cluster metadata."""
        self._tps_version = -1
        self._record_bytes_max: int = settings["max.request.size"] - BATCH_OVERHEAD_BYTES
        self.is_shut = False
        """The shell accepts no more records."""
        self._sticky_batches: dict[str, OpenBatch] = {}
        """Per topic, the batch that its records without a key join."""

    def handle(self, event: events.Event, steady_ms: int) -> list[Effect]:
        """Handle an event, run a round, and return the effects for the shell."""
        return self.handle_all((event,), steady_ms)

    def handle_all(self, received: Iterable[events.Event], steady_ms: int) -> list[Effect]:
        """Handle several events of one moment, in order, with one round for all. No events: the same as TimePassed."""
        if self.transaction is not None:
            self.transaction.steady_ms = steady_ms
        for event in received:
            self._handle_event(event, steady_ms)
        self._advance(steady_ms)
        return self._drain_effects()

    def _drain_effects(self) -> list[Effect]:
        effects = self.context.out.copy()
        self.context.out.clear()
        return effects

    @property
    def is_idle(self) -> bool:
        """Whether every record has its outcome."""
        return self.outstanding.is_empty

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for a response that is under way. A caller that waits for memory does not count."""
        if self.callers.has_flush_or_close or (self.transaction is not None and self.transaction.callers.has_any):
            return True
        under_way = (batch.outcome_sink for queue in self.outstanding.busy() for batch in queue.in_flight)
        return any(isinstance(outcome_sink, BatchFutures) and outcome_sink.watched for outcome_sink in under_way)

    @property
    def has_open_transaction(self) -> bool:
        """Whether there is a transaction that can be aborted."""
        return self.transaction is not None and self.transaction.is_open

    def left_open(self, is_connected: Callable[[Address], bool]) -> str | None:
        """Log line about a transaction that is left open without an EndTxn, or whose coordinator is not connected; None without one."""
        if self.transaction is None:
            return None
        coordinator = self.transaction.address_of(Step.END)
        return self.transaction.left_open(is_cut_off=coordinator is None or not is_connected(coordinator))

    @property
    def is_between_transactions(self) -> bool:
        """Whether the last transaction has ended as requested, so that the next one can begin."""
        return self.transaction is not None and self.transaction.state is State.READY

    # Called on callers' threads, with the lock held.

    def usable_count(self, topic: str, partition: int | None) -> int | None:
        """Number of the topic's partitions; None if it is unknown, or `partition` does not exist."""
        count = self.context.cluster.partition_count(topic)
        return count if count is None or partition is None or partition < count else None

    def choose_partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, size: int) -> int:
        """Choose the partition of a record whose caller named none."""
        if self.partitioner.uses_sticky_partition(key):
            self._close_sticky_batch(topic)
        return self.partitioner.choose(topic, key, value, partition_count, size, self._begins_batch)

    def _begins_batch(self, topic: str, partition: int, size: int) -> bool:
        begins = self.accumulator.begins_batch(TopicPartition(topic, partition), size)
        self._needs_round |= begins
        return begins

    def append(self, topic_partition: TopicPartition, record: NewRecord, steady_ms: int) -> tuple[BatchFutures, bool]:
        """Append a record to its batch; there must be memory for it.

        Returns the batch's futures, this one last, and whether the core needs a round (TimePassed).
        """
        appended, futures = self.accumulator.append(topic_partition, record, steady_ms)
        if appended is Appended.JOINED and not self._needs_round:
            return futures, False
        self._needs_round = False
        self.context.metadata.use(topic_partition.topic, steady_ms)
        return futures, True

    def join(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, future: Any) -> BatchFutures | None:
        """Fast path of `append`: a record without partition and headers joins a batch that is growing already.

        Returns the batch's futures, this one last; None if the general path is needed.
        """
        transaction = self.transaction
        if self.is_shut or (transaction is not None and transaction.state is not State.IN_TRANSACTION):
            return None
        size = RECORD_OVERHEAD_BYTES + (len(value) if value else 0)
        if key is None:
            growing = self._sticky_batches.get(topic)
        else:
            size += len(key)
            growing = self._growing_of_key(topic, key) if self.partitioner.hashes_keys else self._sticky_batches.get(topic)
        if growing is None:
            return None
        accumulator = self.accumulator
        filled, free = growing.size + size, accumulator.memory_free
        if filled >= growing.bytes_max or size > free or size > self._record_bytes_max:
            return None
        futures = growing.futures
        try:  # `growing.append`, inlined: a call is too slow here.
            growing.keys.append(key)
            growing.values.append(value)
            growing.timestamps.append(timestamp_ms)
            futures.append(future)
        except BaseException:
            growing.bytes_max = 0
            raise
        growing.size, accumulator.memory_free = filled, free - size
        return futures

    def shut(self) -> None:
        """Accept no more records."""
        self.is_shut = True

    def _growing_of_key(self, topic: str, key: bytes) -> OpenBatch | None:
        if self._tps_version != self.context.cluster.version:
            self._tps.clear()
            self._tps_version = self.context.cluster.version
        tps = self._tps.get(topic)
        if tps is None:
            tps = [TopicPartition(topic, index) for index in range(self.context.cluster.partition_count(topic) or 0)]
            self._tps[topic] = tps
        return self.accumulator.growing(tps[partition_of_key(key, len(tps))]) if tps else None

    def remember_sticky_batch(self, topic_partition: TopicPartition, key: bytes | None) -> None:
        """After the partitioner chose a sticky partition: the topic's next records without a key join the same batch while it grows."""
        growing = self.accumulator.growing(topic_partition)
        if growing is not None and self.partitioner.uses_sticky_partition(key):
            growing.counted = growing.size
            self._sticky_batches[topic_partition.topic] = growing

    def _close_sticky_batch(self, topic: str) -> None:
        """Before the partitioner chooses again: report the bytes that have joined the sticky batch since its last choice."""
        growing = self._sticky_batches.pop(topic, None)
        if growing is not None:
            self.partitioner.count(topic, growing.size - growing.counted)

    def append_batch(self, batch: ProducerBatch, steady_ms: int) -> bool:
        """Append a ready-made batch to its partition; there must be memory for it. Returns whether the core needs a round (TimePassed).

        A batch behind another one needs no round: the event that completes the other one leads to it.
        """
        self.context.metadata.use(batch.topic_partition.topic, steady_ms)
        needs_wakeup = self.accumulator.append_batch(batch)
        return self.recreated_topics.appended(batch.topic_partition) or needs_wakeup

    def memory_wait_began(self) -> bool:
        """One more caller waits for memory, so batches do not linger. Returns whether the core needs a round (TimePassed)."""
        self.callers.memory_waiters += 1
        return self._needs_round or self.accumulator.lingers or self.inline_request is not None

    def error_of_unsent(self, error: KafkaException) -> KafkaException:
        """The error for the caller of a record that failed before it was in any batch."""
        return as_abortable(error) if self.transaction is not None and error.code.is_retriable else error

    def records_rejected(self, count: int, error: KafkaException, transaction_number: int | None = None) -> KafkaException:
        """Count records that failed before they were in any batch, and return their error.

        In a transaction (`transaction_number`, by default the last one) they count like any other failure.
        """
        self.context.counts["records_failed"] += count
        error = self.error_of_unsent(error)
        if self.transaction is not None:
            self.context.out += self.transaction.record_refused(
                error, self.transaction.transaction_number if transaction_number is None else transaction_number
            )
        return error

    @property
    def outstanding_count(self) -> int:
        """Records without an outcome."""
        return self.outstanding.count() + (self.inline_request is not None)

    def give_up(self, error: KafkaException) -> list[Effect]:
        """Fail all records and calls, because the sender thread has failed or the producer is closed."""
        self.completer.give_up(error)
        effects = self._drain_effects()
        effects += [FailCall(call=call, error=error) for call in self.callers.drop()]
        return effects if self.transaction is None else effects + self.transaction.give_up(error)

    # Events.

    def _handle_event(self, event: events.Event, steady_ms: int) -> None:
        match event:
            case events.TimePassed():
                pass
            case events.TopicRequested():
                self.context.metadata.use(event.topic, steady_ms)
                if event.is_stale:
                    self.context.metadata.refresh()
            case events.FlushCalled() | events.CloseCalled():
                self._await_all(event)
            case events.RecordsRejected():
                self.records_rejected(event.count, event.error, event.transaction_number)
            case events.HandlerDecided():
                self.response_handler.handler_decided(event, steady_ms)
            case ResponseReceived():
                self._response_received(event, steady_ms)
            case RequestWritten():
                self.batch_sender.request_done(event.token)
                self.response_handler.request_written(event, steady_ms)
            case RequestFailed():
                self._request_failed(event, steady_ms)
            case Connected():
                self._connected(event)
            case Disconnected():
                self._disconnected(event, steady_ms)
            case _:
                self._call(event)

    def _call(self, event: events.TransactionCall) -> None:
        assert self.transaction is not None, "the public producer refuses transactions without a transactional id"
        self.context.out += self.transaction.call(event)

    def _await_all(self, event: events.FlushCalled | events.CloseCalled) -> None:
        if isinstance(event, events.FlushCalled):
            self.callers.flush(event.call)
            return
        self.callers.close(event.call, event.deadline_ms)
        if self.transaction is not None:
            self.transaction.callers.shorten_close(event.deadline_ms)

    def _connected(self, event: Connected) -> None:
        self.wait_causes.authentication_error = None
        self.context.attempts.succeeded(event.address)
        if self.transaction is not None:
            self.transaction.features_received(event.features)

    def _disconnected(self, event: Disconnected, steady_ms: int) -> None:
        event = self.context.explain_unreachable(event)
        self.context.attempts.failed(event.address, event.reason, steady_ms, had_response=event.had_response)
        if self.outage_log.lost(steady_ms):
            self.batch_wait_log.log.logged(OUTAGE, steady_ms, steady_ms)
        self.context.metadata.refresh()
        if event.error is not None:
            self.wait_causes.authentication_error = event.error, steady_ms
            self.context.out.append(WakeCallers())
        if self.transaction is not None:
            self.transaction.coordinators.forget_address(event.address)

    def _response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        token = event.token
        self.outage_log.response_received(event.address, steady_ms)
        if throttle_ms := getattr(event.message, "throttle_time_ms", 0):
            self.context.attempts.throttled(event.address, steady_ms + throttle_ms)
        if isinstance(token, ProduceSent):
            self.batch_sender.request_done(token)
            self.response_handler.response_received(event, steady_ms)
        else:
            self.requests.response_received(event, steady_ms)

    def _request_failed(self, event: RequestFailed, steady_ms: int) -> None:
        event = self.context.explain_unreachable(event)
        if isinstance(event.token, ProduceSent):
            self.batch_sender.request_done(event.token)
            self.response_handler.request_failed(event, steady_ms)
        else:
            self.requests.request_failed(event, steady_ms)

    # The round.

    @property
    def _hurries(self) -> bool:
        """Whether batches skip `linger.ms`: a caller waits for flush, close, memory or the end of the transaction."""
        is_completing = self.transaction is not None and self.transaction.is_completing
        return self.callers.has_any or is_completing

    def _waiters(self) -> Iterator[Waiter]:
        """The callers and records that wait for the transaction's next step, or for an identity.

        Records are left out during a reported outage, because the log says already that they wait.
        """
        if self.transaction is not None:
            yield from self.transaction.callers.waiters()
        yield from self.callers.waiters()
        expires_ms = self.completer.next_deadline_ms()
        if expires_ms is not None and not self.outage_log.is_reported:
            yield Waiter(f"{pluralize(self.outstanding_count, 'record')} without an outcome", expires_ms, "delivery.timeout.ms")

    @property
    def _has_work(self) -> bool:
        """Whether there is more to do than refresh metadata: outstanding records, waiting callers, or a transaction."""
        return self.transaction is not None or not self.outstanding.is_empty or self.callers.has_any

    def _advance(self, steady_ms: int) -> None:
        self.availability.steady_ms = steady_ms
        self.partitioner.loads_changed()
        if self._has_work:
            self._advance_records(steady_ms)
        self.requests.send_due(steady_ms)
        self.batch_wait_log.check(steady_ms, self.outage_log.reported_since_ms)
        if self.transaction is None:
            self.request_wait_log.check(IDENTITY_TOKEN if self.identity.is_requested and not self.outstanding.is_empty else None, steady_ms)

    def _advance_records(self, steady_ms: int) -> None:
        transaction = self.transaction
        if self.recreated_topics.settle():
            self.callers.positions_changed()
        self.completer.expire_batches(steady_ms)
        self.response_handler.end_unknown(steady_ms)
        if transaction is not None:
            self.context.out += transaction.expire_callers(steady_ms, self.outage_log.unreachable, self.wait_causes.batch_cause)
        if self.callers.is_late(steady_ms):
            self.completer.close()
        if transaction is not None:
            if self.callers.close_deadline_ms is not None:
                self.context.out += transaction.close(self.callers.close_deadline_ms)
            if transaction.is_failed:
                self.completer.drop_unsent()
        self.batch_sender.send_ready(steady_ms, skip_linger=self._hurries)
        if transaction is not None:
            self._advance_transaction(transaction, steady_ms)
        self.context.out += self.callers.settle(steady_ms, others_wait=transaction is not None and transaction.callers.block_close)

    def _advance_transaction(self, transaction: TransactionManager, steady_ms: int) -> None:
        has_batches, needs_epoch = not self.outstanding.is_empty, self.outstanding.need_epoch(self.identity.current)
        step = transaction.next_step(steady_ms, has_batches=has_batches, needs_epoch=needs_epoch)
        if step is not None:
            self.requests.send_step(transaction, step, steady_ms)
        is_awaited = has_batches or transaction.callers.has_any
        goal = transaction.needed_step(has_batches=has_batches, needs_epoch=needs_epoch) if is_awaited else None
        self.request_wait_log.check(goal, steady_ms)
        self.context.out += transaction.finished(has_batches=has_batches, needs_epoch=needs_epoch)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next round is due without an event, as of the last round."""
        context, steady_ms = self.context, self.availability.steady_ms
        metadata_ms, has_work = context.metadata.next_deadline_ms(steady_ms), self._has_work
        times = [metadata_ms, self.identity.next_deadline_ms(steady_ms)]
        if has_work:
            times.append(self.batch_sender.next_deadline_ms(steady_ms, skip_linger=self._hurries))
            times.append(self.completer.next_deadline_ms())
            times.append(self.response_handler.next_deadline_ms())
            times.append(self.callers.deadline_ms)
            times.append(self.request_wait_log.next_deadline_ms)
            times.append(self.batch_wait_log.next_deadline_ms)
        if self.transaction is not None:
            times.append(self.transaction.next_deadline_ms(steady_ms))
        if metadata_ms is not None or has_work:
            # All backoffs, not only the first: the leader or coordinator in backoff may be another broker.
            times.append(context.attempts.wait_ends_ms(steady_ms))
        return min([time for time in times if time is not None and time > steady_ms], default=None)
