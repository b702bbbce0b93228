"""aiokafka in every scenario; see `scenario_program.py`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from scenario_program import CULPRIT_KEYS, FIRST_TIMESTAMP_MS, HEADERS, ROUND, TIMEOUT_S, main, records, report

TOPIC_ALREADY_EXISTS = 36


@asynccontextmanager
async def running(client: Any) -> Any:
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def producer(servers: str, **config: Any) -> Any:
    return running(AIOKafkaProducer(bootstrap_servers=servers, **config))


def consumer(servers: str, *topics: str, group: str | None = None, **config: Any) -> Any:
    given = {"enable_auto_commit": False, "auto_offset_reset": "earliest", **config}
    return running(AIOKafkaConsumer(*topics, bootstrap_servers=servers, group_id=group, **given))


async def send(client: AIOKafkaProducer, topic: str, rows: Iterable[tuple[bytes | None, bytes]], **more: Any) -> list[str | None]:
    """Each record's error, None for success, in order of the rows."""
    futures = [await client.send(topic, key=key, value=value, **more) for key, value in rows]
    ended = await asyncio.gather(*futures, return_exceptions=True)
    return [type(each).__name__ if isinstance(each, BaseException) else None for each in ended]


async def polled(client: AIOKafkaConsumer, wait_ms: int = 100) -> list[Any]:
    return list(itertools.chain.from_iterable((await client.getmany(timeout_ms=wait_ms)).values()))


