"""Public API apart from records: serializers, callbacks, metrics, calls in the wrong order, and the end of a process."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chaffinch import EmbeddedBroker, OffsetAndMetadata, Producer, ProducerRecord, TopicPartition
from chaffinch.errors import ConfigException, IllegalStateException, InvalidTopicException, KafkaException, RecordTooLargeException
from chaffinch.producer.metrics import METRICS

Make = Callable[..., Producer]
LATEST_S = 60


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


ORDERS_0 = TopicPartition("orders", 0)
GENERATED: Any = (character for character in "")
HALF_SURROGATE = "\ud800"
"""Half a surrogate pair: a str that cannot be encoded as UTF-8."""


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p: p.send("orders", HALF_SURROGATE), ValueError, "argument value cannot be encoded as UTF-8: character 0 of"),
        (lambda p: p.send("orders", b"v", key=HALF_SURROGATE), ValueError, "argument key cannot be encoded as UTF-8"),
        (
            lambda p: p.send("orders", b"v", headers=[(HALF_SURROGATE, b"")]),
            ValueError,
            "argument headers, in a key, cannot be encoded as UTF-8",
        ),
        (
            lambda p: p.send("orders", b"v", headers=[("h", HALF_SURROGATE)]),
            ValueError,
            r"argument headers\['h'\] cannot be encoded as UTF-8",
        ),
        (
            lambda p: p.send("orders", b"v", headers=np.array([["a", "b"]])),
            TypeError,
            r"argument headers must be a sequence of \(str, bytes\) pairs; one entry is array\(\['a', 'b'\]",
        ),
        (
            lambda p: p.send("orders", b"v", headers=pd.DataFrame({"name": ["h"], "value": [b"v"]})),
            TypeError,
            r"argument headers must be a sequence of \(str, bytes\) pairs; one entry is 'name'",
        ),
        (lambda p: p.send("orders", b"v", headers=7), TypeError, r"argument headers must be a sequence of \(str, bytes\) pairs, not int"),
        (lambda p: p.send("orders", b"v", headers=iter([("h", b"")])), TypeError, r"not list_iterator: list\(headers\) is one"),
        (lambda p: p.send(ProducerRecord("orders", b"v", headers=GENERATED)), TypeError, r"not generator: list\(headers\) is one"),
        (lambda p: p.send("orders", b"v", headers={"h": b""}), TypeError, r"not dict: list\(headers.items\(\)\) is one"),
        (lambda p: p.send("orders", b"v", partition=True), TypeError, "argument partition must be an int or None, not bool"),
        (lambda p: p.send("orders", b"v", timestamp_ms=1.5), TypeError, "argument timestamp_ms must be an int or None, not float"),
        (lambda p: p.flush("1"), TypeError, "argument timeout must be None or a number of seconds, not '1'"),
        (lambda p: p.flush(float("nan")), ValueError, "argument timeout must be None or a number of seconds from 0 up"),
        (pickle.dumps, TypeError, "a Producer cannot be pickled: make one in each process"),
        (lambda p: p.close(-1), ValueError, "argument timeout must be None or a number of seconds from 0 up"),
        (lambda p: p.send_offsets_to_transaction([ORDERS_0], "g"), TypeError, "argument offsets must be a mapping"),
        (lambda p: p.send_offsets_to_transaction({("orders", "0"): 1}, "g"), TypeError, "must be a TopicPartition, not"),
        (lambda p: p.send_offsets_to_transaction({("orders", -1): 1}, "g"), ValueError, "has the number -1"),
        (lambda p: p.send_offsets_to_transaction({ORDERS_0: True}, "g"), TypeError, "must be an int or an OffsetAndMetadata, not True"),
        (lambda p: p.send_offsets_to_transaction({ORDERS_0: 2**63}, "g"), ValueError, "argument offset must be from 0 to"),
        (lambda p: p.send_offsets_to_transaction({ORDERS_0: OffsetAndMetadata(1, 5)}, "g"), TypeError, "has the metadata 5"),  # type: ignore[arg-type]
        (
            lambda p: p.send_offsets_to_transaction({ORDERS_0: OffsetAndMetadata(1, HALF_SURROGATE)}, "g"),
            ValueError,
            "in its metadata, cannot be encoded as UTF-8",
        ),
        (lambda p: p.send_offsets_to_transaction({ORDERS_0: OffsetAndMetadata(1, "", -2)}, "g"), ValueError, "has the leader_epoch -2"),
        (lambda p: p.send_offsets_to_transaction({ORDERS_0: OffsetAndMetadata(1, "", True)}, "g"), TypeError, "has the leader_epoch True"),
    ],
)
def test_invalid_arguments_raise_at_the_call(
    producer_of: Make, broker: EmbeddedBroker, call: Callable[[Producer], Any], error: type[Exception], text: str
) -> None:
    with producer_of(broker, transactional_id="shop") as producer:
        producer.init_transactions()
        with producer.transaction():
            with pytest.raises(error, match=text):
                call(producer)
            producer.send("orders", b"after").result(LATEST_S)


WHEN = datetime(2026, 1, 2, tzinfo=UTC)
WHEN_MS = 1_767_312_000_000


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32])
def test_numpy_integers_are_accepted(producer_of: Make, broker: EmbeddedBroker, kind: Callable[[int], Any]) -> None:
    timestamp_ms = 1_700_000_000 if kind is np.int32 else WHEN_MS
    with producer_of(broker) as producer:
        records = (ProducerRecord("orders", b"v", partition=kind(2), timestamp_ms=kind(timestamp_ms)), "orders")
        for metadata in (
            producer.send(records[0]).result(LATEST_S),
            producer.send("orders", b"v", partition=kind(2), timestamp_ms=kind(timestamp_ms)).result(LATEST_S),
        ):
            assert (metadata.partition, metadata.timestamp_ms) == (2, timestamp_ms)
            assert type(metadata.partition) is int


@pytest.mark.parametrize("given", [WHEN, pd.Timestamp(WHEN), np.datetime64("2026-01-02"), float(WHEN_MS), np.float64(WHEN_MS), WHEN.date()])
def test_timestamps_of_other_types_are_refused_with_a_conversion(producer_of: Make, broker: EmbeddedBroker, given: Any) -> None:
    with producer_of(broker) as producer:
        with pytest.raises(TypeError, match=f"argument timestamp_ms must be an int or None, not {type(given).__name__}: write ") as raised:
            producer.send("orders", b"v", timestamp_ms=given)
        expression = str(raised.value).partition(": write ")[2]
        if expression.startswith("int"):
            written = eval(expression, {"value": given})
            assert producer.send("orders", b"v", timestamp_ms=written).result(LATEST_S).timestamp_ms == WHEN_MS


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400], ids=["inf", "1e300", "huge"])
def test_huge_timeouts_are_accepted(producer_of: Make, broker: EmbeddedBroker, timeout: float) -> None:
    producer = producer_of(broker)
    future = producer.send("orders", b"v")
    producer.flush(timeout)
    assert future.done()
    producer.close(timeout)


@pytest.mark.parametrize("option", ["client_id", "transactional_id"])
def test_options_without_utf8_are_refused(producer_of: Make, broker: EmbeddedBroker, option: str) -> None:
    with pytest.raises(ConfigException, match="in characters that UTF-8 has"):
        producer_of(broker, **{option: HALF_SURROGATE})


@pytest.mark.parametrize(
    ("options", "because_of"),
    [
        ({"acks": "1"}, "acks=1"),
        ({"acks": 0, "retries": 0}, "acks=0"),
        ({"retries": 0}, "retries=0"),
        ({}, None),
        ({"acks": "-1", "retries": 1}, None),
        ({"acks": "1", "enable_idempotence": False}, None),
    ],
    ids=str,
)
def test_implicit_loss_of_idempotence_is_logged(
    producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, options: dict[str, Any], because_of: str | None
) -> None:
    with caplog.at_level(logging.INFO, "chaffinch.producer"), producer_of(broker, **options):
        pass
    output = [record.getMessage() for record in caplog.records if "idempotence is off" in record.getMessage()]
    start = f"idempotence is off because of {because_of}, "
    assert [line[: len(start)] for line in output] == ([] if because_of is None else [start])


class TestSerializers:
    def test_serializers_encode_keys_and_values(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, value_serializer=as_json, key_serializer=str) as producer:
            producer.send("orders", {"a": 1}, key=7).result(LATEST_S)
            producer.send(ProducerRecord("orders", [1, 2], key=b"k")).result(LATEST_S)  # type: ignore[arg-type]
        assert {(row["key"], row["value"]) for row in broker.read("orders").to_pylist()} == {(b"7", b'{"a": 1}'), (b"b'k'", b"[1, 2]")}

    def test_none_is_not_serialized(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, value_serializer=as_json) as producer:
            producer.send("orders", None, key=b"k").result(LATEST_S)
        assert broker.read("orders").column("value").to_pylist() == [None]

    def test_serializer_exception_is_raised_at_the_call(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, value_serializer=as_json) as producer:
            with pytest.raises(TypeError, match="not JSON serializable") as raised:
                producer.send("orders", object())
            note = "raised by the value.serializer as_json, which was called for the value of a record of 'orders'"
            assert raised.value.__notes__ == [note]
            assert producer.metrics()["record-error-total"] == 0

    def test_serializer_result_must_be_bytes(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with (
            producer_of(broker, key_serializer=lambda key: key) as producer,
            pytest.raises(TypeError, match=r"the result of key\.serializer"),
        ):
            producer.send("orders", b"v", key=7)

    @pytest.mark.parametrize("prefix", ["", "kafkashaded."])
    def test_serializers_by_dotted_name(self, producer_of: Make, broker: EmbeddedBroker, prefix: str) -> None:
        java = f"{prefix}org.apache.kafka.common.serialization.StringSerializer"
        with producer_of(broker, value_serializer="json.dumps", key_serializer=java) as producer:
            producer.send("orders", {}, key="k").result(LATEST_S)
        assert broker.read("orders").column("value").to_pylist() == [b"{}"]

    @pytest.mark.parametrize("given", [7, [], "no.such.function", "json.__doc__", "org.example.AvroSerializer"], ids=str)
    def test_invalid_serializer_is_refused_at_construction(self, producer_of: Make, broker: EmbeddedBroker, given: object) -> None:
        with pytest.raises(ConfigException, match=r"value\.serializer"):
            producer_of(broker, value_serializer=given)


class TestCallbacks:
    def test_callbacks_are_called_without_a_lock(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """Another thread can use the producer while a callback waits for it, for records written, failed, and failed at once."""
        done: list[object] = []
        with ThreadPoolExecutor(1) as pool, producer_of(broker, linger_ms=60_000, max_request_size=2_000) as producer:

            def ask_another_thread(metadata: object, error: object) -> None:
                pool.submit(producer.metrics).result(LATEST_S)
                done.append(error and type(error))

            for key, value in ((b"k", b"v"), (None, b"v"), (b"k", bytes(3_000))):
                producer.send("latest", value, key=key, on_delivery=ask_another_thread)
            producer.flush(LATEST_S)
        assert [error if error is None else error.__name__ for error in done] == [  # type: ignore[attr-defined]
            "RecordTooLargeException",
            "InvalidCompactionKeyException",
            None,
        ]

    def test_raising_callback_is_logged_without_effect(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(metadata: object, error: object) -> None:
            raise ZeroDivisionError("in the callback")

        with caplog.at_level(logging.ERROR), producer_of(broker) as producer:
            assert isinstance(producer.send("or ders", b"v", on_delivery=broken).exception(0), InvalidTopicException)
            futures = [producer.send("orders", b"v", on_delivery=broken) for _ in range(3)]
            assert all(future.exception(LATEST_S) is None for future in futures)
        assert caplog.text.count("a delivery callback raised") == 4


class TestMetrics:
    def test_metrics_are_a_dict_of_numbers(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, linger_ms=60_000, max_request_size=2_000) as producer:
            assert producer.metrics()["metadata-age"] == -1
            for key in (b"k", None, b"k"):
                producer.send("latest", b"v", key=key)
            producer.send("latest", bytes(3_000))
            producer.flush(LATEST_S)
            found = producer.metrics()
        assert type(found) is dict
        assert found.keys() == METRICS.keys()
        assert all(isinstance(number, int | float) for number in found.values())
        expected = {
            "record-send-total": 5,  # Three records, then two innocents again.
            "record-error-total": 2,
            "record-written-total": 2,
            "batch-separated-total": 1,
            "records-outstanding": 0,
            "requests-in-flight": 0,
            "waiting-threads": 0,
        }
        assert {name: found[name] for name in expected} == expected
        assert found["buffer-available-bytes"] == found["buffer-total-bytes"]
        assert 0 <= found["metadata-age"] < LATEST_S

    def test_outstanding_records_are_counted(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, linger_ms=30_000) as producer:
            producer.partitions_for("orders")
            for _ in range(7):
                producer.send("orders", b"v")
            assert producer.metrics()["records-outstanding"] == 7
            assert producer.metrics()["buffer-available-bytes"] < producer.metrics()["buffer-total-bytes"]


CHANGING = ["begin_transaction", "send_offsets_to_transaction", "commit_transaction", "abort_transaction"]


class TestWrongOrder:
    CALLS: tuple[tuple[str, Callable[[Producer], object]], ...] = (
        ("send", lambda producer: producer.send("orders", b"v")),
        ("send_table", lambda producer: producer.send_table("orders", __import__("pyarrow").table({"value": [b"v"]}))),
        ("send_table of nothing", lambda producer: producer.send_table("orders", __import__("pyarrow").table({"value": []}))),
        ("flush", lambda producer: producer.flush()),
        ("partitions_for", lambda producer: producer.partitions_for("orders")),
        ("init_transactions", lambda producer: producer.init_transactions()),
        ("begin_transaction", lambda producer: producer.begin_transaction()),
        ("send_offsets_to_transaction", lambda producer: producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, "group")),
        ("commit_transaction", lambda producer: producer.commit_transaction()),
        ("abort_transaction", lambda producer: producer.abort_transaction()),
    )

    @pytest.mark.parametrize(("name", "call"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
    def test_calls_after_close_raise(
        self, producer_of: Make, broker: EmbeddedBroker, name: str, call: Callable[[Producer], object]
    ) -> None:
        producer = producer_of(broker, transactional_id="t")
        producer.close()
        with pytest.raises(IllegalStateException, match=rf"^{name.split()[0]}\(\): close\(\) was called, the producer is closed$"):
            call(producer)

    @pytest.mark.parametrize("name", ["send", "send_table", *CHANGING])
    def test_calls_before_init_transactions_raise(self, producer_of: Make, broker: EmbeddedBroker, name: str) -> None:
        with producer_of(broker, transactional_id="t") as producer, pytest.raises(IllegalStateException) as raised:
            dict(self.CALLS)[name](producer)
        assert str(raised.value) == f"{name}() is not possible now: call init_transactions() first"

    @pytest.mark.parametrize("begins", [False, True])
    def test_partitions_for_works_at_any_time(self, producer_of: Make, broker: EmbeddedBroker, begins: bool) -> None:
        """As in the Java producer, whether the topic is known already or not."""
        with producer_of(broker, transactional_id="t") as producer:
            if begins:
                producer.init_transactions()
            assert [tp.topic for tp in producer.partitions_for("orders")] == ["orders"] * 3

    @pytest.mark.parametrize("name", ["send", "send_table", *CHANGING[1:]])
    def test_calls_before_begin_transaction_raise(self, producer_of: Make, broker: EmbeddedBroker, name: str) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            with pytest.raises(IllegalStateException) as raised:
                dict(self.CALLS)[name](producer)
        assert str(raised.value) == f"{name}() is not possible now: no transaction is open: call begin_transaction() first"

    @pytest.mark.parametrize("is_open", [False, True])
    def test_second_init_transactions_raises(self, producer_of: Make, broker: EmbeddedBroker, is_open: bool) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            if is_open:
                producer.begin_transaction()
            with pytest.raises(IllegalStateException, match=r"^init_transactions\(\) was called a second time"):
                producer.init_transactions()

    def test_second_begin_transaction_raises(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises(IllegalStateException, match="a transaction is open: commit or abort it first"):
                producer.begin_transaction()

    @pytest.mark.parametrize("name", ["init_transactions", *CHANGING])
    def test_calls_without_a_transactional_id_raise(self, producer_of: Make, broker: EmbeddedBroker, name: str) -> None:
        with producer_of(broker) as producer, pytest.raises(IllegalStateException, match=rf"^{name}\(\) .*transactional\.id"):
            dict(self.CALLS)[name](producer)

    def test_too_large_record_fails_its_transaction(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t", max_request_size=2_000) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            assert isinstance(producer.send("orders", bytes(3_000)).exception(0), RecordTooLargeException)
            with pytest.raises(RecordTooLargeException):
                producer.commit_transaction()
            with pytest.raises(KafkaException):
                producer.send("orders", b"v").result(0)
            producer.abort_transaction()


def run_python(code: str, *arguments: str, interrupts: int = 0, until: str = "") -> tuple[int, str]:
    """Run code in a new process, interrupted `interrupts` times after a line with `until`. Returns exit status and stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stderr is not None
        output = ""
        while interrupts:
            line = process.stderr.readline()
            assert line, f"the process ended before it wrote {until!r}: {output}"
            output += line
            if until in line or "Ctrl-C ends" in line:
                process.send_signal(signal.SIGINT)
                interrupts -= 1
        output += process.stderr.read()
    return process.returncode, output


