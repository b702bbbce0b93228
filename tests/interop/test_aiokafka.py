"""aiokafka against an EmbeddedBroker: every codec, idempotence, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from chaffinch import EmbeddedBroker

TIMEOUT_SECONDS = 60
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
ROWS = [(b"key-%d" % number, b"value-%d" % number) for number in range(100)]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(main, TIMEOUT_SECONDS)

    return asyncio.run(limited())


async def consume(broker: EmbeddedBroker, topic: str) -> list[Any]:
    """All committed records of both partitions."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False)
    await consumer.start()
    try:
        tps = [TopicPartition(topic, index) for index in (0, 1)]
        consumer.assign(tps)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(tps)
        records: list[Any] = []
        while [tp for tp in tps if await consumer.position(tp) < ends[tp]]:
            for batch in (await consumer.getmany(timeout_ms=1000)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(broker: EmbeddedBroker, topic: str, codec: str | None, idempotent: bool) -> None:
    async def main() -> list[Any]:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, compression_type=codec, enable_idempotence=idempotent, acks="all"
        )
        await producer.start()
        try:
            futures = [await producer.send(topic, key=key, value=value, headers=[("h", b"1")]) for key, value in ROWS]
            await asyncio.gather(*futures)
        finally:
            await producer.stop()
        return await consume(broker, topic)

    records = run(main())
    assert sorted((record.key, record.value) for record in records) == sorted(ROWS)
    assert all(list(record.headers) == [("h", b"1")] for record in records)


def test_transactions(broker: EmbeddedBroker, topic: str) -> None:
    async def main() -> list[Any]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"id-{topic}")
        await producer.start()
        try:
            for round_number, commit in enumerate((True, False, True)):
                await producer.begin_transaction()
                for number in range(10):
                    await producer.send_and_wait(topic, key=b"%d" % number, value=b"round %d" % round_number)
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): round_number + 1}, f"g-{topic}")
                if commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()
        return await consume(broker, topic)

    records = run(main())
    assert sorted(record.value for record in records) == [b"round 0"] * 10 + [b"round 2"] * 10
    committed = broker._call(lambda core: core.state.offsets.fetch_all(f"g-{topic}"))
    assert [(tp.partition, offset.offset) for tp, offset in committed.items()] == [(0, 3)]
