"""AsyncProducer: the public Kafka producer for asyncio. The same core as `Producer`, run by the event loop instead of a thread."""

from __future__ import annotations

import random
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self, Unpack

from chaffinch.client.loop_calls import LoopCall
from chaffinch.client.metrics import read_all
from chaffinch.client.options import ConnectionSettings
from chaffinch.client.wait_log import in_words
from chaffinch.errors import IllegalStateException, KafkaException, Stored, TimeoutException
from chaffinch.foreign_names import ASYNC_PRODUCER_HINTS, missing_attributes, refuse_arguments
from chaffinch.identifiers import TopicPartition
from chaffinch.producer import arguments, plugins
from chaffinch.producer.async_closing import AsyncClosing
from chaffinch.producer.async_gate import AsyncGate
from chaffinch.producer.async_sender import AsyncRecordFuture, AsyncSender
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES
from chaffinch.producer.core.batches.batch import NewRecord, ProducerBatch
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import Callback
from chaffinch.producer.handler_calls import Dropped, HandlerCalls, Stop
from chaffinch.producer.metrics import METRICS
from chaffinch.producer.outcomes import complete_future
from chaffinch.producer.producer import TABLE_BATCH_BYTES
from chaffinch.producer.record_maker import RecordMaker, log_options
from chaffinch.producer.records import GroupMetadata, Headers, ProducerRecord, RecordMetadata
from chaffinch.public_names import exported_from
from chaffinch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from chaffinch.producer.option_types import ProducerOptions
    from chaffinch.producer.tables.result import SendTableResult


