"""Inline send: one record is sent, and its response read, on the caller's thread, while the sender thread sleeps.

A caller that waits for each acknowledgement before it sends the next record spends most of that time on other threads: the sender thread
has to wake up, and its core runs a whole round. Without other work a few steps are enough: the record is a batch of its own under the
partition's next sequence number, and once its broker reports it as written the sequence advances by one.

Inline sends are enabled between two rounds of the sender thread, if the core has no work. `send` writes the record to the connection;
`read_response`, called by the thread that waits for the future, reads the response. Only a plain success is handled here. Anything else
wakes the sender thread, and before it runs, inline sends are disabled: the record becomes a batch in flight, as if it had been sent by
the sender thread (`InlineCore.adopt`), and a thread that waits for it is woken to wait as usual.

A response that no thread waits for wakes the sender thread, which would slow down callers that wait for each record. So after the first
response that a caller has read, the sender thread no longer listens to these connections. It checks them every `POLL_INTERVAL_MS`, and when
`done` is called on a future or a callback is added. An error that no thread waits for is therefore noticed after at most this long.

KeyboardInterrupt may come at any call (`client/condition.py`). So assignments that belong together are one statement, and steps that an
interruption may skip are harmless if they are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.busy_poll import BusyPoll
from chaffinch.client.connections import BrokerConnection, ConnectionEvent
from chaffinch.client.effects import SendRequest
from chaffinch.client.network import Network
from chaffinch.errors import UnsupportedVersionException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.accumulator import WaitingQueue, all_rows
from chaffinch.producer.core.batches.batch import BatchFutures, ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture
from chaffinch.producer.records import RecordMetadata
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.protocol.produce_fast_path import PartitionRequests
from chaffinch.records.few_records import encode_few
from chaffinch.runtime.clock import Clock
from chaffinch.runtime.sockets import InlineSocket

# The sender thread's check interval while callers read their responses themselves: about retry.backoff.ms.
POLL_INTERVAL_MS: Final = 100
# Its checks per request.timeout.ms or delivery.timeout.ms, whichever is shorter, while callers do not: nothing else checks these limits.
POLLS_PER_TIMEOUT: Final = 8
# A caller waits for a response itself for this long; then the sender thread takes over.
WAIT_MS: Final = 50
# A plain response about one partition has about a hundred bytes. The sender thread reads the rest of a longer one.
RESPONSE_BYTES_MAX: Final = 512


def _no_wakeup() -> None:
    """Wakes no thread."""


@dataclass(frozen=True, slots=True, eq=False)
class InlineTarget:
    """A partition that records may be sent to inline, until the core's next round."""

    topic_partition: TopicPartition
    address: Address
    topic_id: UUID
    queue: PartitionQueue
    waiting: WaitingQueue


@dataclass(frozen=True, slots=True, eq=False)
class InlineConnection:
    """An idle connection to a target's broker, lent by the network, and the encoder of its requests."""

    connection: BrokerConnection
    socket: InlineSocket
    requests: PartitionRequests
    version: int
    busy_poll: BusyPoll = field(default_factory=BusyPoll)

    def wait(self, timeout_ms: int) -> bool:
        """Wait for bytes, the end of the connection, or the eventfd. Returns whether one of them is ready. Called without any lock."""
        look = self.socket.look
        return bool(self.busy_poll.poll(partial(look, 0)) or look(timeout_ms))


@dataclass(slots=True, eq=False)
class InlineRequest:
    """One record that was sent inline. It becomes a batch if its response is not a plain success."""

    target: InlineTarget
    futures: BatchFutures
    data: bytearray
    """The encoded batch, with its sequence number."""
    base_sequence: int
    timestamp_ms: int
    size: int
    """Bytes of `buffer.memory` that it holds."""
    position: int
    created_ms: int
    lent: InlineConnection | None = None
    """Its connection; set before it is sent."""
    correlation_id: int = 0
    frame: bytes = b""
    written: int | None = None
    """How many bytes of the frame were sent; None: unknown."""
    received: bytes = b""
    """Bytes of the response that were read."""
    is_tried: bool = False
    """A caller has tried to read the response: only the sender thread reads the rest."""
    is_reading: bool = False
    """Bytes may have been read and lost."""
    is_awaited: bool = False
    """A caller waits for the response on the connection."""

    @property
    def is_complete(self) -> bool:
        """Whether it is written, and its future is done."""
        return self.futures.outcome is not None

    @property
    def is_interrupted(self) -> bool:
        """Whether an interruption has hidden how much was written or read, so that the connection must be closed."""
        return self.written is None or self.is_reading

    def continue_on_connection(self, request: SendRequest, steady_ms: int) -> list[ConnectionEvent]:
        """Make it a request of the connection, as if that had sent `request`. Returns the events of the bytes read so far."""
        assert self.lent is not None
        connection = self.lent.connection
        connection.adopt(
            request.message,
            request.token,
            frame=self.frame,
            written=len(self.frame) if self.written is None else self.written,
            correlation_id=self.correlation_id,
            version=self.lent.version,
            deadline_ms=self.created_ms + request.timeout_ms,
        )
        return [] if self.is_interrupted else connection.take(self.received, steady_ms)


