"""A broker core and clients on a fake wire: real bytes both ways, no sockets, and time that stands still until a test moves it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import (
    CloseConnection,
    CompleteWithoutResponse,
    ConnectionLost,
    Effect,
    LogLine,
    NodeStarted,
    NodeStopped,
    RequestFailed,
    RequestReceived,
    Respond,
    TimePassed,
)
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.topics.registry import Partition, Topic
from chaffinch.broker.core.transactions.metadata import TransactionMetadata
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.storage.file_system import DiskFileSystem, MemoryFileSystem

NOW_MS = 1_700_000_000_000


class Cluster:
    """One core on a file system, its clock, and what it wrote into its log."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        nodes: int = 1,
        file_system: MemoryFileSystem | DiskFileSystem | None = None,
        seed: int = 1,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.config = dict(config or {})
        self.users = dict(users or {})
        self.node_count = nodes
        self.disk = file_system or MemoryFileSystem()
        self.steady_ms = NOW_MS
        self._wall_ahead_ms = 0
        self.lines: list[str] = []
        self.clients: dict[int, Client] = {}
        self._seed = seed
        self.core = self._core()

    @property
    def file_system(self) -> MemoryFileSystem:
        """Of a cluster that has no real disk."""
        assert isinstance(self.disk, MemoryFileSystem)
        return self.disk

    def _core(self) -> BrokerCore:
        nodes = [Node(id=number, host=f"node{number}", port=9092 + number) for number in range(self.node_count)]
        rng = random.Random(self._seed)
        return BrokerCore(self.disk, self.config, nodes=nodes, rng=rng, steady_ms=self.steady_ms, users=self.users)

    def topic(self, name: str, partitions: int = 1, replication: int = 1, **config: str) -> None:
        """Create a topic; options with underscores for dots."""
        overrides = {key.replace("_", "."): value for key, value in config.items()}
        self.core.create_topic(name, partitions, replication, overrides, steady_ms=self.steady_ms)

    def topic_named(self, name: str) -> Topic:
        found = self.core.topics.get(name)
        assert found is not None
        return found

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.core.topics.partition(topic, index)
        assert found is not None
        return found

    def coordinator_of(self, name: str) -> int:
        """The node that answers for a group or a transactional id."""
        found = self.core.state.nodes.coordinator_of(name)
        assert found is not None
        return found.id

    def transaction(self, name: str) -> TransactionMetadata:
        found = self.core.state.transactions.describe(name)
        assert found is not None
        return found

    def client(self, *, software: str = "test", node: int = 0) -> Client:
        client = Client(self, len(self.clients) + 1, software, node)
        self.clients[client.connection_id] = client
        client.ask(client.connection.api_versions_request())
        return client

    def advance(self, by_ms: int) -> None:
        """Let time pass, stopping at each deadline on the way."""
        until_ms = self.steady_ms + by_ms
        while (deadline_ms := self.core.next_deadline_ms) is not None and deadline_ms <= until_ms:
            self.steady_ms = max(self.steady_ms, deadline_ms)
            self.carry_out(self.core.handle(TimePassed(), self.steady_ms))
        self.steady_ms = until_ms

    @property
    def wall_ms(self) -> int:
        return self.steady_ms + self._wall_ahead_ms

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock forward by `by_ms`, or back when it is negative."""
        self._wall_ahead_ms += by_ms
        self.core.set_wall_clock(self.wall_ms, self.steady_ms)

    def stop_node(self, node_id: int, *, abruptly: bool = False) -> None:
        self.carry_out(self.core.handle(NodeStopped(node_id=node_id, abruptly=abruptly), self.steady_ms))

    def start_node(self, node_id: int) -> None:
        self.carry_out(self.core.handle(NodeStarted(node_id=node_id), self.steady_ms))

    def restart(self, *, kill: bool = True) -> None:
        """A new core on the same files. With `kill` the old one gets no chance to write."""
        if kill:
            self.core.abandon()
            self.disk.kill()
        else:
            self.core.close()
        self.clients.clear()
        self.steady_ms, self._wall_ahead_ms = self.wall_ms, 0  # A process begins with what the wall clock shows.
        self.core = self._core()

    def carry_out(self, effects: list[Effect]) -> None:
        done = []
        for effect in effects:
            if isinstance(effect, LogLine):
                self.lines.append(effect.text)
                continue
            if isinstance(effect, RequestFailed):
                raise effect.error
            client = self.clients[effect.connection_id]
            if isinstance(effect, Respond):
                client.answered(effect.request, effect.message)
            elif isinstance(effect, CompleteWithoutResponse):
                client.silent += 1
            else:
                assert isinstance(effect, CloseConnection)
                client.closed = effect.reason
            done.append(client)
        for client in done:
            client.proceed()


class Client:
    """One connection to one node. What is sent behind a request whose answer waits is kept here, as a server does."""

    def __init__(self, cluster: Cluster, connection_id: int, software: str, node: int) -> None:
        self.cluster = cluster
        self.connection_id = connection_id
        self.node = node
        self.closed: str | None = None
        self.silent = 0
        self.answers: list[Any] = []
        self._backlog: deque[ReceivedRequest] = deque()
        self.connection = ClientConnection("test", software, "1")
        self.server = ServerConnection()

    def send(self, message: Any, version: int | None = None) -> None:
        """Send without waiting for the answer."""
        assert self.closed is None, f"the connection is closed: {self.closed}"
        self._backlog += self.server.receive(b"".join(self.connection.encode_request(message, version)[1]))
        self.proceed()

    def proceed(self) -> None:
        """Have done what may be done by now."""
        while self._backlog and self.closed is None and not self.cluster.core.is_waiting(self.connection_id):
            event = RequestReceived(
                connection_id=self.connection_id,
                request=self._backlog.popleft(),
                node_id=self.node,
                client_software_name=self.server.client_software_name,
            )
            self.cluster.carry_out(self.cluster.core.handle(event, self.cluster.steady_ms))

    def ask(self, message: Any, version: int | None = None) -> Any:
        """Send, and return the answer, which must come at once."""
        self.send(message, version)
        assert self.answers, f"no answer to {api_of(message).name}; closed: {self.closed}"
        answer = self.answers.pop(0)
        assert not self.answers
        return answer

    def lose(self) -> None:
        """The connection breaks."""
        self.closed = "lost"
        self.cluster.carry_out(self.cluster.core.handle(ConnectionLost(connection_id=self.connection_id), self.cluster.steady_ms))

    def answered(self, request: ReceivedRequest, message: Any) -> None:
        data = b"".join(self.server.encode_response(request, message))
        self.answers += [response.message for response in self.connection.receive(data)]

    def produce(
        self,
        topic: str,
        records: bytes | bytearray | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int | None = None,
        txn: str | None = None,
    ) -> PartitionProduceResponse:
        """Send one batch to one partition; its part of the answer."""
        request = produce_request(topic, records, partition=partition, acks=acks, txn=txn)
        known = self.cluster.core.topics.get(topic)
        if known is not None:
            request.topics[0].topic_id = known.topic_id
        answer = self.ask(request, version)
        result: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return result


def produce_request(
    topic: str, records: bytes | bytearray | None, *, partition: int = 0, acks: int = -1, txn: str | None = None
) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=records)]
    return ProduceRequest(transactional_id=txn, acks=acks, timeout_ms=1000, topics=[TopicProduceData(name=topic, partitions=data)])
