"""Connections that do whatever the dice say, against the real server on a real event loop: worlds of a few clients each.

Requests in a row, good, waiting and broken, in pieces of any size; clients that read slowly or not at all, that close, reset or half close.
Whatever they do: each is answered as `connection_client` says; what the broker holds for them has its limits at every moment; a client
that behaves is answered within `TURNS_MAX` turns of the loop; and when all are gone, by themselves or because the watch ended them, nothing
of them is left. Time stands still until it is advanced.

`python -m tests.fuzz.connection_fuzzer SEED WORLDS`. Not collected by pytest; `test_connections.py` runs it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, suppress
from unittest import mock

from chaffinch.broker.connections import BYTES_WAITING_MAX, REQUEST_BYTES, REQUESTS_WAITING_MAX, TURN_SECONDS_MAX, UNSENT_BYTES_MAX
from chaffinch.broker.listeners import Address, listen, nodes_of
from chaffinch.broker.server import BrokerServer
from chaffinch.protocol.frames import BUSY_CHUNK_BYTES, EAGER_BYTES_MAX
from chaffinch.runtime.clock import ManualClock
from chaffinch.runtime.loop import new_loop
from chaffinch.storage.file_system import DiskFileSystem, MemoryFileSystem
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.fuzz.connection_client import ASKED_BYTES_MAX, BOMB_PARTITIONS, BOMBED, GOOD, LARGE, QUIET, RECORDS, Client

STEPS = 150
CLIENTS_MAX = 6
TURNS_MAX = 12
"""Of the loop, from when the bytes of a client that behaves came to when it is answered, whatever the others ask for."""
TURN_TIMEOUT_SECONDS = 60
"""For what has to happen at last: a broker that does it never is noticed. Nothing waits so long."""
INCOMPRESSIBLE = random.Random(1).randbytes(100_000)
ANSWER_BYTES_MAX = ASKED_BYTES_MAX + len(INCOMPRESSIBLE) + 4096
"""What a client asks for; and one batch, and what is around them."""
REQUEST_BYTES_MAX = (1 << 17, 512 << 20)
UNREAD_BYTES_MAX = (1 << 16, 4 << 20)
"""Of options of the broker, one that is met soon, and the default."""


class World:
    """A server, its clients, and what must hold."""

    def __init__(self, seed: int, folder: str) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.turns = 0
        self.seen: Counter[str] = Counter()
        self.clients: list[Client] = []
        self._watch_s = 0.0
        self._ticks = 0.0
        self._files = MemoryFileSystem() if rng.random() < 0.5 else DiskFileSystem(os.path.join(folder, str(seed)))
        self._request_bytes_max = rng.choice(REQUEST_BYTES_MAX)
        self._unread_bytes_max = rng.choice(UNREAD_BYTES_MAX)
        self._settings = {
            "flush.policy": rng.choice(("os", "always")),
            "queued.max.request.bytes": self._request_bytes_max,
            "connections.max.unread.bytes": self._unread_bytes_max,
            "group.initial.rebalance.delay.ms": 3000,
            "socket.busy.poll.us": 0,
        }
        asks_per_turn = rng.choice((2, 5, 20))
        self._tick_s = TURN_SECONDS_MAX / asks_per_turn
        answers_at_once = 2 if self._settings["flush.policy"] == "os" else 2 + asks_per_turn  # After a sync they leave together.
        self._unsent_bytes_max = self._unread_bytes_max + UNSENT_BYTES_MAX + answers_at_once * ANSWER_BYTES_MAX

    async def run(self) -> Counter[str]:
        """The world's story; what happened in it."""
        listeners = listen(Address(host="127.0.0.1", port=0), 1)
        port = listeners[0].getsockname()[1]
        nodes = nodes_of(listeners, "127.0.0.1")
        with self._ticking(), ExitStack() as self._opened:
            server = self.server = await BrokerServer.start(
                self._files, self._settings, listeners=listeners, nodes=nodes, rng=random.Random(1), clock=self.clock
            )
            server._connection_manager._watch._now = lambda: self._watch_s
            try:
                await self._story(port)
            finally:
                for client in self.clients:
                    client.close()
                await server.close()
        return self.seen

    async def _story(self, port: int) -> None:
        for name, partitions in ((LARGE, 1), (QUIET, 1), (BOMBED, BOMB_PARTITIONS)):
            self.server.core.create_topic(name, partitions, 1, {}, steady_ms=self.server._time.steady_ms())
        self._good = Client(random.Random(2), port)
        self._opened.callback(self._good.close)
        for _ in range(4):
            await self._ask_good(lambda: produce_request(LARGE, batch_of(INCOMPRESSIBLE)), 9)
        gc.collect()  # Of the world before this one.
        descriptors = _descriptors()
        for _ in range(STEPS):
            await self._step(port)
        await self._settle()
        await self._let_the_watch_end_the_rest()
        await self._until(lambda: len(self.server.peers) == 1 and _descriptors() <= descriptors, "sockets or files stay open")
        self._nothing_is_left()

    async def _step(self, port: int) -> None:
        rng = self.rng
        alive = [client for client in self.clients if not client.is_closed]
        if not alive or (len(alive) < CLIENTS_MAX and rng.random() < 0.1):
            self.clients.append(Client(rng, port))
            alive.append(self.clients[-1])
        rng.choice(alive).act()
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
            await self._turn()
        what = rng.random()
        if what < 0.05:
            self._pass_time(rng.choice((1, 1000, 6000)))
        elif what < 0.1:
            await self._ask_good(lambda: produce_request(QUIET, RECORDS), 9)  # Some wait for this.
        elif what < 0.2:
            await self._ask_good(*rng.choice(GOOD[:4]))

    # What must hold -------------------------------------------------------------------------------------------------------------------

    async def _ask_good(self, make: Callable[[], object], version: int) -> None:
        """The client that behaves asks, and is answered soon."""
        client, known = self._good, self._good.answered
        peer = next((peer for peer in self.server.peers if peer.address == client.name), None)
        received = 0 if peer is None else peer.bytes_received
        client.ask(make, version)  # type: ignore[arg-type]
        turns = 0
        deadline_s = time.monotonic() + TURN_TIMEOUT_SECONDS
        while client.answered == known:
            client.send(1 << 20)
            await self._turn()
            client.read()
            peer = next((peer for peer in self.server.peers if peer.address == client.name), None)
            turns += peer is not None and peer.bytes_received > received and not peer.unsent_bytes
            assert turns <= TURNS_MAX, f"a client that behaves is not answered within {turns} turns"
            assert time.monotonic() < deadline_s, "a client that behaves is not answered"

    def _check_limits(self) -> None:
        server = self.server
        peers = list(server.peers)
        assert not server._effect_runner._failures, f"the broker failed: {server._effect_runner._failures}"
        assert server.core._waits.waits.keys() <= server._effect_runner.peers.keys(), "answers wait for connections that are gone"
        held = server._connection_manager._queued.bytes_queued
        assert held == sum(peer._queued_bytes for peer in peers), "bytes are counted that no connection holds"
        one_read = EAGER_BYTES_MAX + REQUEST_BYTES * BUSY_CHUNK_BYTES // 12
        assert held <= self._request_bytes_max + len(peers) * one_read, f"{held} bytes wait"
        assert server._connection_manager._budget.bytes_reserved <= self._request_bytes_max
        for peer in peers:
            assert peer.open_count <= REQUESTS_WAITING_MAX + BUSY_CHUNK_BYTES // 12, f"{peer.open_count} requests wait"
            assert peer._bytes_waiting <= BYTES_WAITING_MAX + one_read or not peer.open_count
            assert peer.unsent_bytes <= self._unsent_bytes_max, f"{peer.unsent_bytes} bytes unread"

    def _nothing_is_left(self) -> None:
        """But of the client that behaves, which waits for nothing."""
        server = self.server
        (peer,) = server.peers
        assert peer.address == self._good.name
        assert (
            server._connection_manager._queued.bytes_queued,
            server._connection_manager._budget.bytes_reserved,
            peer.open_count,
            peer.unsent_bytes,
        ) == (
            0,
            0,
            0,
            0,
        )
        assert not server.core._waits.waits, "answers wait for connections that are gone"
        assert not server._effect_runner.unsent
        assert not server._connection_manager._busy_peers
        assert not server._connection_manager._watch._unread
        assert server._connection_manager._watch._unread_bytes == 0
        assert set(server._connection_manager._watch._seen) <= {peer.connection_id}
        assert not server._connection_manager._connection_auth._timers
        peer.frames.end_turn()
        assert server._connection_manager._budget.bytes_eager == 0

    # How it ends ----------------------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Some go on until they have all that they are entitled to; the others fall silent."""
        deadline_s = time.monotonic() + TURN_TIMEOUT_SECONDS
        active = [client for client in self.clients if not client.is_closed and not client.is_unfinished and client.reads]
        for client in active:
            client.hurry()
        while waiting := [client for client in active if not client.is_done]:
            for client in waiting:
                client.send(1 << 20)
                client.read()
            await self._turn()
            if self.turns % 40 == 0:
                self._pass_time(6000)
            assert time.monotonic() < deadline_s, f"not answered, or not closed: {[client.name for client in waiting]}"
        for client in active:
            self.seen["answers"] += client.answered
            client.close()

    async def _let_the_watch_end_the_rest(self) -> None:
        """Those that have not read, or sent half a request, and say nothing more. The good one shows that it is there."""
        silent = {client.name for client in self.clients if not client.is_closed}
        self.seen["silent clients"] += len(silent)
        for _ in range(60):
            self._watch_s += 16
            self._pass_time(16_000)
            await self._ask_good(*GOOD[0])
            self.server._connection_manager.sweep_connections()
            await self._turn()
        still_there = {peer.address for peer in self.server.peers} & silent
        assert not still_there, f"held by {still_there}"
        for client in self.clients:
            self.seen["closed by the broker"] += client.was_closed_by_broker
            client.close()

    # Time -----------------------------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        await _one_turn()
        self.turns += 1
        self._check_limits()

    def _pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        if self.server._time._timer is not None:
            self.server._time._timer.cancel()
        self.server._time._wake()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TURN_TIMEOUT_SECONDS
        while not condition():
            await self._turn()
            assert time.monotonic() < deadline_s, what

    def _ticking(self) -> AbstractContextManager[object]:
        """How long a turn takes is for the dice to say, too."""

        def ticks() -> float:
            self._ticks += self._tick_s
            return self._ticks

        stack = ExitStack()
        stack.enter_context(mock.patch("chaffinch.broker.connections.perf_counter", ticks))
        stack.enter_context(mock.patch("chaffinch.broker.effect_runner.perf_counter", ticks))
        stack.enter_context(
            mock.patch("chaffinch.broker.connection_manager.time", types.SimpleNamespace(perf_counter=ticks, thread_time=ticks))
        )
        return stack


@types.coroutine
def _one_turn() -> Generator[None, None, None]:
    """Lets the event loop do what is due, and see what has come."""
    yield


def _descriptors() -> int:
    """Of this process, those that connections may cost it: sockets, and files that are to be sent. Other files are opened when need be."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # The one by which the folder is read.
            target = os.readlink(f"/proc/self/fd/{name}")
            count += target.startswith("socket:") or f"/{LARGE}." in target
    return count


NOTHING: Counter[str] = Counter()


def run(seed: int, worlds: int) -> Counter[str]:
    """So many worlds of one seed; what happened in them. An exception names the world."""
    seen: Counter[str] = Counter()
    for number in range(worlds):
        world_seed = seed * 1_000_003 + number
        with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=_loop_of(world_seed)) as runner:
            try:
                seen += runner.run(World(world_seed, folder).run())
            except Exception as error:
                raise AssertionError(f"world {world_seed} of seed {seed}: {error!r}") from error
    return seen


def _loop_of(seed: int) -> Callable[[], asyncio.AbstractEventLoop]:
    return new_loop if seed % 4 else asyncio.new_event_loop


if __name__ == "__main__":
    print(dict(run(int(sys.argv[1]), int(sys.argv[2]))))
