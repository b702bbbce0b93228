"""Admission control for `send` and `send_table`: closed checks, waits for metadata and for buffer memory, and the record size limit.

Kafka's counterparts are `waitOnMetadata` and BufferPool. Methods that wait, or that call the exception handler, are called without the
lock. They return None if the record is admitted, and otherwise the reason why it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from chaffinch.client.arguments import TIMEOUT_MAX_S
from chaffinch.client.wait_log import FIRST_PAUSE_MS, LONGEST_PAUSE_MS
from chaffinch.errors import (
    IllegalStateException,
    KafkaException,
    RecordTooLargeException,
    Stored,
    UnknownTopicOrPartitionException,
)
from chaffinch.errors.copies import copy_for_raise
from chaffinch.identifiers import TopicPartition
from chaffinch.producer import arguments
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES, Claim
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.core.refusals.record_errors import key_text
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.handler_calls import Dropped, HandlerCalls, Stop
from chaffinch.producer.records import ProducerRecord
from chaffinch.runtime.clock import Clock
from chaffinch.settings import Settings

log = logging.getLogger("chaffinch.producer")

# A broker may create a topic when its metadata is requested. That takes less than this; a longer wait is logged with its cause.
SILENT_MS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class _MetadataWait:
    """One caller's wait for a topic, or a partition of it."""

    topic: str
    partition: int | None
    started_ms: int
    call: str
    """Name of the public method, for error texts."""
    sends: bool
    """A record waits for the topic: the wait ends if no record may be sent."""
    checked_version: int = -1
    """Version of the cluster metadata that was checked last."""
    next_log_ms: int
    """Length of the wait after which the next log line is due."""
    pause_ms: int = FIRST_PAUSE_MS


RecordOf: TypeAlias = Callable[[], ProducerRecord]
"""Makes the record that an exception handler is to decide about."""