# On a busy machine metadata may take longer than the time after which the producer logs its wait.
LONG_TIMEOUTS = """
from chaffinch.producer import process_hooks, send_gate
send_gate.SILENT_MS = process_hooks.EXIT_WAIT_MS = 60_000
"""


class TestProcessExit:
    """Exit does not hang, and one line reports records that were not sent."""

    @pytest.mark.parametrize(("count", "records"), [(5, "5 records"), (1, "1 record")])
    def test_unclosed_producer_logs_lost_records(self, broker: EmbeddedBroker, count: int, records: str) -> None:
        code = (
            LONG_TIMEOUTS
            + """
import sys
from chaffinch import Producer
producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
futures = [producer.send("orders", b"v") for _ in range(int(sys.argv[2]))]
"""
        )
        status, output = run_python(code, broker.bootstrap_servers, str(count))
        assert status == 0
        assert output.strip().splitlines() == [
            f"chaffinch-producer-sender was not closed: {records} had no outcome yet when the process ended, and may be lost"
        ]

    def test_producer_without_records_logs_nothing_at_exit(self, broker: EmbeddedBroker) -> None:
        code = (
            LONG_TIMEOUTS
            + """
import sys
from chaffinch import Producer
Producer(bootstrap_servers=sys.argv[1]).send("orders", b"v").result(60)
"""
        )
        assert run_python(code, broker.bootstrap_servers) == (0, "")

    def test_hanging_callback_delays_exit_at_most_its_limit(self, broker: EmbeddedBroker) -> None:
        code = """
import sys, threading
from chaffinch import Producer
from chaffinch.producer import process_hooks
process_hooks.EXIT_WAIT_MS = 10
is_called = threading.Event()
def hang(metadata, error):
    is_called.set()
    while not threading.Event().wait(0.05):  # CPython handles a signal that arrives just before a wait without limit only after it.
        pass
producer = Producer(bootstrap_servers=sys.argv[1])
producer.partitions_for("orders")
producer.send("orders", b"v", on_delivery=hang)
is_called.wait()
"""
        assert run_python(code, broker.bootstrap_servers)[0] == 0

    def test_forked_child_exits_at_once_and_leaves_connections_intact(self, broker: EmbeddedBroker) -> None:
        code = (
            LONG_TIMEOUTS
            + """
import os, sys, warnings
from chaffinch import Producer, errors
producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
producer.partitions_for("orders")
waiting = producer.send("orders", b"v")
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn about forks with threads.
child = os.fork()
if child == 0:
    try:
        producer.send("orders", b"child")
    except errors.IllegalStateException as error:
        assert "forked child" in str(error)
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
producer.flush()
assert waiting.result(0).offset == 0
producer.close()
"""
        )
        assert run_python(code, broker.bootstrap_servers) == (0, "")

    def test_ctrl_c_logs_what_close_waits_for_and_a_second_one_ends_it(self, broker: EmbeddedBroker) -> None:
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=100_000)
        code = """
import sys, threading
from chaffinch import Producer
with Producer(bootstrap_servers=sys.argv[1]) as producer:
    futures = [producer.send("orders", b"v") for _ in range(3)]
    print("ready", file=sys.stderr)
    while not threading.Event().wait(0.05):  # CPython handles a signal that arrives just before a wait without limit only after it.
        pass
"""
        status, output = run_python(code, broker.bootstrap_servers, interrupts=2, until="ready")
        assert status != 0
        assert output.rstrip().endswith("KeyboardInterrupt")
        assert "closing waits for 3 records without an outcome" in output
        assert "close was interrupted and no longer waits for 3 records without an outcome" in output
        assert "was not closed" not in output

    def test_long_close_logs_what_it_waits_for(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("chaffinch.producer.closing.SILENT_S", 0.05)
        broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=100_000)
        producer = producer_of(broker)
        future = producer.send("orders", b"v")
        with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as pool:
            closed = pool.submit(producer.close)
            ends = time.monotonic() + LATEST_S
            while "closing waits for 1 record without an outcome" not in caplog.text:
                assert time.monotonic() < ends
            broker.faults.clear()
            closed.result(LATEST_S)
        assert future.result(0).offset == 0

    def test_close_waiting_only_for_an_abort_mentions_no_records(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("chaffinch.producer.closing.SILENT_S", 0.05)
        producer = producer_of(broker, transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v").result(LATEST_S)
        broker.faults.add(api="EndTxn", error="COORDINATOR_LOAD_IN_PROGRESS", count=100_000)
        with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as pool:
            closed = pool.submit(producer.close)
            ends = time.monotonic() + LATEST_S
            while "closing waits for the end of the transaction" not in caplog.text:
                assert time.monotonic() < ends
            broker.faults.clear()
            closed.result(LATEST_S)
        assert "0 records" not in caplog.text


class TestManyThreads:
    def test_concurrent_calls_of_many_threads(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        def use(number: int) -> int:
            sent = [producer.send("orders", b"%d-%d" % (number, i), partition=i % 3) for i in range(200)]
            producer.metrics()
            producer.flush(LATEST_S)
            return sum(future.result(0).offset >= 0 for future in sent)

        with producer_of(broker) as producer, ThreadPoolExecutor(8) as pool:
            assert list(pool.map(use, range(8))) == [200] * 8
        assert broker.read("orders").num_rows == 1_600