class InlineCore:
    """Changes to the core for inline sends, without I/O. `core.inline_request` is the current one.

    All calls are made with the core's lock held; callers make theirs between two rounds, while every other record has its outcome.
    """

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    def target_for(self, topic_partition: TopicPartition, steady_ms: int) -> InlineTarget | None:
        """The target for a partition; None if its records have to go through the core."""
        core, context = self._core, self._core.context
        address = context.cluster.leader_address(topic_partition)
        if address is None or core.identity.is_missing or not context.attempts.may_try(address, steady_ms):
            return None
        queue, topic_id = core.outstanding.queue(topic_partition), context.cluster.topic_id(topic_partition.topic) or ZERO_UUID
        if queue.inline_sequence(steady_ms, core.identity.current) is None:
            return None
        return InlineTarget(topic_partition, address, topic_id, queue, core.accumulator.queue_of(topic_partition))

    def prepare(
        self, target: InlineTarget, key: bytes | None, value: bytes | None, timestamp_ms: int, size: int, steady_ms: int
    ) -> InlineRequest | None:
        """Encode a record of at most `size` bytes (`record_size`), for which there is memory; None if it has to go through the core."""
        waiting, identity = target.waiting, self._core.identity.current
        sequence = target.queue.inline_sequence(steady_ms, identity)
        if sequence is None or waiting.growing is not None or waiting.closed:
            return None
        data = encode_few((key,), (value,), (timestamp_ms,), identity=identity, base_sequence=sequence)
        return InlineRequest(target, BatchFutures(), data, sequence, timestamp_ms, size, waiting.closed_until, steady_ms)

    def begin(self, inline_request: InlineRequest) -> None:
        """Record that the record is sent now. Its future has been appended already."""
        core, waiting, accumulator = self._core, inline_request.target.waiting, self._core.accumulator
        waiting.closed_until, accumulator.memory_free, core.inline_request = (
            inline_request.position + 1,
            accumulator.memory_free - inline_request.size,
            inline_request,
        )

    def written(self, inline_request: InlineRequest, outcome: Any, steady_ms: int) -> bool:
        """Complete the record: it is written, and `outcome` makes its result (`BatchFutures.outcome`).

        Returns False, and changes nothing, if the core has to notify others: threads that wait for memory, or watch the future.
        """
        core, accumulator = self._core, self._core.accumulator
        if core.callers.memory_waiters or not inline_request.target.queue.complete_inline(inline_request.futures, outcome, steady_ms):
            return False
        accumulator.memory_free, core.inline_request = accumulator.memory_free + inline_request.size, None
        self._count(inline_request, steady_ms)
        return True

    def _count(self, inline_request: InlineRequest, steady_ms: int) -> None:
        counts, target = self._core.context.counts, inline_request.target
        counts["requests_sent"] += 1
        counts["batches_sent"] += 1
        counts["records_sent"] += 1
        counts["bytes_sent"] += len(inline_request.data)
        counts["batches_written"] += 1
        counts["records_written"] += 1
        self._core.context.metadata.use(target.topic_partition.topic, steady_ms)
        self._core.outage_log.response_received(target.address, steady_ms)

    def adopt(self, steady_ms: int) -> SendRequest | None:
        """Turn the inline request into a batch in flight, and return its Produce request; None if there is none, or it is written already.

        Only the sender thread calls this.
        """
        core = self._core
        inline_request, core.inline_request = core.inline_request, None
        if inline_request is None:
            return None
        if inline_request.is_complete:  # Its caller was interrupted before the last steps of `written`.
            core.completer.release(inline_request.size)
            self._count(inline_request, steady_ms)
            return None
        target = inline_request.target
        batch = ProducerBatch(
            topic_partition=target.topic_partition,
            outcome_sink=inline_request.futures,
            rows=all_rows(1),
            timestamps=np.array([inline_request.timestamp_ms], np.int64),
            data=inline_request.data,
            created_ms=inline_request.created_ms,
            position=inline_request.position,
            memory_bytes=inline_request.size,
        )
        # With the time when it was sent: the core has not seen a later time yet.
        numbered = target.queue.next_batch(inline_request.created_ms, core.identity.current, lambda: batch)
        assert numbered is batch
        assert batch.base_sequence == inline_request.base_sequence
        batch.sent_ms = inline_request.created_ms
        sent = ProduceSent(target.address)
        sent.add(batch, target.topic_id)
        core.context.metadata.use(target.topic_partition.topic, steady_ms)
        return core.batch_sender.request_of(sent)


