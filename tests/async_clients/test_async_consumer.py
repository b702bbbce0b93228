"""AsyncConsumer with a broker: reading, positions, commits, rebalances with callbacks, limits of waits, and the end of a consumer."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from chaffinch import AsyncConsumer, AsyncProducer, EmbeddedBroker, OffsetAndMetadata, Producer, TopicPartition, errors
from tests.support.certificates import Certificates

LIMIT_S = 30

Scenario = Callable[[AsyncConsumer[Any, Any]], Awaitable[None]]


@pytest.fixture
def topic(shared_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    """A topic with one partition, with a name of its own."""
    name: str = request.node.name
    shared_broker.create_topic(name, 1)
    return name


def write(broker: EmbeddedBroker, topic: str, values: list[bytes], partition: int = 0) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def options_of(broker: EmbeddedBroker | str, group_id: str | None) -> dict[str, Any]:
    servers = broker if isinstance(broker, str) else broker.bootstrap_servers
    return {
        "bootstrap_servers": servers,
        "group_id": group_id,
        "auto_offset_reset": "earliest",
        "retry_backoff_ms": 10,
        "heartbeat_interval_ms": 20,
    }


def run(broker: EmbeddedBroker | str, scenario: Scenario, group_id: str | None = None, **options: Any) -> None:
    """Run a scenario with a consumer, within a time limit."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncConsumer({}, **{**options_of(broker, group_id), **options}) as consumer:
            await scenario(consumer)

    asyncio.run(limited())


async def read(consumer: AsyncConsumer, number: int) -> list[bytes | None]:
    found: list[Any] = []
    while len(found) < number:
        found += [record.value for record in await consumer.poll()]
    return found


