"""Simulated TCP network: loses, delays and cuts connections, but never loses or reorders bytes inside a stream.

A `Link` is one connection with two streams of bytes. Bytes of a stream arrive in order, in random pieces, each with its own delay. Streams
are independent, so bytes on an old connection may arrive after bytes on a newer one. A link ends in one of three ways: one side closes it,
it is cut at a byte chosen in advance, or it goes silent and drops everything without notifying either side. Bytes written before a close
are delivered or lost at random.

`NetworkFaults` holds the rates. `Network.heal` sets them to zero and ends silent links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from chaffinch.client.addresses import Address
from chaffinch.protocol.primitives import Buffer
from simulation.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """Rates of network faults. Shares are of links or answers; times in ms."""

    latency_max_ms: int = 4
    slow_share: float = 0.0
    """Share of pieces delayed by up to `slow_max_ms`, which exceeds the request timeout."""
    slow_max_ms: int = 3_000
    cut_share: float = 0.0
    """Share of links cut at some byte of one of their streams."""
    silent_share: float = 0.0
    """Share of links that drop everything after some byte."""
    lost_response_share: float = 0.0
    """Share of responses lost: the link is cut after the broker has carried out the request, when it responds."""
    unreachable_share: float = 0.0
    """Share of connection attempts that get no answer at all."""


CALM = NetworkFaults()
CUT_BYTES_MIN, CUT_BYTES_MAX = 1, 40_000
PIECES_MAX = 3
SPLIT_AFTER_BYTES = 64
"""Shorter writes are never split: otherwise a world would do little but deliver pieces."""


class Endpoint(Protocol):
    """One side of a link."""

    def arrived(self, data: bytes) -> None:
        """The next bytes of the stream."""

    def finished(self, reason: str) -> None:
        """The other side has closed; all bytes it sent before have arrived."""

    def closed(self, reason: str) -> None:
        """The link is gone; nothing more will arrive."""


class Stream:
    """One direction of a link. `cut_at`, `silent_at`: number of bytes after which it is cut or goes silent; None for never."""

    __slots__ = ("_link", "_world", "arrives_ms", "bytes_sent", "cut_at", "in_flight", "receiver", "silent_at")

    def __init__(self, link: Link, world: World) -> None:
        self.receiver: Endpoint | None = None
        self.bytes_sent = 0
        self.cut_at: int | None = None
        self.silent_at: int | None = None
        self.in_flight = 0
        self.arrives_ms = 0
        """When the last bytes sent so far arrive or arrived."""
        self._link = link
        self._world = world

    def send(self, data: bytes) -> None:
        """Send bytes. The receiver gets all of them, a prefix, or nothing."""
        world, link = self._world, self._link
        start = self.bytes_sent
        self.bytes_sent += len(data)
        if self.silent_at is not None and self.bytes_sent > self.silent_at and not link.is_calm:
            link.fall_silent()
        if link.is_silent:
            return
        is_cut = False
        if self.cut_at is not None and self.bytes_sent > self.cut_at and not link.is_calm:
            is_cut = True
            data = data[: max(0, self.cut_at - start)]
        for piece in self._pieces(data):
            arrives_ms = world.steady_ms + link.delay_ms()
            if arrives_ms > self.arrives_ms:
                self.arrives_ms = arrives_ms
            self.in_flight += 1
            world.at(self.arrives_ms, partial(self._arrive, piece))
        if is_cut:
            world.count("links cut at a byte")
            world.at(self.arrives_ms, lambda: link.cut("cut by the network"))

    def _pieces(self, data: bytes) -> list[bytes]:
        rng = self._world.rng
        if len(data) <= SPLIT_AFTER_BYTES or self._link.is_calm or rng.random() < 0.5:
            return [data] if data else []
        cut_points = sorted(rng.randrange(1, len(data)) for _ in range(rng.randrange(PIECES_MAX)))
        return [data[start:stop] for start, stop in zip([0, *cut_points], [*cut_points, len(data)], strict=True) if start < stop]

    def _arrive(self, piece: bytes) -> None:
        self.in_flight -= 1
        if self.receiver is not None and not self._link.is_silent:
            self.receiver.arrived(piece)

    def finish(self, reason: str, *, delivers: bool) -> None:
        """The sender has closed: bytes in flight arrive first or are lost; then the receiver is notified."""
        if not delivers:
            receiver, self.receiver = self.receiver, None
            if receiver is not None:
                self._world.after(self._link.delay_ms(), lambda: receiver.closed(reason))
            return
        self.arrives_ms = max(self.arrives_ms, self._world.steady_ms + self._link.delay_ms())
        self._world.at(self.arrives_ms, lambda: self._notify_closed(reason))

    def _notify_closed(self, reason: str) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.finished(reason)


class Link:
    """One connection between a client and a broker's listener."""

    def __init__(self, world: World, network: Network, name: str, actor: str) -> None:
        self.name = name
        self.actor = actor
        """The process that connected."""
        self.is_silent = False
        self.to_broker = Stream(self, world)
        self.to_client = Stream(self, world)
        self._world = world
        self._network = network
        self._choose_faults(network.faults)

    def _choose_faults(self, faults: NetworkFaults) -> None:
        """Decide in advance which fault the link will have."""
        rng = self._world.rng
        position = int(CUT_BYTES_MIN * (CUT_BYTES_MAX / CUT_BYTES_MIN) ** rng.random())
        stream = rng.choice((self.to_broker, self.to_client))
        if self._world.chance(faults.cut_share):
            stream.cut_at = position
        elif self._world.chance(faults.silent_share):
            stream.silent_at = position

    @property
    def is_calm(self) -> bool:
        return self._network.faults is CALM

    def delay_ms(self) -> int:
        faults, rng = self._network.faults, self._world.rng
        if faults.slow_share and self._world.chance(faults.slow_share):
            self._world.count("pieces delayed")
            return rng.randint(faults.latency_max_ms, faults.slow_max_ms)
        return int(rng.random() * (faults.latency_max_ms + 1))

    def fall_silent(self) -> None:
        if not self.is_silent:
            self.is_silent = True
            self._world.count("links gone silent")
            self._world.log(self.name, "goes silent")
            self._network.silent.append(self)

    def cut(self, reason: str) -> None:
        """Both ends lose the link, each after its own delay; bytes in flight are lost."""
        self.to_broker.finish(reason, delivers=False)
        self.to_client.finish(reason, delivers=False)

    def close_by_client(self, reason: str) -> None:
        """The client has closed: it receives nothing more; the broker may still receive earlier bytes."""
        self.to_client.receiver = None
        if not self.is_silent:
            self.to_broker.finish(reason, delivers=self._world.rng.random() < 0.5)

    def close_by_broker(self, reason: str) -> None:
        """The broker has closed or its process has ended: the client may still receive earlier bytes."""
        self.to_broker.receiver = None
        if not self.is_silent:
            self.to_client.finish(reason, delivers=self._world.rng.random() < 0.5)


