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
from tests.producer.threads import held_up

Make = Callable[..., Producer]
SILENT_MS = 40
BLOCK_MS = 80


class PlayedTime:
    """Time at a producer's door: it stands until there is something to be told, and then passes as long as its caller would wait."""

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
        return self._wait(0.01)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr("chaffinch.producer.send_gate.SILENT_MS", SILENT_MS)
    with caplog.at_level(logging.WARNING, "chaffinch.producer"):
        yield


def with_played_time(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> Producer:
    played = PlayedTime(producer._gate)
    monkeypatch.setattr(producer._gate, "clock", played)
    monkeypatch.setattr(producer._gate, "_wait_for_metadata", played.wait_for_metadata)
    monkeypatch.setattr(producer._gate.changed, "wait", played.wait)
    return producer


@pytest.fixture
def patient_producer_of(producer_of: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """As `producer_of`, on any machine however loaded."""
    return lambda broker, **options: with_played_time(producer_of(broker, **options), monkeypatch)


def said(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [record.getMessage() for record in caplog.records if record.name == "chaffinch.producer"]
    return line


@contextmanager
def once_it_is_said(act: Callable[[], object]) -> Iterator[None]:
    """Act in the thread that says what it waits for, while it says so."""
    logger = logging.getLogger("chaffinch.producer")

    def hear(record: logging.LogRecord) -> bool:
        act()
        return True

    logger.addFilter(hear)
    try:
        yield
    finally:
        logger.removeFilter(hear)


def sent(producer: Producer, topic: str, partition: int | None, *, is_table: bool) -> Any:
    """The error of a record."""
    if not is_table:
        return producer.send(topic, b"v", partition=partition).exception(0)
    columns: dict[str, Any] = {"value": [b"v"]} | ({} if partition is None else {"partition": [partition]})
    return producer.send_table(topic, pa.table(columns)).result(0).errors()[0]


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize(
    ("topic", "partition", "says"),
    [
        ("ordres", None, "no broker knows the topic 'ordres'"),
        ("orders", 99, "topic 'orders' has 3 partitions, there is no partition 99"),
    ],
)
def test_what_is_not_there(
    patient_producer_of: Make,
    strict_broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    topic: str,
    partition: int | None,
    says: str,
    is_table: bool,
) -> None:
    with patient_producer_of(strict_broker, max_block_ms=BLOCK_MS) as producer:
        error = sent(producer, topic, partition, is_table=is_table)
    assert isinstance(error, TimeoutException)
    assert isinstance(error.__cause__, UnknownTopicOrPartitionException)
    assert said(caplog).startswith(f"chaffinch-producer-sender: {says}; ")
    assert said(caplog).endswith(f"still asking, for up to {BLOCK_MS} ms (max.block.ms)")


def test_the_option_that_ends_it_first_is_named(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with patient_producer_of(strict_broker, retry_unknown_topic_partition_ms=BLOCK_MS) as producer:
        assert isinstance(sent(producer, "ordres", None, is_table=False), UnknownTopicOrPartitionException)
    assert said(caplog).endswith(f"for up to {BLOCK_MS} ms (retry.unknown.topic.partition.ms)")


def test_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens there, and nobody else gets the port.
        address = "{}:{}".format(*taken.getsockname())
        with Producer(bootstrap_servers=address, max_block_ms=BLOCK_MS, retry_unknown_topic_partition_ms=0) as producer:
            assert isinstance(sent(with_played_time(producer, monkeypatch), "orders", None, is_table=False), TimeoutException)
    assert f"no broker reachable at {address}" in said(caplog)
    assert said(caplog).endswith(f"still asking, for up to {BLOCK_MS} ms (max.block.ms)")


def test_what_is_there_is_not_waited_for(
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


def test_topics_of_a_table_are_waited_for_together(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a stream comes to one of them again: since the first one was asked for."""
    since: list[tuple[str, Any]] = []
    wait = SendGate.wait_for_topic

    def watched(gate: SendGate, topic: str, partition: int | None, record_of: Any, started_ms: int | None = None, call: str = "") -> Any:
        since.append((topic, started_ms))
        return wait(gate, topic, partition, record_of, started_ms, call)

    monkeypatch.setattr(SendGate, "wait_for_topic", watched)
    names = [f"nowhere-{number}" for number in range(8)]
    batch = pa.record_batch({"value": ["v"] * 10, "topic": [*names, "orders", "orders"], "partition": [0] * 9 + [99]})
    with patient_producer_of(strict_broker, max_block_ms=BLOCK_MS, batch_size=1) as producer:
        producer.partitions_for("orders")
        since.clear()
        result = producer.send_table(None, pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])).result(60)
    assert (result.written, result.rejected_count) == (2, 18)
    assert set(result.rejected.column("error").to_pylist()) == {"UNKNOWN_TOPIC_OR_PARTITION"}
    assert [topic for topic, _ in since] == [*names, "orders", "orders"] * 2
    assert len({started_ms for _, started_ms in since}) == 1
    assert None not in dict(since).values()


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
        once_it_is_said(is_waiting.set),
        ThreadPoolExecutor(1) as other,
    ):
        waiting = other.submit(getattr(producer, call), *arguments)
        assert is_waiting.wait(60), "no line says that it waits"
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

    def wait_for_somebody(timeout: float | None = None) -> bool:
        assert not gate.is_closed, "waits although nobody is left to wake it up"
        return wait(timeout)

    monkeypatch.setattr(gate.changed, "wait", wait_for_somebody)
    with once_it_is_said(producer.close), pytest.raises(IllegalStateException, match=rf"^{call}\(\): close\(\) was called"):
        getattr(producer, call)(*arguments)


def test_lines_of_a_long_wait_come_after_growing_pauses(
    patient_producer_of: Make, strict_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with patient_producer_of(strict_broker, max_block_ms=90_000) as producer, pytest.raises(TimeoutException, match="'ordres'"):
        producer.partitions_for("ordres")
    lines = [record.getMessage() for record in caplog.records if record.name == "chaffinch.producer"]
    assert [int(re.findall(r"asked for (\d+) ms", line)[0]) for line in lines] == [
        SILENT_MS + pause for pause in (0, 10_000, 30_000, 70_000)
    ]


def test_timed_out_flush_names_the_cause(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    why = NetworkException("its leader cannot be reached")
    with producer_of(strict_broker) as producer:
        producer.partitions_for("orders")
        with held_up(producer):
            producer.send("orders", b"v")
            monkeypatch.setattr(producer._core.wait_causes, "cause", lambda: why)
            with pytest.raises(
                TimeoutException, match="because of NETWORK_EXCEPTION \\(its leader cannot be reached\\); it goes on"
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
def test_the_longest_time_that_can_be_asked_for(
    producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """As Kafka Connect sets it: until somebody closes, here. For a topic that is not there, or for memory."""
    is_waiting = threading.Event()
    with producer_of(strict_broker, max_block_ms=2**63 - 1) as producer, ThreadPoolExecutor(1) as other:
        producer.partitions_for("orders")
        wait = producer._gate.changed.wait

        def wait_long(timeout_s: float) -> bool:
            if timeout_s > 1:  # Longer than until the first line.
                is_waiting.set()
            return wait(timeout_s)

        monkeypatch.setattr(producer._gate.changed, "wait", wait_long)
        with producer._changed:
            producer._core.accumulator.memory_free = 0
        waiting = other.submit(producer.send, topic, b"v")
        assert is_waiting.wait(60), "it does not wait"
        producer.close()
        with pytest.raises(IllegalStateException, match="close\\(\\) was called"):
            waiting.result(60)


def test_all_waits_of_a_call_share_one_limit(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    since: list[Any] = []
    with producer_of(strict_broker) as producer:
        gate, accumulator, wait_for_topic = producer._gate, producer._core.accumulator, producer._gate.wait_for_topic

        def topic_watched(*arguments: Any) -> Any:
            since.append(arguments[-1])
            return wait_for_topic(*arguments)

        def memory_watched(size: int, started_ms: int, **_: Any) -> None:
            since.append(started_ms)
            accumulator.memory_free = accumulator.memory_bytes

        with monkeypatch.context() as patched:
            patched.setattr(gate, "wait_for_topic", topic_watched)
            patched.setattr(gate, "wait_for_memory", memory_watched)
            accumulator.memory_free = 0
            assert producer.send("orders", b"v").result(60).offset == 0
        assert since[0] == since[1] is not None
        with gate.lock, monkeypatch.context() as patched:
            woken: list[bool] = []
            patched.setattr(gate.changed, "notify_all", lambda: woken.append(True))
            accumulator.memory_free = 70
            error = gate.wait_for_memory(100, gate.clock.steady_ms() - 60_000)
            assert isinstance(error, BufferExhaustedException)
            assert "70 free; waited for" in str(error)
            assert woken, "what was kept for this one may be enough for the next"
            accumulator.memory_free = accumulator.memory_bytes


class TestMemoryThatIsNotTaken:
    """The next thread in the queue is woken: perhaps no other memory becomes free."""

    def test_by_a_caller_who_is_interrupted(
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

    def test_by_a_record_whose_topic_has_gone(
        self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with producer_of(strict_broker) as producer:
            producer.partitions_for("orders")
            counts, woken, notify_all = iter([1, None]), [], producer._changed.notify_all

            def freed(timeout_ms: int) -> None:
                accumulator.memory_free = accumulator.memory_bytes

            def told() -> None:
                woken.append(True)
                notify_all()

            accumulator = producer._core.accumulator
            monkeypatch.setattr(producer._core, "usable_count", lambda topic, partition: next(counts, 1))
            monkeypatch.setattr(producer._gate, "_wait", freed)
            monkeypatch.setattr(producer._gate, "wait_for_topic", lambda *arguments: assert_woken())

            def assert_woken() -> None:
                assert woken

            with held_up(producer):
                monkeypatch.setattr(producer._changed, "notify_all", told)
                accumulator.memory_free = 0
                waiting = producer.send("orders", b"v")
            assert waiting.result(60).offset == 0

    @pytest.mark.parametrize(
        ("step", "call", "argument"),
        [("append", "send", b"v"), ("append_batch", "send_table", pa.table({"value": [b"v"]}))],
        ids=["send", "send_table"],
    )
    def test_by_a_caller_who_is_interrupted_once_it_got_it(
        self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, step: str, call: str, argument: object
    ) -> None:
        with producer_of(strict_broker) as producer:
            producer.partitions_for("orders")
            accumulator, woken = producer._core.accumulator, []

            def interrupted(*_: object, **_named: object) -> NoReturn:
                raise KeyboardInterrupt

            with held_up(producer), monkeypatch.context() as patched:
                patched.setattr(producer._gate, "_wait", lambda timeout_ms: accumulator.release(accumulator.memory_bytes))
                patched.setattr(producer._core, step, interrupted)
                patched.setattr(producer._changed, "notify_all", lambda: woken.append(accumulator.memory_free))
                accumulator.memory_free = 0
                with pytest.raises(KeyboardInterrupt):
                    getattr(producer, call)("orders", argument)
            assert woken == [accumulator.memory_bytes]

    def test_not_for_memory_that_is_taken(self, producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of many that wait all would look, and go on waiting, for each that does not."""
        with producer_of(strict_broker) as producer, producer._gate.lock, monkeypatch.context() as patched:
            gate, accumulator, woken = producer._gate, producer._core.accumulator, []
            patched.setattr(gate.changed, "wait", lambda timeout_s: accumulator.release(accumulator.memory_bytes))
            patched.setattr(gate.changed, "notify_all", lambda: woken.append(True))
            accumulator.memory_free = 0
            assert gate.wait_for_memory(100) is None
            assert not woken


def test_waiting_caller_is_notified_of_close(producer_of: Make, strict_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close itself may go on for long: for what is under way, and for an exception handler."""
    with producer_of(strict_broker) as producer, producer._gate.lock, monkeypatch.context() as patched:
        closed: list[bool] = []
        patched.setattr(producer._gate.changed, "notify_all", lambda: closed.append(producer._gate.is_closed))
        producer._gate.close()
        assert closed == [True]