async def read(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Everything that stands in the topic now."""
    async with consumer(servers, topic, isolation_level=isolation) as client:
        tps = client.assignment()
        ends = await client.end_offsets(tps)
        found: list[Any] = []
        while [tp for tp in tps if await client.position(tp) < ends[tp]]:
            found += await polled(client)
        return found


async def produce(servers: str, name: str, codec: str) -> None:
    async with producer(servers, compression_type=None if codec == "none" else codec, linger_ms=20) as client:
        fates = await send(client, name, records())
    found = await read(servers, name)
    report(acknowledged=fates.count(None), read=len(found), same=sorted((each.key, each.value) for each in found) == sorted(records()))


async def headers(servers: str, name: str, _: str) -> None:
    async with producer(servers) as client:
        await send(client, name, records(1), headers=HEADERS)
    report(headers=[[key, value.decode()] for key, value in (await read(servers, name))[0].headers])


async def group(servers: str, name: str, _: str) -> None:
    seen: set[bytes] = set()

    async def fill(client: AIOKafkaProducer, label: str) -> None:
        rows = records(ROUND, label)
        for partition in range(4):
            await send(client, name, rows[partition::4], partition=partition)

    async def poll(members: list[AIOKafkaConsumer], done: Callable[[], bool]) -> None:
        while not done():
            for member in members:
                seen.update(each.value for each in await polled(member))

    async with producer(servers) as writer, consumer(servers, name, group=f"{name}-group") as one:
        await fill(writer, "first")
        await poll([one], lambda: len(seen) == ROUND)
        report(alone=len(one.assignment()))
        await one.commit()
        async with consumer(servers, name, group=f"{name}-group") as two:
            await poll([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 2)
            report(together=[len(one.assignment()), len(two.assignment())])
            await fill(writer, "second")
            await poll([one, two], lambda: len(seen) == 2 * ROUND)
        await poll([one], lambda: len(one.assignment()) == 4)
        await fill(writer, "third")
        await poll([one], lambda: len(seen) == 3 * ROUND)
        report(after=len(one.assignment()), records=len(seen))


async def offsets(servers: str, name: str, _: str) -> None:
    tp = TopicPartition(name, 0)
    async with producer(servers) as client:
        for number, (key, value) in enumerate(records()):
            await client.send_and_wait(name, key=key, value=value, timestamp_ms=FIRST_TIMESTAMP_MS + 1000 * number)
    async with consumer(servers, name, group=f"{name}-group") as first:
        while (await first.getone()).offset < 29:
            pass
        await first.commit({tp: 30})
        report(committed=await first.committed(tp))
    async with consumer(servers, name, group=f"{name}-group") as second:
        report(resumed=(await second.getone()).offset)
        second.seek(tp, 70)
        report(sought=(await second.getone()).offset)
        by_time = await second.offsets_for_times({tp: FIRST_TIMESTAMP_MS + 49_500})
        beginning, end = await second.beginning_offsets([tp]), await second.end_offsets([tp])
        report(by_time=by_time[tp].offset, beginning=beginning[tp], end=end[tp])


async def idempotent(servers: str, name: str, _: str) -> None:
    async with producer(servers, enable_idempotence=True) as client:
        report(acknowledged=(await send(client, name, records())).count(None))


async def transactions(servers: str, name: str, _: str) -> None:
    tp = TopicPartition(name, 0)
    async with producer(servers, transactional_id=f"{name}-id") as client:
        for number, commits in enumerate((True, False, True)):
            await client.begin_transaction()
            await send(client, name, records(10, f"round {number}"))
            if number < 2:
                await client.send_offsets_to_transaction({tp: 5 + number}, f"{name}-group")
            if commits:
                await client.commit_transaction()
            else:
                await client.abort_transaction()
    async with consumer(servers, group=f"{name}-group") as member:
        member.assign([tp])
        report(offset=await member.committed(tp))
    found = await read(servers, name)
    report(committed=len(found), rounds=sorted({int(each.value[6:7]) for each in found}))
    report(uncommitted=len(await read(servers, name, "read_uncommitted")))


@asynccontextmanager
async def administrator(servers: str) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def topics(servers: str, name: str, _: str) -> None:
    topic = f"{name}-made"
    resource = partial(ConfigResource, ConfigResourceType.TOPIC, topic)
    async with administrator(servers) as admin, producer(servers) as client:

        async def partitions() -> int:
            return len((await admin.describe_topics([topic]))[0]["partitions"])

        async def retention() -> str:
            (answer,) = await admin.describe_configs([resource()])
            return str(next(entry[1] for entry in answer.resources[0][4] if entry[0] == "retention.ms"))

        wanted = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "7200000"})
        await admin.create_topics([wanted])
        report(created=await partitions())
        refused = await admin.create_topics([wanted])
        report(refused=refused.topic_errors[0][1] == TOPIC_ALREADY_EXISTS)
        report(config=await retention())
        await admin.alter_configs([resource(configs={"retention.ms": "3600000"})])
        async with asyncio.timeout(TIMEOUT_S):
            while await retention() != "3600000":
                pass
        report(altered=await retention())
        await admin.create_partitions({topic: NewPartitions(4)})
        report(partitions=await partitions())
        await send(client, topic, records(10), partition=3)
        deleted = await admin.delete_records({TopicPartition(topic, 3): RecordsToDelete(5)})
        report(records_deleted=deleted[TopicPartition(topic, 3)])
        await admin.delete_topics([topic])
        report(deleted=topic not in await admin.list_topics())


async def groups(servers: str, name: str, _: str) -> None:
    async with producer(servers) as client:
        await send(client, name, records(10))
    async with consumer(servers, name, group=f"{name}-group") as member:
        while (await member.getone()).offset < 9:
            pass
        await member.commit()
    async with administrator(servers) as admin:
        report(listed=f"{name}-group" in [each[0] for each in await admin.list_consumer_groups()])
        (described,) = await admin.describe_consumer_groups([f"{name}-group"])
        report(state=described.groups[0][2].lower())
        found = await admin.list_consumer_group_offsets(f"{name}-group")
        report(offset=found[TopicPartition(name, 0)].offset)


async def culprits(servers: str, name: str, _: str) -> None:
    async with producer(servers, linger_ms=1000) as client:
        report(fates=await send(client, name, [(key, b"v") for key in CULPRIT_KEYS]))


async def versions(*_: str) -> None:
    report(version=aiokafka.__version__)


def limited(scenario: Callable[[str, str, str], Awaitable[None]], servers: str, name: str, option: str) -> None:
    asyncio.run(asyncio.wait_for(scenario(servers, name, option), 2 * TIMEOUT_S))


if __name__ == "__main__":
    scenarios = (produce, headers, group, offsets, idempotent, transactions, topics, groups, culprits, versions)
    main({each.__name__: partial(limited, each) for each in scenarios})
