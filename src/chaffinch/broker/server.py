"""The broker as a server: it starts, stops and starts declared nodes, and ends.

Listeners, connections and the clock are around one `BrokerCore`, all in one thread, on one event loop. Nothing here has an `if` about
Kafka: `connection_manager` makes events of what connections tell, `effect_runner` carries out the effects.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from chaffinch import plain_text
from chaffinch.broker.arguments import TopicArgument, check_replication
from chaffinch.broker.connection_auth import ConnectionAuth, tls_context
from chaffinch.broker.connection_manager import ConnectionManager, ConnectionMetrics
from chaffinch.broker.connections import Peer
from chaffinch.broker.core import options
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import NodeStarted, NodeStopped, TimePassed
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.topics.registry import RandomSource
from chaffinch.broker.effect_runner import EffectRunner
from chaffinch.broker.listeners import Listener, LogRateLimited
from chaffinch.runtime.clock import Clock, SystemClock
from chaffinch.storage.file_system import FileSystem

LOG = plain_text.logger("chaffinch.broker")

TURNS_TO_END: Final = 5
"""Turns of the loop in which a connection that is being accepted is made, refused and closed."""


class BrokerServer:
    """A running broker. Made by `start`; `close` ends it in order, `abandon` as a SIGKILL would."""

    def __init__(
        self, core: BrokerCore, listeners: Sequence[socket.socket], clock: Clock, start_ms: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """`clock`, `start_ms`: see `CoreTime`. `tls`: None for without."""
        self.core = core
        loop = asyncio.get_running_loop()
        settings = core.state.settings
        self._effect_runner = EffectRunner(core, clock, start_ms, loop)
        self._time = self._effect_runner.time
        self.log_rate_limited: LogRateLimited = self._effect_runner.log_for_address
        connection_auth = ConnectionAuth(settings, core.state.authentication, tls, loop, self._effect_runner.log_for_address)
        self._connection_manager = ConnectionManager(core, self._effect_runner, connection_auth, loop)
        send_buffer_bytes: int = settings["socket.send.buffer.bytes"]
        self._listeners = [Listener(listener, connection_auth.tls, send_buffer_bytes=send_buffer_bytes) for listener in listeners]

    @classmethod
    async def start(
        cls,
        file_system: FileSystem,
        settings: Mapping[str, Any] | None,
        *,
        listeners: Sequence[socket.socket],
        nodes: Sequence[Node],
        rng: RandomSource,
        clock: Clock | None = None,
        stopped: Iterable[int] = (),
        users: Mapping[str, str] | None = None,
    ) -> BrokerServer:
        """Open the core and begin to accept, but for the nodes that are `stopped`. `users`: names and passwords of who may log in.

        Raises ConfigException, StorageError; the listeners are closed then.
        """
        clock = clock or SystemClock()
        wall_ms = clock.wall_ms()
        start_ms = wall_ms - clock.steady_ms()
        try:
            parsed = options.parse(settings)
            check_replication(parsed["default.replication.factor"], len(nodes))
            tls = tls_context(parsed)
            core = BrokerCore(file_system, parsed, nodes=nodes, rng=rng, steady_ms=wall_ms, users=users)
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
            self.core.apply(NodeStopped(node_id=node_id), self._time.steady_ms())
        for node_id, listener in enumerate(self._listeners):
            if node_id in self.core.state.nodes.stopped:
                listener.stop()
            else:
                listener.start(partial(self._connection_manager.new_peer, node_id))
        self._effect_runner.run(self.core.apply(TimePassed(), self._time.steady_ms()))
        self._time.arm()
        self._connection_manager.sweep_connections()

    @property
    def peers(self) -> Collection[Peer]:
        """The connections that are there."""
        return self._effect_runner.peers.values()

    @property
    def connection_metrics(self) -> ConnectionMetrics:
        """What went through them, and those before them."""
        return self._connection_manager.connection_metrics

    # Nodes ----------------------------------------------------------------------------------------------------------------------------

    def stop_node(self, node_id: int, *, abruptly: bool = False) -> None:
        """Stop a declared node: nobody can connect, its connections are closed; its port is kept. See `core/cluster_membership.py`.

        With `abruptly` answers on their way are dropped. Raises ConfigException for a node that does not exist, StorageError, and OSError
        when the port is lost to somebody else in this very moment.
        """
        was_running = node_id not in self.core.state.nodes.stopped
        effects = self.core.apply(NodeStopped(node_id=node_id, abruptly=abruptly), self._time.steady_ms())
        LOG.info("node %d is stopped%s", node_id, ", abruptly" if abruptly else "")
        try:
            if was_running:
                self._listeners[node_id].stop()
        finally:  # The node is stopped, whatever has become of its port.
            peers = [peer for peer in self.peers if peer.node_id == node_id]
            if abruptly:
                for peer in peers:
                    peer.abort()
            self._effect_runner.run_now(effects)
            for peer in peers:
                peer.close()

    def start_node(self, node_id: int) -> None:
        """Start a declared node on its old port. Raises as `stop_node`, and OSError when the port is not to be had."""
        self.core.state.membership.check(node_id)
        if node_id not in self.core.state.nodes.stopped:
            return
        listener = self._listeners[node_id]
        listener.start(partial(self._connection_manager.new_peer, node_id))
        try:
            effects = self.core.apply(NodeStarted(node_id=node_id), self._time.steady_ms())
        except BaseException:
            listener.stop()
            raise
        self._effect_runner.run_now(effects)
        LOG.info("node %d is started", node_id)

    # Topics ---------------------------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: TopicArgument) -> None:
        """Create a topic as CreateTopics does. Raises RequestRefused, StorageError."""
        self.core.create_topic(topic.name, topic.partitions, topic.replication, topic.config, steady_ms=self._time.steady_ms())
        self._effect_runner.run(self.core.state.refusals.take())

    def log_differences(self, argument: TopicArgument) -> None:
        """Say in the log what a topic that is there already does not have as asked for: it stays as it is."""
        topic = self.core.topics.get(argument.name)
        assert topic is not None
        found = argument.differences(topic)
        if found:
            LOG.warning("topic %s is there already and stays as it is: %s", argument.name, "; ".join(found))

    # Ending ---------------------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop accepting, send the answers that are there or due, close connections, leave the data directory in order. What came and
        is not begun is not done, what waits for records, members or time is not answered, as in Apache Kafka. Raises StorageError.
        """
        self._end()
        try:
            for peer in self.peers:
                peer.stop_taking_requests()
            self._effect_runner.sync_and_run()
            await self._effect_runner.send_due_responses()
            for turn in range(TURNS_TO_END):
                for peer in list(self.peers):
                    (Peer.abort if turn else Peer.close)(peer)  # What a client does not read at once is not waited for.
                await asyncio.sleep(0)
            self._effect_runner.run(self.core.state.refusals.end())
        finally:
            self.core.close()

    def abandon(self) -> None:
        """Drop everything as a killed process does: nothing more is written, no answer sent."""
        self._end()
        for peer in list(self.peers):
            peer.abort()
        self._effect_runner.peers.clear()
        self.core.abandon()

    def _end(self) -> None:
        """From now on nothing comes in, and the core is not asked for anything new."""
        self._effect_runner.end()
        self._connection_manager.end()
        for listener in self._listeners:
            listener.close()
