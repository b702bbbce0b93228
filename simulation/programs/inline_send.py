"""Inline send in the simulated world: the real `InlineSender` over lent simulated connections, with random callers.

After sending, the caller waits for the response, another thread does, or no thread does. A write is complete, partial, or interrupted after
an unknown number of bytes. A read is interrupted and its bytes are lost, or there is nothing to read. Every wake-up of the sender first
disables inline send, as in the sender thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Any, Final, Protocol, cast

from chaffinch.client.addresses import Address
from chaffinch.client.connections import BrokerConnection, ConnectionEvent
from chaffinch.client.network import Network
from chaffinch.producer.core.batches.batch import BatchFutures
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.inline_send import InlineSender
from chaffinch.runtime.clock import Clock
from simulation.programs.programs import SentRecord
from simulation.records import Record
from simulation.transport import Connection, Transport
from simulation.world import World

ORDINARY_SHARE: Final = 0.15
"""Share of eligible records that are sent the ordinary way, for example as if they had headers."""
IN_PART_SHARE, REFUSED_SHARE, INTERRUPTED_SHARE = 0.06, 0.02, 0.04
"""Shares of writes and reads."""
SLOW_WAKE_MS: Final = (0, 0, 1, 4)
"""How long a thread takes to wake up."""
WAITING, ANOTHER_THREAD, NO_WAITER = "the caller waits", "another thread waits", "no thread waits"


class Owner(Protocol):
    """The producer process."""

    def run_sender(self) -> None: ...
    def outcome_received(self, sent: SentRecord) -> None: ...


class _Future:
    """Stands in for a future."""

    batch: Any = None
    index = 0


class _SimulatedSocket:
    """Stands in for `InlineSocket` and its eventfd."""

    def __init__(self, world: World, end: Connection, is_used: Callable[[Connection], None]) -> None:
        self._is_used = is_used
        self.end = end
        self.event_fd = self
        self._world = world

    def send(self, frame: bytes) -> int:
        """Raises OSError, or KeyboardInterrupt at any byte."""
        world, link = self._world, self.end.link
        assert link is not None
        self._is_used(self.end)
        if world.chance(REFUSED_SHARE):
            raise world.rng.choice((BlockingIOError, BrokenPipeError))
        is_interrupted = world.chance(INTERRUPTED_SHARE)
        count = world.rng.randrange(len(frame)) if is_interrupted or world.chance(IN_PART_SHARE) else len(frame)
        if count:
            link.to_broker.send(frame[:count])
        if is_interrupted:
            raise KeyboardInterrupt
        if count < len(frame):
            world.count("inline records written in part")
        return count

    def look(self, _timeout_ms: int) -> list[int]:
        return [1]

    def receive(self, size_max: int) -> bytes:
        """Raises OSError if there is nothing to read, and KeyboardInterrupt after the bytes were read."""
        if self._world.chance(REFUSED_SHARE):
            raise BlockingIOError
        end = self.end
        data = bytes(end.unread[:size_max])
        del end.unread[:size_max]
        if self._world.chance(INTERRUPTED_SHARE):
            raise KeyboardInterrupt
        return data

    def suspend_reads(self) -> None:
        self.end.reads_suspended = True

    def resume_reads(self) -> None:
        self.end.reads_suspended = False

    def notify(self) -> None:
        raise AssertionError("a simulated caller reads only when its response has arrived")

    def consume(self) -> None:
        pass


class InlineSendShell:
    """Inline send of one process. `is_open`: from a round of the core to the next wake-up of the sender."""

    def __init__(self, world: World, actor: str, core: ProducerCore, transport: Transport, owner: Owner) -> None:
        self.is_open = False
        self._world = world
        self._actor = actor
        self._core = core
        self._transport = transport
        self._owner = owner
        self._end: Connection | None = None
        """The connection of the last request."""
        self._is_waking = False
        self._sender = InlineSender(core, cast(Network, self), cast(Clock, self), RLock(), self.wakeup)

    @property
    def is_busy(self) -> bool:
        """Whether a record is in flight."""
        return self._core.inline_request is not None

    # Called by the sender.

    def open(self) -> int | None:
        """Enable inline send if the core is idle. Returns when the sender wakes up by itself."""
        core = self._core
        self.is_open, deadline_ms = core.allows_inline_send and core.is_idle, core.next_deadline_ms
        if not self.is_open:
            return deadline_ms
        look_at_ms = self._world.steady_ms + self._sender.open()
        return look_at_ms if deadline_ms is None else min(look_at_ms, deadline_ms)

    def close(self) -> None:
        """Disable inline send: the sender is awake."""
        inline_request, self.is_open = self._core.inline_request, False
        self._sender.close()
        if inline_request is not None and inline_request.received and not inline_request.is_complete:
            self._world.count("inline answers handed over")
        if self._end is not None:
            self._end.caller = None
        self._transport.drain()

    def wakeup(self) -> None:
        """Wake the sender after a random delay."""
        if not self._is_waking:
            self._is_waking = True
            self._world.after(self._world.rng.choice(SLOW_WAKE_MS), self._woken)

    def _woken(self) -> None:
        self._is_waking = False
        self._owner.run_sender()

    # Called by callers.

    def send(self, record: Record, size: int, note: Callable[[Record], SentRecord], *, waits: bool) -> bool:
        """Send the record inline; there are a topic and memory for it. Returns whether it was sent. `waits`: its caller waits for the
        outcome."""
        world = self._world
        if not self._sender.is_free or world.chance(ORDINARY_SHARE):
            return False
        tp, future, was_interrupted = record.topic_partition, _Future(), False
        try:
            if not self._sender.send(tp, record.key, record.value, record.timestamp_ms, size, cast(Any, future)):
                return False
        except KeyboardInterrupt:
            was_interrupted = True
            world.log(self._actor, "the caller is interrupted in the write")
        sent, futures = note(record), future.batch
        sent.was_interrupted = was_interrupted
        futures[0] = sent
        world.count("inline records sent")
        waiter = WAITING if waits else world.rng.choice((ANOTHER_THREAD, NO_WAITER))
        world.log(self._actor, f"record {record.number} is sent inline, {waiter}")
        assert self._end is not None
        if waiter != NO_WAITER:
            self._end.caller = lambda: self._fetch(sent, futures)
        return True

    def _fetch(self, sent: SentRecord, futures: BatchFutures) -> None:
        """Bytes have arrived; their caller reads them."""
        world, inline_request = self._world, self._core.inline_request
        assert self._end is not None
        assert inline_request is not None
        self._end.caller = None
        try:
            self._sender.read_response(futures, None)
        except KeyboardInterrupt:
            sent.was_interrupted = True
            world.log(self._actor, "the caller is interrupted in the read")
        if futures.outcome is not None:
            offset = futures.outcome(0).offset
            sent.offsets.append(offset)
            world.count("inline records written")
            world.log(self._actor, f"record {sent.record.number} is written in {sent.record.topic_partition} at offset {offset}")
            assert not self._core.callers.memory_waiters, f"{self._actor}: memory is free again, but its waiters are not notified"
            self._owner.outcome_received(sent)
        elif self._core.inline_request is inline_request:  # For example half a response. Callers may come several times.
            self._end.caller = lambda: self._fetch(sent, futures)

    # Stands in for the network and the clock.

    def lend(self, address: Address) -> tuple[BrokerConnection, _SimulatedSocket] | None:
        end = self._transport.lend(address)
        if end is None:
            return None
        if self._world.chance(INTERRUPTED_SHARE):
            end.core.take_correlation_id()  # As by a caller that was interrupted here.
        return end.core, _SimulatedSocket(self._world, end, self._goes_over)

    def _goes_over(self, end: Connection) -> None:
        self._end = end

    def prepare_to_lend(self) -> None:
        pass

    def note_traffic(self, addresses: Iterable[Address]) -> None:
        pass

    def take_back(self, address: Address, events: Sequence[ConnectionEvent], *, is_lost: bool) -> None:
        self._world.count("inline records interrupted" if is_lost else "inline records adopted")
        self._world.log(self._actor, f"the inline record becomes a batch in flight, {'interrupted' if is_lost else 'as sent'}")
        self._transport.take_back(address, events, is_lost=is_lost)

    def steady_ms(self) -> int:
        return self._world.steady_ms
