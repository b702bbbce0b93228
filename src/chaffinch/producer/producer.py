"""Producer: the public Kafka producer. A thin shell around the core: it checks arguments, waits, and hands records and events over.

Thread-safe. `send` appends to the core's accumulator under the lock, after the checks of `send_gate.py`; everything else is an event for
the core. Outcomes come from the sender thread. Names follow KafkaProducer.java.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, Self, Unpack

import chaffinch.producer.process_hooks  # noqa: F401  It acts when the process forks or ends.
from chaffinch import plain_text
from chaffinch.client.metrics import read_all
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.client.wait_log import in_words
from chaffinch.errors import IllegalStateException, KafkaException, Stored, TimeoutException
from chaffinch.foreign_names import PRODUCER_HINTS, missing_attributes, refuse_arguments
from chaffinch.identifiers import TopicPartition
from chaffinch.producer import arguments, outcomes, plugins
from chaffinch.producer.closing import Closing
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES, record_size
from chaffinch.producer.core.batches.batch import NewRecord
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import SHARED_LOCK, Callback, RecordFuture
from chaffinch.producer.handler_calls import Dropped, HandlerCalls, Stop
from chaffinch.producer.metrics import METRICS
from chaffinch.producer.outcomes import complete_future
from chaffinch.producer.record_maker import RecordMaker, log_options
from chaffinch.producer.records import GroupMetadata, Headers, ProducerRecord, RecordMetadata
from chaffinch.producer.send_gate import SendGate
from chaffinch.producer.sender_thread import SenderThread
from chaffinch.public_names import exported_from
from chaffinch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from chaffinch.producer.option_types import ProducerOptions
    from chaffinch.producer.tables.result import SendTableResult

log = plain_text.logger("chaffinch.producer")

# Batch size of tables, unless batch.size is given. A table need not wait for its batches to fill, so they are as large as brokers accept by
# default (max.message.bytes 1048588): measured, 1 MB batches are sent a third faster than 256 KB ones.
TABLE_BATCH_BYTES: Final = 1_000_000
FLUSH_GRACE_S: Final = 0.1
"""`flush(0)` without outstanding records waits at most this long for the sender thread to confirm that."""


@exported_from("chaffinch")
class Producer:
    """Writes records to Kafka: single ones and whole Arrow tables, idempotently by default, and in transactions.

    For example::

        with Producer({"bootstrap.servers": "localhost:9092"}) as producer:      # Or Producer(bootstrap_servers="localhost:9092").
            future = producer.send("orders", b"value", key=b"key")
            print(future.result(timeout=10).offset)

    Options have Kafka's names: with dots in a mapping, with underscores as keywords (docs/reference/producer.md;
    exceptions: `chaffinch.errors`). `bootstrap.servers` is required. Options give times in ms, a method's `timeout` is in seconds.

    A refused record fails its own future. The exception names the record, its class (KIP-1050), and whether the record is stored. The other
    records of its batch are written (KIP-467).

    With `transactional.id`: call `init_transactions` once, then use `transaction()`, or `begin_transaction` and `commit_transaction`. After
    a TransactionAbortableException call `abort_transaction`.

    Can be used from any thread. A thread of the producer delivers the outcomes. `close`, which the `with` statement calls, sends the
    remaining records.

    Args:
        options: options by dotted name.
        **keywords: the same options, with underscores instead of dots.

    Raises:
        ConfigException: options are unknown, invalid, or contradict each other; the message lists all errors.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, **keywords: Unpack[ProducerOptions]) -> None:
        self.settings = parse_options(options, **keywords)
        log_options(self.settings)
        self._clock = SystemClock()
        self._maker = RecordMaker(self.settings, self._clock)
        network_settings = ConnectionSettings.of(self.settings)
        rule = plugins.partition_rule(self.settings)
        self._handler = HandlerCalls(plugins.exception_handler(self.settings))  # Created last, because only this one has to be closed.
        self._maker.keeps_originals = bool(self._handler.questions)
        self._core = ProducerCore(self.settings, random.Random(), questions=self._handler.questions, rule=rule)
        self._max_block_ms: int = self.settings["max.block.ms"]
        network = Network(network_settings, clock=self._clock)
        name = f"{self.settings['client.id']}-sender"
        self._sender = SenderThread(self._core, network, self._clock, name, outcomes.complete_records, self._handler.decide)
        self._changed = self._sender.changed
        self._gate = SendGate(self.settings, self._core, self._sender, self._clock, self._handler)
        self._closing = Closing(self._gate, self._sender)
        self._size_max = min(self._gate.request_bytes_max, self._core.accumulator.memory_bytes) - BATCH_OVERHEAD_BYTES
        self._is_plain = self._maker.is_plain
        # Typed Any for `_is_owned`, which `threading.Condition` uses, too.
        self._lock: Any = self._sender.lock
        self._new_future = self._gate.new_future
        self._inline_sender = self._sender.inline_sender
        self._sender.start()

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        # Python may call this on any thread, so no lock is taken. Without a gate the options were refused, and nothing runs.
        gate = self.__dict__.get("_gate")
        if gate is not None and not gate.is_closed and self._sender.death is None:
            self._sender.abandon(self, self._handler.close)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Producer cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        servers, transactional_id = self.settings["bootstrap.servers"], self.settings["transactional.id"]
        name = "" if transactional_id is None else f", transactional.id {transactional_id!r}"
        return f"<Producer {self.settings['client.id']!r} of {','.join(servers)}{name}{', closed' if self._gate.is_closed else ''}>"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.close(None, is_interrupted=kind is not None and issubclass(kind, KeyboardInterrupt))

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: Callback | None = None,
        **foreign: Never,
    ) -> RecordFuture[RecordMetadata]:
        """Send one record. Waits up to `max.block.ms` for the topic's metadata and for memory.

        Args:
            topic: name of the topic; or a ProducerRecord, which has all other values, too.
            value: bytes, text (UTF-8), None, or a value for the serializer.
            key: the same types. Its hash determines the partition, as in Java.
            partition: number of the partition; by default the option `partitioner` decides.
            timestamp_ms: ms since 1970; by default now.
            headers: list of (name, bytes or None) pairs.
            on_delivery: called with (metadata, error) by the sender thread; for a record that is refused or dropped before it is in a
                batch, by the caller's thread within `send`.

        Returns:
            A `concurrent.futures.Future` with the record's RecordMetadata. An error of the record or the cluster fails the future.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: the producer is closed, or transactional without an open transaction; or this is a signal handler or
                finalizer that has interrupted another call of the same producer: set a flag there, and send from the main program.
        """
        if foreign:
            refuse_arguments("send", foreign)
        if self._lock._is_owned() or SHARED_LOCK._is_owned():
            raise self._gate.interrupted("send")
        future: RecordFuture[RecordMetadata] = self._new_future()
        if on_delivery is not None:
            arguments.checked_callback(on_delivery)
        if (
            self._is_plain
            and (type(value) is bytes or value is None)
            and (key is None or type(key) is bytes)
            and partition is None
            and timestamp_ms is None
            and headers is None
            and type(topic) is str
        ):
            # Fast path without the checks of `RecordMaker`.
            with self._lock:
                if (futures := self._core.join(topic, key, value, self._clock.wall_ms(), future)) is not None:
                    future.batch, future.index = futures, len(futures) - 1
                    if on_delivery is not None:
                        futures.callbacks[future.index] = on_delivery
                    return future
            future.batch = None
            self._put(
                NewRecord(
                    topic=topic,
                    partition=None,
                    key=key,
                    value=value,
                    timestamp_ms=self._clock.wall_ms(),
                    size=record_size(key, value, ()),
                    future=future,
                    callback=on_delivery,
                    original=partial(ProducerRecord, topic, value, key),
                )
            )
            return future
        future.batch = None
        self._put(self._maker.make(future, topic, value, key, partition, timestamp_ms, headers, on_delivery))
        return future

    def _put(self, record: NewRecord) -> None:
        """Put a record into its batch, or settle its future."""
        try:
            stop = self._append(record)
        except BaseException:
            self._gate.left()
            raise
        if isinstance(stop, Dropped):
            partition = -1 if record.partition is None else record.partition
            metadata = RecordMetadata(record.topic, partition, timestamp_ms=record.timestamp_ms, dropped=True)
            complete_future(record.future, record.callback, metadata, logged=Exception)
        elif stop is not None:
            complete_future(record.future, record.callback, None, stop, logged=Exception)

    def _append(self, record: NewRecord) -> Stop | None:
        """Put a record into its batch. Returns the reason if that is not possible."""
        topic, partition, size, core, gate = record.topic, record.partition, record.size, self._core, self._gate
        must_call_function = partition is None and core.partitioner.has_function and size <= self._size_max
        stop: Stop | None
        waiting_since_ms: int | None = None
        transaction_number = gate.transaction_number()
        while True:
            if must_call_function and (count := core.context.cluster.partition_count(topic)) is not None:
                # Without the lock: the application's function may be slow, or call `send` itself.
                partition, must_call_function = core.partitioner.call_function(topic, record.key, record.value, count), False
            with self._lock:
                stop = gate.refusal()
                count = None if must_call_function or size > self._size_max else core.usable_count(topic, partition)
                if stop is None and count is not None and not core.accumulator.has_memory_for(size):
                    stop = gate.wait_for_memory(size, waiting_since_ms, tp=_known_tp(topic, partition))
                    count = core.usable_count(topic, partition)  # The topic may have got more partitions in the meantime.
                    if count is None:  # The topic was deleted: the memory is for the next waiting caller.
                        self._changed.notify_all()
                if stop is None and count is not None:
                    needs_wakeup = self._enter(record, partition, count)
                    break
            if stop is None and size > self._size_max:
                stop = gate.too_large(_known_tp(topic, partition), size, record.key, record.original)
            elif stop is None:
                waiting_since_ms = self._clock.steady_ms() if waiting_since_ms is None else waiting_since_ms
                stop = gate.wait_for_topic(topic, partition, record.original, waiting_since_ms)
            if stop is not None:
                return gate.stopped(stop, transaction_number)
        if needs_wakeup:
            self._sender.wakeup()
        return None

    def _enter(self, record: NewRecord, partition: int | None, count: int) -> bool:
        """Send a record inline, or put it into its batch; its topic is known, and there is memory for it. Called with the lock.

        `partition`: if it is chosen already. Returns whether the core needs a round.
        """
        core, inline_sender, key, value, size, future = (
            self._core,
            self._inline_sender,
            record.key,
            record.value,
            record.size,
            record.future,
        )
        chosen = core.choose_partition(record.topic, key, value, count, size) if partition is None else partition
        tp = TopicPartition(record.topic, chosen)
        is_plain = not record.headers and record.callback is None
        if inline_sender.is_free and is_plain and inline_sender.send(tp, key, value, record.timestamp_ms, size, future):
            return False
        futures, needs_wakeup = core.append(tp, record, self._clock.steady_ms())
        future.batch, future.index = futures, len(futures) - 1
        if record.callback is not None:
            futures.callbacks[future.index] = record.callback
        if partition is None:
            core.remember_sticky_batch(tp, key)
        return needs_wakeup

    if not TYPE_CHECKING:  # Type checkers report missing attributes themselves.
        __getattr__ = missing_attributes(PRODUCER_HINTS)

    def send_table(self, topic: str | None, table: Any) -> RecordFuture[SendTableResult]:
        """Send all rows of a table. Waits for metadata and memory like `send`, so a table may be larger than `buffer.memory`.

        A stream is read batch by batch, no faster than its rows can be sent. Its rows are sent once they fill a batch, or after 100 ms
        (`linger.ms` if that is longer).

        Args:
            topic: topic of the rows without a value in the column topic.
            table: a pyarrow Table, RecordBatch or RecordBatchReader, or an object with the Arrow stream interface (data frames of pandas
                and polars). Columns: value; optionally key, timestamp, headers, partition, topic.

        Returns:
            A future with a SendTableResult: every row is written, rejected or dropped individually.

        Raises:
            InvalidColumn: a column is unknown, missing, or of the wrong type.
            TypeError: `table` is not a table.
            IllegalStateException: as for `send`.
        """
        from chaffinch.producer.tables.sending import send_table  # Imports pyarrow only if tables are sent.

        if self._sender.holds_lock:
            raise self._gate.interrupted("send_table")
        self._gate.check_open("send_table")
        batch_bytes = self.settings["batch.size"] if "batch.size" in self.settings.given else TABLE_BATCH_BYTES
        name = None if topic is None else arguments.checked_topic(topic)
        return send_table(self._gate, name, table, batch_bytes, self.settings["linger.ms"], self._clock.wall_ms())

    def flush(self, timeout: float | None = None, **foreign: Never) -> None:
        """Send all records without lingering, and wait until every record sent so far has its outcome.

        Args:
            timeout: limit in seconds; None waits until `delivery.timeout.ms` at the latest.

        Raises:
            TimeoutException: records have no outcome after `timeout`; sending continues.
            IllegalStateException: the producer is closed, or this is a callback or a signal handler that has interrupted a call.
            TypeError, ValueError: `timeout` is not a number of seconds from 0 up.
        """
        refuse_arguments("flush", foreign)
        self._gate.check_open("flush")
        timeout_ms = arguments.checked_timeout_ms(timeout)
        self._call(lambda call: events.FlushCalled(call=call), timeout_ms, "flush")

    def close(self, timeout: float | None = None, **foreign: Never) -> None:
        """Send the remaining records, and close the producer.

        An open transaction is aborted: only commit_transaction commits.

        - A concurrent call, from another thread or a signal handler, waits for the same end, and its `timeout` applies to both.
        - A call after close has no effect.
        - In a signal handler that has interrupted another call it returns at once, because nothing can be sent before that call continues.
          A background thread then closes the producer, and the exit of the interpreter waits for it.

        Args:
            timeout: limit in seconds, after which records without an outcome fail; None waits until `delivery.timeout.ms` at the latest.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds from 0 up.
        """
        refuse_arguments("close", foreign)
        close = partial(self._closing.close, arguments.checked_timeout_ms(timeout), is_interrupted=False)
        if self._sender.holds_lock and not self._sender.is_in_other_process:
            threading.Thread(target=close, name=f"{self._sender.name}-close", daemon=False).start()
        else:
            close()

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic. Waits for metadata up to `max.block.ms`.

        Args:
            topic: name of the topic.

        Returns:
            All partitions in the order of their numbers.

        Raises:
            KafkaException: the error with which `send` would fail, such as TimeoutException or TopicAuthorizationException.
            IllegalStateException: as for `send`.
            TypeError: `topic` is not a str.
        """
        if self._sender.holds_lock:
            raise self._gate.interrupted("partitions_for")
        self._gate.check_open("partitions_for")
        name = arguments.checked_topic(topic)
        cluster = self._core.context.cluster
        with self._lock:
            count = cluster.partition_count(name)
        if count is None:
            error = self._gate.wait_for_topic(name, None, None, call="partitions_for")
            if isinstance(error, KafkaException):
                raise error
            with self._lock:
                count = cluster.partition_count(name)
        return [TopicPartition(name, index) for index in range(count or 0)]

    def metrics(self) -> dict[str, float]:
        """Counters since the producer was created, and current values. Can be called after `close`.

        Returns:
            Values by name (docs/reference/producer.md), with Kafka's names where Kafka has them.
        """
        self._gate.check_process("metrics")
        with self._lock:
            return read_all(METRICS, self._core, self._clock.steady_ms())

    # Transactions.

    def init_transactions(self) -> None:
        """Request a producer id and epoch, and fence every other producer with this transactional id.

        Call it once, before the first transaction.

        Raises:
            TimeoutException: not done after `max.block.ms`: call it again, the initialization continues.
            IllegalStateException: the producer has no `transactional.id`, is closed, or was initialized before.
            KafkaException: the error of the coordinator, such as TransactionalIdAuthorizationException.
        """
        self._transact("init_transactions", lambda call: events.InitTransactionsCalled(call=call, deadline_ms=self._block_until_ms()))

    def begin_transaction(self) -> None:
        """Begin a transaction, which all later records join.

        Raises:
            IllegalStateException: before `init_transactions`, while a transaction is open, or before a failed one is aborted.
            KafkaException: the producer cannot be used any more, for example because it was fenced.
        """
        self._transact("begin_transaction", lambda call: events.BeginTransactionCalled(call=call))

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group_metadata: str | GroupMetadata) -> None:
        """Commit a consumer's positions with the transaction. Waits up to `max.block.ms`.

        Args:
            offsets: offset of the next record to read, or OffsetAndMetadata, by TopicPartition.
            group_metadata: the consumer's `group_metadata()`, by which the broker checks the membership; or a group id, without this check.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: no transaction is open.
            TransactionAbortableException: the offsets cannot be committed, or there is no response after `max.block.ms`; abort the
                transaction.
            CommitFailedException: the consumer is no longer a member of the group; close the producer.
            KafkaException: another error of the coordinator. Its group says how to react.
        """
        checked, group = arguments.checked_offsets(offsets), arguments.checked_group(group_metadata)
        self._transact(
            "send_offsets_to_transaction",
            lambda call: events.SendOffsetsCalled(call=call, deadline_ms=self._block_until_ms(), offsets=checked, group=group),
        )

    def commit_transaction(self) -> None:
        """Send the remaining records and commit the transaction.

        Raises:
            TimeoutException: the commit may have happened; call it again until it returns, or raises another error.
            TransactionAbortableException: the transaction cannot be committed; abort it.
            KafkaException: the error of the first failed record; abort the transaction.
            IllegalStateException: no transaction is open.
        """
        self._transact("commit_transaction", lambda call: events.CommitCalled(call=call, deadline_ms=self._block_until_ms()))

    def abort_transaction(self) -> None:
        """Abort the transaction. Its records fail or become invisible to readers of committed records.

        Raises:
            TimeoutException: not done after `max.block.ms`: call it again.
            IllegalStateException: no transaction is open.
            KafkaException: an application-recoverable error; close the producer.
        """
        self._abort(only_if_open=False)

    def _abort(self, *, only_if_open: bool) -> None:
        self._transact(
            "abort_transaction",
            lambda call: events.AbortCalled(call=call, deadline_ms=self._block_until_ms(), only_if_open=only_if_open),
        )

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` begins a transaction, commits it at the end, and aborts it if the block raises.

        The block may commit or abort it itself.

        Raises:
            KafkaException: as for `begin_transaction` and `commit_transaction`.
        """
        self.begin_transaction()
        try:
            yield self
            if not self._core.is_between_transactions:
                self.commit_transaction()
        except BaseException:
            # After a commit without a response there is nothing to abort: the commit may have happened.
            if self._core.has_open_transaction:
                self._abort(only_if_open=True)
            raise

    def _transact(self, name: str, make: Callable[[RecordFuture[None]], events.TransactionCall]) -> None:
        if self._core.transaction is None:
            raise IllegalStateException(f"{name}() without transactions: give the producer the option transactional.id")
        self._gate.check_open(name)
        self._call(make, None, name)

    def _block_until_ms(self) -> int:
        return self._clock.steady_ms() + self._max_block_ms

    def _await(self, call: RecordFuture[None], timeout_ms: int | None) -> None:
        try:
            call.result(None if timeout_ms is None else timeout_ms / 1000)
        except FutureTimeoutError:
            with self._lock:
                is_idle = self._core.is_idle
            if not is_idle:
                raise
            call.result(FLUSH_GRACE_S)

    def _call(self, make: Callable[[RecordFuture[None]], events.Event], timeout_ms: int | None, what: str) -> None:
        if self._sender.is_own_thread:  # Checked first: a refused call must not have an effect.
            raise IllegalStateException(f"{what}() within a callback of the same producer would wait for itself")
        if self._sender.holds_lock:
            raise IllegalStateException(f"{what}() in a signal handler would wait for the call of the same producer that it interrupts")
        future = self._sender.call(make)
        try:
            self._await(future, timeout_ms)
        except FutureTimeoutError:
            with self._lock:
                why = self._core.wait_causes.cause()
            reason = "" if why is None else f", because of {in_words(why)}"
            text = f"{what}() is not done after {timeout_ms} ms{reason}; it continues"
            raise TimeoutException(text, stored=Stored.POSSIBLY) from why


def _known_tp(topic: str, partition: int | None) -> TopicPartition:
    """The topic-partition of a record; partition -1 if it is not chosen yet."""
    return TopicPartition(topic, -1 if partition is None else partition)
