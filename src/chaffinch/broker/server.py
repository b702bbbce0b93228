"""The broker as a server: listeners, connections and the clock around one `BrokerCore`.

Everything runs in one thread, on one event loop. With `flush.policy=always`, what arrives in one turn of the loop is synced together before
any of its answers goes out. Has no `if` about Kafka: events go in, effects are carried out.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from chaffinch.broker.busy_poll import BusyPoll
from chaffinch.broker.connection_watch import ConnectionWatch
from chaffinch.broker.connections import TURN_SECONDS_MAX, Peer, RequestsHeld
from chaffinch.broker.core import options
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.effects import CloseConnection, CompleteSilently, Effect, Failed, Report, Respond, SlowDown
from chaffinch.broker.core.events import ConnectionLost, NodeStarted, NodeStopped, RequestReceived, TimePassed
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.topics.registry import Dice
from chaffinch.broker.door import Door, tls_context
from chaffinch.broker.listeners import Listener
from chaffinch.broker.topic_arguments import TopicArgument, check_replication
from chaffinch.broker.traffic import Traffic
from chaffinch.protocol.frames import BufferPool, FrameBudget
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.protocol.violations import ProtocolViolation
from chaffinch.records import kernels
from chaffinch.runtime.clock import Clock, SystemClock
from chaffinch.storage.file_system import FileSystem, StorageError

LOG = logging.getLogger("chaffinch.broker")

LOOPS_ARE_LOADED: Final = "compiled loops check records from now on"

SYNC_FAILED: Final = (
    "%s. What was written since the last sync may be lost, so from now on no request is answered: clients see their connections closed, "
    "and try again. Check the disk, then restart the broker; it goes on with what its logs hold"
)
SYNC_SUCCEEDED: Final = "syncs succeed again: requests are answered"
"""After a failure for which no file is to blame. One whose own sync failed refuses every later one, see `storage/files.py`."""

PRODUCE: Final = 0

LOOK_INTERVAL_S: Final = 0.001
"""How long after a busy turn of the loop the core is asked for its next deadline: in this time there may be ten more of them."""

TURNS_TO_ANSWER: Final = 256
"""Turns of the loop in which an orderly stop gives the answers that are due: enough for 65,536 of them."""

TURNS_TO_END: Final = 5
"""Turns of the loop in which a connection that is being accepted is made, refused and closed."""


class BrokerServer:
    """A running broker. Made by `start`; `close` ends it in order, `abandon` as a SIGKILL would."""

    def __init__(
        self, core: BrokerCore, listeners: Sequence[socket.socket], clock: Clock, start_ms: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """`start_ms`: what the clock's `wall_ms` was when its `now_ms` was 0: with it the core's time begins. `tls`: None for without."""
        self.core = core
        self._clock = clock
        self._start_ms = start_ms
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, Peer] = {}
        self._ids = itertools.count(1)
        self._wall = core.state.wall
        self._looked_ms: int | None = None
        settings = core.state.settings
        self._door = Door(settings, core.state.authentication, tls, self._loop, self._say_of)
        send_buffer_bytes: int = settings["socket.send.buffer.bytes"]
        self._listeners = [Listener(listener, self._door.tls, send_buffer_bytes=send_buffer_bytes) for listener in listeners]
        self._connections_max: int = settings["max.connections"]
        self._unread_bytes_max: int = settings["connections.max.unread.bytes"]
        self._frame_bytes_max: int = settings["socket.request.max.bytes"]
        self._budget = FrameBudget(settings["queued.max.request.bytes"])
        self._held = RequestsHeld(settings["queued.max.request.bytes"])
        self._pool = BufferPool()
        self._syncs = settings["flush.policy"] == "always"
        core.lends_files = not self._syncs
        self._unsent: list[Effect] = []
        self._send_at_s = 0.0
        self._sync_failed = False  # The last one.
        self._failures: set[str] = set()  # Where in the code.
        self._busy_peers: list[Peer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._kernels_asked_for = False
        self._is_ending = False
        self._arms = False
        self._watch = ConnectionWatch(settings, self._loop.time)
        core.state.records_max = self._watch.records_max
        self._busy_poll = BusyPoll(
            settings["socket.busy.poll.us"], call_soon=self._loop.call_soon, now_s=time.perf_counter, worked_s=time.thread_time
        )
        self.traffic = Traffic()

    @classmethod
    async def start(
        cls,
        file_system: FileSystem,
        settings: Mapping[str, Any] | None,
        *,
        listeners: Sequence[socket.socket],
        nodes: Sequence[Node],
        dice: Dice,
        clock: Clock | None = None,
        stopped: Iterable[int] = (),
        users: Mapping[str, str] | None = None,
    ) -> BrokerServer:
        """Open the core and begin to accept, but for the nodes that are `stopped`. `users`: names and passwords of who may log in.

        Raises ConfigException, StorageError; the listeners are closed then.
        """
        clock = clock or SystemClock()
        wall_ms = clock.wall_ms()
        start_ms = wall_ms - clock.now_ms()
        try:
            parsed = options.parse(settings)
            check_replication(parsed["default.replication.factor"], len(nodes))
            tls = tls_context(parsed)
            core = BrokerCore(file_system, parsed, nodes=nodes, dice=dice, now_ms=wall_ms, users=users)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        server = cls(core, listeners, clock, start_ms, tls)
        try:
            server._accept(stopped)
        except BaseException:
            server.abandon()
            raise
        return server

    def _accept(self, stopped: Iterable[int]) -> None:
        for node_id in stopped:
            self.core.apply(NodeStopped(node_id=node_id), self._now_ms())
        for node_id, listener in enumerate(self._listeners):
            if node_id in self.core.state.nodes.stopped:
                listener.stop()
            else:
                listener.start(partial(self._peer, node_id))
        self._carry_out(self.core.apply(TimePassed(), self._now_ms()))
        self._arm()
        self._look_around()

    def _peer(self, node_id: int) -> Peer:
        frames = ServerConnection(self._frame_bytes_max, budget=self._budget, pool=self._pool)
        return Peer(self, frames, next(self._ids), node_id, self._unread_bytes_max, self._held)

    @property
    def peers(self) -> Collection[Peer]:
        """The connections that are there."""
        return self._peers.values()

    # Nodes ----------------------------------------------------------------------------------------------------------------------------

    def stop_node(self, node_id: int, *, abruptly: bool = False) -> None:
        """Stop a declared node: nobody can connect, its connections are closed; its port is kept. See `core/cluster_membership.py`.

        With `abruptly` answers on their way are dropped. Raises ConfigException for a node that does not exist, StorageError, and OSError
        when the port is lost to somebody else in this very moment.
        """
        was_running = node_id not in self.core.state.nodes.stopped
        effects = self.core.apply(NodeStopped(node_id=node_id, abruptly=abruptly), self._now_ms())
        LOG.info("node %d is stopped%s", node_id, ", abruptly" if abruptly else "")
        try:
            if was_running:
                self._listeners[node_id].stop()
        finally:  # The node is stopped, whatever has become of its port.
            peers = [peer for peer in self._peers.values() if peer.node_id == node_id]
            if abruptly:
                for peer in peers:
                    peer.abort()
            self._carry_out_now(effects)
            for peer in peers:
                peer.close()

    def start_node(self, node_id: int) -> None:
        """Start a declared node on its old port. Raises as `stop_node`, and OSError when the port is not to be had."""
        self.core.state.membership.check(node_id)
        if node_id not in self.core.state.nodes.stopped:
            return
        listener = self._listeners[node_id]
        listener.start(partial(self._peer, node_id))
        try:
            effects = self.core.apply(NodeStarted(node_id=node_id), self._now_ms())
        except BaseException:
            listener.stop()
            raise
        self._carry_out_now(effects)
        LOG.info("node %d is started", node_id)

    def _carry_out_now(self, effects: Sequence[Effect]) -> None:
        """Not at the end of this turn of the loop, but after what waits for that."""
        self._unsent += effects
        self._sync_and_send()
        self._arm()

    # What connections tell ------------------------------------------------------------------------------------------------------------

    def connected(self, peer: Peer) -> bool:
        """Take note of a new connection; False when there are too many, or its node was stopped while it was being accepted."""
        if self._is_ending or peer.node_id in self.core.state.nodes.stopped:
            return False
        if len(self._peers) >= self._connections_max:
            self._say_seldom(peer, "too many connections", f"connection from {peer.address} refused: there are {len(self._peers)} already")
            return False
        self._peers[peer.connection_id] = peer
        self.traffic.connections += 1
        self._door.met(peer)
        return True

    def received(self, peer: Peer, request: ReceivedRequest) -> bool:
        """A request came: let the core work on it and carry out what it wants. False: its answer waits for something."""
        event = RequestReceived(peer.connection_id, request, peer.node_id, peer.frames.client_software_name, peer.host)
        if not self._kernels_asked_for and request.api.key == PRODUCE:
            self._load_kernels()
        self.traffic.requests[request.api.name] += 1
        effects = self.core.apply(event, self._now_ms())
        if not peer.is_known:
            self._door.look(peer)
        if self._syncs:
            self._send_later(effects)
        else:
            self._carry_out(effects)
        return not self.core.waits(peer.connection_id)

    def violated(self, peer: Peer, violation: ProtocolViolation) -> None:
        """The stream makes no sense any more: this connection ends, with one line."""
        self._say_seldom(peer, "broken requests", f"connection from {peer.address} closed: {violation}")
        peer.take_no_more_requests()
        self._loop.call_soon(peer.close)  # After the answers that wait for the end of this turn.

    def failed(self, peer: Peer, error: Exception) -> None:
        """A mistake of ours: this connection ends. The first line of its kind has the traceback."""
        line = f"connection from {peer.address} closed: the broker failed on its request"
        place = repr(traceback.extract_tb(error.__traceback__)[-1:])
        if place in self._failures:
            self._say_seldom(peer, "failures of the broker", f"{line}, as before: {error!r}")
        else:
            self._failures.add(place)
            LOG.error(line, exc_info=error)
        peer.abort()

    def disconnected(self, peer: Peer) -> None:
        self._watch.forget(peer)
        self._door.gone(peer)
        self.traffic.count_gone(peer)
        if self._peers.pop(peer.connection_id, None) is not None and not self._is_ending:
            self._carry_out(self.core.apply(ConnectionLost(connection_id=peer.connection_id), self._now_ms()))

    def left_unsent(self, peer: Peer) -> None:
        for victim in self._watch.left_unsent(peer):
            self._say_seldom(
                victim,
                "unread answers",
                f"connection from {victim.address} closed: too many answers unread in all, {victim.unsent_bytes} bytes here",
            )
            victim.abort()

    def end_turn_later(self, peer: Peer) -> None:
        """At the end of this turn of the loop, once for all that it brings."""
        if not self._busy_peers:
            self._loop.call_soon(self._end_turn)
        self._busy_peers.append(peer)

    def _end_turn(self) -> None:
        peers, self._busy_peers = self._busy_peers, []
        for peer in peers:
            peer.end_turn()
        self.turn_ended()

    def turn_ended(self) -> None:
        """The core may wait for something else than before. To ask for it has a price, and so has a turn of the loop for it alone."""
        if not self._arms:
            self._arms = True
            self._loop.call_later(LOOK_INTERVAL_S, self._arm)
        if not self._unsent:  # Else the turn's answers are still to come, after a sync.
            self._busy_poll.turn_ended()

    # Effects --------------------------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Report):
                LOG.log(logging.INFO if effect.is_routine else logging.WARNING, "%s", effect.text)
                continue
            peer = self._peers.get(effect.connection_id)
            if peer is None:
                continue
            if isinstance(effect, Respond):
                self._respond(peer, effect)
            elif isinstance(effect, CompleteSilently):
                peer.skip(effect.request)
            elif isinstance(effect, SlowDown):
                peer.slow_down(effect.bytes_per_second, answers=effect.answers, requests=effect.requests)
            elif isinstance(effect, Failed):
                self.failed(peer, effect.error)
            else:
                self._close_peer(peer, effect.reason)

    def _respond(self, peer: Peer, effect: Respond) -> None:
        try:
            peer.respond(effect.request, effect.message)
        except Exception as error:  # An answer that cannot be written costs its own connection, not the one that caused it.
            self.cut_off(peer, error)

    def cut_off(self, peer: Peer, error: Exception) -> None:
        """Part of an answer may be on its way, so no other one can follow."""
        if not isinstance(error, StorageError | OSError):
            self.failed(peer, error)
            return
        if isinstance(error, StorageError):
            text = f"connection from {peer.address} closed in the middle of an answer: {error}; until the next start records are read first"
            self._say_seldom(peer, "unreadable records", text)
            # One place that cannot be read then costs the others of its answer nothing.
            self.core.lends_files = False
        peer.abort()

    def _close_peer(self, peer: Peer, reason: str) -> None:
        if reason:
            self._say_seldom(peer, "closed connections", f"connection from {peer.address} closed: {reason}")
        peer.close()

    def _send_later(self, effects: Sequence[Effect]) -> None:
        """Under flush.policy=always: one sync for all that came in this turn of the loop."""
        if effects and not self._unsent:
            self._loop.call_soon(self._sync_and_send)
            self._send_at_s = time.perf_counter() + TURN_SECONDS_MAX
        self._unsent += effects
        for effect in effects:
            if isinstance(effect, CloseConnection) and effect.connection_id in self._peers:
                self._peers[effect.connection_id].take_no_more_requests()
        if self._unsent and time.perf_counter() > self._send_at_s:  # Many connections' answers of many bytes: they are not collected on.
            self._sync_and_send()

    def _sync_and_send(self) -> None:
        if not self._is_ending:
            self._send_unsent()

    def _send_unsent(self) -> None:
        effects, self._unsent = self._unsent, []
        try:
            self.core.sync()
        except StorageError as error:
            # Nobody knows what is on disk now: no answer is better than a wrong one, and the clients ask again.
            if not self._sync_failed:
                LOG.error(SYNC_FAILED, error)
            self._sync_failed = True
            for connection_id in {effect.connection_id for effect in effects if not isinstance(effect, Report)}:
                if connection_id in self._peers:
                    self._peers[connection_id].abort()
            self._carry_out([effect for effect in effects if isinstance(effect, Report)])
            return
        if self._sync_failed:
            self._sync_failed = False
            LOG.warning(SYNC_SUCCEEDED)
        self._carry_out(effects)

    # Time -----------------------------------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        """The core's time: the steady clock, from where the wall clock stood at the start. Once a millisecond the wall clock is looked at,
        too: somebody may have set it, or the machine slept."""
        now_ms = self._start_ms + self._clock.now_ms()
        if now_ms != self._looked_ms:
            self._looked_ms = now_ms
            wall_ms = self._clock.wall_ms()
            if wall_ms - now_ms != self._wall.offset_ms:
                self.core.set_wall_clock(wall_ms, now_ms)
        return now_ms

    def _arm(self) -> None:
        """Wake up at the core's next deadline; too early is harmless."""
        self._arms = False
        deadline_ms = self.core.next_deadline_ms
        if self._is_ending or deadline_ms is None or (self._timer_ms is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self._now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = self._timer_ms = None
        try:
            effects = self.core.apply(TimePassed(), self._now_ms())
            if self._syncs:
                self._send_later(effects)
            else:
                self._carry_out(effects)
        finally:
            self._arm()

    def _look_around(self) -> None:
        """Close connections that hold something without getting on."""
        for peer, reason in self._watch.sweep(list(self._peers.values())):
            self._say_seldom(peer, "connections without progress", f"connection from {peer.address} closed: {reason}")
            peer.abort()
        if self._watch.interval_s is not None:
            self._sweep = self._loop.call_later(self._watch.interval_s, self._look_around)

    # Ending ---------------------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop accepting, send the answers that are there or due, close connections, leave the data directory in order. What came and
        is not begun is not done, what waits for records, members or time is not answered, as in Apache Kafka. Raises StorageError.
        """
        self._end()
        try:
            for peer in self._peers.values():
                peer.take_no_more_requests()
            self._send_unsent()
            await self._give_due_answers()
            for turn in range(TURNS_TO_END):
                for peer in list(self._peers.values()):
                    (Peer.abort if turn else Peer.close)(peer)  # What a client does not read at once is not waited for.
                await asyncio.sleep(0)
            self._carry_out(self.core.state.refusals.end())
        finally:
            self.core.close()

    async def _give_due_answers(self) -> None:
        """Those that wait only for others to have their turn, large Produce requests among them."""
        for _ in range(TURNS_TO_ANSWER):
            now_ms = self._now_ms()
            if not self.core.has_answers_due(now_ms):
                return
            self._unsent += self.core.apply(TimePassed(), now_ms)
            self._send_unsent()
            await asyncio.sleep(0)

    def abandon(self) -> None:
        """Drop everything as a killed process does: nothing more is written, no answer sent."""
        self._end()
        for peer in list(self._peers.values()):
            peer.abort()
        self._peers.clear()
        self.core.abandon()

    def _end(self) -> None:
        """From now on nothing comes in, and the core is not asked for anything new."""
        self._is_ending = True
        self._busy_poll.end()
        for listener in self._listeners:
            listener.close()
        for timer in (self._timer, self._sweep):
            if timer is not None:
                timer.cancel()

    def create_topic(self, topic: TopicArgument) -> None:
        """Create a topic as CreateTopics does. Raises RequestRefused, StorageError."""
        self.core.create_topic(topic.name, topic.partitions, topic.replication, topic.config, now_ms=self._now_ms())
        self._carry_out(self.core.state.refusals.take())

    def say_differences(self, argument: TopicArgument) -> None:
        """Say in the log what a topic that is there already does not have as asked for: it stays as it is."""
        topic = self.core.topics.get(argument.name)
        assert topic is not None
        found = argument.differences(topic)
        if found:
            LOG.warning("topic %s is there already and stays as it is: %s", argument.name, "; ".join(found))

    # Other --------------------------------------------------------------------------------------------------------------------------

    def _load_kernels(self) -> None:
        """Compiled loops are loaded in a thread when the first records come; until they are there their plain twins work."""
        self._kernels_asked_for = True
        if not kernels.is_loaded():
            threading.Thread(target=load_kernels, name="chaffinch-kernels", daemon=True).start()

    def _say_seldom(self, peer: Peer, what: str, text: str) -> None:
        self._say_of(what, peer.address.rpartition(":")[0], text)

    def _say_of(self, what: str, address: str, text: str) -> None:
        refusals = self.core.state.refusals
        refusals.say_seldom(what, address, text, self._now_ms())
        self._carry_out(refusals.take())
        self._arm()


def load_kernels() -> None:
    """Load the compiled loops and say so: from then on a broker works at its full speed."""
    if kernels.load():
        LOG.info(LOOPS_ARE_LOADED)
    else:
        LOG.warning("compiled loops are not to be had, much slower ones check records: %s", kernels.missing_reason())
