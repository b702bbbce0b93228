"""Minimal client with callbacks: finds leaders and coordinators, sends requests, and reports each outcome once.

For actors that do not use the producer core, such as the shell of the commit protocol. Cluster metadata is in the same `ClusterState` and
`Coordinators` as in the real client. No request is retried here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.cluster import ClusterState
from chaffinch.client.connections import BrokerConnection, ConnectionEvent, RequestFailed, ResponseReceived
from chaffinch.client.coordinators import CoordinatorKind, Coordinators, find_request, parse_find_response
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.schema import Message
from simulation.network import Network
from simulation.transport import Transport
from simulation.world import World

Done = Callable[[ResponseReceived | RequestFailed], None]
Found = Callable[[Address | None, str], None]
"""Called with the address, or with None and the reason."""


class CallbackClient:
    """Sends requests and calls back. Lookups go to a random bootstrap address."""

    def __init__(
        self,
        world: World,
        network: Network,
        actor: str,
        bootstrap: Sequence[Address],
        *,
        request_timeout_ms: int,
        connect_timeout_ms: int,
        connection: type[BrokerConnection] = BrokerConnection,
    ) -> None:
        self.cluster = ClusterState()
        self.coordinators = Coordinators()
        self._world = world
        self._bootstrap = list(bootstrap)
        self._transport = Transport(
            world,
            network,
            actor,
            self._on_events,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            connection=connection,
        )

    def request(self, address: Address, message: Message, done: Done) -> None:
        self._transport.send(address, message, done)

    def disconnect(self, address: Address) -> None:
        self._transport.disconnect(address, "given up by the client")

    def close(self) -> None:
        self._transport.close()

    def with_coordinator(self, key: str, kind: CoordinatorKind, found: Found) -> None:
        known = self.coordinators.address_of(key, kind)
        if known is not None:
            found(known, "")
            return

        def answered(event: ResponseReceived | RequestFailed) -> None:
            if isinstance(event, RequestFailed):
                found(None, event.reason)
                return
            answer = parse_find_response(event.message)
            if answer.code is codes.NONE:
                self.coordinators.learn(key, kind, answer.address)
                found(answer.address, "")
            else:
                found(None, answer.code.name)

        self.request(self._any_bootstrap(), find_request(key, kind), answered)

    def with_leader(self, topic_partition: TopicPartition, refresh: bool, found: Found) -> None:
        if not refresh and (known := self._leader(topic_partition)) is not None:
            found(known, "")
            return

        def answered(event: ResponseReceived | RequestFailed) -> None:
            if isinstance(event, RequestFailed):
                found(None, event.reason)
                return
            self.cluster.update(event.message, self._world.steady_ms)
            found(self._leader(topic_partition), f"no leader of {topic_partition}")

        topics = [MetadataRequestTopic(name=topic_partition.topic)]
        self.request(self._any_bootstrap(), MetadataRequest(topics=topics, allow_auto_topic_creation=False), answered)

    def _leader(self, topic_partition: TopicPartition) -> Address | None:
        leader = self.cluster.leader_of(topic_partition)
        return None if leader is None else self.cluster.address_of(leader)

    def _any_bootstrap(self) -> Address:
        return self._world.rng.choice(self._bootstrap)

    def _on_events(self, events: Sequence[ConnectionEvent]) -> None:
        for event in events:
            if isinstance(event, ResponseReceived | RequestFailed) and not self._transport.is_closed:
                done: Any = event.token
                done(event)
