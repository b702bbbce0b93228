"""AsyncProducer cancelled at each await point: what its caller knows agrees with the broker."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import AsyncProducer, EmbeddedBroker, TopicPartition
from chaffinch.client import loop_calls, loop_network
from chaffinch.errors import KafkaException, Stored
from chaffinch.producer import async_closing, async_gate, async_producer, async_sender
from tests.async_clients.cancellation import AwaitPoint, Cancelled, await_points, cancelled_at

MODULES = (loop_calls, loop_network, async_closing, async_gate, async_producer, async_sender)
NEVER_SUSPENDED = {
    # (file, text): reason
    ("async_producer.py", "self.start()"): "makes no request",
    ("async_producer.py", "self.begin_transaction()"): "needs no response",
    (
        "async_producer.py",
        "self._transact('begin_transaction', lambda call: events.BeginTransactionCalled(call=call))",
    ): "needs no response",
    ("loop_calls.py", "asyncio.timeout(timeout_s)"): "only sets a timer",
    ("loop_network.py", "self.loop.run_in_executor(None, partial(sockets.resolve, address.host, address.port))"): (
        "in a task of its own: test_close_during_a_name_lookup_ends_it"
    ),
}
VALUE_BYTES = 9_000
OPTIONS: dict[str, Any] = {"buffer_memory": 40_000, "batch_size": 20_000, "linger_ms": 1, "retry_backoff_ms": 5}


class Caller:
    """What the caller of a producer knows about each value."""

    def __init__(self, broker: EmbeddedBroker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.futures: dict[bytes, Awaitable[Any]] = {}
        self.attempted: set[bytes] = set()
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.table_rows: list[bytes] = []
        self.table_future: Any = None
        self._numbers = count()

    def value(self) -> bytes:
        made = b"%d-" % next(self._numbers) + b"x" * VALUE_BYTES
        self.attempted.add(made)
        return made

    async def send(self, producer: AsyncProducer) -> bytes:
        value = self.value()
        self.futures[value] = await producer.send(self.topic, value)
        return value

    def stored(self) -> list[bytes]:
        found: list[bytes] = self.broker.read(self.topic)["value"].to_pylist() if self.topic in self.broker.topics() else []
        return found

    async def check(self) -> None:
        """Called after the producer was closed."""
        stored = self.stored()
        assert len(stored) == len(set(stored)), "a record was stored twice"
        for value in self.attempted - self.futures.keys() - set(self.table_rows):
            assert value not in stored, "a send that was cancelled has sent its record"
        for value, future in self.futures.items():
            outcome: Any = (await asyncio.gather(future, return_exceptions=True))[0]
            if isinstance(outcome, KafkaException):
                assert outcome.stored is Stored.POSSIBLY or value not in stored
            else:
                assert value in stored, "an acknowledged record was lost"
        if self.table_future is not None:
            try:
                result = await self.table_future
            except KafkaException:
                return
            assert result.written <= len(set(self.table_rows) & set(stored))


Scenario = Callable[[Caller, AsyncProducer], Awaitable[None]]


async def sends(caller: Caller, producer: AsyncProducer) -> None:
    async with producer:
        await producer.partitions_for(caller.topic)
        for _ in range(8):  # More than fit into the memory.
            await caller.send(producer)
        await producer.flush()


async def waits(caller: Caller, producer: AsyncProducer) -> None:
    async with producer:
        await producer.send_and_wait(caller.topic, key=b"key")
        value = await caller.send(producer)
        await caller.futures[value]


async def table(caller: Caller, producer: AsyncProducer) -> None:
    async with producer:
        caller.table_rows = [caller.value() for _ in range(12)]
        caller.table_future = await producer.send_table(caller.topic, pa.table({"value": caller.table_rows}))
        await caller.table_future


async def concurrent_close(caller: Caller, producer: AsyncProducer) -> None:
    async with producer:
        await caller.send(producer)
        caller.broker.faults.add("Produce", topic=caller.topic, action="delay", delay_ms=30)
        first = asyncio.create_task(producer.close())
        await asyncio.wait([first], timeout=0.001)  # It has begun.
        await producer.close()
        await first


async def slow_close(caller: Caller, producer: AsyncProducer) -> None:
    async with producer:
        caller.broker.faults.add("Produce", topic=caller.topic, action="delay", delay_ms=40)
        await caller.send(producer)


async def run_cancelled(scenario: Scenario, caller: Caller, suspension: int, **options: Any) -> set[AwaitPoint] | None:
    """Run a scenario that is cancelled at this suspension, and check. Returns the await points that were passed; None if it has ended."""
    producer = AsyncProducer(bootstrap_servers=caller.broker.bootstrap_servers, **{**OPTIONS, **options})
    passed: set[AwaitPoint] = set()
    has_ended = False

    async def run() -> None:
        await scenario(caller, producer)

    try:
        has_ended = await cancelled_at(suspension, run())
    except Cancelled as cancelled:
        passed = cancelled.passed
    await asyncio.wait_for(producer.close(), 20)
    await asyncio.wait_for(caller.check(), 20)
    return None if has_ended else passed


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_sender, "CALLS_BETWEEN_ROUNDS", 2)
    monkeypatch.setattr(async_closing, "SILENT_S", 0.01)


async def transactions(caller: Caller, producer: AsyncProducer) -> None:
    async with producer:
        await producer.init_transactions()
        async with producer.transaction():
            first = await caller.send(producer)
            await producer.send_offsets_to_transaction({TopicPartition(caller.topic, 0): 7}, f"group-{caller.topic}")
        caller.committed.add(first)
        try:
            async with producer.transaction():
                caller.aborted.add(await caller.send(producer))
                await producer.flush()
                raise LookupError
        except LookupError:
            pass
        await producer.begin_transaction()
        caller.aborted.add(await caller.send(producer))
        await producer.flush()
        await producer.abort_transaction()
        await producer.begin_transaction()
        last = await caller.send(producer)
        await producer.commit_transaction()
        caller.committed.add(last)
        await producer.begin_transaction()
        caller.aborted.add(await caller.send(producer))
        await producer.flush()  # `close` aborts it.


class TransactionsCaller(Caller):
    async def check(self) -> None:
        stored = self.stored()
        assert len(stored) == len(set(stored))
        assert self.committed <= set(stored), "a committed record was lost"
        assert not self.aborted & set(stored), "an aborted record is visible"
        assert set(stored) <= self.futures.keys(), "a cancelled send has sent its record"


def test_cancelled_producer_loses_and_doubles_nothing(shared_broker: EmbeddedBroker) -> None:
    unseen = await_points(MODULES)
    # Where a scenario suspends depends on the speed of the broker, so one round may miss a point.
    for repetition in range(8):
        for scenario in (sends, waits, table, concurrent_close, slow_close, transactions):
            has_ended = False
            for suspension in count():
                name = f"{scenario.__name__}-{repetition}-{suspension}"
                kind, options = (TransactionsCaller, {"transactional_id": name}) if scenario is transactions else (Caller, {})
                passed = asyncio.run(run_cancelled(scenario, kind(shared_broker, name), suspension, **options))
                if passed is not None:
                    unseen -= passed
                elif has_ended:  # Twice, because a slower run suspends once more.
                    break
                has_ended = passed is None
            assert suspension > 1, name
        if {(point.file, point.text) for point in unseen} == NEVER_SUSPENDED.keys():
            return
    assert {(point.file, point.text) for point in unseen} == NEVER_SUSPENDED.keys()


def test_close_during_a_name_lookup_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def slow_lookup(*_: Any, **__: Any) -> Any:
        is_asked.set()
        may_answer.wait(20)
        raise OSError("no such name")

    async def scenario() -> None:
        producer = AsyncProducer(bootstrap_servers="broker.example:9092")
        await producer.start()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: slow_lookup() if not k.get("flags") else _raise())
        sending = asyncio.create_task(producer.send("topic", b""))
        await asyncio.to_thread(is_asked.wait, 20)
        sending.cancel()
        await asyncio.wait_for(producer.close(timeout=0), 20)
        may_answer.set()

    def _raise() -> Any:
        raise OSError("not a number")

    asyncio.run(scenario())
