"""Broker process of the simulation: runs the real `BrokerCore` with simulated connections and a disk, dies and starts again.

The shell's part: bytes in through `ServerConnection`, events to the core, effects back as bytes. A death loses everything but the disk. The
next start opens the same file system and may die in the middle of that, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from chaffinch.broker.core import options
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import (
    CloseConnection,
    CompleteWithoutResponse,
    ConnectionLost,
    Effect,
    Event,
    LogLine,
    NodeStarted,
    NodeStopped,
    RequestFailed,
    RequestReceived,
    Respond,
    ThrottleConnection,
    TimePassed,
)
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.client.addresses import Address
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.frames import BufferPool
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chaffinch.protocol.messages.produce import ProduceRequest, ProduceResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.protocol.violations import ProtocolViolation
from chaffinch.records.file_slice import FileSlice, loaded
from chaffinch.storage.file_system import Interrupted, StorageError
from simulation.brokers.disk import Death, Disk
from simulation.brokers.lying_broker import Liar, remembers_last_batches_only
from simulation.brokers.validation_first import ValidationFirst
from simulation.network import Link, Network, joined
from simulation.wake_timer import WakeTimer
from simulation.world import World

PORT_FIRST: Final = 9092
DOWN_MIN_MS = 20
DOWN_MAX_MS: Final = (100, 300, 1_500)
"""Mostly short: while the broker is down a world does nothing but try to connect."""
SYNC_DELAY_MS: Final = 1
"""How long responses wait to be synced together."""
REWRITE_BYTES: Final = 2_000
"""Journals are rewritten from this size on: small, so that worlds reach it."""
ACTOR: Final = "broker"
PRODUCE_BY_NAME_MAX: Final = 12
"""The last version of Produce that identifies topics by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic that exists from the beginning."""

    name: str
    partition_count: int
    config: Mapping[str, str] = field(default_factory=dict)


class _Connection:
    """The broker's end of a link. Frames queue in order behind a request whose response is delayed, as in the server."""

    def __init__(self, process: BrokerProcess, link: Link, connection_id: int, node_id: int) -> None:
        self.protocol = ServerConnection(pool=process.pool)
        self.link = link
        self.connection_id = connection_id
        self.node_id = node_id
        self.backlog: deque[memoryview] = deque()
        self.waiting: ReceivedRequest | None = None
        self.is_finished = False
        """The client has closed. Its earlier requests are still carried out, until a response finds the connection closed."""
        self._process = process

    @property
    def open_count(self) -> int:
        return len(self.protocol.open_requests) + len(self.backlog)

    def arrived(self, data: bytes) -> None:
        self._process.received(self, data)

    def finished(self, _reason: str) -> None:
        self.is_finished = True
        self._process.end_if_done(self)

    def closed(self, _reason: str) -> None:
        self._process.lost(self)


