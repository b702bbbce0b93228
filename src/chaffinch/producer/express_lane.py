"""The express lane: one record and its acknowledgement in the caller's own thread, while the sender thread sleeps.

A caller that waits for each acknowledgement before it sends the next record spends most of that time on other threads: the sender thread
has to wake up, and its core looks at everything there is. With nothing else to do only a few steps are needed: the record is a batch of its
own under the partition's next sequence, and once its broker reports it as written that sequence has moved on by one.

The lane is open between two rounds of the sender thread, if the core has nothing left to do. `send` writes the record to the connection;
`fetch`, of the thread that waits for the future, reads the answer. Only the plain answer that the record is written is handled here.
Anything else wakes the sender thread, and whatever wakes the sender thread closes the lane first: the record becomes the batch in flight
that it would have been (`Express.adopt`), and a thread that waits for it is woken to wait as usual.

An answer that no thread waits for wakes the sender thread. Callers that wait for each record would be slowed down by that. So after the
first answer that a caller has read, the sender thread no longer listens to these connections and looks every `LOOK_MS`; it is also woken
when a future is asked whether it is done, or gets a callback. The error of a record that no thread waits for is noticed at most this late.

Ctrl-C may interrupt a caller at any call (`client/condition.py`). So assignments that belong together are one statement, and steps that an
interruption may skip are harmless when they are missing.
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
from chaffinch.producer.core.batches.batch import ProducerBatch, Receipts
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture
from chaffinch.producer.records import RecordMetadata
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.protocol.produce_path import PartitionRequests
from chaffinch.records.few_records import encode_few
from chaffinch.runtime.clock import Clock
from chaffinch.runtime.sockets import LentSocket

# How often the sender thread looks while callers read their answers themselves: about retry.backoff.ms.
LOOK_MS: Final = 100
# How often it looks otherwise, within the shorter of request.timeout.ms and delivery.timeout.ms: nothing else checks these time-outs.
LOOKS_PER_TIMEOUT: Final = 8
# A caller waits for an answer itself for this long; then the sender thread takes over.
WAIT_MS: Final = 50
# A plain answer about one partition has about a hundred bytes. The sender thread reads the rest of a longer one.
ANSWER_BYTES_MAX: Final = 512


def _nobody() -> None:
    """Wakes no thread."""


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """How records get to a partition, until the core's next round."""

    topic_partition: TopicPartition
    address: Address
    topic_id: UUID
    queue: PartitionQueue
    waiting: WaitingQueue


@dataclass(frozen=True, slots=True, eq=False)
class LentConnection:
    """An idle connection to a track's address, and the requests that are written to it."""

    connection: BrokerConnection
    socket: LentSocket
    requests: PartitionRequests
    version: int
    busy_poll: BusyPoll = field(default_factory=BusyPoll)

    def wait(self, timeout_ms: int) -> bool:
        """Wait for bytes, the end of the connection, or the bell; whether one of them is there. Called without any lock."""
        look = self.socket.look
        return bool(self.busy_poll.look(partial(look, 0)) or look(timeout_ms))


@dataclass(slots=True, eq=False)
class Parcel:
    """One record that was sent on the lane; it becomes a batch if its answer is not a plain success."""

    track: Track
    receipts: Receipts
    data: bytearray
    """The encoded batch, numbered."""
    base_sequence: int
    timestamp_ms: int
    size: int
    """Bytes of `buffer.memory` that it holds."""
    position: int
    created_ms: int
    lent: LentConnection | None = None
    """Where it is sent; set before it departs."""
    correlation_id: int = 0
    frame: bytes = b""
    written: int | None = None
    """How many bytes of the frame were sent; None: unknown."""
    received: bytes = b""
    """Bytes of the answer that were read."""
    is_tried: bool = False
    """A caller has tried to read the answer: only the sender thread reads on."""
    is_reading: bool = False
    """Bytes may have been read and lost."""
    is_awaited: bool = False
    """A caller waits for the answer on the connection."""

    @property
    def is_over(self) -> bool:
        """It is written, and its future is done."""
        return self.receipts.outcome is not None

    @property
    def is_unclear(self) -> bool:
        """An interruption has hidden how much was written, or read: the connection has to be closed."""
        return self.written is None or self.is_reading

    def go_on(self, request: SendRequest, steady_ms: int) -> list[ConnectionEvent]:
        """Make it a request of the connection, as if that had sent `request`. Returns the events of what was read so far."""
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
        return [] if self.is_unclear else connection.take(self.received, steady_ms)


