"""Waits for a missing topic, partition or broker are logged once, with the cause and the limit."""

from __future__ import annotations

import logging
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import (
    BufferExhaustedException,
    IllegalStateException,
    NetworkException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from chaffinch.producer.send_gate import SendGate
from tests.producer.threads import blocked_sender

Make = Callable[..., Producer]
SILENT_MS = 40
BLOCK_MS = 80


class SimulatedTime:
    """Clock of a send gate: it stands still until a cause is known, and then advances by the time that the caller would wait."""

    def __init__(self, gate: SendGate) -> None:
        self._gate, self._steady_ms = gate, gate.clock.steady_ms()
        self._wait, self._wait_for_metadata = gate.changed.wait, gate._wait_for_metadata

    def steady_ms(self) -> int:
        return self._steady_ms

    def wait_for_metadata(self, metadata_wait: Any) -> Any:
        self._search = metadata_wait
        return self._wait_for_metadata(metadata_wait)

    def wait(self, timeout_s: float) -> bool:
        topic, partition, reasons = self._search.topic, self._search.partition, self._gate.core.wait_causes
        is_unknown = reasons.unknown_topic(topic, partition, self._search.started_ms) is not None
        if is_unknown or "(refused)" in reasons.topic_timeout(topic, partition, 0).message:
            self._steady_ms += math.ceil(1000 * timeout_s)
            return False
        return bool(self._wait(0.01))


@pytest.fixture(autouse=True)
def short_log_delay(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr("chaffinch.producer.send_gate.SILENT_MS", SILENT_MS)
    with caplog.at_level(logging.WARNING, "chaffinch.producer"):
        yield


def with_simulated_time(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> Producer:
    simulated = SimulatedTime(producer._gate)
    monkeypatch.setattr(producer._gate, "clock", simulated)
    monkeypatch.setattr(producer._gate, "_wait_for_metadata", simulated.wait_for_metadata)
    monkeypatch.setattr(producer._gate.changed, "wait", simulated.wait)
    return producer


@pytest.fixture
def patient_producer_of(producer_of: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """As `producer_of`, with simulated time: independent of the load of the machine."""
    return lambda broker, **options: with_simulated_time(producer_of(broker, **options), monkeypatch)


def only_log_line(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [record.getMessage() for record in caplog.records if record.name == "chaffinch.producer"]
    return line


@contextmanager
def on_log_line(act: Callable[[], object]) -> Iterator[None]:
    """Run `act` on the waiting thread while it logs its wait."""
    logger = logging.getLogger("chaffinch.producer")

    def act_and_pass(record: logging.LogRecord) -> bool:
        act()
        return True

    logger.addFilter(act_and_pass)
    try:
        yield
    finally:
        logger.removeFilter(act_and_pass)


def send_error(producer: Producer, topic: str, partition: int | None, *, is_table: bool) -> Any:
    """Send a record, and return its error."""
    if not is_table:
        return producer.send(topic, b"v", partition=partition).exception(0)
    columns: dict[str, Any] = {"value": [b"v"]} | ({} if partition is None else {"partition": [partition]})
    return producer.send_table(topic, pa.table(columns)).result(0).errors()[0]


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize(
    ("topic", "partition", "text"),
    [
        ("ordres", None, "no broker knows the topic 'ordres'"),
        ("orders", 99, "topic 'orders' has 3 partitions, there is no partition 99"),
    ],
)
def test_missing_topic_or_partition_is_logged_and_times_out(
    patient_producer_of: Make,
    strict_broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    topic: str,
    partition: int | None,
    text: str,
    is_table: bool,
) -> None:
    with patient_producer_of(strict_broker, max_block_ms=BLOCK_MS) as producer:
        error = send_error(producer, topic, partition, is_table=is_table)
    assert isinstance(error, TimeoutException)
    assert isinstance(error.__cause__, UnknownTopicOrPartitionException)
    assert only_log_line(caplog).startswith(f"chaffinch-producer-sender: {text}; ")
    assert only_log_line(caplog).endswith(f"retrying for up to {BLOCK_MS} ms (max.block.ms)")


def test_option_with_the_nearest_limit_is_named(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with patient_producer_of(strict_broker, retry_unknown_topic_partition_ms=BLOCK_MS) as producer:
        assert isinstance(send_error(producer, "ordres", None, is_table=False), UnknownTopicOrPartitionException)
    assert only_log_line(caplog).endswith(f"for up to {BLOCK_MS} ms (retry.unknown.topic.partition.ms)")


def test_unreachable_broker_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # The port is bound, so no other process gets it, but not listening.
        address = "{}:{}".format(*taken.getsockname())
        with Producer(bootstrap_servers=address, max_block_ms=BLOCK_MS, retry_unknown_topic_partition_ms=0) as producer:
            assert isinstance(send_error(with_simulated_time(producer, monkeypatch), "orders", None, is_table=False), TimeoutException)
    assert f"no broker reachable at {address}" in only_log_line(caplog)
    assert only_log_line(caplog).endswith(f"retrying for up to {BLOCK_MS} ms (max.block.ms)")


def test_existing_topic_is_not_waited_for(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with patient_producer_of(strict_broker) as producer:
        assert producer.send("orders", b"v", partition=2).result(60).offset == 0
    assert not caplog.records


@pytest.mark.parametrize("option", ["max_block_ms", "retry_unknown_topic_partition_ms"])
def test_each_row_error_has_its_partition_and_the_code_of_the_cause(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, option: str
) -> None:
    with patient_producer_of(strict_broker, **{option: BLOCK_MS}) as producer:
        result = producer.send_table("orders", pa.table({"value": ["a", "b", "c"], "partition": [71, 75, 0]})).result(60)
    assert result.written == 1
    rejected = result.rejected.to_pylist()
    assert [row["partition"] for row in rejected] == [71, 75]
    for row in rejected:
        assert f"topic 'orders' has 3 partitions, there is no partition {row['partition']}" in row["message"]
        assert (row["code"], row["error"], row["group"]) == (3, "UNKNOWN_TOPIC_OR_PARTITION", "RefreshRetriable")
        error = result.errors()[row["row"]]
        assert type(error) is (TimeoutException if option == "max_block_ms" else UnknownTopicOrPartitionException)


def test_missing_topics_of_a_table_share_one_limit(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a stream returns to one of them: the limit counts from the first wait."""
    started: list[tuple[str, Any]] = []
    wait = SendGate.wait_for_topic

    def watched(gate: SendGate, topic: str, partition: int | None, record_of: Any, started_ms: int | None = None, call: str = "") -> Any:
        started.append((topic, started_ms))
        return wait(gate, topic, partition, record_of, started_ms, call)

    monkeypatch.setattr(SendGate, "wait_for_topic", watched)
    names = [f"nowhere-{number}" for number in range(8)]
    batch = pa.record_batch({"value": ["v"] * 10, "topic": [*names, "orders", "orders"], "partition": [0] * 9 + [99]})
    with patient_producer_of(strict_broker, max_block_ms=BLOCK_MS, batch_size=1) as producer:
        producer.partitions_for("orders")
        started.clear()
        result = producer.send_table(None, pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])).result(60)
    assert (result.written, result.rejected_count) == (2, 18)
    assert set(result.rejected.column("error").to_pylist()) == {"UNKNOWN_TOPIC_OR_PARTITION"}
    assert [topic for topic, _ in started] == [*names, "orders", "orders"] * 2
    assert len({started_ms for _, started_ms in started}) == 1
    assert None not in dict(started).values()


CALLS = pytest.mark.parametrize(
    ("call", "arguments"),
    [("send", ("ordres", b"v")), ("send_table", ("ordres", pa.table({"value": [b"v"]}))), ("partitions_for", ("ordres",))],
)


@CALLS
def test_concurrent_close_names_the_waiting_call(
    producer_of: Make, strict_broker: EmbeddedBroker, call: str, arguments: tuple[Any, ...]
) -> None:
    is_waiting = threading.Event()
    with (
        producer_of(strict_broker, max_block_ms=60_000) as producer,
        on_log_line(is_waiting.set),
        ThreadPoolExecutor(1) as other,
    ):
        waiting = other.submit(getattr(producer, call), *arguments)
        assert is_waiting.wait(60), "no line reports the wait"
        producer.close()
        with pytest.raises(IllegalStateException, match=rf"^{call}\(\): close\(\) was called"):
            waiting.result(60)


@CALLS
def test_close_during_the_log_line_is_not_missed(
    producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, call: str, arguments: tuple[Any, ...]
) -> None:
    """A thread that does not wait yet is not woken by a notification, and no second one follows."""
    producer = producer_of(strict_broker, max_block_ms=60_000)
    gate, wait = producer._gate, producer._gate.changed.wait

    def wait_unless_closed(timeout: float | None = None) -> bool:
        assert not gate.is_closed, "waits although no thread is left to wake it up"
        return bool(wait(timeout))

    monkeypatch.setattr(gate.changed, "wait", wait_unless_closed)
    with on_log_line(producer.close), pytest.raises(IllegalStateException, match=rf"^{call}\(\): close\(\) was called"):
        getattr(producer, call)(*arguments)


def test_long_wait_is_logged_at_growing_intervals(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with patient_producer_of(strict_broker, max_block_ms=90_000) as producer, pytest.raises(TimeoutException, match="'ordres'"):
        producer.partitions_for("ordres")
    lines = [record.getMessage() for record in caplog.records if record.name == "chaffinch.producer"]
    assert [int(re.findall(r"waited for (\d+) ms", line)[0]) for line in lines] == [
        SILENT_MS + pause for pause in (0, 10_000, 30_000, 70_000)
    ]


def test_timed_out_flush_names_the_cause(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    why = NetworkException("its leader cannot be reached")
    with producer_of(strict_broker) as producer:
        producer.partitions_for("orders")
        with blocked_sender(producer):
            producer.send("orders", b"v")
            monkeypatch.setattr(producer._core.wait_causes, "cause", lambda: why)
            with pytest.raises(
                TimeoutException, match="because of NETWORK_EXCEPTION \\(its leader cannot be reached\\); it continues"
            ) as raised:
                producer.flush(0.01)
    assert raised.value.__cause__ is why


def test_memory_timeout_names_the_cause(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    why = NetworkException("its leader cannot be reached")
    with producer_of(strict_broker, max_block_ms=100) as producer:
        producer.partitions_for("orders")
        with producer._changed:
            producer._core.accumulator.memory_free = 0
        monkeypatch.setattr(producer._core.wait_causes, "cause", lambda: why)
        error = producer.send("orders", b"v").exception(60)
    assert isinstance(error, BufferExhaustedException)
    assert "the records that hold it wait because of NETWORK_EXCEPTION (its leader cannot be reached)" in str(error)
    assert error.__cause__ is why


@pytest.mark.parametrize("topic", ["ordres", "orders"])
def test_longest_max_block_ms_waits_until_close(
    producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Kafka Connect sets it. Here the wait, for a missing topic or for memory, ends with close."""
    is_waiting = threading.Event()
    with producer_of(strict_broker, max_block_ms=2**63 - 1) as producer, ThreadPoolExecutor(1) as other:
        producer.partitions_for("orders")
        wait = producer._gate.changed.wait

        def wait_long(timeout_s: float) -> bool:
            if timeout_s > 1:  # Longer than the wait for the first line.
                is_waiting.set()
            return bool(wait(timeout_s))

        monkeypatch.setattr(producer._gate.changed, "wait", wait_long)
        with producer._changed:
            producer._core.accumulator.memory_free = 0
        waiting = other.submit(producer.send, topic, b"v")
        assert is_waiting.wait(60), "it does not wait"
        producer.close()
        with pytest.raises(IllegalStateException, match="close\\(\\) was called"):
            waiting.result(60)


def test_all_waits_of_a_call_share_one_limit(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    with producer_of(strict_broker) as producer:
        gate, accumulator, wait_for_topic = producer._gate, producer._core.accumulator, producer._gate.wait_for_topic

        def topic_watched(*arguments: Any) -> Any:
            started.append(arguments[-1])
            return wait_for_topic(*arguments)

        def memory_watched(size: int, started_ms: int, **_: Any) -> None:
            started.append(started_ms)
            accumulator.memory_free = accumulator.memory_bytes

        with monkeypatch.context() as patched:
            patched.setattr(gate, "wait_for_topic", topic_watched)
            patched.setattr(gate, "wait_for_memory", memory_watched)
            accumulator.memory_free = 0
            assert producer.send("orders", b"v").result(60).offset == 0
        assert started[0] == started[1] is not None
        with gate.lock, monkeypatch.context() as patched:
            woken: list[bool] = []
            patched.setattr(gate.changed, "notify_all", lambda: woken.append(True))
            accumulator.memory_free = 70
            error = gate.wait_for_memory(100, gate.clock.steady_ms() - 60_000)
            assert isinstance(error, BufferExhaustedException)
            assert "70 free; waited for" in str(error)
            assert woken, "the memory reserved for this waiter may be enough for the next"
            accumulator.memory_free = accumulator.memory_bytes


class TestUnusedMemoryGrant:
    """The next thread in the queue is woken: perhaps no other memory becomes free."""

    def test_interrupted_waiter_wakes_the_next(
        self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with producer_of(strict_broker) as producer, producer._gate.lock, monkeypatch.context() as patched:
            gate, accumulator, woken = producer._gate, producer._core.accumulator, []

            def interrupted(timeout_s: float) -> None:
                accumulator.release(accumulator.memory_bytes)
                raise KeyboardInterrupt

            patched.setattr(gate.changed, "wait", interrupted)
            patched.setattr(gate.changed, "notify_all", lambda: woken.append(accumulator.memory_free))
            accumulator.memory_free = 0
            with pytest.raises(KeyboardInterrupt):
                gate.wait_for_memory(100)
            assert woken == [accumulator.memory_bytes]

    def test_waiter_whose_topic_is_gone_wakes_the_next(
        self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with producer_of(strict_broker) as producer:
            producer.partitions_for("orders")
            counts, woken, notify_all = iter([1, None]), [], producer._changed.notify_all

            def freed(timeout_ms: int) -> None:
                accumulator.memory_free = accumulator.memory_bytes

            def recorded_notify() -> None:
                woken.append(True)
                notify_all()

            accumulator = producer._core.accumulator
            monkeypatch.setattr(producer._core, "usable_count", lambda topic, partition: next(counts, 1))
            monkeypatch.setattr(producer._gate, "_wait", freed)
            monkeypatch.setattr(producer._gate, "wait_for_topic", lambda *arguments: assert_woken())

            def assert_woken() -> None:
                assert woken

            with blocked_sender(producer):
                monkeypatch.setattr(producer._changed, "notify_all", recorded_notify)
                accumulator.memory_free = 0
                waiting = producer.send("orders", b"v")
            assert waiting.result(60).offset == 0

    @pytest.mark.parametrize(
        ("step", "call", "argument"),
        [("append", "send", b"v"), ("append_batch", "send_table", pa.table({"value": [b"v"]}))],
        ids=["send", "send_table"],
    )
    def test_caller_interrupted_after_the_grant_wakes_the_next(
        self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, step: str, call: str, argument: object
    ) -> None:
        with producer_of(strict_broker) as producer:
            producer.partitions_for("orders")
            accumulator, woken = producer._core.accumulator, []

            def interrupted(*_: object, **_named: object) -> NoReturn:
                raise KeyboardInterrupt

            with blocked_sender(producer), monkeypatch.context() as patched:
                patched.setattr(producer._gate, "_wait", lambda timeout_ms: accumulator.release(accumulator.memory_bytes))
                patched.setattr(producer._core, step, interrupted)
                patched.setattr(producer._changed, "notify_all", lambda: woken.append(accumulator.memory_free))
                accumulator.memory_free = 0
                with pytest.raises(KeyboardInterrupt):
                    getattr(producer, call)("orders", argument)
            assert woken == [accumulator.memory_bytes]

    def test_used_memory_grant_wakes_no_other_waiter(
        self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise each of many waiters would wake up only to wait again."""
        with producer_of(strict_broker) as producer, producer._gate.lock, monkeypatch.context() as patched:
            gate, accumulator, woken = producer._gate, producer._core.accumulator, []
            patched.setattr(gate.changed, "wait", lambda timeout_s: accumulator.release(accumulator.memory_bytes))
            patched.setattr(gate.changed, "notify_all", lambda: woken.append(True))
            accumulator.memory_free = 0
            assert gate.wait_for_memory(100) is None
            assert not woken


def test_waiting_caller_is_notified_of_close(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close itself may take long, for records in flight or an exception handler."""
    with producer_of(strict_broker) as producer, producer._gate.lock, monkeypatch.context() as patched:
        closed: list[bool] = []
        patched.setattr(producer._gate.changed, "notify_all", lambda: closed.append(producer._gate.is_closed))
        producer._gate.close()
        assert closed == [True]