class BrokerProcess:
    """The broker process. `core` is None while it is down."""

    def __init__(
        self,
        world: World,
        network: Network,
        *,
        node_count: int,
        settings: Mapping[str, Any],
        topics: Sequence[TopicPlan],
        validation_first_share: float = 0.0,
        lying_share: float = 0.0,
        is_forgetful: bool = False,
        replication: int = 1,
        lost_response_at: int = 0,
        supports_topic_ids: bool = True,
    ) -> None:
        """`supports_topic_ids`: whether Produce identifies topics by id (KIP-516), as since Kafka 4.1."""
        self.disk = Disk(world)
        self.pool = BufferPool()
        """All connections share read buffers, as in the server."""
        self.validation_first = ValidationFirst(world, validation_first_share)
        self.liar = Liar(world, lying_share)
        self._is_forgetful = is_forgetful
        self.replication = replication
        self._lost_response_in = lost_response_at
        self._supports_topic_ids = supports_topic_ids
        self.core: BrokerCore | None = None
        self.deleted_names: set[str] = set()
        """Planned topics that the administrator has deleted: a start does not recreate them."""
        self.created_ms: dict[UUID, int] = {}
        """Latest possible creation time of each topic, by id."""
        self.start_offsets: dict[TopicPartition, int] = {}
        """The latest observed start offset of each log. One written just before a process was killed may be gone after a power loss."""
        self.nodes = [Node(id=number, host="broker", port=PORT_FIRST + number) for number in range(node_count)]
        self.addresses = [Address(node.host, node.port) for node in self.nodes]
        self._world = world
        self._network = network
        self._settings = options.parse(settings)
        self._topics = list(topics)
        self._connections: dict[int, _Connection] = {}
        self._connection_count = 0
        self._submitted_count = 0
        self._timer = WakeTimer(world, ACTOR, lambda: self.handle(TimePassed()))
        self._life = 0
        self._syncs = self._settings["flush.policy"] == "always"
        self._unsent: list[Effect] = []
        self._is_sync_planned = False
        self._wall_ahead_ms = 0
        """How far the machine's wall clock is ahead of the world's time."""
        self._core_ahead_ms = 0
        """The same when the core started."""

    def stop_lying(self) -> None:
        """Respond as the core does from here on."""
        self.validation_first.stop()
        self.liar.stop()

    def lose_next_answer(self) -> None:
        """Lose the next response to a Produce."""
        self._lost_response_in = 1

    @property
    def accused(self) -> set[int]:
        """Numbers of records that were blamed without reason, or for a reason other than their fault."""
        return self.validation_first.accused | self.liar.accused

    @property
    def is_settled(self) -> bool:
        """Whether no effects wait for a sync, such as those of a periodic task that ran in this millisecond."""
        return not self._is_sync_planned

    @property
    def partitions(self) -> list[TopicPartition]:
        """Partitions of the planned topics."""
        return [TopicPartition(topic.name, index) for topic in self._topics for index in range(topic.partition_count)]

    def leader_address(self, topic_partition: TopicPartition) -> Address:
        """Address of the partition's leader; any broker address while there is no leader."""
        partition = None if self.core is None else self.core.topics.partition(*topic_partition)
        return self.addresses[0 if partition is None else max(0, partition.replicas.leader)]

    # Life and death --------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the disk and listen. A death during the start is a death like any other."""
        if self.core is not None:
            return
        self._life += 1
        self._core_ahead_ms = self._wall_ahead_ms
        try:
            core = BrokerCore(
                self.disk.file_system,
                self._settings,
                nodes=self.nodes,
                rng=self._world.new_rng(),
                steady_ms=self._core_ms,
                journal_rewrite_bytes=REWRITE_BYTES,
            )
            for topic in self._topics:
                if core.topics.get(topic.name) is None and topic.name not in self.deleted_names:
                    core.create_topic(topic.name, topic.partition_count, self.replication, topic.config, steady_ms=self._core_ms)
        except Interrupted:
            self._world.count("deaths while starting")
            self._end(self.disk.armed_death)
            return
        except StorageError as error:
            if not self.disk.is_full:
                raise
            self._world.log(ACTOR, f"does not start: {error}")
            self._world.count("starts on a full disk")
            self._end(Death.KILLED)
            return
        core.lends_files = not self._syncs  # As in the server; without flush.policy=always effects are carried out immediately.
        if self._is_forgetful:
            remembers_last_batches_only(core)
        self.core = core
        self._note_topics()
        self._world.log(ACTOR, f"starts, life {self._life}")
        for node in self.nodes:
            self._network.listen(Address(node.host, node.port), self, node.id)
        self._reset_timer()

    def die(self, death: Death, *, away_ms: int | None = None) -> None:
        """End the process now and plan its next start: after `away_ms`, or after a random time."""
        if self.core is None:
            return
        if death is Death.STOPPED:
            try:
                self.core.close()
            except Interrupted:
                death = self.disk.armed_death
            except StorageError:
                if not self.disk.is_full:
                    raise
                death = Death.KILLED
        self._world.count(f"broker {death.value}")
        self._end(death, away_ms)

    def _end(self, death: Death, away_ms: int | None = None) -> None:
        self._world.log(ACTOR, death.value)
        self.disk.end(death)
        self.core = None
        self._unsent.clear()
        self._is_sync_planned = False
        for node in self.nodes:
            self._network.stop_listening(Address(node.host, node.port))
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            self._world.count("answers never given", connection.open_count)
            connection.link.close_by_broker(f"the broker's process: {death.value}")
        self._timer.set(None)
        if away_ms is None:
            away_ms = self._world.rng.randint(DOWN_MIN_MS, self._world.rng.choice(DOWN_MAX_MS))
        self._world.after(away_ms, self.start)

    @property
    def _core_ms(self) -> int:
        """The core's steady time: that of the world plus the offset of the wall clock when the process started."""
        return self._world.steady_ms + self._core_ahead_ms

    def set_wall_clock(self, ahead_ms: int) -> None:
        """Set the machine's wall clock to this far ahead of the world's time."""
        self._world.log(ACTOR, f"the wall clock is set to {ahead_ms} ms ahead")
        self._wall_ahead_ms = ahead_ms
        if self.core is not None:
            self.core.set_wall_clock(self._world.steady_ms + ahead_ms, self._core_ms)
            self._reset_timer()

    # Nodes -----------------------------------------------------------------------------------------------------------------------------

    def stop_node(self, node_id: int, *, abruptly: bool) -> None:
        """Stop one declared node, unless it is the last running one: its partitions and groups move to others."""
        if self.core is None or len(self.core.state.nodes.stopped | {node_id}) == len(self.nodes):
            return
        if self._change_nodes(NodeStopped(node_id=node_id, abruptly=abruptly)):
            self._world.count("nodes stopped")
            self._world.log(ACTOR, f"node {node_id} stops{' abruptly' if abruptly else ''}")
            self._network.stop_listening(Address(self.nodes[node_id].host, self.nodes[node_id].port))
            for connection in [found for found in self._connections.values() if found.node_id == node_id]:
                del self._connections[connection.connection_id]
                connection.link.close_by_broker(f"node {node_id} has stopped")
                self.handle(ConnectionLost(connection_id=connection.connection_id))

    def start_nodes(self) -> None:
        """Start every stopped node."""
        for node in self.nodes:
            if self.core is not None and node.id in self.core.state.nodes.stopped and self._change_nodes(NodeStarted(node_id=node.id)):
                self._world.log(ACTOR, f"node {node.id} starts")
                self._network.listen(Address(node.host, node.port), self, node.id)

    def _change_nodes(self, event: NodeStopped | NodeStarted) -> bool:
        """Returns whether the change happened: it has to be written to disk, and the process may die doing so."""
        try:
            self.handle(event)
        except StorageError:
            if not self.disk.is_full:
                raise
            return False
        return self.core is not None

    # Connections -----------------------------------------------------------------------------------------------------------------------

    def accept(self, link: Link, node_id: int) -> None:
        self._connection_count += 1
        connection = _Connection(self, link, self._connection_count, node_id)
        self._connections[connection.connection_id] = connection
        link.to_broker.receiver = connection

    def received(self, connection: _Connection, data: bytes) -> None:
        if connection.connection_id not in self._connections:
            return
        try:
            connection.backlog += connection.protocol.frames_in(data)
        except ProtocolViolation as violation:
            raise AssertionError(f"one of our clients violated the protocol: {violation}") from violation
        connection.protocol.end_turn()
        self._process_backlog(connection)

    def _process_backlog(self, connection: _Connection) -> None:
        """Handle the connection's requests, up to one whose response is delayed."""
        while connection.backlog and connection.waiting is None and connection.connection_id in self._connections:
            request = connection.protocol.request(connection.backlog.popleft())
            self._world.log(ACTOR, f"{connection.link.name}: {request.api.name} v{request.version} #{request.correlation_id}")
            if self.core is not None:
                self.validation_first.notice(self.core, connection.connection_id, request)
            self.handle(
                RequestReceived(
                    connection_id=connection.connection_id,
                    request=request,
                    node_id=connection.node_id,
                    client_software_name=connection.protocol.client_software_name,
                )
            )
            if self.core is not None and self.core.is_waiting(connection.connection_id):
                connection.waiting = request
        self.end_if_done(connection)

    def end_if_done(self, connection: _Connection) -> None:
        """Forget a client that has closed, after all its requests are done."""
        if connection.is_finished and not connection.open_count and connection.waiting is None:
            self.lost(connection)

    def lost(self, connection: _Connection) -> None:
        if self._connections.pop(connection.connection_id, None) is not None:
            self.handle(ConnectionLost(connection_id=connection.connection_id))

    # The core --------------------------------------------------------------------------------------------------------------------------

    def submit(self, message: Message, version: int, node_id: int = 0) -> None:
        """Handle a request that does not come over the network, on a connection of its own. Its response is dropped."""
        request = ReceivedRequest(api=api_of(message), version=version, correlation_id=0, client_id=None, message=message)
        self._submitted_count += 1
        self.handle(RequestReceived(connection_id=-self._submitted_count, request=request, node_id=node_id))
        self._note_topics()

    def expire(self, partition: Partition, *, retention_ms: int, retention_bytes: int) -> None:
        """Apply retention now, with these limits in place of the topic's."""
        log, config = partition.log, partition.log.config
        log.config = replace(config, retention_ms=retention_ms, retention_bytes=retention_bytes)
        try:
            log.delete_old_segments(self._core_ms)
        except Interrupted:
            self._die_in_operation()
        except StorageError:
            if not self.disk.is_full:
                raise
        finally:
            log.config = config

    def _note_topics(self) -> None:
        if self.core is not None:
            for topic in self.core.topics:
                self.created_ms.setdefault(topic.topic_id, self._world.steady_ms)
                for partition in topic.partitions:
                    tp = partition.topic_partition
                    self.start_offsets[tp] = max(self.start_offsets.get(tp, 0), partition.log.log_start_offset)

    def handle(self, event: Event) -> None:
        """Pass one event to the core and run its effects. If the process dies in the middle, no response is sent."""
        if self.core is None:
            return
        try:
            effects = self.core.apply(event, self._core_ms)
        except Interrupted:
            self._die_in_operation()
            return
        if self._syncs:
            self._send_after_sync(effects)
        else:
            for effect in effects:
                self._perform(effect)
        self._reset_timer()

    def _die_in_operation(self) -> None:
        self._world.count(f"broker {self.disk.armed_death.value}")
        if self._has_missing_markers():
            self._world.count("deaths between a decision and its markers")
        self._end(self.disk.armed_death)

    def _has_missing_markers(self) -> bool:
        """Whether a transaction is decided but still open in some partition."""
        core = self.core
        if core is None:
            return False
        decided = [metadata for metadata in core.state.transactions if metadata.is_decided]
        found = ((core.topics.partition(*tp), metadata.producer_id) for metadata in decided for tp in metadata.partitions)
        return any(partition is not None and partition.log.has_ongoing_transaction(producer_id) for partition, producer_id in found)

    def _send_after_sync(self, effects: Sequence[Effect]) -> None:
        """With flush.policy=always: one sync for all responses of a moment, as in the server."""
        self._unsent += effects
        if not self._is_sync_planned:
            self._is_sync_planned = True
            life = self._life
            self._world.after(SYNC_DELAY_MS, lambda: self._sync_and_send(life))

    def _sync_and_send(self, life: int) -> None:
        if life != self._life or self.core is None:
            return
        effects, self._unsent = self._unsent, []
        self._is_sync_planned = False
        try:
            self.core.sync()
        except Interrupted:
            self._die_in_operation()
            return
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, LogLine):
            self._world.log(ACTOR, effect.text)
            return
        if isinstance(effect, RequestFailed):
            raise effect.error
        assert not isinstance(effect, ThrottleConnection), "only fault scripts throttle connections, and there are none here"
        connection = self._connections.get(effect.connection_id)
        if connection is None:
            return
        if isinstance(effect, CloseConnection):
            self._world.log(ACTOR, f"closes {connection.link.name}: {effect.reason}")
            del self._connections[effect.connection_id]
            connection.link.close_by_broker(effect.reason)
            return
        if effect.request is connection.waiting:
            connection.waiting = None
            self._world.after(0, partial(self._process_backlog, connection))
        if isinstance(effect, CompleteWithoutResponse):
            connection.link.to_client.send(joined(connection.protocol.skip_response(effect.request)))
        else:
            self._respond(connection, effect)

    def _respond(self, connection: _Connection, effect: Respond) -> None:
        message = self.validation_first.answer(connection.connection_id, effect.request, effect.message)
        message = self.liar.answer(effect.request, message)
        if isinstance(message, ApiVersionsResponse) and not self._supports_topic_ids:
            message.api_keys = [_without_topic_ids(row) for row in message.api_keys]
        parts = connection.protocol.response_parts(effect.request, message)
        if any(isinstance(part, FileSlice) for part in parts):
            self._world.count("answers with records from files")
        data = joined(loaded(parts))
        if self._loses_answer(effect):
            # Between append and response: the request is done, but no client will learn of it.
            self._world.count("responses lost")
            if isinstance(effect.message, ProduceResponse):
                self._world.count("produce responses lost")
            self._world.log(ACTOR, f"{connection.link.name}: the answer to #{effect.request.correlation_id} is lost")
            del self._connections[connection.connection_id]
            connection.link.cut("cut between append and answer")
            self.handle(ConnectionLost(connection_id=connection.connection_id))
            return
        connection.link.to_client.send(data)
        if connection.is_finished:
            self._world.count("answers to clients that have closed")
            self._world.after(connection.link.delay_ms(), partial(self.lost, connection))

    def _loses_answer(self, effect: Respond) -> bool:
        """Whether this response is lost: one Produce response for certain, others at random."""
        if self._lost_response_in and isinstance(effect.message, ProduceResponse):
            self._lost_response_in -= 1
            if not self._lost_response_in:
                return True
        return self._world.chance(self._network.faults.lost_response_share)

    def _reset_timer(self) -> None:
        deadline_ms = None if self.core is None else self.core.next_deadline_ms
        self._timer.set(None if deadline_ms is None else deadline_ms - self._core_ahead_ms)


def _without_topic_ids(row: ApiVersion) -> ApiVersion:
    """The version range announced by a broker that identifies topics by name only."""
    if row.api_key != ProduceRequest.API_KEY:
        return row
    return ApiVersion(api_key=row.api_key, min_version=row.min_version, max_version=PRODUCE_BY_NAME_MAX)