class Express:
    """The lane's changes to the core, without I/O. `core.parcel` is the record on the lane.

    All calls are made with the core's lock held; callers make theirs between two rounds, while every other record has its outcome.
    """

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    def track_to(self, topic_partition: TopicPartition, steady_ms: int) -> Track | None:
        """The track to a partition; None if more is needed than to send."""
        core, wiring = self._core, self._core.wiring
        address = wiring.cluster.leader_address(topic_partition)
        if address is None or core.identity.is_missing or not wiring.attempts.may_try(address, steady_ms):
            return None
        queue, topic_id = core.outstanding.queue(topic_partition), wiring.cluster.topic_id(topic_partition.topic) or ZERO_UUID
        if queue.sequence_now(steady_ms, core.identity.current) is None:
            return None
        return Track(topic_partition, address, topic_id, queue, core.accumulator.queue_of(topic_partition))

    def pack(self, track: Track, key: bytes | None, value: bytes | None, timestamp_ms: int, size: int, steady_ms: int) -> Parcel | None:
        """Encode a record of at most `size` bytes (`record_size`), for which there is memory; None if it has to go through the core."""
        waiting, identity = track.waiting, self._core.identity.current
        sequence = track.queue.sequence_now(steady_ms, identity)
        if sequence is None or waiting.growing is not None or waiting.closed:
            return None
        data = encode_few((key,), (value,), (timestamp_ms,), identity=identity, base_sequence=sequence)
        return Parcel(track, Receipts(), data, sequence, timestamp_ms, size, waiting.closed_until, steady_ms)

    def depart(self, parcel: Parcel) -> None:
        """The record is sent now; its receipts hold the future."""
        core, waiting, accumulator = self._core, parcel.track.waiting, self._core.accumulator
        waiting.closed_until, accumulator.memory_free, core.parcel = parcel.position + 1, accumulator.memory_free - parcel.size, parcel

    def written(self, parcel: Parcel, outcome: Any, steady_ms: int) -> bool:
        """Complete the record: it is written, and `outcome` makes its result (`Receipts.outcome`).

        Returns False, and changes nothing, if the core has to notify others: threads that wait for memory, or watch the future."""
        core, accumulator = self._core, self._core.accumulator
        if core.callers.for_memory or not parcel.track.queue.passed_by(parcel.receipts, outcome, steady_ms):
            return False
        accumulator.memory_free, core.parcel = accumulator.memory_free + parcel.size, None
        self._count(parcel, steady_ms)
        return True

    def _count(self, parcel: Parcel, steady_ms: int) -> None:
        counts, track = self._core.wiring.counts, parcel.track
        counts["requests_sent"] += 1
        counts["batches_sent"] += 1
        counts["records_sent"] += 1
        counts["bytes_sent"] += len(parcel.data)
        counts["batches_written"] += 1
        counts["records_written"] += 1
        self._core.wiring.metadata.use(track.topic_partition.topic, steady_ms)
        self._core.outage.answered(track.address, steady_ms)

    def adopt(self, steady_ms: int) -> SendRequest | None:
        """Make the record on the lane a batch in flight, and return its request; None if there is none, or it is written already.
        Called by the sender thread only."""
        core = self._core
        parcel, core.parcel = core.parcel, None
        if parcel is None:
            return None
        if parcel.is_over:  # Its caller was interrupted before the last steps of `written`.
            core.completer.release(parcel.size)
            self._count(parcel, steady_ms)
            return None
        track = parcel.track
        batch = ProducerBatch(
            topic_partition=track.topic_partition,
            receipt=parcel.receipts,
            rows=all_rows(1),
            timestamps=np.array([parcel.timestamp_ms], np.int64),
            data=parcel.data,
            created_ms=parcel.created_ms,
            position=parcel.position,
            memory_bytes=parcel.size,
        )
        # At the time when it was sent: the core has not seen a later one yet.
        numbered = track.queue.next_batch(parcel.created_ms, core.identity.current, lambda: batch)
        assert numbered is batch
        assert batch.base_sequence == parcel.base_sequence
        batch.sent_ms = parcel.created_ms
        sent = ProduceSent(track.address)
        sent.add(batch, track.topic_id)
        core.wiring.metadata.use(track.topic_partition.topic, steady_ms)
        return core.sending.request_of(sent)


