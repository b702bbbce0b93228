"""Compares AsyncProducer and AsyncConsumer with aiokafka: the same records, options and broker process, in turns, in one process.

Producing: `await producer.send(...)` for each record, idempotent, all acknowledgements awaited. Consuming: `async for`, over records that
exist. Values have 100 bytes, topics four partitions; both use `linger.ms=5` and defaults otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.brokers import chaffinch_broker
from benchmarks.ratios import Aim, Ratio
from chaffinch import AsyncConsumer, AsyncProducer, TopicPartition
from chaffinch.records import kernels

PARTITIONS: Final = 4
VALUE: Final = b"x" * 100
ROUNDS: Final = 5
AIM: Final = Aim(at_least=1.0)

Run = Callable[[str, str, int], Awaitable[float]]


async def send_ours(servers: str, topic: str, count: int) -> float:
    async with AsyncProducer(bootstrap_servers=servers, linger_ms=5) as producer:
        await producer.partitions_for(topic)
        started = time.perf_counter()
        futures = [await producer.send(topic, VALUE) for _ in range(count)]
        await producer.flush()
        assert all(future.exception() is None for future in futures)
        return time.perf_counter() - started


async def send_theirs(servers: str, topic: str, count: int) -> float:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5, enable_idempotence=True) as producer:
        await producer.partitions_for(topic)
        started = time.perf_counter()
        futures = [await producer.send(topic, VALUE) for _ in range(count)]
        await producer.flush()
        assert all(future.exception() is None for future in futures)
        return time.perf_counter() - started


async def read_ours(servers: str, topic: str, count: int) -> float:
    async with AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        await consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        return await _time_of(aiter(consumer), count)


async def read_theirs(servers: str, topic: str, count: int) -> float:
    import aiokafka

    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
        return await _time_of(aiter(consumer), count)


async def _time_of(records: Any, count: int) -> float:
    """Seconds from the first record to the last."""
    await anext(records)
    started, left = time.perf_counter(), count - 1
    async for _ in records:
        left -= 1
        if not left:
            break
    return time.perf_counter() - started


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    kernels.load()
    loads: dict[str, tuple[Run, Run]] = {"send": (send_ours, send_theirs), "async for": (read_ours, read_theirs)}
    print(f"asyncio: {options.records} records, value {len(VALUE)} bytes, {PARTITIONS} partitions, next to aiokafka")
    topics = [f"{side}-{number}" for side in ("ours", "theirs") for number in range(options.rounds)]
    missed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        chaffinch_broker(folder, [f"{topic}:{PARTITIONS}" for topic in (*topics, "warm-up")]) as broker,
    ):
        for runs in loads.values():
            for run in runs:
                asyncio.run(_limited(run(broker.bootstrap_servers, "warm-up", options.records // 10)))
        for load, runs in loads.items():
            ratios, speeds = [], []
            for number in range(options.rounds):
                ours, theirs = (
                    asyncio.run(_limited(run(broker.bootstrap_servers, f"{side}-{number}", options.records)))
                    for side, run in zip(("ours", "theirs"), runs, strict=True)
                )
                ratios.append(theirs / ours)
                speeds.append(f"{options.records / ours / 1e3:.0f}/{options.records / theirs / 1e3:.0f}")
            ratio = Ratio.of(ratios)
            print(f"  {load:<10} {', '.join(speeds)} thousand records/s   ratio {ratio} (target {AIM})", flush=True)
            missed += not AIM.is_met(ratio)
    return min(missed, 1)


async def _limited(run: Awaitable[float]) -> float:
    return await asyncio.wait_for(run, 300)


if __name__ == "__main__":
    sys.exit(main())