def test_subscribed_consumer_reads_and_commits(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1", b"2", b"3"])
    tp = TopicPartition(topic, 0)

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.subscribe([topic])
        assert await read(consumer, 3) == [b"1", b"2", b"3"]
        assert consumer.subscription() == {topic}
        assert consumer.assignment() == {tp}
        assert await consumer.position(tp) == 3
        await consumer.commit({tp: 2})
        assert (await consumer.committed([tp]))[tp] == OffsetAndMetadata(2)
        assert consumer.group_metadata().group_id == topic

    run(shared_broker, scenario, topic, enable_auto_commit=False)


def test_close_commits_what_was_read(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1", b"2"])
    tp = TopicPartition(topic, 0)

    async def first(consumer: AsyncConsumer) -> None:
        await consumer.subscribe([topic])
        async for record in consumer:
            assert record.value == b"1"
            break

    async def failing(consumer: AsyncConsumer) -> None:
        await consumer.subscribe([topic])
        assert await read(consumer, 1) == [b"2"]
        raise LookupError

    async def committed(consumer: AsyncConsumer) -> None:
        assert (await consumer.committed([tp]))[tp] == OffsetAndMetadata(1)

    run(shared_broker, first, topic)
    with pytest.raises(LookupError):
        run(shared_broker, failing, topic)
    run(shared_broker, committed, topic)


def test_loop_yields_single_records_and_returns_the_rest(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"%d" % number for number in range(10)])

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        found = []
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 3:
                break
        assert await consumer.position(TopicPartition(topic, 0)) == 3
        async for record in consumer:
            found.append(record.offset)
            if record.offset == 5:
                consumer.seek(record.topic_partition, 8)
            if record.offset == 9:
                break
        assert found == [0, 1, 2, 3, 4, 5, 8, 9]
        consumer.seek_to_beginning()
        found = []
        async for record in consumer:
            found.append(record.offset)
            await consumer.close()
        assert found == [0]

    run(shared_broker, scenario)


def test_table_has_all_rows(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1", b"2"])

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        assert (await consumer.poll_table(LIMIT_S))["value"].to_pylist() == [b"1", b"2"]
        assert (await consumer.poll_table(0.01)).num_rows == 0

    run(shared_broker, scenario)


def test_paused_partition_is_not_read(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1"])
    tp = TopicPartition(topic, 0)

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([tp])
        consumer.pause([tp])
        assert consumer.paused() == {tp}
        assert await consumer.poll(0.05) == []
        consumer.resume([tp])
        assert await read(consumer, 1) == [b"1"]
        consumer.seek_to_end([tp])
        assert await consumer.position(tp) == 1
        assert consumer.metrics()["records-consumed-total"] == 1

    run(shared_broker, scenario)


def test_offsets_are_looked_up(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1", b"2"])
    tp = TopicPartition(topic, 0)

    async def scenario(consumer: AsyncConsumer) -> None:
        assert await consumer.partitions_for(topic) == [tp]
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 2}
        found = (await consumer.offsets_for_times({tp: 0}))[tp]
        assert found is not None
        assert found.offset == 0
        with pytest.raises(errors.UnknownTopicOrPartitionException):
            await consumer.end_offsets([TopicPartition(topic, 7)])

    run(shared_broker, scenario)


def test_transaction_reads_processes_and_writes(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1", b"2"])
    tp = TopicPartition(topic, 0)

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.subscribe([topic])
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=topic) as producer:
            await producer.init_transactions()
            records = await consumer.poll()
            async with producer.transaction():
                for record in records:
                    await producer.send(f"{topic}-out", record.value)
                await producer.send_offsets_to_transaction({tp: records[-1].offset + 1}, consumer.group_metadata())
        assert (await consumer.committed([tp]))[tp] == OffsetAndMetadata(records[-1].offset + 1)

    run(shared_broker, scenario, topic, enable_auto_commit=False)
    assert shared_broker.read(f"{topic}-out")["value"].to_pylist()[:1] == [b"1"]


def test_rebalance_runs_plain_and_coroutine_callbacks(shared_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    shared_broker.create_topic(name, 2)
    calls: list[tuple[str, int]] = []

    async def assigned(partitions: list[TopicPartition]) -> None:
        await asyncio.wait_for(consumers[0].committed(partitions), LIMIT_S)
        calls.append(("assigned", len(partitions)))

    def revoked(partitions: list[TopicPartition]) -> None:
        calls.append(("revoked", len(partitions)))

    consumers: list[AsyncConsumer] = []

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            consumers.append(await stack.enter_async_context(AsyncConsumer(options_of(shared_broker, name) | {})))
            await consumers[0].subscribe([name], on_assign=assigned, on_revoke=revoked)
            while len(consumers[0].assignment()) < 2:
                await consumers[0].poll(0.02)
            consumers.append(await stack.enter_async_context(AsyncConsumer(options_of(shared_broker, name))))
            await consumers[1].subscribe([name])
            while [len(consumer.assignment()) for consumer in consumers] != [1, 1]:
                for consumer in consumers:
                    await consumer.poll(0.02)
            await consumers[0].unsubscribe()
        assert calls[0] == ("assigned", 2)
        assert ("revoked", 2) in calls
        assert calls[-1] == ("revoked", 1)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_raising_coroutine_callback_fails_poll(shared_broker: EmbeddedBroker, topic: str) -> None:
    async def assigned(_: list[TopicPartition]) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().create_task(fail()), LIMIT_S)

    async def fail() -> None:
        raise LookupError("no memory of it")

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.subscribe([topic], on_assign=assigned)
        with pytest.raises(errors.KafkaException, match="the callback on_assign raised LookupError"):
            await consumer.poll()

    run(shared_broker, scenario, topic)


def test_commit_callback_runs_in_a_later_call(shared_broker: EmbeddedBroker, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    calls: list[Any] = []

    async def committed(offsets: Any, error: Any) -> None:
        calls.append((dict(offsets), error))

    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([tp])
        await consumer.commit({tp: 5}, asynchronous=True, on_commit=committed)
        while not calls:
            await consumer.poll(0.02)
        assert calls == [({tp: OffsetAndMetadata(5)}, None)]

    run(shared_broker, scenario, topic)


def test_heartbeats_go_on_without_calls(shared_broker: EmbeddedBroker, topic: str) -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.subscribe([topic])
        while not consumer.assignment():
            await consumer.poll(0.02)
        before = consumer.metrics()["heartbeat-total"]
        while consumer.metrics()["heartbeat-total"] < before + 3:
            await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.01)

    run(shared_broker, scenario, topic)


def test_second_task_is_refused(shared_broker: EmbeddedBroker, topic: str) -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        polling = asyncio.create_task(consumer.poll())
        await asyncio.wait([polling], timeout=0.01)
        with pytest.raises(errors.IllegalStateException, match="poll while another task uses the consumer"):
            await consumer.poll(0)
        assert consumer.assignment() == {TopicPartition(topic, 0)}
        await asyncio.to_thread(consumer.wakeup)
        with pytest.raises(errors.WakeupException):
            await polling

    run(shared_broker, scenario)


def test_cancelled_poll_returns_its_records_to_the_next(shared_broker: EmbeddedBroker, topic: str) -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(), 0.05)
        await asyncio.to_thread(write, shared_broker, topic, [b"1"])
        assert await read(consumer, 1) == [b"1"]

    run(shared_broker, scenario)


def test_deserializer_error_names_its_record_once(shared_broker: EmbeddedBroker, topic: str) -> None:
    write(shared_broker, topic, [b"1", b"one", b"3"])

    async def scenario(consumer: AsyncConsumer[Any, Any]) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        assert [record.value for record in await consumer.poll()] == [1]
        with pytest.raises(errors.RecordDeserializationException):
            await consumer.poll()
        consumer.seek(TopicPartition(topic, 0), 2)
        assert [record.value for record in await consumer.poll()] == [3]

    run(shared_broker, scenario, value_deserializer=int, fetch_min_bytes=1)


def test_unreachable_broker_ends_calls_after_their_timeout() -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        with pytest.raises(errors.TimeoutException, match="refused"):
            await consumer.partitions_for("topic", timeout=0.1)
        await consumer.assign([TopicPartition("topic", 0)])
        assert await consumer.poll(0.01) == []

    run("127.0.0.1:1", scenario, reconnect_backoff_ms=10)


def test_unknown_host_name_is_the_reason_of_the_timeout() -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        with pytest.raises(errors.TimeoutException, match="name not known"):
            await consumer.partitions_for("topic", timeout=2)

    run("no-such-host.invalid:9092", scenario, reconnect_backoff_ms=10)


def test_broker_restart_is_survived() -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:

        async def scenario(consumer: AsyncConsumer) -> None:
            await consumer.subscribe(["orders"])
            while not consumer.assignment():
                await consumer.poll(0.02)
            await asyncio.to_thread(broker.restart)
            await asyncio.to_thread(write, broker, "orders", [b"after"])
            assert await read(consumer, 1) == [b"after"]

        run(broker, scenario, "group")


def test_tls_and_login(tmp_path_factory: pytest.TempPathFactory) -> None:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    config = {"security.protocol": "SASL_SSL", "ssl.keystore.location": certificates.server}
    with EmbeddedBroker(topics=["orders"], config=config, users={"alice": "secret"}) as broker:
        options = {
            "security_protocol": "SASL_SSL",
            "ssl_truststore_location": certificates.root,
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": "alice",
        }

        async def scenario(consumer: AsyncConsumer) -> None:
            assert await consumer.partitions_for("orders") == [TopicPartition("orders", 0)]

        async def refused(consumer: AsyncConsumer) -> None:
            with pytest.raises(errors.SaslAuthenticationException):
                await consumer.partitions_for("orders")

        run(broker, scenario, sasl_password="secret", **options)
        run(broker, refused, sasl_password="wrong", **options)


def test_calls_before_start_and_after_close_are_refused(shared_broker: EmbeddedBroker) -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(bootstrap_servers=shared_broker.bootstrap_servers)
        assert "not started" in repr(consumer)
        with pytest.raises(errors.IllegalStateException, match=r"poll\(\): the consumer is not started"):
            await consumer.poll()
        with pytest.raises(errors.IllegalStateException, match=r"assignment\(\): the consumer is not started"):
            consumer.assignment()
        async with consumer:
            with pytest.raises(errors.IllegalStateException, match="started before"):
                await consumer.start()
        assert "closed" in repr(consumer)
        with pytest.raises(errors.IllegalStateException, match="closed"):
            await consumer.poll()
        await consumer.close()
        unused = AsyncConsumer(bootstrap_servers=shared_broker.bootstrap_servers)
        await unused.close()
        with pytest.raises(errors.IllegalStateException, match="closed before"):
            await unused.start()

    asyncio.run(scenario())


def test_other_event_loop_is_refused(shared_broker: EmbeddedBroker) -> None:
    async def other(consumer: AsyncConsumer) -> None:
        with pytest.raises(errors.IllegalStateException, match="belongs to the event loop that started it"):
            await consumer.poll()

    async def scenario(consumer: AsyncConsumer) -> None:
        await asyncio.to_thread(lambda: asyncio.run(other(consumer)))

    run(shared_broker, scenario)


def test_defect_of_the_core_fails_all_calls(shared_broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        polling = asyncio.create_task(consumer.poll())
        await asyncio.wait([polling], timeout=0.01)

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(consumer._shared.core, "handle_all", broken)
        consumer.wakeup()
        consumer.seek(TopicPartition(topic, 0), 0)
        with pytest.raises(errors.KafkaException):
            await polling
        with pytest.raises(errors.KafkaException, match="ZeroDivisionError"):
            await consumer.partitions_for(topic)

    run(shared_broker, scenario)


def test_unclosed_consumer_is_a_resource_warning(shared_broker: EmbeddedBroker, topic: str) -> None:
    async def scenario() -> None:
        consumer = await AsyncConsumer(bootstrap_servers=shared_broker.bootstrap_servers).start()
        await consumer.assign([TopicPartition(topic, 0)])
        await consumer.poll(0.01)
        runner = consumer._runner
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del consumer
            gc.collect()
        assert [warning.category for warning in caught] == [ResourceWarning]
        assert runner is not None
        while not runner.is_stopping:
            await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.01)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_forked_child_is_refused(shared_broker: EmbeddedBroker, topic: str) -> None:
    async def scenario(consumer: AsyncConsumer) -> None:
        await consumer.assign([TopicPartition(topic, 0)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(errors.IllegalStateException, match="belongs to the process that made it"):
                    consumer.poll().send(None)
                with pytest.raises(StopIteration):
                    consumer.close().send(None)
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}

    run(shared_broker, scenario)
