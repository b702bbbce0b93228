"""The express lane: one record and its acknowledgement in the caller's own thread, while the sender thread sleeps.

`core/express.py` says what it is for, and what becomes of a record that is not just written. Here are the connection that is lent and the
caller's wait. Between two turns of the sender thread the lane is open, if the core had nothing left to do. `send` then writes its record
to the connection; `fetch`, of whoever waits for the future, reads the answer. Whatever wakes the sender thread up, it first closes the
lane: what is on its way is the core's again, and who waits for it is woken up to wait as usual.

An answer for which nobody waits wakes the sender thread up. But where somebody waits for each record he would be held up by that, so
after the first that was fetched the sender thread hears nothing of those connections, and looks by itself every `LOOK_MS`; it is also
woken up by who asks a future whether it is done, or wants to be called. So late the error of a record at most is noticed to which nobody
listens.

`lock` is the core's. `open`, `end` and `send` are called with it; `close` and `fetch` take it; `hurry` needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chaffinch.client.lent_connection import Borrowed, LentConnection
from chaffinch.client.network import Network
from chaffinch.errors import UnsupportedVersionException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.batch import Parcel, Receipts
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.express import Track
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture
from chaffinch.producer.records import RecordMetadata
from chaffinch.protocol.partition_requests import PartitionRequests
from chaffinch.runtime.clock import Clock

# While callers fetch for themselves the sender thread looks as often after what nobody fetches: about retry.backoff.ms.
LOOK_MS: Final = 100
# Otherwise so often within request.timeout.ms and delivery.timeout.ms, which nobody else watches.
LOOKS_PER_TIMEOUT: Final = 8
# So long a caller waits for an answer himself; then the sender thread does it for him, as it would have from the beginning.
WAIT_MS: Final = 50


def _nobody() -> None:
    """Wakes nobody."""


class _Route:
    """A track, the connection that leads there, and what is written to it."""

    __slots__ = ("lent", "requests", "track", "version")

    def __init__(self, track: Track, lent: LentConnection, requests: PartitionRequests, version: int) -> None:
        self.track, self.lent, self.requests, self.version = track, lent, requests, version


class ExpressLane:
    """`is_free`: the lane is open, and nothing is on its way."""

    def __init__(self, core: ProducerCore, network: Network, clock: Clock, lock: Any, wakeup: Callable[[], None]) -> None:
        self.is_free = False
        self._is_open = False
        self._is_fetching = False
        """Callers fetch what they send, one after the other: the sender thread does not hear what comes."""
        self._has_ears = False
        """Of some connection the sender thread hears nothing."""
        self._was_used = False
        self._core = core
        self._express = core.express
        self._network = network
        self._clock = clock
        self._lock = lock
        self._wakeup = wakeup
        self._routes: dict[TopicPartition, _Route | None] = {}
        self._route: _Route | None = None
        """Where the one that is on its way goes; kept behind it."""
        self._borrowed: Borrowed | None = None
        """What is on its way."""
        self._look_ms: Final = max(1, min(core.wiring.request_timeout_ms, core.wiring.delivery_timeout_ms) // LOOKS_PER_TIMEOUT)

    # By the sender thread.

    def open(self) -> int:
        """The core has nothing left to do: callers may send until it is closed. How long the sender thread may sleep, in ms."""
        self._network.get_ready_to_lend()
        self._is_fetching = self._is_fetching and self._was_used
        self._is_open, self.is_free, self._was_used = True, True, False
        return min(LOOK_MS, self._look_ms) if self._is_fetching else self._look_ms

    def close(self) -> None:
        """Nobody begins anything any more, and what is on its way is the core's, and the network's."""
        if not self._is_open:
            return
        with self._lock:
            self._is_open = self.is_free = False
            borrowed, self._borrowed = self._borrowed, None
            request = self._express.adopt(self._clock.now_ms())
            routes = [route for route in self._routes.values() if route is not None]
            self._routes.clear()
            if self._has_ears:
                for route in routes:
                    route.lent.give_the_ear_back()
                self._has_ears = False
            if borrowed is not None and borrowed.is_awaited:
                borrowed.lent.bell.ring()
        if self._was_used:
            self._network.was_used([route.track.address for route in routes])
        if borrowed is not None and request is not None:
            self._network.take_back(request, borrowed)

    def end(self) -> None:
        """The sender thread is at its end, whatever it was that ended it, and so are the connections: what is on its way is the core's.
        With the lock."""
        self._is_open = self.is_free = False
        self._express.adopt(self._clock.now_ms())
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None and borrowed.is_awaited:
            borrowed.lent.bell.ring()
        self._routes.clear()
        self._wakeup = _nobody  # Else the sender thread would wait for the collector.

    @property
    def was_used(self) -> bool:
        """Whether something was sent since it was opened last."""
        return self._was_used

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
        """Send a record of at most `size` bytes (`record_size`), for which there is memory, at once; whether it was. While `is_free`."""
        routes, now_ms = self._routes, self._clock.now_ms()
        if topic_partition not in routes:
            route = routes[topic_partition] = self._route_to(topic_partition, now_ms)
            if route is not None and self._is_fetching:  # Not before `close` knows of it: who is interrupted leaves nobody deaf.
                self._take_the_ear(route.lent)
        route = routes[topic_partition]
        parcel = None if route is None else self._express.pack(route.track, key, value, timestamp_ms, size, now_ms)
        if route is None or parcel is None:
            return False
        self._depart(route, parcel, future)
        return True

    def _depart(self, route: _Route, parcel: Parcel, future: RecordFuture[RecordMetadata]) -> None:
        lent = route.lent
        correlation_id = lent.connection.take_correlation_id()
        frame = route.requests.frame(correlation_id, parcel.data)
        borrowed = Borrowed(lent, frame, correlation_id, route.version, parcel.created_ms)
        parcel.receipts.append(future)
        future.batch, future.index = parcel.receipts, 0
        try:
            # From here on it is the core's if anything goes wrong; without `written` nobody knows how much of it has gone.
            self.is_free, self._was_used, self._route, self._borrowed = False, True, route, borrowed
            self._express.depart(parcel)
            try:
                borrowed.written = lent.send(frame)
            except OSError:  # There is no room; or the sender thread finds out why not.
                borrowed.written = 0
        finally:
            if borrowed.written != len(frame):
                self._wakeup()

    def _take_the_ear(self, lent: LentConnection) -> None:
        self._has_ears = True
        lent.take_the_ear()

    def hurry(self, receipts: Receipts) -> None:
        """Somebody looks whether a record has its outcome, or wants to be told: that is the sender thread's business."""
        parcel = self._express.parcel
        if parcel is not None and parcel.receipts is receipts:
            self._wakeup()

    def fetch(self, receipts: Receipts, timeout_s: float | None) -> None:
        """A caller waits for the outcome of a record, which may be on its way here: then he reads the answer himself. Returns when the
        outcome is there, or when it is for the sender thread to say."""
        borrowed, parcel = self._borrowed, self._express.parcel
        if borrowed is None or parcel is None or parcel.receipts is not receipts:
            return
        is_over = False
        try:
            with self._lock:
                if self._borrowed is not borrowed:
                    is_over = True
                    return
                if borrowed.is_awaited or borrowed.is_tried:  # Another thread waits, or one that this call interrupts.
                    return
                borrowed.is_awaited = True
                if not self._is_fetching:
                    self._take_the_ear(borrowed.lent)
            has_come = borrowed.lent.wait(WAIT_MS if timeout_s is None else min(WAIT_MS, int(timeout_s * 1000)))
            with self._lock:
                if self._borrowed is not borrowed:  # The sender thread has taken it, and has rung.
                    borrowed.lent.bell.heard()
                    is_over = True
                else:
                    borrowed.is_awaited = False
                    was_fetching = self._is_fetching  # If not, the sender thread is to look more often from now on.
                    is_over = has_come and self._receive(borrowed, parcel) and was_fetching
        finally:
            if not is_over:
                self._wakeup()

    def _receive(self, borrowed: Borrowed, parcel: Parcel) -> bool:
        """Read the answer; whether it is the plain one, and the record has its outcome."""
        borrowed.is_tried = borrowed.is_reading = True
        try:
            received = borrowed.lent.receive()
        except OSError:  # Nothing has come, or the sender thread finds out the same.
            borrowed.is_reading = False
            borrowed.lent.bell.heard()
            return False
        borrowed.received, borrowed.is_reading = received, False
        assert self._route is not None
        found = self._route.requests.written_at(received, borrowed.correlation_id)
        if found is None:
            return False
        base_offset, append_time_ms = found
        topic, partition = parcel.track.topic_partition
        metadata = RecordMetadata(topic, partition, base_offset, parcel.timestamp_ms if append_time_ms < 0 else append_time_ms)
        with SHARED_LOCK:
            if not self._express.written(parcel, lambda _: metadata, self._clock.now_ms()):
                return False
        # Who is interrupted here leaves nothing behind but a lane that is not free.
        self._borrowed, self._is_fetching, self.is_free = None, True, True
        parcel.receipts.clear()
        return True

    def _route_to(self, topic_partition: TopicPartition, now_ms: int) -> _Route | None:
        """The way to a partition, until the lane is closed; None if there is none past the core."""
        track = self._express.track_to(topic_partition, now_ms)
        lent = None if track is None else self._network.lend(track.address)
        if track is None or lent is None:
            return None
        wiring, (topic, partition) = self._core.wiring, topic_partition
        sent = ProduceSent(track.address, topic_ids={topic: track.topic_id})
        message = sent.request(acks=wiring.acks, timeout_ms=wiring.request_timeout_ms, transactional_id=None)
        try:
            version = lent.connection.version_for(message, sent.version_max())
            requests = PartitionRequests(
                version=version,
                client_id=lent.connection.client_id,
                acks=wiring.acks,
                timeout_ms=wiring.request_timeout_ms,
                topic=topic,
                topic_id=track.topic_id,
                partition=partition,
            )
        except (UnsupportedVersionException, ValueError):
            return None
        return _Route(track, lent, requests, version)
