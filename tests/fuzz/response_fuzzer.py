"""Answers that are well formed and make no sense, for the cores of a producer and of a consumer: small worlds with a real broker's core.

The broker answers as it should; on the way to the client some fields of some answers get other values, and connections break. Whatever
comes, the core continues: only exceptions meant for its callers, one outcome per record, and a close that ends.

`python -m tests.fuzz.response_fuzzer SEED ROUNDS`. Not collected by pytest; `test_responses.py` runs it.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from chaffinch.broker.core.events import RequestReceived
from chaffinch.client.addresses import Address
from chaffinch.client.connections import BrokerConnection, ResponseReceived
from chaffinch.client.effects import CompleteCall, FailCall, SendRequest
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.consumer_core import TimePassed as ConsumerTimePassed
from chaffinch.consumer.core.options import parse_options as consumer_options
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import AskHandler, CompleteBatch, FailRecords
from chaffinch.producer.core.options import parse_options as producer_options
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.core.transactions.moves import State
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from tests.broker.core_client import Cluster
from tests.fuzz.request_fuzzer import RequestMaker
from tests.producer.core.rig import new_record

SERVER = Address("node0", 9092)
STEPS = 80
WAITS_MS = (0, 1, 20, 200, 3_000)
CALL_MS = 5_000
CLOSE_MS = 100
TOPICS = ("orders", "compacted", "missing")

Outcome = tuple[str, str]


class Wire:
    """One connection between a client's core and the broker's."""

    def __init__(self, world: World, address: Address, number: int) -> None:
        self.closed: str | None = None
        self.silent = 0
        self.connection = BrokerConnection(address, client_id="fuzz", request_timeout_ms=30_000)
        self._world, self._number = world, number
        self._server = ServerConnection()
        self._backlog: deque[ReceivedRequest] = deque()
        self.connection.opened(world.cluster.steady_ms)

    def write(self) -> None:
        """Let the broker have what the client has to say."""
        while self.connection.needs_write and self.closed is None:
            data = b"".join(self.connection.buffers())
            self._world.events_received += self.connection.written(len(data))
            self._backlog += self._server.receive(data)
            self.proceed()

    def proceed(self) -> None:
        """Have done what may be done by now."""
        cluster, name = self._world.cluster, self._server.client_software_name
        while self._backlog and self.closed is None and not cluster.core.is_waiting(self._number):
            request = self._backlog.popleft()
            event = RequestReceived(connection_id=self._number, request=request, node_id=0, client_software_name=name)
            cluster.carry_out(cluster.core.handle(event, cluster.steady_ms))

    def answered(self, request: ReceivedRequest, message: Any) -> None:
        data = b"".join(self._server.encode_response(request, message))
        while data:
            buffer = self.connection.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count], data = data[:count], data[count:]
            self._world.events_received += self.connection.received(count, self._world.cluster.steady_ms)


class World:
    """A core under test, and a broker that is misheard."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster({"group.initial.rebalance.delay.ms": 0, "transaction.version": self.rng.choice((1, 2))}, seed=seed)
        self.cluster.topic("orders", 3)
        self.cluster.topic("compacted", 1, cleanup_policy="compact")
        self.events_received: list[Any] = []
        self.outcomes: set[Outcome] = set()
        self.maker = RequestMaker(self.rng, [topic.topic_id for topic in self.cluster.core.topics])
        self._wires: dict[Address, Wire] = {}
        self._nonsense = self.rng.choice((0.0, 0.1, 0.5, 0.9))
        self.ended: Counter[Any] = Counter()
        """How often each record, and each call, has ended."""

    def run(self, core: Any, act: Any, finish: Any) -> set[Outcome]:
        for _ in range(STEPS):
            with suppress(KafkaException):  # Exceptions for callers.
                act()
            self.carry_out(core.handle_all(self.take_events(), self.cluster.steady_ms))
            if self._wires and self.rng.random() < 0.03:
                self._lose(self.rng.choice(list(self._wires)))
        finish("close")
        for _ in range(3):
            self.cluster.advance(CLOSE_MS)
            self.carry_out(core.handle_all(self.take_events(), self.cluster.steady_ms))
        assert self.ended["close"], "closing does not come to an end"
        assert max(self.ended.values()) == 1, f"ended more than once: {self.ended.most_common(1)}"
        return self.outcomes

    def take_events(self) -> list[Any]:
        """Events for the client, some of them falsified."""
        for wire in list(self._wires.values()):
            wire.write()
        events_received, self.events_received = self.events_received, []
        for event in events_received:
            if isinstance(event, ResponseReceived):
                if self.rng.random() < self._nonsense:
                    for _ in range(self.rng.randint(1, 3)):
                        self.maker.change(event.message, event.version or 0)
                self.outcomes.add((type(event.message).__name__, str(getattr(event.message, "error_code", ""))))
        return events_received

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case SendRequest():
                    self._send(effect)
                case CompleteCall() | FailCall():
                    self.ended[effect.call] += effect.call is not None
                case CompleteBatch():
                    self.ended.update(effect.batch.outcome_sink[row] for row in effect.batch.rows)
                case FailRecords():
                    ended = range(effect.batch.count) if effect.error is not None else [*effect.errors, *effect.dropped]
                    for index in ended:
                        assert effect.errors.get(index, effect.error) is not None
                        self.ended[effect.batch.outcome_sink[effect.batch.rows[index]]] += 1
                case AskHandler():
                    raise AssertionError("there is no handler")

    def _send(self, request: SendRequest) -> None:
        wire = self._wires.get(request.address)
        if wire is None:
            number = len(self.cluster.clients) + 1
            wire = self._wires[request.address] = Wire(self, request.address, number)
            self.cluster.clients[number] = wire  # type: ignore[assignment]
        self.events_received += wire.connection.send(
            request.message,
            request.token,
            self.cluster.steady_ms,
            timeout_ms=request.timeout_ms,
            version_max=request.version_max,
            expects_response=request.expects_response,
        )

    def _lose(self, address: Address) -> None:
        self.events_received += self._wires.pop(address).connection.lost("closed by the broker", steady_ms=self.cluster.steady_ms)


