"""Requests that are well formed and make no sense, and ones with damaged bytes, against a broker's core: worlds of some hundred requests.

Whatever comes, the broker answers it or closes the connection that it came on; nothing else may happen: no other exception, no answer
that cannot be written, no other connection closed, and a client that behaves is served afterwards. Guided by what is reached: requests
that led to an answer never seen before (API, version, error codes) are kept, and later inputs are made from them.

`python -m tests.fuzz.request_fuzzer SEED ROUNDS`. Not collected by pytest; `test_requests.py` runs it.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from chaffinch.broker.core.events import CloseConnection, CompleteWithoutResponse, ConnectionLost, RequestFailed, RequestReceived, Respond
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.apis import APIS, Api
from chaffinch.protocol.headers import finish_frame, request_head
from chaffinch.protocol.primitives import Array, Bool, Field, Fixed, Float64, RecordsType, String, Struct, Uuid
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import ProtocolViolation, UnencodableMessage
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns
from tests.broker.core_client import NOW_MS, Cluster
from tests.fuzz.batch_fuzzer import damage
from tests.interop.differential.peer import codes_in

WORLD_REQUESTS = 300
CORPUS_MAX = 2000
NAMES = ("orders", "orders", "compacted", "group-a", "group-b", "txn-a", "missing", "", ".", "a b", "x" * 250, "é", "__consumer_offsets")
SMALL_INTEGERS = (0, 0, 0, 1, 1, 2, 3, -1, -2, -5, 5, 7, 100)
CAPACITY_NAMES = ("num_partitions", "count")
PARTITIONS_MAX = 50
"""Partition counts of requests, except absurd ones: a broker that creates thousands on request is right, and
slow."""

Outcome = tuple[str, int, tuple[int, ...]]


class RequestMaker:
    """Requests with plausible values, so that they get past the first check."""

    def __init__(self, rng: random.Random, topic_ids: list[UUID]) -> None:
        self._rng = rng
        self._topic_ids = [*topic_ids, UUID(int=0), UUID(int=77)]
        self._strings: list[str] = list(NAMES)
        self._producers = [(-1, -1), (0, 0), (1, 0), (2**62, 32767)]
        self.corpus: list[tuple[Api, int, Message]] = []

    def request(self) -> tuple[Api, int, Message]:
        """Something new, or something that once reached new ground with one of its values changed."""
        if self.corpus and self._rng.random() < 0.5:
            api, version, message = self._rng.choice(self.corpus)
            message = copy.deepcopy(message)
            self.change(message, version)
            return api, version, message
        api = self._rng.choice([api for api in APIS.values() if api.served])
        version = self._rng.choice(api.served)
        return api, version, self._message(api.request, version)

    def learn(self, message: Any) -> None:
        """Ids that the broker gave away (members, producers) are worth using."""
        for name in ("member_id", "leader"):
            value = getattr(message, name, None)
            if isinstance(value, str) and value and len(self._strings) < 60:
                self._strings.append(value)
        producer_id = getattr(message, "producer_id", -1)
        if producer_id >= 0 and len(self._producers) < 30:
            self._producers.append((producer_id, message.producer_epoch))

    def _message(self, cls: type[Message], version: int) -> Message:
        return cls(**{field.name: self._value(field, version) for field in cls.FIELDS if field.exists_in(version)})

    def _value(self, field: Field, version: int) -> Any:
        if field.is_nullable_in(version) and self._rng.random() < 0.3:
            return None
        return self._of_kind(field.kind, field.name, version)

    def _of_kind(self, kind: Any, name: str, version: int) -> Any:
        if isinstance(kind, Array):
            return [self._of_kind(kind.element, name, version) for _ in range(self._rng.choice((0, 1, 1, 1, 2)))]
        if isinstance(kind, Struct):
            assert issubclass(kind.message, Message)
            return self._message(kind.message, version)
        if isinstance(kind, type):
            return self._message(kind, version)
        if kind is Bool:
            return self._rng.random() < 0.5
        if kind is Uuid:
            return self._rng.choice(self._topic_ids)
        if kind is String:
            return self._rng.choice(self._strings)
        if kind is Float64:
            return float(self._rng.choice(SMALL_INTEGERS))
        if isinstance(kind, Fixed):
            return self._integer(kind, name)
        return self.records() if kind is RecordsType else self._rng.randbytes(self._rng.randrange(20))

    def _integer(self, kind: Fixed, name: str) -> int:
        low, high = int(kind.minimum or 0), int(kind.maximum or 0)
        if name in CAPACITY_NAMES:
            return high if self._rng.random() < 0.05 else self._rng.randrange(-2, PARTITIONS_MAX)
        if "timeout_ms" in name or "wait" in name:
            return self._rng.choice((0, 1, 10, 6000, 30_000, -1, high))
        value = self._rng.choice(SMALL_INTEGERS) if self._rng.random() < 0.85 else self._rng.choice((low, high, high // 2))
        return min(max(value, low), high)

    def records(self) -> bytes | None:
        count = self._rng.choice((1, 1, 2, 5))
        keys = [self._rng.choice((b"k", b"other", None)) for _ in range(count)]
        columns = RecordColumns.from_lists(keys, [b"v"] * count, [NOW_MS] * count)
        identity = ProducerIdentity(*self._rng.choice(self._producers))
        data = batch.encode(
            columns,
            compression=self._rng.choice(list(batch.Compression)),
            identity=identity,
            base_sequence=self._rng.choice((0, 0, 1, 2, -1)),
            is_transactional=identity.producer_id >= 0 and self._rng.random() < 0.5,
        )
        if self._rng.random() < 0.2:
            damage(self._rng, data, 0)
        return bytes(data)

    def change(self, message: Message, version: int) -> None:
        """Give one field, at any depth, another value."""
        fields = [field for field in type(message).FIELDS if field.exists_in(version)]
        if not fields:
            return
        field = self._rng.choice(fields)
        value = getattr(message, field.name)
        nested = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, Message)]
        if nested and self._rng.random() < 0.8:
            self.change(self._rng.choice(nested), version)
        else:
            setattr(message, field.name, self._value(field, version))


class World:
    """A broker's core, a few connections, and the rules that hold whatever comes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster({"group.initial.rebalance.delay.ms": 0}, nodes=2, seed=seed)
        self.cluster.topic("orders", 3, 2)
        self.cluster.topic("compacted", 1, 1, cleanup_policy="compact")
        self.maker = RequestMaker(self.rng, [topic.topic_id for topic in self.cluster.core.topics])
        self.connections: dict[int, ServerConnection] = {}
        self.next_id = 1000
        self.outcomes: set[Outcome] = set()

    def run(self, count: int) -> set[Outcome]:
        for number in range(count):
            self.step(number)
            if self.rng.random() < 0.1:
                self.cluster.carry_out = self._carry_out  # type: ignore[method-assign]
                self.cluster.advance(self.rng.choice((1, 100, 5000, 60_000, 600_000)))
        self._check_service()
        return self.outcomes

    def step(self, number: int) -> None:
        connection_id = self._connection()
        api, version, message = self.maker.request()
        try:
            head = request_head(api.key, version, number, self.rng.choice(("fuzz", None)), version >= api.flexible_since)
            frame = bytearray(b"".join(finish_frame(message.encode_after(head, version))))
        except UnencodableMessage:  # A value that this version cannot carry.
            return
        if self.rng.random() < 0.1:
            damage(self.rng, frame, 4)
            frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        for outcome in self._sent(connection_id, bytes(frame)):
            if outcome not in self.outcomes:
                self.outcomes.add(outcome)
                if len(self.maker.corpus) < CORPUS_MAX:
                    self.maker.corpus.append((api, version, message))

    def _connection(self) -> int:
        free = [connection_id for connection_id in self.connections if not self.cluster.core.is_waiting(connection_id)]
        if free and self.rng.random() < 0.8:
            return self.rng.choice(free)
        self.next_id += 1
        self.connections[self.next_id] = ServerConnection()
        return self.next_id

    def _sent(self, connection_id: int, frame: bytes) -> Iterator[Outcome]:
        connection = self.connections[connection_id]
        try:
            requests = connection.receive(frame)
        except ProtocolViolation:
            self._lose(connection_id)
            return
        for request in requests:  # One: what is behind one that waits is kept by a shell.
            event = RequestReceived(
                connection_id=connection_id,
                request=request,
                node_id=self.rng.choice((0, 0, 1)),
                client_software_name=connection.client_software_name,
            )
            yield from self._outcomes(self.cluster.core.handle(event, self.cluster.steady_ms), connection_id)

    def _outcomes(self, effects: list[Any], sender_id: int | None) -> Iterator[Outcome]:
        """Each effect, carried out; only the sender may be closed."""
        for effect in effects:
            if isinstance(effect, Respond):
                connection = self.connections.get(effect.connection_id)
                if connection is not None:
                    connection.encode_response(effect.request, effect.message)
                    self.maker.learn(effect.message)
                    yield effect.request.api.name, effect.request.version, tuple(sorted(set(codes_in(effect.message))))
            elif isinstance(effect, CloseConnection):
                assert effect.connection_id == sender_id, f"another connection was closed: {effect.reason}"
                self.connections.pop(effect.connection_id, None)
            elif isinstance(effect, CompleteWithoutResponse):
                yield "silence", 0, ()
            elif isinstance(effect, RequestFailed):
                raise effect.error

    def _carry_out(self, effects: list[Any]) -> None:
        self.outcomes.update(self._outcomes(effects, None))

    def _lose(self, connection_id: int) -> None:
        del self.connections[connection_id]
        self._carry_out(self.cluster.core.handle(ConnectionLost(connection_id=connection_id), self.cluster.steady_ms))

    def _check_service(self) -> None:
        cluster = Cluster.__new__(Cluster)
        cluster.__dict__ = dict(self.cluster.__dict__)
        cluster.__dict__.pop("carry_out", None)
        cluster.clients = {}
        topic = cluster.core.create_topic("good", 1, 1, None, steady_ms=cluster.steady_ms)
        good = batch.encode(RecordColumns.from_lists([b"k"], [b"v"], [cluster.steady_ms]))
        answer = cluster.client(node=topic.partitions[0].replicas.leader).produce("good", good)
        assert answer.error_code == 0, answer


def run(seed: int, rounds: int) -> set[Outcome]:
    """Worlds of one seed, `rounds` requests in all; what was reached. An exception names the seed and the world."""
    reached: set[Outcome] = set()
    for number in range(max(1, rounds // WORLD_REQUESTS)):
        world_seed = seed * 1_000_003 + number
        try:
            reached |= World(world_seed).run(WORLD_REQUESTS)
        except Exception as error:
            raise AssertionError(f"world {world_seed} of seed {seed}: {error!r}") from error
    return reached


if __name__ == "__main__":
    print(len(run(int(sys.argv[1]), int(sys.argv[2]))), "kinds of outcome")
