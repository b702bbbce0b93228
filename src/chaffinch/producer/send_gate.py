"""How records get into a producer: what stops them at the door, and what their senders may have to wait for.

Both `send` and `send_table` come through here. Methods that wait, or that ask the exception handler, are called without the lock;
they return None when the record may go in, else why it does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

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
from chaffinch.producer.handler_calls import Dropped, HandlerCalls, Stop
from chaffinch.producer.records import ProducerRecord
from chaffinch.producer.sender_thread import SenderThread
from chaffinch.runtime.clock import Clock
from chaffinch.settings import Settings

log = logging.getLogger("chaffinch.producer")

# A topic may be made because it was asked for, which takes less; who waits longer is told why.
SILENT_MS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class _Search:
    """One caller's wait for a topic, or a partition of it."""

    topic: str
    partition: int | None
    started_ms: int
    call: str
    """What the caller called, for what it is told."""
    sends: bool
    """There is a record for it: where none may be sent now there is nothing to wait for."""
    answered: int = -1
    """Number of the last answer about the cluster that was looked at."""
    next_log_ms: int
    """After how long a wait the next line of the log is due."""
    pause_ms: int = FIRST_PAUSE_MS


class SendGate:
    """The way in. `lock` guards the core; who waits for it to change waits on `changed`."""

    def __init__(self, settings: Settings, core: ProducerCore, sender: SenderThread, clock: Clock, handler: HandlerCalls) -> None:
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
        """Let nobody in any more; who waits hears of it. Whether it was open."""
        with self.lock:
            was_open, self.is_closed = not self.is_closed, True
            self.core.shut()
            self.changed.notify_all()
        return was_open

    def check_open(self, what: str) -> None:
        """IllegalStateException where the call is a mistake whatever it is about."""
        self.check_process(what)
        if self.is_closed:
            raise IllegalStateException(f"{what}(): close() was called, the producer is closed")  # Before the call, or meanwhile.

    def check_process(self, what: str) -> None:
        """IllegalStateException in a forked child."""
        if self._sender.is_in_other_process:
            raise IllegalStateException(
                f"{what}() in a forked child: the producer belongs to the process that made it; make one in each process"
            )

    def interrupted(self, what: str) -> IllegalStateException:
        """Why a signal handler, or a finalizer, in the midst of a call with the lock held may not hand anything over: it would see, and
        change, what that call has changed by half, and records would be lost without an outcome."""
        self.check_open(what)
        return IllegalStateException(
            f"{what}() in a signal handler or finalizer that interrupts a call of the same producer, which has to end first: "
            "set a flag there, or put the record into a queue.SimpleQueue, and send it in the main flow"
        )

    def refusal(self, call: str = "send") -> KafkaException | None:
        """Why nothing can be sent now. IllegalStateException is raised, because it is the caller's mistake."""
        ended = self._ended(call)
        if ended is not None or self.core.transaction is None:
            return ended
        refusal = self.core.transaction.refusal_of_send(call)
        if isinstance(refusal, IllegalStateException):
            raise refusal
        return refusal

    def _ended(self, call: str) -> KafkaException | None:
        """Why nothing can be asked for either."""
        self.check_open(call)
        return None if self._sender.death is None else copy_for_raise(self._sender.death)

    def wakeup(self) -> None:
        """There may be something to send."""
        self._sender.wakeup()

    def left(self) -> None:
        """A caller goes with an exception, Ctrl-C perhaps, which comes at any time: before the sender was woken up for what was handed
        over, or with memory that was kept for it, which is for whoever waits next."""
        self._sender.wakeup()
        with self.lock:
            self.changed.notify_all()

    def transaction_number(self) -> int:
        """Number of the transaction of which a record that is handed over now is to be a part; 0 where there is none."""
        return 0 if self.core.transaction is None else self.core.transaction.transaction_number

    def stopped(self, stop: Stop, transaction_number: int, count: int = 1, call: str = "send") -> Stop:
        """Count records that are not sent; of the transaction of number `transaction_number` they are part all the same, and fail it
        unless they were
        dropped. IllegalStateException when another thread has ended it meanwhile: it may be committed."""
        if isinstance(stop, Dropped):
            with self.lock:
                self.core.wiring.counts["records_dropped"] += count
            return stop
        error = self.core.error_of_unsent(stop)
        with self.lock:  # So that nothing is asked of the transaction before it hears of them.
            if self.core.transaction is not None and self.core.transaction.is_over(transaction_number):
                raise IllegalStateException(
                    f"{call}() could not send ({error.name}: {error.message.rstrip('.')}), and another thread has ended its transaction "
                    f"meanwhile: end a transaction only when every {call}() in it has returned"
                ) from error
            with suppress(KafkaException):  # The thread has ended: then nobody needs to hear of it.
                self._sender.submit(events.RecordsRejected(count=count, error=error, transaction_number=transaction_number))
        return error

    def too_large(self, tp: TopicPartition, size: int, key: bytes | None, record_of: Callable[[], ProducerRecord]) -> Stop | None:
        """A record that takes `size` bytes in a batch, against the options that limit it. `tp`: where it was to go, as far as known."""
        size += BATCH_OVERHEAD_BYTES
        for limit, option in ((self.request_bytes_max, "max.request.size"), (self.core.accumulator.memory_bytes, "buffer.memory")):
            if size > limit:
                text = f"the record ({key_text(key)}) takes {size} bytes, {option} allows {limit}: it was not sent"
                error = RecordTooLargeException(text, topic_partition=tp, stored=Stored.NO)
                return self.handler.too_large(record_of, error, may_drop=option == "max.request.size")
        return None

    def ask_for_topics(self, topics: Iterable[str]) -> None:
        """Let all of them be asked for at once, before the waits for each."""
        for topic in topics:
            if arguments.illegal_topic(topic) is None:
                self._sender.submit(events.TopicRequested(topic=topic, is_stale=True))

    def wait_for_topic(
        self,
        topic: str,
        partition: int | None,
        record_of: Callable[[], ProducerRecord] | None,
        started_ms: int | None = None,
        call: str = "send",
    ) -> Stop | None:
        """Wait until the topic, and the partition, are known. Without a record there is nothing to ask the exception handler about.
        `started_ms`: since when it is asked for, if not since now. `call`: on behalf of which one."""
        illegal = arguments.illegal_topic(topic)
        if illegal is not None:
            return illegal
        started_ms = self.clock.steady_ms() if started_ms is None else started_ms
        search = _Search(
            topic=topic, partition=partition, started_ms=started_ms, call=call, sends=record_of is not None, next_log_ms=SILENT_MS
        )
        self._sender.submit(events.TopicRequested(topic=topic, is_stale=True))
        while True:
            with self.lock:
                found = self._look_for(search)
                search.answered = self.core.wiring.cluster.version
                waited_ms = self.clock.steady_ms() - search.started_ms
            if found == "still looking":
                self._log_wait(search, waited_ms)
            elif not isinstance(found, UnknownTopicOrPartitionException) or waited_ms >= self._retry_unknown_ms:
                return found
            elif record_of is not None and (stop := self.handler.unknown_topic(record_of, found)) is not None:
                return stop

    def _log_wait(self, search: _Search, waited_ms: int) -> None:
        """One line for whoever wonders why `send` does not return. Without the lock: who logs may be sending, too."""
        with self.lock:
            why = self.core.wait_causes.topic_timeout(search.topic, search.partition, waited_ms).message
            is_unknown = self.core.wait_causes.unknown_topic(search.topic, search.partition, search.started_ms) is not None
        limits = {"max.block.ms": self._block_ms} | ({"retry.unknown.topic.partition.ms": self._retry_unknown_ms} if is_unknown else {})
        option = min(limits, key=limits.__getitem__)
        log.warning("%s: %s; still asking, for up to %d ms (%s)", self._sender.name, why, limits[option], option)
        search.next_log_ms, search.pause_ms = waited_ms + search.pause_ms, min(2 * search.pause_ms, LONGEST_PAUSE_MS)

    def _look_for(self, search: _Search) -> KafkaException | Literal["still looking"] | None:
        """Wait for a topic until it is there, or it is no use, or a new answer says that nobody knows it, or that is to be said."""
        topic, partition, started_ms, answered = search.topic, search.partition, search.started_ms, search.answered
        cluster, has_waited = self.core.wiring.cluster, False
        while True:
            # Before the first wait, too: nobody will be woken up for what happened since the lock was held last.
            refusal = self.refusal(search.call) if search.sends else self._ended(search.call)
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
            if unknown is not None and (cluster.version > answered or waited_ms >= self._retry_unknown_ms):
                return unknown
            if self._sender.is_own_thread:
                return self.core.wait_causes.callback_cannot_wait(topic, partition)
            if waited_ms >= self._block_ms:
                return self.core.wait_causes.topic_timeout(topic, partition, waited_ms)
            if waited_ms >= search.next_log_ms:
                return "still looking"
            limit_ms = self._block_ms if unknown is None else min(self._block_ms, self._retry_unknown_ms)
            self._wait(min(limit_ms, search.next_log_ms) - waited_ms)
            has_waited = True

    def wait_for_memory(
        self, size: int, started_ms: int | None = None, call: str = "send", tp: TopicPartition | None = None
    ) -> KafkaException | None:
        """Wait until `size` bytes are free, on behalf of `call`, which waits since `started_ms` for one thing or another, if not since now.
        `tp`: where the records are to go.

        The one method that is called with the lock held, once, since nothing refused the record: it lets it go while it waits."""
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
            except BaseException:  # Ctrl-C, in the midst of it.
                self._end_memory_wait(claim, is_unused=True)
                raise
        return None

    def _end_memory_wait(self, claim: Claim, *, is_unused: bool) -> None:
        """The wait for memory is over, `is_unused`: that was kept is not taken. May be done again, from wherever it came to."""
        accumulator = self.core.accumulator
        accumulator.settle(claim)
        self.core.callers.memory_waiters = accumulator.claim_count
        if is_unused:  # Else nothing has become free for the others, and all of them would look.
            self.changed.notify_all()  # They may get what was kept for this one, all of it perhaps: Ctrl-C comes at any time.

    def _wait(self, ms: int) -> None:
        """Let the lock go until something has changed, for a time that the system takes; `max.block.ms` may be longer."""
        self.changed.wait(min(ms / 1000, TIMEOUT_MAX_S))