def produce(seed: int) -> set[Outcome]:
    """A world with a producer."""
    world = World(seed)
    rng, cluster = world.rng, world.cluster
    kind = rng.choice(({}, {}, {"transactional.id": "txn"}, {"enable.idempotence": False}, {"acks": "0"}))
    options = {"bootstrap.servers": str(SERVER), "delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000, **kind}
    core = ProducerCore(producer_options(options), random.Random(seed))
    numbers = iter(range(10**6))
    sent: list[int] = []

    def act() -> None:
        what, transaction = rng.random(), core.transaction
        if transaction is not None and transaction.state is not State.IN_TRANSACTION and what < 0.7:
            world.carry_out(core.handle(_call(transaction.state), cluster.steady_ms))
        elif what < 0.5:
            tp, key = TopicPartition(rng.choice(TOPICS[:2]), rng.randrange(3)), rng.choice((None, b"k"))
            world.carry_out(core.handle(events.TopicRequested(topic=tp.topic), cluster.steady_ms))
            for _ in range(rng.choice((1, 3)) if core.usable_count(*tp) and _takes_records(core) else 0):
                sent.append(next(numbers))
                core.append(tp, new_record(key, b"v", sent[-1], tp.partition, timestamp_ms=cluster.steady_ms), cluster.steady_ms)
        elif what < 0.6:
            world.carry_out(core.handle(events.FlushCalled(call=f"flush {next(numbers)}"), cluster.steady_ms))
        elif what < 0.65:
            world.carry_out(core.handle(events.TopicRequested(topic=rng.choice(TOPICS), is_stale=True), cluster.steady_ms))
        else:
            cluster.advance(rng.choice(WAITS_MS))

    def _call(state: State) -> events.Event:
        call, deadline_ms = f"call {next(numbers)}", cluster.steady_ms + CALL_MS
        if state is State.UNINITIALIZED:
            return events.InitTransactionsCalled(call=call, deadline_ms=deadline_ms)
        if state is State.READY:
            return events.BeginTransactionCalled(call=call)
        return rng.choice((events.CommitCalled, events.AbortCalled))(call=call, deadline_ms=deadline_ms)

    def finish(call: str) -> None:
        world.carry_out(core.handle(events.CloseCalled(call=call, deadline_ms=cluster.steady_ms + CLOSE_MS), cluster.steady_ms))

    reached = world.run(core, act, finish)
    assert not set(sent) - world.ended.keys(), "records without an outcome"
    return reached


def _takes_records(core: ProducerCore) -> bool:
    return core.transaction is None or core.transaction.state is State.IN_TRANSACTION


def consume(seed: int) -> set[Outcome]:
    """A world with a consumer."""
    world = World(seed)
    rng, cluster = world.rng, world.cluster
    for partition in range(3):
        with suppress(AssertionError):
            cluster.client().produce("orders", world.maker.records(), partition=partition)
    options = {
        "bootstrap.servers": str(SERVER),
        "group.id": "group-a",
        "auto.offset.reset": rng.choice(("earliest", "latest", "none", "by_duration:PT1H")),
        "auto.offset.reset.new.partitions": rng.choice(("earliest", "latest")),
        "partition.assignment.strategy": rng.choice(("range", "sticky", "cooperative-sticky")),
        "isolation.level": rng.choice(("read_committed", "read_uncommitted")),
        "auto.commit.interval.ms": 100,
        "max.poll.interval.ms": rng.choice((6_000, 300_000)),
    }
    core = ConsumerCore(consumer_options(options), random.Random(seed))
    tps = [TopicPartition("orders", partition) for partition in (0, 1, 9)]
    if rng.random() < 0.7:
        core.subscribe(TOPICS)
    else:
        core.assign(tps, cluster.steady_ms)

    def act() -> None:
        what = rng.random()
        if what < 0.5:
            core.poll_started(cluster.steady_ms, cluster.wall_ms)
            try:
                while (callback := core.next_callback(cluster.steady_ms)) is not None:
                    core.callback_done(callback)
                core.raise_error()
                core.take(rng.choice((1, 500)))
            finally:
                core.poll_ended(cluster.steady_ms)
        elif what < 0.6:
            named = {rng.choice(tps): OffsetAndMetadata(3)}  # None commits the positions, by topic id.
            assert core.group is not None, "there is a group.id"
            core.group.commits.commit(
                rng.choice((named, None)), cluster.steady_ms + CALL_MS, lambda error: None, retries=rng.random() < 0.5
            )
        elif what < 0.65:
            core.seek_to(core.subscriptions.assigned, core.context.reset_strategy)
        else:
            cluster.advance(rng.choice(WAITS_MS))
        world.carry_out(core.handle(ConsumerTimePassed(), cluster.steady_ms))

    return world.run(core, act, lambda call: core.close(call, cluster.steady_ms + CLOSE_MS))


def run(seed: int, rounds: int) -> set[Outcome]:
    """Worlds of `STEPS` steps, as many as `rounds` steps make; returns the outcomes seen."""
    reached: set[Outcome] = set()
    for number in range(max(2, rounds // STEPS)):
        world = seed * 1_000_003 + number
        try:
            reached |= (produce if number % 2 else consume)(world)
        except Exception as failure:
            raise AssertionError(f"world {world} of seed {seed}: {failure!r}") from failure
    return reached


if __name__ == "__main__":
    print(len(run(int(sys.argv[1]), int(sys.argv[2]))), "kinds of outcome")
