"""AsyncProducer with a broker: outcomes, tables, transactions, waits and their limits, and the end of a producer."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import AsyncProducer, EmbeddedBroker, NonRetriableResponse, ProducerExceptionHandler, RecordMetadata, TopicPartition, errors
from tests.support.certificates import Certificates

LIMIT_S = 30

Scenario = Callable[[AsyncProducer], Awaitable[None]]


def run(broker: EmbeddedBroker | str, scenario: Scenario, **options: Any) -> None:
    """Run a scenario with a producer, within a time limit."""
    servers = broker if isinstance(broker, str) else broker.bootstrap_servers

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncProducer(bootstrap_servers=servers, **{"retry_backoff_ms": 10, **options}) as producer:
            await scenario(producer)

    asyncio.run(limited())


def values(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    found: list[bytes] = broker.read(topic)["value"].to_pylist()
    return found


def test_sent_record_has_its_metadata(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        future = await producer.send("metadata", "text", key=b"key", headers=[("name", b"x")], timestamp_ms=5)
        assert await future == future.result() == RecordMetadata("metadata", 0, 0, 5)
        assert (await producer.send_and_wait("metadata", b"next")).offset == 1
        assert await producer.partitions_for("metadata") == [TopicPartition("metadata", 0)]

    run(shared_broker, scenario)
    assert values(shared_broker, "metadata") == [b"text", b"next"]


def test_unknown_outcome_is_not_waited_for_by_result(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        future = await producer.send("early", b"")
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        with pytest.raises(asyncio.InvalidStateError):
            future.exception()
        await future
        assert future.exception() is None

    run(shared_broker, scenario, linger_ms=50)


def test_culprit_fails_alone(shared_broker: EmbeddedBroker) -> None:
    shared_broker.create_topic("latest", config={"cleanup.policy": "compact"})
    delivered: list[Any] = []

    async def scenario(producer: AsyncProducer) -> None:
        keys = [b"a", None, b"c"]
        futures = [await producer.send("latest", b"v", key=key, on_delivery=lambda *given: delivered.append(given)) for key in keys]
        first, culprit, last = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(first, RecordMetadata)
        assert isinstance(culprit, errors.InvalidCompactionKeyException)
        assert isinstance(last, RecordMetadata)

    run(shared_broker, scenario, linger_ms=50)
    assert sorted(error is None for _, error in delivered) == [False, True, True]
    assert len(values(shared_broker, "latest")) == 2


def test_table_reports_each_row(shared_broker: EmbeddedBroker) -> None:
    shared_broker.create_topic("rows", config={"cleanup.policy": "compact"})

    async def scenario(producer: AsyncProducer) -> None:
        result = await (await producer.send_table("rows", pa.table({"key": [b"a", None, b"c"], "value": [b"1", b"2", b"3"]})))
        assert (result.written, result.rejected["row"].to_pylist()) == (2, [1])
        with pytest.raises(ValueError, match="colour"):
            await producer.send_table("rows", pa.table({"colour": [b"1"]}))

    run(shared_broker, scenario)


def test_table_larger_than_the_memory_leaves_the_loop_to_other_tasks(shared_broker: EmbeddedBroker) -> None:
    turns = 0

    async def scenario(producer: AsyncProducer) -> None:
        nonlocal turns
        sending = asyncio.create_task(_send_table(producer))
        while not sending.done():
            turns += 1
            await asyncio.wait([sending], timeout=0)
        assert (await sending).written == 20_000

    async def _send_table(producer: AsyncProducer) -> Any:
        return await (await producer.send_table("large", pa.table({"value": [b"x" * 100] * 20_000})))

    run(shared_broker, scenario, buffer_memory=100_000, batch_size=16_000)
    assert turns > 100


def test_failed_stream_says_how_many_rows_were_sent(shared_broker: EmbeddedBroker) -> None:
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Any:
        for _ in range(3):
            yield pa.record_batch({"value": [b"x" * 1000] * 50}, schema=schema)
        raise LookupError("the source has failed")

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(LookupError) as caught:
            await producer.send_table("stream", pa.RecordBatchReader.from_batches(schema, batches()))
        [note] = caught.value.__notes__
        await producer.flush()
        assert note.startswith(f"{len(values(shared_broker, 'stream'))} rows before this one were handed over")

    run(shared_broker, scenario, batch_size=20_000)


def test_transactions_commit_and_abort(shared_broker: EmbeddedBroker) -> None:
    async def failing_transaction(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send("payments", b"aborted")
            raise LookupError

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(errors.IllegalStateException):
            await producer.begin_transaction()
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("payments", b"committed")
        with pytest.raises(LookupError):
            await failing_transaction(producer)
        with pytest.raises(errors.IllegalStateException):
            await producer.send("payments", b"outside")
        async with producer.transaction():
            await producer.send("payments", b"by hand")
            await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("payments", b"open")  # `close` aborts it.

    run(shared_broker, scenario, transactional_id="payments")
    assert values(shared_broker, "payments") == [b"committed"]


def test_failed_record_fails_the_commit(shared_broker: EmbeddedBroker) -> None:
    shared_broker.create_topic("strict", config={"cleanup.policy": "compact"})

    async def scenario(producer: AsyncProducer) -> None:
        await producer.init_transactions()
        with pytest.raises(errors.InvalidCompactionKeyException):
            async with producer.transaction():
                await producer.send("strict", b"without a key")
        async with producer.transaction():
            await producer.send("strict", b"v", key=b"key")

    run(shared_broker, scenario, transactional_id="strict")
    assert values(shared_broker, "strict") == [b"v"]


def test_transaction_calls_need_a_transactional_id(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(errors.IllegalStateException, match=r"give the producer the option transactional\.id"):
            await producer.init_transactions()

    run(shared_broker, scenario)


def test_unreachable_broker_ends_send_after_max_block_ms() -> None:
    async def scenario(producer: AsyncProducer) -> None:
        future = await producer.send("topic", b"")
        with pytest.raises(errors.TimeoutException, match="refused"):
            await future
        with pytest.raises(errors.TimeoutException, match="refused"):
            await producer.partitions_for("topic")

    run("127.0.0.1:1", scenario, max_block_ms=200, reconnect_backoff_ms=20)


def test_unknown_host_name_is_the_reason_of_the_timeout() -> None:
    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(errors.TimeoutException, match="name not known"):
            await producer.send_and_wait("topic", b"")

    run("no-such-host.invalid:9092", scenario, max_block_ms=2000, reconnect_backoff_ms=20)


def test_host_name_is_looked_up(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        await producer.send_and_wait("by-name", b"")

    run(shared_broker.bootstrap_servers.replace("127.0.0.1", "localhost"), scenario)


def test_full_memory_ends_send_after_max_block_ms(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        await producer.partitions_for("full")
        shared_broker.faults.add("Produce", topic="full", action="delay", delay_ms=1000)
        first = await producer.send("full", b"x" * 20_000)
        second = await producer.send("full", b"x" * 20_000)
        with pytest.raises(errors.TimeoutException, match=r"buffer\.memory"):
            await second
        await first

    run(shared_broker, scenario, buffer_memory=30_000, max_block_ms=100)


def test_too_large_record_fails_its_future(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(errors.RecordTooLargeException):
            await (await producer.send("large", b"x" * 2000))

    run(shared_broker, scenario, max_request_size=1000)


def test_exception_handler_may_drop_a_record(shared_broker: EmbeddedBroker) -> None:
    class Dropping(ProducerExceptionHandler):
        def handle_record_too_large(self, record: Any, error: Any) -> NonRetriableResponse:
            return NonRetriableResponse.SWALLOW

    async def scenario(producer: AsyncProducer) -> None:
        assert (await producer.send_and_wait("large", b"x" * 2000)).dropped

    run(shared_broker, scenario, max_request_size=1000, custom_exception_handler_class=Dropping)


def test_raising_partitioner_ends_send_and_nothing_else(shared_broker: EmbeddedBroker) -> None:
    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        if value == b"bad":
            raise LookupError("no partition")
        return 0

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(LookupError):
            await producer.send("chosen", b"bad")
        assert (await producer.send_and_wait("chosen", b"good")).partition == 0

    run(shared_broker, scenario, partitioner=choose)


def test_callback_may_start_a_send(shared_broker: EmbeddedBroker) -> None:
    started: list[asyncio.Task[RecordMetadata]] = []

    async def scenario(producer: AsyncProducer) -> None:
        def delivered(*_: Any) -> None:
            started.append(asyncio.get_running_loop().create_task(producer.send_and_wait("echo", b"second")))

        await (await producer.send("echo", b"first", on_delivery=delivered))
        assert (await started[0]).offset == 1

    run(shared_broker, scenario)


def test_raising_callback_is_logged(shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    def delivered(*_: Any) -> None:
        raise SystemExit

    async def scenario(producer: AsyncProducer) -> None:
        future = await producer.send("raising", b"", on_delivery=delivered)
        await future
        await producer.send_and_wait("raising", b"")

    run(shared_broker, scenario)
    assert "a delivery callback raised" in caplog.text


def test_flush_ends_at_its_timeout_and_goes_on(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        await producer.flush(0)  # Nothing to wait for.
        await producer.partitions_for("slow")
        shared_broker.faults.add("Produce", topic="slow", action="delay", delay_ms=300)
        future = await producer.send("slow", b"")
        with pytest.raises(errors.TimeoutException, match=r"flush\(\) is not done after 10 ms"):
            await producer.flush(0.01)
        await producer.flush()
        assert future.done()

    run(shared_broker, scenario)


def test_broker_restart_is_survived(tmp_path: Any) -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:

        async def scenario(producer: AsyncProducer) -> None:
            await producer.send_and_wait("orders", b"before")
            await asyncio.to_thread(broker.restart)
            await producer.send_and_wait("orders", b"after")

        run(broker, scenario)
        assert values(broker, "orders")[-1] == b"after"


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

        async def scenario(producer: AsyncProducer) -> None:
            assert (await producer.send_and_wait("orders", b"x" * 500_000)).offset == 0

        async def refused(producer: AsyncProducer) -> None:
            with pytest.raises(errors.SaslAuthenticationException):
                await producer.send_and_wait("orders", b"")

        run(broker, scenario, sasl_password="secret", **options)
        run(broker, refused, sasl_password="wrong", **options)


def test_calls_before_start_and_after_close_are_refused(shared_broker: EmbeddedBroker) -> None:
    async def scenario() -> None:
        producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers)
        assert "not started" in repr(producer)
        with pytest.raises(errors.IllegalStateException, match=r"send\(\): the producer is not started"):
            await producer.send("topic", b"")
        async with producer:
            with pytest.raises(errors.IllegalStateException, match="started before"):
                await producer.start()
        assert "closed" in repr(producer)
        for call in (producer.send("topic", b""), producer.flush(), producer.send_table("topic", pa.table({"value": [b""]}))):
            with pytest.raises(errors.IllegalStateException, match="closed"):
                await call
        await producer.close()
        assert producer.metrics()["record-send-total"] == 0
        unused = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers)
        await unused.close()
        with pytest.raises(errors.IllegalStateException, match="closed"):
            await unused.start()

    asyncio.run(scenario())


def test_other_event_loop_is_refused(shared_broker: EmbeddedBroker) -> None:
    async def other(producer: AsyncProducer) -> None:
        with pytest.raises(errors.IllegalStateException, match="belongs to the event loop that started it"):
            await producer.send("topic", b"")

    async def scenario(producer: AsyncProducer) -> None:
        await asyncio.to_thread(lambda: asyncio.run(other(producer)))

    run(shared_broker, scenario)


def test_future_is_awaited_on_another_loop(shared_broker: EmbeddedBroker) -> None:
    async def wait_for(future: Any) -> None:
        await future

    async def scenario(producer: AsyncProducer) -> None:
        future = await producer.send("elsewhere", b"")
        await asyncio.to_thread(lambda: asyncio.run(wait_for(future)))

    run(shared_broker, scenario, linger_ms=100)


def test_close_with_a_timeout_fails_what_is_left(shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        await producer.partitions_for("unanswered")
        shared_broker.faults.add("Produce", topic="unanswered", action="delay", delay_ms=400)
        future = await producer.send("unanswered", b"")
        await producer.close(timeout=0.05)
        error = future.exception()
        assert isinstance(error, errors.KafkaException)
        assert error.stored is errors.Stored.POSSIBLY

    run(shared_broker, scenario)
    assert "close: 1 record given up without an outcome" in caplog.text


def test_defect_of_the_core_fails_all_calls(shared_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        await producer.partitions_for("defect")
        future = await producer.send("defect", b"")

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(producer._core, "handle_all", broken)
        with pytest.raises(errors.KafkaException, match="ZeroDivisionError"):
            await producer.flush()
        with pytest.raises(errors.KafkaException, match="ZeroDivisionError"):
            await future
        with pytest.raises(errors.KafkaException, match="ZeroDivisionError"):
            await producer.send_and_wait("defect", b"")

    run(shared_broker, scenario)


def test_unclosed_producer_is_a_resource_warning_and_sends_its_records(
    shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        producer = await AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=100).start()
        future = await producer.send("abandoned", b"v")
        network = producer._sender._network  # type: ignore[union-attr]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
            gc.collect()
        assert [warning.category for warning in caught] == [ResourceWarning]
        assert "was not closed" in str(caught[0].message)
        await future
        while not network.is_closed:
            await asyncio.wait([asyncio.create_task(asyncio.wait_for(asyncio.Event().wait(), 0.01))])

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
    assert values(shared_broker, "abandoned") == [b"v"]


def test_producer_of_an_ended_loop_closes_its_sockets(shared_broker: EmbeddedBroker) -> None:
    kept: list[AsyncProducer] = []

    async def scenario() -> None:
        kept.append(await AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers).start())
        await kept[0].send_and_wait("ended", b"v")

    asyncio.run(scenario())
    network = kept[0]._sender._network  # type: ignore[union-attr]
    with pytest.warns(ResourceWarning, match="was not closed"):
        kept.clear()
    assert network.is_closed


def test_forked_child_is_refused(shared_broker: EmbeddedBroker) -> None:
    async def scenario(producer: AsyncProducer) -> None:
        await producer.send_and_wait("forked", b"parent")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(errors.IllegalStateException, match="belongs to the process that made it"):
                    producer.send("forked", b"child").send(None)
                with pytest.raises(StopIteration):
                    producer.close().send(None)
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await producer.send_and_wait("forked", b"parent again")

    run(shared_broker, scenario)
    assert values(shared_broker, "forked") == [b"parent", b"parent again"]


def test_idle_connection_is_opened_again(shared_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    servers = shared_broker.bootstrap_servers.replace("127.0.0.1", "localhost")

    async def scenario(producer: AsyncProducer) -> None:
        await producer.send_and_wait("idle", b"")
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.1)
        await producer.send_and_wait("idle", b"")

    with caplog.at_level(logging.WARNING):
        run(servers, scenario, connections_max_idle_ms=30)
    assert not caplog.records


def test_producer_works_with_uvloop(shared_broker: EmbeddedBroker) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
            assert (await producer.send_and_wait("uvloop", b"v")).offset == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), LIMIT_S))
