"""AsyncConsumer cancelled at each await point: each record is read, and what was committed is what the caller has read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from chaffinch import AsyncConsumer, EmbeddedBroker, Producer, TopicPartition
from chaffinch.consumer import access_guard, async_consumer, callbacks, calls, closing, loop_runner, poller
from tests.async_clients.cancellation import AwaitPoint, Cancelled, await_points, cancelled_at

MODULES = (access_guard, async_consumer, callbacks, calls, closing, loop_runner, poller)
NEVER_SUSPENDED = {
    # (file, text): reason. `run` of a runner never suspends.
    ("access_guard.py", "on_entry()"): "puts records back with `run`",
    ("async_consumer.py", "self.start()"): "makes no request",
    ("calls.py", "self.runner.run(subscribe)"): "changes the core",
    ("calls.py", "self.run('assign', lambda: self.core.assign(tps, self.clock.steady_ms()))"): "changes the core",
    ("calls.py", "self._enter(method, lambda: self.runner.run(call))"): "changes the core",
    ("calls.py", "self.runner.run(self.core.leave_callback)"): "reads the core",
    ("calls.py", "self.runner.run(leave)"): "changes the core",
    ("calls.py", "self.run('poll', self._raise_rejected)"): "reads the core",
    ("calls.py", "self.run('position', lambda: self.core.context.timeout_error(text, tps=[tp]))"): "reads the core",
    ("calls.py", "self.runner.run(lambda: begin(commits, Pending()))"): "changes the core",
    (
        "closing.py",
        "runner.run(lambda: group.commits.commit_all(deadline_ms, lambda error: pending.complete(error=error), retries=True))",
    ): ("changes the core"),
    ("closing.py", "runner.run(lambda: core.close(pending, deadline_ms))"): "changes the core",
    ("poller.py", "self._runner.run(self._put_back)"): "changes the core",
    ("poller.py", "self._runner.run(lambda: self._core.callback_done(callback))"): "changes the core",
    ("poller.py", "self._runner.run(lambda: self._core.poll_ended(self._clock.steady_ms()))"): "changes the core",
    ("poller.py", "self._runner.run(lambda: self._core.poll_resumed(self._clock.steady_ms()))"): "changes the core",
    ("access_guard.py", "call()"): "in the guard for threads",
}
VALUES = [b"%d" % number for number in range(20)]


class Reader:
    """What the caller of consumers in one group has read of a topic."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.tp = TopicPartition(name, 0)
        self.offsets: list[int] = []
        broker.create_topic(name, 1)
        with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0) as producer:
            for value in VALUES:
                producer.send(name, value)

    def consumer(self, **options: Any) -> AsyncConsumer:
        given: dict[str, Any] = {
            "bootstrap_servers": self.broker.bootstrap_servers,
            "group_id": self.name,
            "auto_offset_reset": "earliest",
            "retry_backoff_ms": 5,
            "heartbeat_interval_ms": 20,
            "session_timeout_ms": 2000,
            "fetch_max_wait_ms": 20,
            "max_poll_records": 3,
        }
        return AsyncConsumer(given | options)

    async def pause_briefly(self, *_: Any) -> None:
        """A callback that suspends."""
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.001)


Scenario = Callable[[Reader, AsyncConsumer], Awaitable[None]]


async def polls(reader: Reader, consumer: AsyncConsumer) -> None:
    async with consumer:
        await consumer.subscribe([reader.name], on_assign=reader.pause_briefly, on_revoke=reader.pause_briefly)
        while len(reader.offsets) < 6:
            reader.offsets += [record.offset for record in await consumer.poll()]
        table = await consumer.poll_table()
        reader.offsets += table["offset"].to_pylist()
        await consumer.commit(on_commit=reader.pause_briefly)
        await start_commit(reader, consumer)
        reader.offsets += [record.offset for record in await consumer.poll()]
        await start_commit(reader, consumer)
        await consumer.commit()
        await start_commit(reader, consumer)


async def start_commit(reader: Reader, consumer: AsyncConsumer) -> None:
    """Commit, so that the next call runs a callback, which suspends."""
    await consumer.commit(asynchronous=True, on_commit=reader.pause_briefly)
    while not consumer._shared.callbacks.has_completed_commits:
        await consumer.committed([reader.tp])


async def loop(reader: Reader, consumer: AsyncConsumer) -> None:
    async with consumer:
        await consumer.subscribe([reader.name], on_revoke=reader.pause_briefly)
        async for record in consumer:
            reader.offsets.append(record.offset)
            if len(reader.offsets) >= 5:
                break
        await consumer.unsubscribe()
        ends: list[Callable[[], Awaitable[None]]] = [lambda: consumer.subscribe([]), lambda: consumer.assign([]), consumer.close]
        for end in ends:
            await consumer.subscribe([reader.name], on_revoke=reader.pause_briefly)
            reader.offsets += [record.offset for record in await consumer.poll()]
            await end()


async def queries(reader: Reader, consumer: AsyncConsumer) -> None:
    async with consumer:
        await consumer.partitions_for(reader.name)
        await consumer.assign([reader.tp])
        await consumer.position(reader.tp)
        await consumer.beginning_offsets([reader.tp])
        await consumer.end_offsets([reader.tp])
        await consumer.offsets_for_times({reader.tp: 0})
        await consumer.assign([])


async def run_cancelled(scenario: Scenario, reader: Reader, suspension: int) -> set[AwaitPoint] | None:
    """Run a scenario that is cancelled at this suspension. Returns the await points that were passed; None if it has ended."""
    consumer = reader.consumer()
    passed: set[AwaitPoint] | None = set()

    async def run() -> None:
        await scenario(reader, consumer)

    try:
        if await cancelled_at(suspension, run()):
            passed = None
    except Cancelled as cancelled:
        passed = cancelled.passed
    await asyncio.wait_for(consumer.close(), 20)
    return passed


async def check(reader: Reader) -> None:
    """Read the rest with another member of the group."""
    async with reader.consumer() as consumer:
        [position] = (await consumer.committed([reader.tp])).values()
        start = 0 if position is None else position.offset
        assert set(range(start)) <= set(reader.offsets), "a record was committed that the caller has not received"
        await consumer.subscribe([reader.name])
        rest: list[int] = []
        while len(rest) < len(VALUES) - start:
            rest += [record.offset for record in await consumer.poll()]
        assert rest == list(range(start, len(VALUES)))


@pytest.mark.long
def test_cancelled_consumer_loses_nothing(shared_broker: EmbeddedBroker) -> None:
    unseen = await_points(MODULES)
    # Where a scenario suspends depends on the speed of the broker, so one round may miss a point.
    for repetition in range(8):
        for scenario in (polls, loop, queries):
            has_ended = False
            for suspension in count():
                reader = Reader(shared_broker, f"{scenario.__name__}-{repetition}-{suspension}")
                passed = asyncio.run(run_cancelled(scenario, reader, suspension))
                if scenario is polls:
                    assert reader.offsets == list(range(len(reader.offsets))), "records of a member come once and in order"
                asyncio.run(asyncio.wait_for(check(reader), 30))
                if passed is not None:
                    unseen -= passed
                elif has_ended:  # Twice, because a slower run suspends once more.
                    break
                has_ended = passed is None
        left = {(point.file, point.text) for point in unseen}
        if left == NEVER_SUSPENDED.keys():
            return
    assert left == NEVER_SUSPENDED.keys()
