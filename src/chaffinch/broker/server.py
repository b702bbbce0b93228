"""Broker server: starts a broker, stops and starts its declared nodes, and shuts it down.

One `BrokerCore` with its listeners, connections and clock, all in one thread on one event loop. Nothing here depends on the Kafka protocol:
`connection_manager` turns what connections send into events, `effect_runner` carries out the effects.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from chaffinch import plain_text
from chaffinch.broker.arguments import TopicArgument, check_replication
from chaffinch.broker.connection_auth import ConnectionAuth, tls_context
from chaffinch.broker.connection_manager import ConnectionManager, ConnectionMetrics
from chaffinch.broker.connections import Peer
from chaffinch.broker.core import options
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import NodeStarted, NodeStopped, TimePassed
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.topics.registry import RandomSource
from chaffinch.broker.effect_runner import EffectRunner
from chaffinch.broker.listeners import Listener, LogRateLimited
from chaffinch.broker.seeding import seed
from chaffinch.errors import codes
from chaffinch.runtime.clock import Clock, ShiftedClock, SystemClock
from chaffinch.storage.file_system import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa

LOG = plain_text.logger("chaffinch.broker")

TURNS_TO_END: Final = 5
"""Event loop turns to wait for while a connection that is being accepted is created, refused and closed."""


class BrokerServer:
    """A running broker. Create it with `start`; `close` shuts it down cleanly, `abandon` stops it like a SIGKILL."""

    def __init__(
        self, core: BrokerCore, listeners: Sequence[socket.socket], clock: Clock, start_ms: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """`clock`, `start_ms`: see `CoreTime`. `tls`: None for plaintext."""
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
        """Open the core and accept connections, except on the nodes that are `stopped`. `users`: names and passwords of the users who may
        log in.

        Raises ConfigException, StorageError; the listeners are then closed.
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
        """The open connections."""
        return self._effect_runner.peers.values()

    @property
    def connection_metrics(self) -> ConnectionMetrics:
        """Counters of all connections, the closed ones included."""
        return self._connection_manager.connection_metrics

    # Nodes ----------------------------------------------------------------------------------------------------------------------------

    def stop_node(self, node_id: int, *, abruptly: bool = False) -> None:
        """Stop a declared node: its port refuses connections but stays reserved, its connections are closed. See
        `core/replicas/cluster_membership.py`.

        With `abruptly`, responses that are being sent are dropped. Raises ConfigException for a node that does not exist, StorageError, and
        OSError if another process takes the port at this very moment.
        """
        was_running = node_id not in self.core.state.nodes.stopped
        effects = self.core.apply(NodeStopped(node_id=node_id, abruptly=abruptly), self._time.steady_ms())
        LOG.info("node %d is stopped%s", node_id, ", abruptly" if abruptly else "")
        try:
            if was_running:
                self._listeners[node_id].stop()
        finally:  # The node is stopped even if its port could not be reserved.
            peers = [peer for peer in self.peers if peer.node_id == node_id]
            if abruptly:
                for peer in peers:
                    peer.abort()
            self._effect_runner.run_now(effects)
            for peer in peers:
                peer.close()

    def start_node(self, node_id: int) -> None:
        """Start a declared node on its old port. Raises the same errors as `stop_node`, and OSError if the port is not available."""
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

    def delete_topic(self, name: str) -> None:
        """Delete a topic as DeleteTopics does. Raises RequestRefused, StorageError."""
        self.core.delete_topic(name)
        self._effect_runner.run_now(self.core.apply(TimePassed(), self._time.steady_ms()))

    def seed(self, name: str, table: pa.Table) -> None:
        """Append the rows of a table to a topic, see `seeding.seed`. Raises RequestRefused, ConfigException, StorageError."""
        topic = self.core.topics.get(name)
        if topic is None:
            raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        steady_ms = self._time.steady_ms()
        try:
            seed(self.core, topic, table, steady_ms)
        finally:
            self._effect_runner.run_now(self.core.apply(TimePassed(), steady_ms))

    def advance(self, clock: ShiftedClock, by_ms: int) -> None:
        """Let time pass at once on the clock that this server was started with."""
        self._effect_runner.advance(clock, by_ms)

    def log_differences(self, argument: TopicArgument) -> None:
        """Log how an existing topic differs from the requested one; the topic is not changed."""
        topic = self.core.topics.get(argument.name)
        assert topic is not None
        found = argument.differences(topic)
        if found:
            LOG.warning("topic %s already exists and is not changed: %s", argument.name, "; ".join(found))

    # Shutdown -------------------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop accepting connections, send the responses that are ready or due, close the connections and the data directory.

        Requests that were received but not started are not processed. Responses that wait for records, group members or a timeout are not
        sent, as in Apache Kafka. Raises StorageError.
        """
        self._end()
        try:
            for peer in self.peers:
                peer.stop_taking_requests()
            self._effect_runner.sync_and_run()
            await self._effect_runner.send_due_responses()
            for turn in range(TURNS_TO_END):
                for peer in list(self.peers):
                    (Peer.abort if turn else Peer.close)(peer)  # Do not wait for clients that do not read.
                await asyncio.sleep(0)
            self._effect_runner.run(self.core.state.refusals.end())
        finally:
            self.core.close()

    def abandon(self) -> None:
        """Stop like a killed process: write nothing more and send no response."""
        self._end()
        for peer in list(self.peers):
            peer.abort()
        self._effect_runner.peers.clear()
        self.core.abandon()

    def _end(self) -> None:
        """Accept no more input and start no new work in the core."""
        self._effect_runner.end()
        self._connection_manager.end()
        for listener in self._listeners:
            listener.close()