class Listener(Protocol):
    """Accepts connections at an address."""

    def accept(self, link: Link, node_id: int) -> None:
        """A client has connected: set `link.to_broker.receiver`."""


class Network:
    """All links and listeners of a world."""

    def __init__(self, world: World, faults: NetworkFaults) -> None:
        self.faults = faults
        self.silent: list[Link] = []
        self._links: list[Link] = []
        self._world = world
        self._listeners: dict[Address, tuple[Listener, int]] = {}

    def listen(self, address: Address, listener: Listener, node_id: int) -> None:
        self._listeners[address] = (listener, node_id)

    def stop_listening(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def connect(self, actor: str, address: Address, done: Callable[[Link | None], None]) -> None:
        """Calls `done` later with a link whose client end is not set yet, or with None if the connection is refused; or never."""
        if self._world.chance(self.faults.unreachable_share):
            self._world.count("connects without an answer")
            return
        delay_ms = self._world.rng.randint(0, self.faults.latency_max_ms)
        self._world.after(delay_ms, lambda: self._connected(actor, address, done))

    def _connected(self, actor: str, address: Address, done: Callable[[Link | None], None]) -> None:
        found = self._listeners.get(address)
        if found is None:
            done(None)
            return
        link = Link(self._world, self, f"link {len(self._links) + 1} of {actor}", actor)
        self._links.append(link)
        self._world.count("links")
        done(link)
        listener, node_id = found
        listener.accept(link, node_id)

    def arrives_ms(self, processes: Callable[[str], bool]) -> int:
        """When all bytes sent so far by these processes, dead or alive, have arrived."""
        return max((link.to_broker.arrives_ms for link in self._links if processes(link.actor)), default=0)

    def heal(self) -> None:
        """Stop all faults. Existing links deliver what is in flight; silent links end."""
        self.faults = CALM
        for link in self.silent:
            link.is_silent = False
            link.cut("silent until the network healed")
        self.silent.clear()


def joined(buffers: list[Buffer] | list[memoryview]) -> bytes:
    """The bytes a protocol wants to write. Copied, because the buffers are only lent."""
    return b"".join(buffers)