class Sender(Protocol):
    """What runs the core: a thread, or an event loop. Members as in `SenderThread`."""

    death: KafkaException | None
    lock: Any
    changed: Any

    @property
    def is_in_other_process(self) -> bool: ...

    @property
    def name(self) -> str: ...

    @property
    def new_future(self) -> type[RecordFuture[Any]]: ...

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is a callback that runs the core, and so cannot wait for it."""
        ...

    def submit(self, event: events.Event) -> None: ...

    def wakeup(self) -> None: ...


class StillWaiting(Enum):
    STILL_WAITING = "still waiting"


STILL_WAITING: Final = StillWaiting.STILL_WAITING
"""A wait for metadata that goes on after a log line, or because the exception handler decided so."""


class SendGate:
    """Admission control for `send`. `lock` guards the core; threads blocked on it wait on `changed`."""

    def __init__(self, settings: Settings, core: ProducerCore, sender: Sender, clock: Clock, handler: HandlerCalls) -> None:
        self.core: Final = core
        self.lock: Final = sender.lock
        self.changed: Final = sender.changed
        self.clock: Final = clock
        self.handler: Final = handler
        self.request_bytes_max: Final[int] = settings["max.request.size"]
        self.is_closed = False
        self._sender: Final = sender
        self.new_future: Final = sender.new_future
        self._block_ms: Final[int] = settings["max.block.ms"]
        self._retry_unknown_ms: Final[int] = settings["retry.unknown.topic.partition.ms"]

    def close(self) -> bool:
        """Admit no more records and notify waiting threads. Returns whether the gate was open."""
        with self.lock:
            was_open, self.is_closed = not self.is_closed, True
            self.core.shut()
            self.changed.notify_all()
        return was_open

    def check_open(self, what: str) -> None:
        """Raise IllegalStateException in a forked child, and if the producer is closed."""
        self.check_process(what)
        if self.is_closed:
            raise IllegalStateException(f"{what}(): close() was called, the producer is closed")  # Before the call, or during it.

    def check_process(self, what: str) -> None:
        """Raise IllegalStateException in a forked child."""
        if self._sender.is_in_other_process:
            raise IllegalStateException(
                f"{what}() in a forked child: the producer belongs to the process that made it; make one in each process"
            )

    def interrupted(self, what: str) -> IllegalStateException:
        """The error for a call in a signal handler or finalizer that has interrupted a call which holds the lock.

        It would see, and change, state that the interrupted call has changed only in part; records could be lost without an outcome.
        """
        self.check_open(what)
        return IllegalStateException(
            f"{what}() in a signal handler or finalizer that interrupts a call of the same producer, which has to end first: "
            "set a flag there, or put the record into a queue.SimpleQueue, and send it from the main program"
        )

    def refusal(self, call: str = "send") -> KafkaException | None:
        """Why no record can be sent now; None if one can. IllegalStateException is raised instead, because the caller is at fault."""
        ended = self._ended(call)
        if ended is not None or self.core.transaction is None:
            return ended
        refusal = self.core.transaction.refusal_of_send(call)
        if isinstance(refusal, IllegalStateException):
            raise refusal
        return refusal

    def _ended(self, call: str) -> KafkaException | None:
        """Why not even metadata can be requested; None if it can."""
        self.check_open(call)
        return None if self._sender.death is None else copy_for_raise(self._sender.death)

    def wakeup(self) -> None:
        """Wake the sender thread: there may be something to send."""
        self._sender.wakeup()

    def left(self) -> None:
        """Clean up after a caller that leaves with an exception, perhaps KeyboardInterrupt, which can come at any time.

        The sender thread may not have been woken for the caller's records, and memory reserved for the caller is free for other threads.
        """
        self._sender.wakeup()
        with self.lock:
            self.changed.notify_all()

    def transaction_number(self) -> int:
        """Sequence number of the transaction that new records join; 0 if none."""
        return 0 if self.core.transaction is None else self.core.transaction.transaction_number

    def stopped(self, stop: Stop, transaction_number: int, count: int = 1, call: str = "send") -> Stop:
        """Count records that are not sent. Unless they were dropped they fail the transaction `transaction_number`, of which they are part.

        IllegalStateException if another thread has ended that transaction in the meantime: it may be committed.
        """
        if isinstance(stop, Dropped):
            with self.lock:
                self.core.context.counts["records_dropped"] += count
            return stop
        error = self.core.error_of_unsent(stop)
        with self.lock:  # So that the transaction handles the rejected records before any later call.
            if self.core.transaction is not None and self.core.transaction.is_over(transaction_number):
                raise IllegalStateException(
                    f"{call}() could not send ({error.name}: {error.message.rstrip('.')}), and another thread has ended its transaction "
                    f"in the meantime: end a transaction only when every {call}() in it has returned"
                ) from error
            with suppress(KafkaException):  # The sender thread has ended, so the transaction has failed already.
                self._sender.submit(events.RecordsRejected(count=count, error=error, transaction_number=transaction_number))
        return error

    def too_large(self, tp: TopicPartition, size: int, key: bytes | None, record_of: RecordOf) -> Stop | None:
        """Check a record of `size` bytes against `max.request.size` and `buffer.memory`. `tp`: its partition, as far as known."""
        size += BATCH_OVERHEAD_BYTES
        for limit, option in ((self.request_bytes_max, "max.request.size"), (self.core.accumulator.memory_bytes, "buffer.memory")):
            if size > limit:
                text = f"the record ({key_text(key)}) takes {size} bytes, {option} allows {limit}: it was not sent"
                error = RecordTooLargeException(text, topic_partition=tp, stored=Stored.NO)
                return self.handler.too_large(record_of, error, may_drop=option == "max.request.size")
        return None

    def request_topics(self, topics: Iterable[str]) -> None:
        """Request the metadata of all topics together, before waiting for each."""
        for topic in topics:
            if arguments.illegal_topic_error(topic) is None:
                self._sender.submit(events.TopicRequested(topic=topic, is_stale=True))

    def wait_for_topic(
        self,
        topic: str,
        partition: int | None,
        record_of: RecordOf | None,
        started_ms: int | None = None,
        call: str = "send",
    ) -> Stop | None:
        """Wait until the topic, and the partition, are known. Without `record_of` the exception handler is not called.

        `started_ms`: start of the wait on the steady clock, by default now. `call`: name of the public method, for error texts.
        """
        begun = self._begin_wait(topic, partition, record_of, started_ms, call)
        if not isinstance(begun, _MetadataWait):
            return begun
        while True:
            with self.lock:
                found = self._wait_for_metadata(begun)
                begun.checked_version = self.core.context.cluster.version
            result = self._waited(begun, found, record_of)
            if not isinstance(result, StillWaiting):
                return result

    def _begin_wait(
        self, topic: str, partition: int | None, record_of: RecordOf | None, started_ms: int | None, call: str
    ) -> _MetadataWait | KafkaException:
        """Begin to wait for a topic. Returns the error of an illegal name instead."""
        illegal = arguments.illegal_topic_error(topic)
        if illegal is not None:
            return illegal
        started_ms = self.clock.steady_ms() if started_ms is None else started_ms
        self._sender.submit(events.TopicRequested(topic=topic, is_stale=True))
        return _MetadataWait(
            topic=topic, partition=partition, started_ms=started_ms, call=call, sends=record_of is not None, next_log_ms=SILENT_MS
        )

    def _waited(
        self,
        metadata_wait: _MetadataWait,
        found: KafkaException | StillWaiting | None,
        record_of: RecordOf | None,
    ) -> Stop | StillWaiting | None:
        """The result of one wait for metadata: the end of the wait, or a log line and a further wait."""
        waited_ms = self.clock.steady_ms() - metadata_wait.started_ms
        if found is STILL_WAITING:
            self._log_wait(metadata_wait, waited_ms)
        elif not isinstance(found, UnknownTopicOrPartitionException) or waited_ms >= self._retry_unknown_ms:
            return found
        elif record_of is not None and (stop := self.handler.unknown_topic(record_of, found)) is not None:
            return stop
        return STILL_WAITING

    def _log_wait(self, metadata_wait: _MetadataWait, waited_ms: int) -> None:
        """Log why `send` does not return yet. Called without the lock, because a logging handler may call `send` itself."""
        with self.lock:
            why = self.core.wait_causes.topic_timeout(metadata_wait.topic, metadata_wait.partition, waited_ms).message
            is_unknown = (
                self.core.wait_causes.unknown_topic(metadata_wait.topic, metadata_wait.partition, metadata_wait.started_ms) is not None
            )
        limits = {"max.block.ms": self._block_ms} | ({"retry.unknown.topic.partition.ms": self._retry_unknown_ms} if is_unknown else {})
        option = min(limits, key=limits.__getitem__)
        log.warning("%s: %s; retrying for up to %d ms (%s)", self._sender.name, why, limits[option], option)
        metadata_wait.next_log_ms, metadata_wait.pause_ms = (
            waited_ms + metadata_wait.pause_ms,
            min(2 * metadata_wait.pause_ms, LONGEST_PAUSE_MS),
        )

    def _wait_for_metadata(self, metadata_wait: _MetadataWait) -> KafkaException | StillWaiting | None:
        """Wait for a topic until it is known, waiting is pointless, a new response says that it is unknown, or a log line is due."""
        steps = self._metadata_steps(metadata_wait)
        while True:
            try:
                wait_ms = next(steps)
            except StopIteration as done:
                found: KafkaException | StillWaiting | None = done.value
                return found
            self._wait(wait_ms)

    def _metadata_steps(self, metadata_wait: _MetadataWait) -> Generator[int, None, KafkaException | StillWaiting | None]:
        """The waits of `_wait_for_metadata`: yields the maximum time to wait, in ms, for a change of the core."""
        topic, partition, started_ms, checked_version = (
            metadata_wait.topic,
            metadata_wait.partition,
            metadata_wait.started_ms,
            metadata_wait.checked_version,
        )
        cluster, has_waited = self.core.context.cluster, False
        while True:
            # Checked before the first wait, too: a change since the lock was last held does not wake this thread.
            refusal = self.refusal(metadata_wait.call) if metadata_wait.sends else self._ended(metadata_wait.call)
            if refusal is not None:
                return refusal
            if has_waited:
                self._sender.submit(events.TopicRequested(topic=topic, is_stale=partition is not None))
            count = cluster.partition_count(topic)
            if count is not None and (partition is None or partition < count):
                return None
            waited_ms = self.clock.steady_ms() - started_ms
            error = self.core.wait_causes.topic_error(topic, started_ms)
            if error is not None:
                return error
            unknown = self.core.wait_causes.unknown_topic(topic, partition, started_ms)
            if unknown is not None and (cluster.version > checked_version or waited_ms >= self._retry_unknown_ms):
                return unknown
            if self._sender.is_own_thread:
                return self.core.wait_causes.callback_cannot_wait(topic, partition)
            if waited_ms >= self._block_ms:
                return self.core.wait_causes.topic_timeout(topic, partition, waited_ms)
            if waited_ms >= metadata_wait.next_log_ms:
                return STILL_WAITING
            limit_ms = self._block_ms if unknown is None else min(self._block_ms, self._retry_unknown_ms)
            yield min(limit_ms, metadata_wait.next_log_ms) - waited_ms
            has_waited = True

    def wait_for_memory(
        self, size: int, started_ms: int | None = None, call: str = "send", tp: TopicPartition | None = None
    ) -> KafkaException | None:
        """Wait until `size` bytes of buffer memory are free. Returns the error if the wait fails.

        `started_ms`: start of the caller's wait for metadata or memory, by default now. `tp`: the partition of the records. `call`: name of
        the public method. This is the only method that is called with the lock held (once, not twice); it releases the lock while it waits.
        """
        started_ms = self.clock.steady_ms() if started_ms is None else started_ms
        accumulator = self.core.accumulator
        claim, is_unused = accumulator.claim(size), True
        try:
            if self.core.memory_wait_began():
                self._sender.wakeup()
            while not accumulator.is_granted(claim):
                waited_ms = self.clock.steady_ms() - started_ms
                if waited_ms >= self._block_ms or self._sender.is_own_thread:
                    return self.core.wait_causes.memory_timeout(size, waited_ms, tp, self.core.wait_causes.cause())
                self._wait(self._block_ms - waited_ms)
                refusal = self.refusal(call)
                if refusal is not None:
                    return refusal
            is_unused = False
        finally:
            try:
                self._end_memory_wait(claim, is_unused=is_unused)
            except BaseException:  # KeyboardInterrupt during the clean-up.
                self._end_memory_wait(claim, is_unused=True)
                raise
        return None

    def _end_memory_wait(self, claim: Claim, *, is_unused: bool) -> None:
        """End the wait for memory. `is_unused`: the reserved memory is not taken. Can be repeated after an interruption at any point."""
        accumulator = self.core.accumulator
        accumulator.settle(claim)
        self.core.callers.memory_waiters = accumulator.claim_count
        if is_unused:  # Otherwise no memory has become free, and waking the other threads would be useless.
            self.changed.notify_all()  # They may get the memory that was reserved for this caller.

    def _wait(self, ms: int) -> None:
        """Release the lock until the core changes. Waits at most TIMEOUT_MAX_S, because `max.block.ms` may exceed the system's limit."""
        self.changed.wait(min(ms / 1000, TIMEOUT_MAX_S))