@exported_from("chaffinch")
class AsyncProducer:
    """Writes records to Kafka from asyncio: single ones and whole Arrow tables, idempotently by default, and in transactions.

    For example::

        async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
            future = await producer.send("orders", b"value", key=b"key")
            print((await future).offset)

    Options, errors and outcomes are those of `Producer`. All methods belong to the event loop that `start` or `async with` ran on. No
    thread is started; the loop's executor looks up host names. Callbacks, serializers, partitioners and exception handlers run on the loop,
    as do encoding and compression, and must not block.

    Cancellation loses nothing and doubles nothing:

    - A cancelled `send` sends nothing.
    - A cancelled `send_table` has sent a part of the rows; a note of the exception says how many. In a transaction, abort it.
    - A cancelled wait for a future does not take the record back: await the future again.
    - `flush`, `init_transactions`, `commit_transaction` and `abort_transaction` go on without their caller: call them again for the result.
    - A cancelled `close` ends at once; records without an outcome fail, and their futures say whether they may be stored.

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
        self._network_settings = ConnectionSettings.of(self.settings)
        rule = plugins.partition_rule(self.settings)
        self._handler = HandlerCalls(plugins.exception_handler(self.settings))
        self._maker.keeps_originals = bool(self._handler.questions)
        self._is_plain = self._maker.is_plain
        self._core = ProducerCore(self.settings, random.Random(), questions=self._handler.questions, rule=rule)
        self._max_block_ms: int = self.settings["max.block.ms"]
        self._sender: AsyncSender | None = None
        self._gate: AsyncGate | None = None
        self._closing: AsyncClosing | None = None
        self._was_closed = False

    # Start and close.

    async def start(self) -> Self:
        """Open the producer on the running event loop; `async with` does it. Brokers are contacted by the first call that needs one.

        Returns:
            The producer itself.

        Raises:
            IllegalStateException: the producer was started or closed before.
        """
        if self._sender is not None or self._was_closed:
            raise IllegalStateException(f"start(): the producer was {'closed' if self._was_closed else 'started before'}; make a new one")
        name = f"{self.settings['client.id']}-producer"
        sender = AsyncSender(self._core, self._network_settings, self._clock, name, self._handler)
        self._gate = AsyncGate(self.settings, self._core, sender, self._clock, self._handler)
        self._closing = AsyncClosing(self._gate, sender)
        self._size_max = min(self._gate.request_bytes_max, self._core.accumulator.memory_bytes) - BATCH_OVERHEAD_BYTES
        self._sender = sender
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __del__(self) -> None:
        sender = self.__dict__.get("_sender")
        if sender is None or sender.death is not None or sender.is_in_other_process:
            return
        sender.abandon(self._handler.close)
        text = f"{self!r} was not closed: close it, or use it in an async with statement"
        warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncProducer cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        servers, transactional_id = self.settings["bootstrap.servers"], self.settings["transactional.id"]
        name = "" if transactional_id is None else f", transactional.id {transactional_id!r}"
        state = ", closed" if self._was_closed else ", not started" if self._gate is None else ""
        return f"<AsyncProducer {self.settings['client.id']!r} of {','.join(servers)}{name}{state}>"

    async def close(self, timeout: float | None = None, **foreign: Never) -> None:
        """Send the remaining records, and close the producer. An open transaction is aborted: only commit_transaction commits.

        A concurrent call waits for the same end, and its `timeout` applies to both. A call after close has no effect.

        Args:
            timeout: limit in seconds, after which records without an outcome fail; None waits until `delivery.timeout.ms` at the latest.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds from 0 up.
            IllegalStateException: called on an event loop other than that of `start`.
        """
        refuse_arguments("close", foreign)
        timeout_ms = arguments.checked_timeout_ms(timeout)
        if self._sender is None or self._closing is None:
            self._was_closed = True
            self._handler.close()
        elif self._sender.death is None and not self._sender.is_in_other_process:
            self._sender.check_loop("close")
            self._was_closed = True
            await self._closing.close(timeout_ms)

    # Records.

    async def send(
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
    ) -> AsyncRecordFuture[RecordMetadata]:
        """Put one record into its batch. Waits up to `max.block.ms` for the topic's metadata and for memory.

        Args:
            topic: name of the topic; or a ProducerRecord, which has all other values, too.
            value: bytes, text (UTF-8), None, or a value for the serializer.
            key: the same. Its hash decides about the partition, as in Java.
            partition: number of the partition; by default the option `partitioner` decides.
            timestamp_ms: ms since 1970; by default now.
            headers: list of (name, bytes or None) pairs.
            on_delivery: called with (metadata, error) on the event loop.

        Returns:
            A future: `await` it for the record's RecordMetadata, or the error that the record failed with.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: the producer is not started or closed, or transactional without an open transaction; or this is another
                event loop.
        """
        if foreign:
            refuse_arguments("send", foreign)
        sender = self._open_sender("send")
        if sender.needs_round:
            await sender.yield_to_loop()
        future: AsyncRecordFuture[RecordMetadata] = AsyncRecordFuture()
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
        ):  # Fast path without the checks of `RecordMaker`, as in `Producer.send`.
            futures = self._core.join(topic, key, value, self._clock.wall_ms(), future)
            if futures is not None:
                future.batch, future.index = futures, len(futures) - 1
                if on_delivery is not None:
                    futures.callbacks[future.index] = on_delivery
                return future
        future.batch = None
        await self._put(self._maker.make(future, topic, value, key, partition, timestamp_ms, headers, on_delivery))
        return future

    async def send_and_wait(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its outcome. Arguments and errors are those of `send`.

        Returns:
            The record's metadata.

        Raises:
            KafkaException: the record failed. The exception names the record, its class (KIP-1050), and whether the record is stored.
        """
        future = await self.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
        return await future

    async def _put(self, record: NewRecord) -> None:
        """Put a record into its batch, or settle its future."""
        gate = self._open_gate("send")
        try:
            stop = await self._append(record, gate)
        except BaseException:  # Cancelled, or an error of the partitioner function.
            gate.left()
            raise
        if isinstance(stop, Dropped):
            partition = -1 if record.partition is None else record.partition
            metadata = RecordMetadata(record.topic, partition, timestamp_ms=record.timestamp_ms, dropped=True)
            complete_future(record.future, record.callback, metadata, logged=Exception)
        elif stop is not None:
            complete_future(record.future, record.callback, None, stop, logged=Exception)

    async def _append(self, record: NewRecord, gate: AsyncGate) -> Stop | None:
        """Put a record into its batch. Returns the reason if that is not possible."""
        core, topic, partition, size = self._core, record.topic, record.partition, record.size
        transaction_number = gate.transaction_number()
        tp = TopicPartition(topic, -1 if partition is None else partition)
        waiting_since_ms: int | None = None
        while True:
            stop: Stop | None = gate.refusal()
            count = None if size > self._size_max else core.usable_count(topic, partition)
            if stop is None and count is not None and not core.accumulator.has_memory_for(size):
                waiting_since_ms = self._clock.steady_ms() if waiting_since_ms is None else waiting_since_ms
                stop = await gate.memory_free(size, waiting_since_ms, tp=tp)
                count = core.usable_count(topic, partition)  # The topic may have got more partitions in the meantime.
                if count is None:  # The topic was deleted: the memory is for the next waiting caller.
                    gate.left()
            if stop is None and count is not None:
                self._enter(record, partition, count)
                return None
            if stop is None and size > self._size_max:
                stop = gate.too_large(tp, size, record.key, record.original)
            elif stop is None:
                waiting_since_ms = self._clock.steady_ms() if waiting_since_ms is None else waiting_since_ms
                stop = await gate.topic_known(topic, partition, record.original, waiting_since_ms)
            if stop is not None:
                return gate.stopped(stop, transaction_number)

    def _enter(self, record: NewRecord, partition: int | None, count: int) -> None:
        """Put a record into its batch; its topic is known, and there is memory for it."""
        core, future, chosen = self._core, record.future, partition
        if chosen is None and core.partitioner.has_function:
            chosen = core.partitioner.call_function(record.topic, record.key, record.value, count)
        if chosen is None:
            chosen = core.choose_partition(record.topic, record.key, record.value, count, record.size)
        tp = TopicPartition(record.topic, chosen)
        futures, needs_wakeup = core.append(tp, record, self._clock.steady_ms())
        future.batch, future.index = futures, len(futures) - 1
        if record.callback is not None:
            futures.callbacks[future.index] = record.callback
        if partition is None:
            core.remember_sticky_batch(tp, record.key)
        if needs_wakeup and self._sender is not None:
            self._sender.wakeup()

    async def send_table(self, topic: str | None, table: Any) -> AsyncRecordFuture[SendTableResult]:
        """Send all rows of a table. Waits for metadata and memory like `send`, so a table may be larger than `buffer.memory`.

        Other tasks run between two batches. A stream is read on the event loop: read a slow one in a thread, batch by batch.

        Args:
            topic: topic of the rows without a value in the column topic.
            table: a pyarrow Table, RecordBatch or RecordBatchReader, or a data frame with the Arrow stream interface. Columns: value;
                optionally key, timestamp, headers, partition, topic.

        Returns:
            A future with a SendTableResult: every row is written, rejected or dropped individually.

        Raises:
            InvalidColumn: a column is unknown, missing, or of the wrong type.
            TypeError: `table` is not a table.
            IllegalStateException: as for `send`.
        """
        from chaffinch.producer.tables.sending import send_steps  # Imports pyarrow only if tables are sent.

        gate = self._open_gate("send_table")
        batch_bytes = self.settings["batch.size"] if "batch.size" in self.settings.given else TABLE_BATCH_BYTES
        name = None if topic is None else arguments.checked_topic(topic)
        steps = send_steps(gate, name, table, batch_bytes, self.settings["linger.ms"], self._clock.wall_ms())
        result: Stop | None = None
        try:
            while True:
                try:
                    step = steps.send(result)
                except StopIteration as done:
                    outcome: AsyncRecordFuture[SendTableResult] = done.value
                    return outcome
                result = await (gate.hand_over(step) if isinstance(step, ProducerBatch) else gate.topic_known(*step))
        except BaseException as failure:  # After the end of the steps this has no effect.
            steps.throw(failure)
            raise

    async def flush(self, timeout: float | None = None, **foreign: Never) -> None:
        """Send all records without lingering, and wait until every record sent so far has its outcome.

        Args:
            timeout: limit in seconds; None waits until `delivery.timeout.ms` at the latest.

        Raises:
            TimeoutException: records have no outcome after `timeout`; sending continues.
            IllegalStateException: the producer is not started or closed, or this is another event loop.
            TypeError, ValueError: `timeout` is not a number of seconds from 0 up.
        """
        refuse_arguments("flush", foreign)
        timeout_ms = arguments.checked_timeout_ms(timeout)
        await self._call(lambda call: events.FlushCalled(call=call), timeout_ms, "flush")

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
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
        gate, name = self._open_gate("partitions_for"), arguments.checked_topic(topic)
        if self._core.context.cluster.partition_count(name) is None:
            error = await gate.topic_known(name, None, None, call="partitions_for")
            if isinstance(error, KafkaException):
                raise error
        return [TopicPartition(name, index) for index in range(self._core.context.cluster.partition_count(name) or 0)]

    def metrics(self) -> dict[str, float]:
        """Counters since the producer was created, and current values. Can be called after `close`.

        Returns:
            Values by name (docs/reference/producer.md), with Kafka's names where Kafka has them.
        """
        return read_all(METRICS, self._core, self._clock.steady_ms())

    if not TYPE_CHECKING:  # Type checkers report missing attributes themselves.
        __getattr__ = missing_attributes(ASYNC_PRODUCER_HINTS)

    # Transactions.

    async def init_transactions(self) -> None:
        """Get an identity, and fence every other producer with this transactional id. Call it once, before the first transaction.

        Raises:
            TimeoutException: not done after `max.block.ms`: call it again, the initialization continues.
            IllegalStateException: the producer has no `transactional.id`, is closed, or was initialized before.
            KafkaException: the error of the coordinator, such as TransactionalIdAuthorizationException.
        """
        await self._transact("init_transactions", lambda call: events.InitTransactionsCalled(call=call, deadline_ms=self._block_until_ms()))

    async def begin_transaction(self) -> None:
        """Begin a transaction, which all later records join. Needs no response, so it cannot be cancelled half-way.

        Raises:
            IllegalStateException: before `init_transactions`, while a transaction is open, or before a failed one is aborted.
            KafkaException: the producer cannot be used any more, because it was fenced for example.
        """
        await self._transact("begin_transaction", lambda call: events.BeginTransactionCalled(call=call))

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group_metadata: str | GroupMetadata) -> None:
        """Commit a consumer's positions with the transaction. Waits up to `max.block.ms`.

        Args:
            offsets: offset of the next record to read, or OffsetAndMetadata, by TopicPartition.
            group_metadata: the consumer's `group_metadata()`, by which the broker checks the membership; or a group id, without this check.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: no transaction is open.
            TimeoutException: no response after `max.block.ms`; abort the transaction.
            TransactionAbortableException: the offsets cannot be committed; abort the transaction.
            KafkaException: another error of the coordinator. Its group says how to react.
        """
        checked, group = arguments.checked_offsets(offsets), arguments.checked_group(group_metadata)
        await self._transact(
            "send_offsets_to_transaction",
            lambda call: events.SendOffsetsCalled(call=call, deadline_ms=self._block_until_ms(), offsets=checked, group=group),
        )

    async def commit_transaction(self) -> None:
        """Send the remaining records and commit the transaction.

        Raises:
            TimeoutException: the commit may have happened; call it again until it returns, or raises another error.
            TransactionAbortableException: the transaction cannot be committed; abort it.
            KafkaException: the error of the first failed record; abort the transaction.
            IllegalStateException: no transaction is open.
        """
        await self._transact("commit_transaction", lambda call: events.CommitCalled(call=call, deadline_ms=self._block_until_ms()))

    async def abort_transaction(self) -> None:
        """Abort the transaction. Its records fail or become invisible to readers of committed records.

        Raises:
            TimeoutException: not done after `max.block.ms`: call it again.
            IllegalStateException: no transaction is open.
            KafkaException: an application-recoverable error; close the producer.
        """
        await self._abort(only_if_open=False)

    async def _abort(self, *, only_if_open: bool) -> None:
        await self._transact(
            "abort_transaction",
            lambda call: events.AbortCalled(call=call, deadline_ms=self._block_until_ms(), only_if_open=only_if_open),
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction():` begins a transaction, commits it at the end, and aborts it if the block raises.

        The block may commit or abort it itself. Raises the exceptions of `begin_transaction` and `commit_transaction`. If the task is
        cancelled during the commit, the commit goes on: `commit_transaction` gives its result.
        """
        await self.begin_transaction()
        try:
            yield self
            if not self._core.is_between_transactions:
                await self.commit_transaction()
        except BaseException:
            # After a commit without a response there is nothing to abort: the commit may have happened.
            if self._core.has_open_transaction:
                await self._abort(only_if_open=True)
            raise

    async def _transact(self, name: str, make: Callable[[LoopCall], events.TransactionCall]) -> None:
        if self._core.transaction is None:
            raise IllegalStateException(f"{name}() without transactions: give the producer the option transactional.id")
        await self._call(make, None, name)

    def _block_until_ms(self) -> int:
        return self._clock.steady_ms() + self._max_block_ms

    async def _call(self, make: Callable[[LoopCall], events.Event], timeout_ms: int | None, what: str) -> None:
        call = self._open_sender(what).call(make)
        try:
            await call.wait(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            why = self._core.wait_causes.cause()
            reason = "" if why is None else f", because of {in_words(why)}"
            text = f"{what}() is not done after {timeout_ms} ms{reason}; it goes on"
            raise TimeoutException(text, stored=Stored.POSSIBLY) from why

    def _open_sender(self, what: str) -> AsyncSender:
        self._open_gate(what)
        assert self._sender is not None, "started together with the gate"
        return self._sender

    def _open_gate(self, what: str) -> AsyncGate:
        if self._gate is None or self._sender is None:
            state = "closed" if self._was_closed else "not started: use it in an async with statement, or call start()"
            raise IllegalStateException(f"{what}(): the producer is {state}")
        self._sender.check_loop(what)
        self._gate.check_open(what)
        return self._gate