class ExpressLane:
    """`is_free`: the lane is open, and no record is on it.

    `lock` is the core's. `open`, `end` and `send` are called with it; `close` and `fetch` take it; `hurry` needs none.
    """

    def __init__(self, core: ProducerCore, network: Network, clock: Clock, lock: Any, wakeup: Callable[[], None]) -> None:
        self.is_free = False
        self.was_used = False
        """Whether a record was sent since the lane was last opened."""
        self._is_open = False
        self._is_fetching = False
        """Callers read their own answers: the sender thread does not listen to the connections."""
        self._has_suspended = False
        """Reads of some connection are suspended in the sender thread's selector."""
        self._core = core
        self._express = Express(core)
        self._network = network
        self._clock = clock
        self._lock = lock
        self._wakeup = wakeup
        self._routes: dict[TopicPartition, tuple[Track, LentConnection] | None] = {}
        self._look_ms: Final = max(1, min(core.wiring.request_timeout_ms, core.wiring.delivery_timeout_ms) // LOOKS_PER_TIMEOUT)

    # By the sender thread.

    def open(self) -> int:
        """Let callers send until `close`: the core has nothing left to do. Returns how many ms the sender thread may sleep."""
        self._network.get_ready_to_lend()
        self._is_fetching = self._is_fetching and self.was_used
        self._is_open, self.is_free, self.was_used = True, True, False
        return min(LOOK_MS, self._look_ms) if self._is_fetching else self._look_ms

    def close(self) -> None:
        """Let no caller send, and hand the record on the lane over to the core and the network."""
        if not self._is_open:
            return
        with self._lock:
            parcel, request = self._stop()
            routes = [route for route in self._routes.values() if route is not None]
            self._routes.clear()
            if self._has_suspended:
                for _, lent in routes:
                    lent.socket.resume_reads()
                self._has_suspended = False
        if self.was_used:
            self._network.was_used([track.address for track, _ in routes])
        if parcel is not None and request is not None:
            self._network.take_back(request.address, parcel.go_on(request, self._clock.steady_ms()), is_lost=parcel.is_unclear)

    def _stop(self) -> tuple[Parcel | None, SendRequest | None]:
        """Close, hand the record over to the core, and wake the thread that waits for it; the record and its request."""
        self._is_open = self.is_free = False
        parcel: Parcel | None = self._core.parcel
        request = self._express.adopt(self._clock.steady_ms())
        if parcel is not None and parcel.is_awaited and parcel.lent is not None:
            parcel.lent.socket.bell.ring()
        return parcel, request

    def end(self) -> None:
        """Close for good: the sender thread and its connections have ended."""
        self._stop()
        self._routes.clear()
        self._wakeup = _nobody  # Without this cycle the sender thread is freed at once.

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
        """Send a record of at most `size` bytes (`record_size`), for which there is memory; whether it was sent. Only while `is_free`."""
        routes, steady_ms = self._routes, self._clock.steady_ms()
        if topic_partition not in routes:
            found = routes[topic_partition] = self._route_to(topic_partition, steady_ms)
            if found is not None and self._is_fetching:  # `close` knows the route already, and resumes its reads.
                self._suspend_reads(found[1])
        route = routes[topic_partition]
        parcel = None if route is None else self._express.pack(route[0], key, value, timestamp_ms, size, steady_ms)
        if route is None or parcel is None:
            return False
        self._depart(parcel, route[1], future)
        return True

    def _depart(self, parcel: Parcel, lent: LentConnection, future: RecordFuture[RecordMetadata]) -> None:
        parcel.lent, parcel.correlation_id = lent, lent.connection.take_correlation_id()
        parcel.frame = frame = lent.requests.frame(parcel.correlation_id, parcel.data)
        parcel.receipts.append(future)
        future.batch, future.index = parcel.receipts, 0
        try:
            # From here on `close` hands it over to the core. While `written` is None it is unknown how much was sent.
            self.is_free, self.was_used = False, True
            self._express.depart(parcel)
            try:
                parcel.written = lent.socket.send(frame)
            except OSError:  # The buffer is full, or the sender thread will see the same error.
                parcel.written = 0
        finally:
            if parcel.written != len(frame):
                self._wakeup()

    def _suspend_reads(self, lent: LentConnection) -> None:
        self._has_suspended = True
        lent.socket.suspend_reads()

    def hurry(self, receipts: Receipts) -> None:
        """A thread asks for the outcome of a record without waiting for it, or adds a callback: the sender thread takes over."""
        parcel: Parcel | None = self._core.parcel
        if parcel is not None and parcel.receipts is receipts:
            self._wakeup()

    def fetch(self, receipts: Receipts, timeout_s: float | None) -> None:
        """Read the answer of a record that its caller waits for, if it is on the lane. Returns when its future is done, or when the sender
        thread has to complete it."""
        parcel: Parcel | None = self._core.parcel
        if parcel is None or parcel.receipts is not receipts or parcel.lent is None:
            return
        lent, is_over = parcel.lent, False
        try:
            with self._lock:
                if self._core.parcel is not parcel:
                    is_over = True
                    return
                if parcel.is_awaited or parcel.is_tried:  # Another thread waits, or the call that this one interrupts.
                    return
                parcel.is_awaited = True
                if not self._is_fetching:
                    self._suspend_reads(lent)
            timeout_ms = WAIT_MS if timeout_s is None else min(WAIT_MS, int(timeout_s * 1000))
            has_come = lent.wait(timeout_ms)
            with self._lock:
                if self._core.parcel is not parcel:  # The sender thread has taken it, and has rung the bell.
                    lent.socket.bell.heard()
                    is_over = True
                else:
                    parcel.is_awaited = False
                    was_fetching = self._is_fetching  # If not, the sender thread has to look more often from now on.
                    is_over = has_come and self._receive(parcel, lent) and was_fetching
        finally:
            if not is_over:
                self._wakeup()

    def _receive(self, parcel: Parcel, lent: LentConnection) -> bool:
        """Read the answer; whether it is the plain one, and the record is completed."""
        parcel.is_tried = parcel.is_reading = True
        try:
            received = lent.socket.receive(ANSWER_BYTES_MAX)
        except OSError:  # Nothing has come, or the sender thread will see the same error.
            parcel.is_reading = False
            lent.socket.bell.heard()
            return False
        parcel.received, parcel.is_reading = received, False
        found = lent.requests.written_at(received, parcel.correlation_id)
        if found is None:
            return False
        base_offset, append_time_ms = found
        topic, partition = parcel.track.topic_partition
        metadata = RecordMetadata(topic, partition, base_offset, parcel.timestamp_ms if append_time_ms < 0 else append_time_ms)
        with SHARED_LOCK:
            if not self._express.written(parcel, lambda _: metadata, self._clock.steady_ms()):
                return False
        # An interruption before this leaves a lane that is not free until it is opened again.
        self._is_fetching, self.is_free = True, True
        parcel.receipts.clear()
        return True

    def _route_to(self, topic_partition: TopicPartition, steady_ms: int) -> tuple[Track, LentConnection] | None:
        """The track and connection to a partition, until the lane is closed; None if its records have to go through the core."""
        track = self._express.track_to(topic_partition, steady_ms)
        found = None if track is None else self._network.lend(track.address)
        if track is None or found is None:
            return None
        connection, socket = found
        wiring, (topic, partition) = self._core.wiring, topic_partition
        sent = ProduceSent(track.address, topic_ids={topic: track.topic_id})
        message = sent.request(acks=wiring.acks, timeout_ms=wiring.request_timeout_ms, transactional_id=None)
        try:
            version = connection.version_for(message, sent.version_max())
            requests = PartitionRequests(
                version=version,
                client_id=connection.client_id,
                acks=wiring.acks,
                timeout_ms=wiring.request_timeout_ms,
                topic=topic,
                topic_id=track.topic_id,
                partition=partition,
            )
        except (UnsupportedVersionException, ValueError):
            return None
        return track, LentConnection(connection, socket, requests, version)
