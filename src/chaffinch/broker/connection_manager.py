"""Connection manager: owns all connections of a broker and dispatches their requests to the core.

It implements `connections.Owner`. Requests become events of the core; the `EffectRunner` carries out the resulting effects.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from chaffinch.broker.busy_poll import BusyPoll
from chaffinch.broker.connection_auth import ConnectionAuth
from chaffinch.broker.connection_watch import ConnectionWatch
from chaffinch.broker.connections import Peer, QueuedRequestBytes
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import ConnectionLost, RequestReceived
from chaffinch.broker.effect_runner import EffectRunner
from chaffinch.protocol.frames import BufferPool, FrameBudget
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.protocol.violations import ProtocolViolation
from chaffinch.records import kernels
from chaffinch.settings import LONG_MAX


@dataclass(slots=True)
class ConnectionMetrics:
    """Counters of connections, requests (by API) and bytes. Bytes of open connections are counted by the connections themselves and added
    here when they close.
    """

    connections: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    _bytes_received: int = 0
    _bytes_answered: int = 0

    def count_gone(self, peer: Peer) -> None:
        """Add the byte counts of a connection that was closed."""
        self._bytes_received += peer.bytes_received
        self._bytes_answered += peer.bytes_answered

    def bytes_received(self, peers: Iterable[Peer]) -> int:
        """Bytes received on closed and on open connections."""
        return self._bytes_received + sum(peer.bytes_received for peer in peers)

    def bytes_answered(self, peers: Iterable[Peer]) -> int:
        return self._bytes_answered + sum(peer.bytes_answered for peer in peers)


LOG = logging.getLogger("chaffinch.broker")

COMPILED_LOOPS_LOADED: Final = "compiled loops check records from now on"

PRODUCE: Final = 0


class ConnectionManager:
    """Owner of all connections of one broker."""

    def __init__(
        self, core: BrokerCore, effect_runner: EffectRunner, connection_auth: ConnectionAuth, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.connection_metrics = ConnectionMetrics()
        self._core = core
        self._effect_runner = effect_runner
        self._peers = effect_runner.peers  # The same dict, not a copy.
        self._time = effect_runner.time
        self._connection_auth = connection_auth
        self._loop = loop
        settings = core.state.settings
        self._ids = itertools.count(1)
        self._settings = settings
        self._unread_bytes_max: int = settings["connections.max.unread.bytes"]
        self._frame_bytes_max: int = settings["socket.request.max.bytes"]
        queued_bytes_max: int = settings["queued.max.request.bytes"]
        if queued_bytes_max < 0:  # No limit.
            queued_bytes_max = LONG_MAX
        self._budget = FrameBudget(queued_bytes_max)
        self._queued = QueuedRequestBytes(queued_bytes_max)
        self._pool = BufferPool()
        self._busy_peers: list[Peer] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._kernels_requested = False
        self._watch = ConnectionWatch(settings, loop.time)
        core.state.records_max = self._watch.records_max
        self._busy_poll = BusyPoll(
            settings["socket.busy.poll.us"], call_soon=loop.call_soon, now_s=time.perf_counter, worked_s=time.thread_time
        )

    def new_peer(self, node_id: int) -> Peer:
        """Create the protocol object for a connection to this declared node."""
        frames = ServerConnection(self._frame_bytes_max, budget=self._budget, pool=self._pool)
        return Peer(self, frames, next(self._ids), node_id, self._unread_bytes_max, self._queued)

    def connected(self, peer: Peer) -> bool:
        """Register a new connection. Returns False if there are too many, or if its node was stopped during the accept."""
        if self._effect_runner.is_ending or peer.node_id in self._core.state.nodes.stopped:
            return False
        if len(self._peers) >= self._settings["max.connections"]:
            text = f"connection from {peer.address} refused: {len(self._peers)} connections are open already"
            self._effect_runner.log_rate_limited(peer, "too many connections", text)
            return False
        self._peers[peer.connection_id] = peer
        self.connection_metrics.connections += 1
        self._connection_auth.connection_opened(peer)
        return True

    def received(self, peer: Peer, request: ReceivedRequest) -> bool:
        """Pass a request to the core and carry out the effects. Returns False if its response is delayed."""
        event = RequestReceived(peer.connection_id, request, peer.node_id, peer.frames.client_software_name, peer.host)
        if not self._kernels_requested and request.api.key == PRODUCE:
            self._load_kernels()
        self.connection_metrics.requests[request.api.name] += 1
        effects = self._core.apply(event, self._time.steady_ms())
        if not peer.is_known:
            self._connection_auth.check_login(peer)
        effect_runner = self._effect_runner
        if effect_runner.syncs:
            effect_runner.run_after_sync(effects)
        else:
            effect_runner.run(effects)
        return not self._core.is_waiting(peer.connection_id)

    def violated(self, peer: Peer, violation: ProtocolViolation) -> None:
        """Protocol violation: close this connection and log one line."""
        self._effect_runner.log_rate_limited(peer, "broken requests", f"connection from {peer.address} closed: {violation}")
        peer.stop_taking_requests()
        self._loop.call_soon(peer.close)  # After the responses that are sent at the end of this turn.

    def failed(self, peer: Peer, error: Exception) -> None:
        self._effect_runner.failed(peer, error)

    def send_failed(self, peer: Peer, error: Exception) -> None:
        self._effect_runner.send_failed(peer, error)

    def disconnected(self, peer: Peer) -> None:
        self._watch.forget(peer)
        self._connection_auth.connection_closed(peer)
        self.connection_metrics.count_gone(peer)
        if self._peers.pop(peer.connection_id, None) is not None and not self._effect_runner.is_ending:
            self._effect_runner.run(self._core.apply(ConnectionLost(connection_id=peer.connection_id), self._time.steady_ms()))

    def output_pending(self, peer: Peer) -> None:
        for victim in self._watch.output_pending(peer):
            reason = f"all clients together have too many unread responses, {victim.unsent_bytes} bytes on this connection"
            text = f"connection from {victim.address} closed: {reason}"
            self._effect_runner.log_rate_limited(victim, "unread answers", text)
            victim.abort()

    def end_turn_later(self, peer: Peer) -> None:
        """Schedule `end_turn` for this connection, with one callback for all connections."""
        if not self._busy_peers:
            self._loop.call_soon(self._end_turn)
        self._busy_peers.append(peer)

    def _end_turn(self) -> None:
        peers, self._busy_peers = self._busy_peers, []
        for peer in peers:
            peer.end_turn()
        self.turn_ended()

    def turn_ended(self) -> None:
        """Schedule a check of the core's next deadline, at most once per interval: both the check and a separate callback cost time."""
        if not self._time.is_check_scheduled:
            self._time.check_soon()
        if not self._effect_runner.unsent:  # Otherwise the turn's responses are sent later, after a sync.
            self._busy_poll.turn_ended()

    def sweep_connections(self) -> None:
        """Close connections that hold resources without progress; then schedule the next sweep."""
        for peer, reason in self._watch.sweep(list(self._peers.values())):
            text = f"connection from {peer.address} closed: {reason}"
            self._effect_runner.log_rate_limited(peer, "connections without progress", text)
            peer.abort()
        if self._watch.interval_s is not None:
            self._sweep = self._loop.call_later(self._watch.interval_s, self.sweep_connections)

    def end(self) -> None:
        """Stop sweeping and polling."""
        self._busy_poll.end()
        if self._sweep is not None:
            self._sweep.cancel()

    def _load_kernels(self) -> None:
        """Load the compiled loops in a thread when the first records arrive; until then the interpreted versions are used."""
        self._kernels_requested = True
        if not kernels.is_loaded():
            threading.Thread(target=load_kernels, name="chaffinch-kernels", daemon=True).start()


def load_kernels() -> None:
    """Load the compiled loops and log it: from then on the broker works at full speed."""
    if kernels.load():
        LOG.info(COMPILED_LOOPS_LOADED)
    else:
        LOG.warning("compiled loops cannot be loaded, records are checked by much slower ones: %s", kernels.missing_reason())
