"""The express lane in the simulated world: the very `InlineSender`, over lent connections that are simulated, and callers by dice.

A caller sends, and then waits for the answer himself, has another thread do it, or nobody does; what he writes goes as a whole, in part, or
he is interrupted and nobody knows how much has gone; what he reads is lost with an interruption, or is not there after all. Whatever
wakes the sender up closes the lane first, as in its thread.
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
"""Of records that could go by the lane: sent in another way, with headers for example."""
IN_PART_SHARE, REFUSED_SHARE, INTERRUPTED_SHARE = 0.06, 0.02, 0.04
"""Of writes, and of reads."""
SLOW_WAKE_MS: Final = (0, 0, 1, 4)
"""How long a thread takes to wake up."""
WAITING, ANOTHER_THREAD, NO_WAITER = "the caller waits", "another thread waits", "nobody waits"


class Owner(Protocol):
    """The process."""

    def run_sender(self) -> None: ...
    def outcome_received(self, sent: SentRecord) -> None: ...


class _Future:
    """In place of a future."""

    batch: Any = None
    index = 0


class _SimulatedSocket:
    """What `InlineSocket` is to a socket, and the bell of the system beside it."""

    def __init__(self, world: World, end: Connection, is_used: Callable[[Connection], None]) -> None:
        self._is_used = is_used
        self.end = end
        self.event_fd = self
        self._world = world

    def send(self, frame: bytes) -> int:
        """Raises OSError, and KeyboardInterrupt at any byte."""
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
        """Raises OSError where nothing is there any more, and KeyboardInterrupt with what was read."""
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
        raise AssertionError("callers here come when the answer is there: none waits while another is served")

    def consume(self) -> None:
        pass


class InlineSendShell:
    """The lane of one process. `is_open`: from one round of the core to the next thing that wakes the sender up."""

    def __init__(self, world: World, actor: str, core: ProducerCore, transport: Transport, owner: Owner) -> None:
        self.is_open = False
        self._world = world
        self._actor = actor
        self._core = core
        self._transport = transport
        self._owner = owner
        self._end: Connection | None = None
        """Over which the last one went."""
        self._is_waking = False
        self._sender = InlineSender(core, cast(Network, self), cast(Clock, self), RLock(), self.wakeup)

    @property
    def is_busy(self) -> bool:
        """Whether a record is on its way."""
        return self._core.inline_request is not None

    # By the sender.

    def open(self) -> int | None:
        """If there is nothing to do; when the sender wakes up by itself."""
        core = self._core
        self.is_open, deadline_ms = core.allows_inline_send and core.is_idle, core.next_deadline_ms
        if not self.is_open:
            return deadline_ms
        look_at_ms = self._world.steady_ms + self._sender.open()
        return look_at_ms if deadline_ms is None else min(look_at_ms, deadline_ms)

    def close(self) -> None:
        """The sender is awake."""
        inline_request, self.is_open = self._core.inline_request, False
        self._sender.close()
        if inline_request is not None and inline_request.received and not inline_request.is_complete:
            self._world.count("inline answers handed over")
        if self._end is not None:
            self._end.caller = None
        self._transport.drain()

    def wakeup(self) -> None:
        """The sender is to wake up."""
        if not self._is_waking:
            self._is_waking = True
            self._world.after(self._world.rng.choice(SLOW_WAKE_MS), self._woken)

    def _woken(self) -> None:
        self._is_waking = False
        self._owner.run_sender()

    # By a caller.

    def send(self, record: Record, size: int, note: Callable[[Record], SentRecord], *, waits: bool) -> bool:
        """Whether the record, for which there are a topic and memory, is on its way. `waits`: its caller waits for its outcome."""
        world = self._world
        if not self._sender.is_free or world.chance(ORDINARY_SHARE):
            return False
        tp, future, was_interrupted = record.topic_partition, _Future(), False
        try:
            if not self._sender.send(tp, record.key, record.value, record.timestamp_ms, size, cast(Any, future)):
                return False
        except KeyboardInterrupt:
            was_interrupted = True
            world.log(self._actor, "the caller is interrupted while he writes")
        sent, futures = note(record), future.batch
        sent.was_interrupted = was_interrupted
        futures[0] = sent
        world.count("inline records sent")
        waiter = WAITING if waits else world.rng.choice((ANOTHER_THREAD, NO_WAITER))
        world.log(self._actor, f"record {record.number} goes by the lane, {waiter}")
        assert self._end is not None
        if waiter != NO_WAITER:
            self._end.caller = lambda: self._fetch(sent, futures)
        return True

    def _fetch(self, sent: SentRecord, futures: BatchFutures) -> None:
        """Bytes have come, and their caller looks at them."""
        world, inline_request = self._world, self._core.inline_request
        assert self._end is not None
        assert inline_request is not None
        self._end.caller = None
        try:
            self._sender.read_response(futures, None)
        except KeyboardInterrupt:
            sent.was_interrupted = True
            world.log(self._actor, "the caller is interrupted while he reads")
        if futures.outcome is not None:
            offset = futures.outcome(0).offset
            sent.offsets.append(offset)
            world.count("inline records written")
            world.log(self._actor, f"record {sent.record.number} is written in {sent.record.topic_partition} at offset {offset}")
            assert not self._core.callers.memory_waiters, f"{self._actor}: memory is free again, and nobody tells who waits for it"
            self._owner.outcome_received(sent)
        elif self._core.inline_request is inline_request:  # Half an answer, say. There are more callers than one.
            self._end.caller = lambda: self._fetch(sent, futures)

    # In place of network and clock.

    def lend(self, address: Address) -> tuple[BrokerConnection, _SimulatedSocket] | None:
        end = self._transport.lend(address)
        if end is None:
            return None
        if self._world.chance(INTERRUPTED_SHARE):
            end.core.take_correlation_id()  # By a caller who came no further.
        return end.core, _SimulatedSocket(self._world, end, self._goes_over)

    def _goes_over(self, end: Connection) -> None:
        self._end = end

    def prepare_to_lend(self) -> None:
        pass

    def note_traffic(self, addresses: Iterable[Address]) -> None:
        pass

    def take_back(self, address: Address, events: Sequence[ConnectionEvent], *, is_lost: bool) -> None:
        self._world.count("inline records interrupted" if is_lost else "inline records adopted")
        self._world.log(self._actor, f"the record on the lane is a batch in flight, {'interrupted' if is_lost else 'as sent'}")
        self._transport.take_back(address, events, is_lost=is_lost)

    def steady_ms(self) -> int:
        return self._world.steady_ms
