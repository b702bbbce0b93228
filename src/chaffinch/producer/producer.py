"""The producer that users see: `Producer`. A shell without decisions of its own: it checks arguments, waits, and hands over.

Thread-safe. `send` appends to the core's accumulator under the lock; everything else is an event to the core. Outcomes come from the
sender thread. Names follow KafkaProducer.java.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.errors import IllegalStateException, KafkaException, RecordTooLargeException, Stored, TimeoutException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer import arguments
from chaffinch.producer.core import events
from chaffinch.producer.core.accumulator import BATCH_OVERHEAD_BYTES, record_size
from chaffinch.producer.core.effects import CompleteBatch, FailRecords
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.core.transaction import TransactionManager
from chaffinch.producer.core.transaction_moves import State
from chaffinch.producer.futures import RecordFuture, complete_all
from chaffinch.producer.records import GroupMetadata, Headers, ProducerRecord, RecordMetadata
from chaffinch.producer.sender_thread import SenderThread
from chaffinch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from chaffinch.producer.table_result import SendTableResult

log = logging.getLogger("chaffinch.producer")

# Batches of tables, unless batch.size is given. A table need not wait for its batches to fill, so they are as large as brokers take by
# default (max.message.bytes 1048588): measured, 1 MB batches go out a third faster than 256 KB ones.
TABLE_BATCH_BYTES: Final = 1_000_000
# close() without a limit still ends: every record has its outcome within delivery.timeout.ms.
CLOSE_MS_MAX: Final = 2**53

Callback = Callable[[RecordMetadata | None, BaseException | None], object]


class Producer:
    """Writes records to Kafka. Options as in `core/options.py`, as a mapping with dots or as keywords with underscores."""

    def __init__(self, options: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self.settings = parse_options(options, **keywords)
        for name in sorted(self.settings.ignored):
            log.warning("option %s is known to Apache Kafka and without effect here", name)
        self._clock = SystemClock()
        self._core = ProducerCore(self.settings, random.Random())
        self._request_bytes_max: int = self.settings["max.request.size"]
        self._max_block_ms: int = self.settings["max.block.ms"]
        table_bytes = self.settings["batch.size"] if "batch.size" in self.settings.given else TABLE_BATCH_BYTES
        self._table_batch_bytes = max(1, min(table_bytes, self._request_bytes_max, self.settings["buffer.memory"]) - BATCH_OVERHEAD_BYTES)
        self._is_closed = False
        network = Network(ConnectionSettings.of(self.settings), clock=self._clock)
        self._sender = SenderThread(self._core, network, self._clock, f"{self.settings['client.id']}-sender", _tell_outcome)
        self._changed = self._sender.changed
        self._sender.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def send(
        self,
        topic: str | ProducerRecord,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: Callback | None = None,
    ) -> RecordFuture[RecordMetadata]:
        """Hand over one record; the future has its outcome, and `on_delivery(metadata, error)` is called with it by the sender thread.

        Waits up to `max.block.ms` for the topic's metadata and for memory. What is wrong with the record or the cluster fails the
        future; TypeError and ValueError name an argument that can never be right; IllegalStateException says that the producer is
        closed, or that it is transactional and no transaction is open.
        """
        record = arguments.record_of(
            topic, {"value": value, "key": key, "partition": partition, "timestamp_ms": timestamp_ms, "headers": headers}
        )
        if record is not None:
            topic, value, key, partition = record.topic, record.value, record.key, record.partition
            timestamp_ms, headers = record.timestamp_ms, record.headers
        name = arguments.checked_topic(topic)
        value_bytes = arguments.content(value, "value")
        key_bytes = arguments.content(key, "key")
        partition = arguments.checked_number(partition, "partition", arguments.INT32_MAX)
        timestamp_ms = arguments.checked_number(timestamp_ms, "timestamp_ms", arguments.INT64_MAX)
        checked_headers = arguments.checked_headers(headers)
        callback = arguments.checked_callback(on_delivery)
        timestamp = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        future: RecordFuture[RecordMetadata] = RecordFuture()
        if callback is not None:
            future.add_done_callback(_calling(callback))
        error = self._append(name, partition, key_bytes, value_bytes, timestamp, checked_headers, future)
        if error is not None:
            future.fail(error)
        return future

    def _append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        future: RecordFuture[RecordMetadata],
    ) -> KafkaException | None:
        """Put a record into its batch; why not, if that is not possible."""
        size = record_size(key, value, headers)
        with self._changed:
            refusal = self._refusal() or self._too_large(size)
            partition_count = None if refusal is not None else self._core.wiring.cluster.partition_count(topic)
            if refusal is None and (partition_count is None or (partition is not None and partition >= partition_count)):
                refusal = self._wait_for_topic(topic, partition)
                partition_count = self._core.wiring.cluster.partition_count(topic)
            if refusal is None and not self._core.accumulator.has_room_for(size):
                refusal = self._wait_for_memory(size)
            if refusal is not None:
                return self._refused(refusal)
            assert partition_count is not None, "after the wait the topic is known"
            if partition is None:
                partition = self._core.choose_partition(topic, key, partition_count)
            place = TopicPartition(topic, partition)
            wants_look = self._core.append(place, key, value, timestamp_ms, headers, future, size, self._clock.now_ms())
        if wants_look:
            self._sender.wakeup()
        return None

    def send_table(self, topic: str | None, table: Any) -> Future[SendTableResult]:
        """Hand over all rows of a pyarrow Table or RecordBatch: columns value, and key, timestamp, headers, partition, topic if there.

        The future has a SendTableResult: every row is written or rejected, one by one. Waits like `send`, row by row for memory, so a
        table may be larger than `buffer.memory`. A column of the wrong type is InvalidColumn at the call.
        """
        from chaffinch.producer.table_send import Door, send_table  # pyarrow is loaded by whoever sends tables.

        door = Door(
            core=self._core,
            lock=self._changed,
            batch_bytes=self._table_batch_bytes,
            record_bytes_max=self._request_bytes_max - BATCH_OVERHEAD_BYTES,
            now_ms=self._clock.now_ms,
            refusal=self._refusal,
            refused=self._refused,
            wait_for_topic=self._wait_for_topic,
            wait_for_memory=self._wait_for_memory,
            wakeup=self._sender.wakeup,
        )
        return send_table(door, None if topic is None else arguments.checked_topic(topic), table, self._clock.wall_ms())

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits without lingering, and wait until every record handed over so far has its outcome.

        TimeoutException after `timeout` seconds; the records are still on their way then.
        """
        self._check_open("flush")
        timeout_ms = arguments.checked_timeout_ms(timeout)
        self._wait(self._sender.call(lambda call: events.FlushCalled(call=call)), timeout_ms, "flush")

    def close(self, timeout: float | None = None) -> None:
        """Send what is left and end. After `timeout` seconds what has no outcome fails. Calling it again has no effect.

        An open transaction is aborted: only commit_transaction commits.
        """
        timeout_ms = arguments.checked_timeout_ms(timeout)
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        deadline_ms = self._clock.now_ms() + (CLOSE_MS_MAX if timeout_ms is None else timeout_ms)
        try:
            self._abort_open_transaction(deadline_ms)
            future = self._sender.call(lambda call: events.CloseCalled(call=call, deadline_ms=deadline_ms))
            if not self._sender.is_own_thread:
                future.result()
        except KafkaException as error:
            log.warning("close: %s", error)
        self._sender.stop()

    def _abort_open_transaction(self, deadline_ms: int) -> None:
        transaction = self._core.transaction
        if transaction is None or transaction.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR) or self._sender.is_own_thread:
            return
        deadline_ms = min(deadline_ms, self._clock.now_ms() + self._max_block_ms)
        self._sender.call(lambda call: events.AbortCalled(call=call, deadline_ms=deadline_ms)).result()

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic, waiting for metadata up to `max.block.ms`. Raises what `send` would fail with."""
        self._check_open("partitions_for")
        with self._changed:
            if self._core.wiring.cluster.partition_count(arguments.checked_topic(topic)) is None:
                error = self._wait_for_topic(topic, None)
                if error is not None:
                    raise error
            count = self._core.wiring.cluster.partition_count(topic) or 0
        return [TopicPartition(topic, index) for index in range(count)]

    def metrics(self) -> dict[str, int]:
        """Counts since the producer was made, and how much memory is in use now."""
        with self._changed:
            accumulator = self._core.accumulator
            return {**self._core.wiring.counts, "buffer_bytes_used": accumulator.memory_bytes - accumulator.memory_free}

    # Transactions.

    def init_transactions(self) -> None:
        """Get an identity, and fence every other producer with this transactional id. Once, before the first transaction.

        TimeoutException after `max.block.ms`: call it again, it goes on.
        """
        self._transact(lambda call: events.InitTransactionsCalled(call=call, deadline_ms=self._block_until_ms()))

    def begin_transaction(self) -> None:
        """From now on records belong to a transaction."""
        self._transact(lambda call: events.BeginTransactionCalled(call=call))

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group_metadata: str | GroupMetadata) -> None:
        """Commit a consumer's positions with the transaction; `offsets` are those of the next records to read."""
        checked, group = arguments.checked_offsets(offsets), arguments.checked_group(group_metadata)
        self._transact(lambda call: events.SendOffsetsCalled(call=call, deadline_ms=self._block_until_ms(), offsets=checked, group=group))

    def commit_transaction(self) -> None:
        """Send what waits and commit. Raises the first failed record's own error, or TransactionAbortableException: then abort.

        TimeoutException: the commit may have happened; call it again until it returns or raises something else.
        """
        self._transact(lambda call: events.CommitCalled(call=call, deadline_ms=self._block_until_ms()))

    def abort_transaction(self) -> None:
        """Give the transaction up. Returns, raises TimeoutException (call it again), or an application-recoverable error."""
        self._transact(lambda call: events.AbortCalled(call=call, deadline_ms=self._block_until_ms()))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` begins one, commits it at the end, and aborts it when anything is raised."""
        self.begin_transaction()
        transaction = self._transactions()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            # After a commit without an answer there is nothing to abort: it may have happened.
            if transaction.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                self.abort_transaction()
            raise

    def _transactions(self) -> TransactionManager:
        if self._core.transaction is None:
            raise IllegalStateException("this producer has no transactions: give it the option transactional.id")
        return self._core.transaction

    def _transact(self, make: Callable[[Future[None]], events.TransactionCall]) -> None:
        self._transactions()
        self._check_open("a transaction's call")
        self._wait(self._sender.call(make), None, "a transaction's call")

    def _block_until_ms(self) -> int:
        return self._clock.now_ms() + self._max_block_ms

    # Waiting. What follows `_wait` is called with the lock held.

    def _check_open(self, what: str) -> None:
        if self._is_closed:
            raise IllegalStateException(f"{what} after close(): the producer is closed")

    def _wait(self, future: Future[None], timeout_ms: int | None, what: str) -> None:
        if self._sender.is_own_thread:
            raise IllegalStateException(f"{what} within a delivery callback would wait for itself")
        try:
            future.result(None if timeout_ms is None else timeout_ms / 1000)
        except FutureTimeoutError:
            raise TimeoutException(f"{what} is not done after {timeout_ms} ms; it goes on", stored=Stored.POSSIBLY) from None

    def _refusal(self) -> KafkaException | None:
        """Why nothing can be sent now. IllegalStateException is raised, because it is the caller's mistake."""
        self._check_open("send")
        if self._sender.death is not None:
            return self._sender.death
        if self._core.transaction is None:
            return None
        refusal = self._core.transaction.refusal_of_send()
        if isinstance(refusal, IllegalStateException):
            raise refusal
        return refusal

    def _too_large(self, size: int) -> KafkaException | None:
        size += BATCH_OVERHEAD_BYTES
        for limit, option in ((self._request_bytes_max, "max.request.size"), (self._core.accumulator.memory_bytes, "buffer.memory")):
            if size > limit:
                return RecordTooLargeException(f"the record takes {size} bytes, {option} allows {limit}", stored=Stored.NO, api="Produce")
        return None

    def _refused(self, error: KafkaException) -> KafkaException:
        """A record that fails here fails its transaction too."""
        self._core.record_refused(error)
        return error

    def _wait_for_topic(self, topic: str, partition: int | None) -> KafkaException | None:
        """Wait until the topic, and the partition, are known; why not, otherwise."""
        illegal = arguments.illegal_topic(topic)
        if illegal is not None:
            return illegal
        started_ms = self._clock.now_ms()
        self._sender.submit(events.TopicWanted(topic=topic, is_stale=True))

        def is_known() -> bool:
            count = self._core.wiring.cluster.partition_count(topic)
            return count is not None and (partition is None or partition < count)

        while not is_known():
            waited_ms = self._clock.now_ms() - started_ms
            error = self._core.topic_error(topic, started_ms)
            if error is not None:
                return error
            if waited_ms >= self._max_block_ms or self._sender.is_own_thread:
                return self._core.waited_in_vain(topic, partition, waited_ms)
            self._changed.wait((self._max_block_ms - waited_ms) / 1000)
            refusal = self._refusal()
            if refusal is not None:
                return refusal
            self._sender.submit(events.TopicWanted(topic=topic, is_stale=partition is not None))
        return None

    def _wait_for_memory(self, size: int) -> KafkaException | None:
        """Wait until `size` bytes are free; why not, otherwise."""
        started_ms = self._clock.now_ms()
        self._core.callers_waiting_for_memory += 1
        self._sender.wakeup()
        try:
            while not self._core.accumulator.has_room_for(size):
                waited_ms = self._clock.now_ms() - started_ms
                if waited_ms >= self._max_block_ms or self._sender.is_own_thread:
                    return self._core.no_memory(size, waited_ms)
                self._changed.wait((self._max_block_ms - waited_ms) / 1000)
                refusal = self._refusal()
                if refusal is not None:
                    return refusal
        finally:
            self._core.callers_waiting_for_memory -= 1
        return None


def _calling(callback: Callback) -> Callable[[Future[RecordMetadata]], None]:
    def call(future: Future[RecordMetadata]) -> None:
        error = future.exception()
        try:
            callback(None if error is not None else future.result(), error)
        except Exception:
            log.exception("a delivery callback raised")

    return call


def _tell_outcome(effect: CompleteBatch | FailRecords) -> None:
    """A batch's outcome, to whoever waits for its records: futures of `send`, or the outcome of a table."""
    batch = effect.batch
    receipt, place = batch.receipt, batch.topic_partition
    if not isinstance(receipt, list):
        if isinstance(effect, CompleteBatch):
            receipt.written(batch.rows, place.partition, effect.base_offset)
        else:
            receipt.failed(batch.rows, place, effect.error, effect.errors)
    elif isinstance(effect, CompleteBatch):
        complete_all([receipt[row] for row in batch.rows], _metadata(effect))
    else:
        for index, row in enumerate(batch.rows):
            error = effect.errors.get(index, effect.error)
            if error is not None:
                receipt[row].fail(error)


def _metadata(effect: CompleteBatch) -> list[RecordMetadata]:
    batch = effect.batch
    topic, partition = batch.topic_partition
    timestamps = batch.timestamps.tolist() if effect.log_append_time_ms < 0 else [effect.log_append_time_ms] * batch.count
    base = effect.base_offset
    offsets = [-1] * batch.count if base < 0 else range(base, base + batch.count)
    return [RecordMetadata(topic, partition, offset, timestamp) for offset, timestamp in zip(offsets, timestamps, strict=True)]