class InlineSender:
    """Sends records on callers' threads. `is_free`: inline sends are enabled, and none is in flight.

    `lock` is the core's. `open`, `end` and `send` are called with it; `close` and `read_response` take it; `expedite` needs none.
    """

    def __init__(self, core: ProducerCore, network: Network, clock: Clock, lock: Any, wakeup: Callable[[], None]) -> None:
        self.is_free = False
        self.was_used = False
        """Whether a record was sent inline since `open`."""
        self._is_open = False
        self._callers_read_responses = False
        """Callers read their own responses: the sender thread does not listen to the connections."""
        self._has_suspended = False
        """Reads of some connection are suspended in the sender thread's selector."""
        self._core = core
        self._inline_sender = InlineCore(core)
        self._network = network
        self._clock = clock
        self._lock = lock
        self._wakeup = wakeup
        self._routes: dict[TopicPartition, tuple[InlineTarget, InlineConnection] | None] = {}
        self._poll_ms: Final = max(1, min(core.context.request_timeout_ms, core.context.delivery_timeout_ms) // POLLS_PER_TIMEOUT)

    # By the sender thread.

    def open(self) -> int:
        """Let callers send until `close`: the core has nothing left to do. Returns how many ms the sender thread may sleep."""
        self._network.prepare_to_lend()
        self._callers_read_responses = self._callers_read_responses and self.was_used
        self._is_open, self.is_free, self.was_used = True, True, False
        return min(POLL_INTERVAL_MS, self._poll_ms) if self._callers_read_responses else self._poll_ms

    def close(self) -> None:
        """Disable inline sends, and hand the current one over to the core and the network."""
        if not self._is_open:
            return
        with self._lock:
            inline_request, request = self._stop()
            routes = [route for route in self._routes.values() if route is not None]
            self._routes.clear()
            if self._has_suspended:
                for _, lent in routes:
                    lent.socket.resume_reads()
                self._has_suspended = False
        if self.was_used:
            self._network.note_traffic([target.address for target, _ in routes])
        if inline_request is not None and request is not None:
            self._network.take_back(
                request.address,
                inline_request.continue_on_connection(request, self._clock.steady_ms()),
                is_lost=inline_request.is_interrupted,
            )

    def _stop(self) -> tuple[InlineRequest | None, SendRequest | None]:
        """Disable inline sends, hand the current one to the core, and wake the thread that waits for it. Returns it and its request."""
        self._is_open = self.is_free = False
        inline_request: InlineRequest | None = self._core.inline_request
        request = self._inline_sender.adopt(self._clock.steady_ms())
        if inline_request is not None and inline_request.is_awaited and inline_request.lent is not None:
            inline_request.lent.socket.event_fd.notify()
        return inline_request, request

    def end(self) -> None:
        """Close for good: the sender thread and its connections have ended."""
        self._stop()
        self._routes.clear()
        self._wakeup = _no_wakeup  # Without this cycle the sender thread is freed at once.

    # By callers.

    def send(
        self,
        topic_partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        size: int,
        future: RecordFuture[RecordMetadata],
    ) -> bool:
        """Send a record of at most `size` bytes (`record_size`), for which there is memory. Requires `is_free`.

        Returns whether it was sent.
        """
        routes, steady_ms = self._routes, self._clock.steady_ms()
        if topic_partition not in routes:
            found = routes[topic_partition] = self._route_to(topic_partition, steady_ms)
            if found is not None and self._callers_read_responses:  # `close` knows the route already, and resumes its reads.
                self._suspend_reads(found[1])
        route = routes[topic_partition]
        inline_request = None if route is None else self._inline_sender.prepare(route[0], key, value, timestamp_ms, size, steady_ms)
        if route is None or inline_request is None:
            return False
        self._write(inline_request, route[1], future)
        return True

    def _write(self, inline_request: InlineRequest, lent: InlineConnection, future: RecordFuture[RecordMetadata]) -> None:
        inline_request.lent, inline_request.correlation_id = lent, lent.connection.take_correlation_id()
        inline_request.frame = frame = lent.requests.frame(inline_request.correlation_id, inline_request.data)
        inline_request.futures.append(future)
        future.batch, future.index = inline_request.futures, 0
        try:
            # From here on `close` hands it over to the core. While `written` is None it is unknown how much was sent.
            self.is_free, self.was_used = False, True
            self._inline_sender.begin(inline_request)
            try:
                inline_request.written = lent.socket.send(frame)
            except OSError:  # The buffer is full, or the sender thread will see the same error.
                inline_request.written = 0
        finally:
            if inline_request.written != len(frame):
                self._wakeup()

    def _suspend_reads(self, lent: InlineConnection) -> None:
        self._has_suspended = True
        lent.socket.suspend_reads()

    def expedite(self, futures: BatchFutures) -> None:
        """A thread checks the outcome of a record without waiting for it, or adds a callback: the sender thread takes over."""
        inline_request: InlineRequest | None = self._core.inline_request
        if inline_request is not None and inline_request.futures is futures:
            self._wakeup()

    def read_response(self, futures: BatchFutures, timeout_s: float | None) -> None:
        """Read the response to the current inline send on behalf of the caller that waits for it.

        Returns when the future is done, or when the sender thread has to complete it.
        """
        inline_request: InlineRequest | None = self._core.inline_request
        if inline_request is None or inline_request.futures is not futures or inline_request.lent is None:
            return
        lent, is_complete = inline_request.lent, False
        try:
            with self._lock:
                if self._core.inline_request is not inline_request:
                    is_complete = True
                    return
                if inline_request.is_awaited or inline_request.is_tried:  # Another thread waits, or the call that this one has interrupted.
                    return
                inline_request.is_awaited = True
                if not self._callers_read_responses:
                    self._suspend_reads(lent)
            timeout_ms = WAIT_MS if timeout_s is None else min(WAIT_MS, int(timeout_s * 1000))
            has_come = lent.wait(timeout_ms)
            with self._lock:
                if self._core.inline_request is not inline_request:  # The sender thread has taken it, and has notified the eventfd.
                    lent.socket.event_fd.consume()
                    is_complete = True
                else:
                    inline_request.is_awaited = False
                    did_callers_read = self._callers_read_responses  # If not, the sender thread must check more often from now on.
                    is_complete = has_come and self._receive(inline_request, lent) and did_callers_read
        finally:
            if not is_complete:
                self._wakeup()

    def _receive(self, inline_request: InlineRequest, lent: InlineConnection) -> bool:
        """Read the response. Returns whether it is a plain success, and the record is completed."""
        inline_request.is_tried = inline_request.is_reading = True
        try:
            received = lent.socket.receive(RESPONSE_BYTES_MAX)
        except OSError:  # No bytes have arrived, or the sender thread will see the same error.
            inline_request.is_reading = False
            lent.socket.event_fd.consume()
            return False
        inline_request.received, inline_request.is_reading = received, False
        found = lent.requests.written_at(received, inline_request.correlation_id)
        if found is None:
            return False
        base_offset, append_time_ms = found
        topic, partition = inline_request.target.topic_partition
        metadata = RecordMetadata(topic, partition, base_offset, inline_request.timestamp_ms if append_time_ms < 0 else append_time_ms)
        with SHARED_LOCK:
            if not self._inline_sender.written(inline_request, lambda _: metadata, self._clock.steady_ms()):
                return False
        # After an interruption before this, inline sends stay disabled until the next `open`.
        self._callers_read_responses, self.is_free = True, True
        inline_request.futures.clear()
        return True

    def _route_to(self, topic_partition: TopicPartition, steady_ms: int) -> tuple[InlineTarget, InlineConnection] | None:
        """The target and connection for a partition, until `close`; None if its records have to go through the core."""
        target = self._inline_sender.target_for(topic_partition, steady_ms)
        found = None if target is None else self._network.lend(target.address)
        if target is None or found is None:
            return None
        connection, socket = found
        context, (topic, partition) = self._core.context, topic_partition
        sent = ProduceSent(target.address, topic_ids={topic: target.topic_id})
        message = sent.request(acks=context.acks, timeout_ms=context.request_timeout_ms, transactional_id=None)
        try:
            version = connection.version_for(message, sent.version_max())
            requests = PartitionRequests(
                version=version,
                client_id=connection.client_id,
                acks=context.acks,
                timeout_ms=context.request_timeout_ms,
                topic=topic,
                topic_id=target.topic_id,
                partition=partition,
            )
        except (UnsupportedVersionException, ValueError):
            return None
        return target, InlineConnection(connection, socket, requests, version)
