"""KIP-1038, read as the specification: a producer, its handler and a real broker, inside and outside a transaction.

What is asked about records that are in a batch already is in test_kip_1038_core.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import (
    EmbeddedBroker,
    NonRetriableResponse,
    Producer,
    ProducerExceptionHandler,
    ProducerRecord,
    RecordMetadata,
    RetriableResponse,
)
from chaffinch.errors import (
    ConfigException,
    InvalidCompactionKeyException,
    KafkaException,
    RecordTooLargeException,
    TimeoutException,
    TransactionAbortableException,
    UnknownTopicOrPartitionException,
)

LATEST_S = 60
LARGE = bytes(3_000)
Make = Callable[..., Producer]


class Handler(ProducerExceptionHandler):
    """Returns the given verdicts, and records the calls."""

    def __init__(self, too_large: Any = NonRetriableResponse.SWALLOW, unknown: Any = RetriableResponse.FAIL) -> None:
        self.too_large, self.unknown = too_large, unknown
        self.asked: list[tuple[ProducerRecord, KafkaException]] = []
        self.threads: set[str] = set()
        self.settings: dict[str, Any] | None = None
        self.closed = 0

    def configure(self, settings: Any) -> None:
        self.settings = settings

    def close(self) -> None:
        self.closed += 1

    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        said: NonRetriableResponse = self._say(self.too_large, record, exception)
        return said

    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        said: RetriableResponse = self._say(self.unknown, record, exception)
        return said

    def _say(self, answer: Any, record: ProducerRecord, exception: KafkaException) -> Any:
        self.asked.append((record, exception))
        self.threads.add(threading.current_thread().name)
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


class RejectedToo(Handler):
    def handle_rejected_record(self, record: ProducerRecord, exception: KafkaException) -> NonRetriableResponse:
        return self._say(NonRetriableResponse.SWALLOW, record, exception)  # type: ignore[no-any-return]


class Forgetful(ProducerExceptionHandler):
    """Without `return` in any method."""

    def handle_record_too_large(self, record: Any, exception: Any) -> Any:
        pass

    def handle_unknown_topic_or_partition(self, record: Any, exception: Any) -> Any:
        pass

    def handle_rejected_record(self, record: Any, exception: Any) -> Any:
        pass


class ForgetfulItself(Forgetful):
    def handle(self, record: Any, exception: Any) -> Any:
        pass


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    topics = {"orders": {"partitions": 2}, "latest": {"partitions": 1, "cleanup.policy": "compact"}}
    with EmbeddedBroker(topics=topics, config={"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def make(broker: EmbeddedBroker) -> Make:
    def producer(handler: Any = None, **options: Any) -> Producer:
        given = {"bootstrap_servers": broker.bootstrap_servers, "linger_ms": 1, "retry_backoff_ms": 10, "max_request_size": 2_000}
        return Producer({"custom.exception.handler.class": handler}, **{**given, **options})

    return producer


class TestTooLarge:
    """ "The accepted responses for RecordTooLargeException are FAIL and SWALLOW"."""

    def test_too_large_record_fails_by_default(self, make: Make) -> None:
        with make() as producer:
            assert isinstance(producer.send("orders", LARGE).exception(0), RecordTooLargeException)

    def test_too_large_record_is_dropped_by_the_option(self, make: Make, broker: EmbeddedBroker) -> None:
        with make(drop_invalid_large_records=True) as producer:
            delivered: list[Any] = []
            metadata = producer.send("orders", LARGE, timestamp_ms=7, on_delivery=lambda *outcome: delivered.append(outcome)).result(0)
            assert metadata == RecordMetadata("orders", -1, -1, 7, dropped=True)
            assert delivered == [(metadata, None)]
            assert producer.send("orders", b"v").result(LATEST_S).dropped is False
            assert producer.metrics()["record-dropped-total"] == 1
            assert producer.metrics()["record-error-total"] == 0
        assert broker.read("orders").num_rows == 1

    def test_the_handler_gets_the_callers_own_record(self, make: Make) -> None:
        handler = Handler()
        record = ProducerRecord("orders", LARGE, "key", 1, None, [("h", b"1")])
        with make(handler) as producer:
            assert producer.send(record).result(0).dropped
            assert producer.send("orders", LARGE, partition=0, headers=[("h", b"2")]).result(0).partition == 0
        (first, error), (second, _) = handler.asked
        assert first is record
        assert second == ProducerRecord("orders", LARGE, None, 0, None, [("h", b"2")])
        assert isinstance(error, RecordTooLargeException)
        assert "max.request.size allows 2000" in error.message

    NONSENSE = (None, "SWALLOW", True, RetriableResponse.RETRY, RetriableResponse.SWALLOW, 1)

    @pytest.mark.parametrize("answer", NONSENSE, ids=str)
    def test_invalid_response_fails_and_is_named(self, make: Make, answer: object) -> None:
        """ "RETRY will be interpreted and executed as FAIL"; so is everything else that is no NonRetriableResponse."""
        with make(Handler(too_large=answer)) as producer:
            error = producer.send("orders", LARGE).exception(0)
        assert isinstance(error, RecordTooLargeException)
        assert isinstance(error.__cause__, TypeError)
        assert "must return a NonRetriableResponse" in str(error.__cause__)

    def test_error_names_the_handler_method(self, make: Make) -> None:
        """One that forgets `return` is looked for where it is, not where it is called from."""
        texts = []
        for handler in (Forgetful(), ForgetfulItself()):
            with make(handler) as producer:
                for record in (ProducerRecord("orders", LARGE), ProducerRecord("ordres", b"v"), ProducerRecord("latest", b"no key")):
                    error = producer.send(record).exception(LATEST_S)
                    texts.append(str(error and error.__cause__))
        start, no_return = "the exception handler's ", " returned None, as a method without a return statement does, for "
        assert [text.removeprefix(start).partition(": ")[0].replace(no_return, " ") for text in texts] == [
            "Forgetful.handle_record_too_large MESSAGE_TOO_LARGE",
            "Forgetful.handle_unknown_topic_or_partition UNKNOWN_TOPIC_OR_PARTITION",
            "Forgetful.handle_rejected_record INVALID_COMPACTION_KEY",
            "ForgetfulItself.handle MESSAGE_TOO_LARGE",
            "ForgetfulItself.handle UNKNOWN_TOPIC_OR_PARTITION",
            "ForgetfulItself.handle_rejected_record INVALID_COMPACTION_KEY",
        ]

    def test_handler_that_raises_fails_the_record(self, make: Make) -> None:
        with make(Handler(too_large=ZeroDivisionError("in the handler"))) as producer:
            error = producer.send("orders", LARGE).exception(0)
        assert isinstance(error, RecordTooLargeException)
        assert isinstance(error.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("drops", [False, True])
    def test_method_not_overridden_follows_the_option(self, make: Make, drops: bool) -> None:
        class OnlyTopics(ProducerExceptionHandler):
            def handle_unknown_topic_or_partition(self, record: Any, exception: Any) -> RetriableResponse:
                return RetriableResponse.FAIL

        with make(OnlyTopics, drop_invalid_large_records=drops) as producer:
            future = producer.send("orders", LARGE)
        assert (future.exception(0) is None) is drops

    def test_an_override_replaces_the_option(self, make: Make) -> None:
        with make(Handler(too_large=NonRetriableResponse.FAIL), drop_invalid_large_records=True) as producer:
            assert isinstance(producer.send("orders", LARGE).exception(0), RecordTooLargeException)

    def test_record_above_buffer_memory_calls_the_handler_but_ignores_the_option(self, make: Make) -> None:
        options = {"buffer_memory": 1_000, "drop_invalid_large_records": True}
        with make(**options) as producer:
            assert isinstance(producer.send("orders", bytes(1_500)).exception(0), RecordTooLargeException)
        with make(Handler(), **options) as producer:
            assert producer.send("orders", bytes(1_500)).result(0).dropped

    def test_handler_can_override_handle(self, make: Make) -> None:
        class Whole(ProducerExceptionHandler):
            def handle(self, record: Any, exception: Any) -> Any:
                is_large = isinstance(exception, RecordTooLargeException)
                return NonRetriableResponse.SWALLOW if is_large else RetriableResponse.SWALLOW

        with make(Whole) as producer:
            assert producer.send("orders", LARGE).result(0).dropped
            assert producer.send("ordres", b"v").result(LATEST_S).dropped


class TestTooLargeInATransaction:
    def committed(self, producer: Producer, broker: EmbeddedBroker, exception: type[Exception] | None) -> list[bytes]:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"before", partition=0)
        producer.send("orders", LARGE, partition=1)
        if exception is None:
            producer.send("orders", b"after", partition=0)
            producer.commit_transaction()
        else:
            with pytest.raises(exception):
                producer.commit_transaction()
            producer.abort_transaction()
        return broker.read("orders").column("value").to_pylist()

    def test_swallowed_record_leaves_the_transaction_alone(self, make: Make, broker: EmbeddedBroker) -> None:
        with make(Handler(), transactional_id="t") as producer:
            assert self.committed(producer, broker, None) == [b"before", b"after"]
        assert broker.counters("orders")["InvalidMessageCrcRecordsPerSec"] == 0

    def test_failed_record_fails_the_commit_with_its_own_class(self, make: Make, broker: EmbeddedBroker) -> None:
        with make(Handler(too_large=NonRetriableResponse.FAIL), transactional_id="t") as producer:
            assert self.committed(producer, broker, RecordTooLargeException) == []
            producer.begin_transaction()
            producer.send("orders", b"the producer goes on")
            producer.commit_transaction()
        assert broker.read("orders").num_rows == 1


class TestUnknownTopic:
    """ "The user may want to raise an error for some topics but retry it for other topics"."""

    def test_fail_raises_the_root_cause_at_once(self, make: Make) -> None:
        handler = Handler()
        with make(handler) as producer:
            error = producer.send("ordres", b"v").exception(0)
        assert isinstance(error, UnknownTopicOrPartitionException)
        assert "'ordres'" in error.message
        assert [record.topic for record, _ in handler.asked] == ["ordres"]
        assert handler.threads == {threading.current_thread().name}

    def test_swallow_drops_the_record(self, make: Make) -> None:
        with make(Handler(unknown=RetriableResponse.SWALLOW)) as producer:
            assert producer.send("ordres", b"v").result(0).dropped

    def test_retry_continues_until_the_topic_exists(self, make: Make, broker: EmbeddedBroker) -> None:
        asked = threading.Semaphore(0)

        def retry() -> RetriableResponse:
            asked.release()
            return RetriableResponse.RETRY

        with make(Handler(unknown=retry)) as producer, ThreadPoolExecutor(1) as pool:
            sent = pool.submit(producer.send, "new", b"v")
            assert asked.acquire(timeout=LATEST_S)
            assert asked.acquire(timeout=LATEST_S), "asked again with each answer"
            broker.create_topic("new", 1)
            assert sent.result(LATEST_S).result(LATEST_S).offset == 0

    # fmt: off
    LIMITS = (
        # max.block.ms  retry.unknown...  the error
        (100,           60_000,           TimeoutException),
        (60_000,        100,              UnknownTopicOrPartitionException),
        (60_000,        0,                UnknownTopicOrPartitionException),
    )
    # fmt: on

    @pytest.mark.parametrize("handler", [None, Handler(unknown=RetriableResponse.RETRY)], ids=["options", "handler"])
    @pytest.mark.parametrize(("block_ms", "retry_ms", "error_class"), LIMITS)
    def test_first_limit_reached_ends_the_retries(
        self, make: Make, handler: Any, block_ms: int, retry_ms: int, error_class: type[Exception]
    ) -> None:
        with make(handler, max_block_ms=block_ms, retry_unknown_topic_partition_ms=retry_ms) as producer:
            error = producer.send("ordres", b"v").exception(0)
        assert type(error) is error_class
        root = error if isinstance(error, UnknownTopicOrPartitionException) else error.__cause__
        assert isinstance(root, UnknownTopicOrPartitionException)

    @pytest.mark.parametrize("answer", [None, NonRetriableResponse.SWALLOW, ZeroDivisionError()], ids=repr)
    def test_invalid_response_fails_the_record(self, make: Make, answer: object) -> None:
        with make(Handler(unknown=answer)) as producer:
            error = producer.send("ordres", b"v").exception(0)
        assert isinstance(error, UnknownTopicOrPartitionException)
        assert isinstance(error.__cause__, TypeError | ZeroDivisionError)

    def test_a_partition_beyond_the_count_is_unknown_too(self, make: Make) -> None:
        handler = Handler()
        with make(handler) as producer:
            error = producer.send("orders", b"v", partition=7).exception(0)
        assert isinstance(error, UnknownTopicOrPartitionException)
        assert "has 2 partitions, there is no partition 7" in error.message
        assert handler.asked[0][0].partition == 7

    def test_swallowed_and_failed_records_in_a_transaction(self, make: Make, broker: EmbeddedBroker) -> None:
        handler = Handler(unknown=RetriableResponse.SWALLOW)
        with make(handler, transactional_id="t") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"one")
                assert producer.send("ordres", b"lost").result(0).dropped
            handler.unknown = RetriableResponse.FAIL
            producer.begin_transaction()
            failed = producer.send("ordres", b"lost").exception(0)
            assert isinstance(failed, TransactionAbortableException)
            assert isinstance(failed.__cause__, UnknownTopicOrPartitionException)
            with pytest.raises(TransactionAbortableException):
                producer.commit_transaction()
            producer.abort_transaction()
        assert broker.read("orders").num_rows == 1

    def test_partitions_for_does_not_call_the_handler(self, make: Make) -> None:
        """There is no record to be asked about; the time limits hold."""
        handler = Handler(unknown=RetriableResponse.SWALLOW)
        with make(handler, retry_unknown_topic_partition_ms=0) as producer, pytest.raises(UnknownTopicOrPartitionException):
            producer.partitions_for("ordres")
        assert handler.asked == []

    def test_sender_thread_calls_the_handler_for_a_batch(self, make: Make, broker: EmbeddedBroker) -> None:
        handler = Handler(unknown=RetriableResponse.SWALLOW)
        with make(handler) as producer:
            producer.partitions_for("orders")
            broker.faults.add(api="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
            record = ProducerRecord("orders", b"v", partition=0)
            assert producer.send(record).result(LATEST_S).dropped
            assert producer.send("orders", b"v").result(LATEST_S).offset >= 0
        assert [asked for asked, _ in handler.asked] == [record]
        assert handler.asked[0][0] is record
        assert handler.threads == {"chaffinch-producer-sender"}


class TestRejected:
    """Decision 24: only a handler that has the third method is asked about what a broker rejected."""

    def test_culprit_is_dropped_and_innocents_are_written(self, make: Make, broker: EmbeddedBroker) -> None:
        handler = RejectedToo()
        with make(handler, linger_ms=50) as producer:
            futures = [producer.send("latest", b"%d" % i, key=None if i == 5 else "k") for i in range(10)]
            producer.flush(LATEST_S)
            assert [i for i, future in enumerate(futures) if future.result(0).dropped] == [5]
        assert broker.read("latest").num_rows == 9
        ((record, error),) = handler.asked
        assert (record.topic, record.value, record.key) == ("latest", b"5", None)
        assert isinstance(error, InvalidCompactionKeyException)

    def test_culprit_fails_without_the_method(self, make: Make) -> None:
        handler = Handler()
        with make(handler) as producer:
            assert isinstance(producer.send("latest", b"v").exception(LATEST_S), InvalidCompactionKeyException)
        assert handler.asked == []

    def test_a_swallowed_culprit_leaves_its_transaction_alone(self, make: Make, broker: EmbeddedBroker) -> None:
        with make(RejectedToo(), transactional_id="t", linger_ms=50) as producer:
            producer.init_transactions()
            with producer.transaction():
                kept = producer.send("latest", b"kept", key="k")
                dropped = producer.send("latest", b"dropped")
            assert (kept.result(0).dropped, dropped.result(0).dropped) == (False, True)
        assert broker.read("latest").column("value").to_pylist() == [b"kept"]


class TestTables:
    def test_too_large_rows_are_dropped(self, make: Make, broker: EmbeddedBroker) -> None:
        handler = Handler()
        with make(handler) as producer:
            result = producer.send_table("orders", pa.table({"value": [b"a", LARGE, b"b", LARGE]})).result(LATEST_S)
        assert (result.written, result.rejected_count, result.dropped) == (2, 0, [1, 3])
        assert [record.value for record, _ in handler.asked] == [LARGE, LARGE]

    def test_unknown_topic_of_rows_calls_the_handler_once(self, make: Make) -> None:
        handler = Handler(unknown=RetriableResponse.SWALLOW)
        table = pa.table({"value": [b"a", b"b", b"c"], "topic": ["orders", "ordres", "ordres"]})
        with make(handler) as producer:
            result = producer.send_table(None, table).result(LATEST_S)
        assert (result.written, result.dropped) == (1, [1, 2])
        assert [record.value for record, _ in handler.asked] == [b"b"]

    def test_rows_with_unknown_partitions_are_dropped(self, make: Make) -> None:
        table = pa.table({"value": [b"a", b"b"], "partition": [0, 9]})
        with make(Handler(unknown=RetriableResponse.SWALLOW)) as producer:
            result = producer.send_table("orders", table).result(LATEST_S)
        assert (result.written, result.dropped) == (1, [1])

    def test_rows_rejected_by_a_broker_are_dropped(self, make: Make, broker: EmbeddedBroker) -> None:
        handler = RejectedToo()
        table = pa.table({"value": ["a", "b", "c"], "key": ["k", None, "k"]})
        with make(handler) as producer:
            result = producer.send_table("latest", table).result(LATEST_S)
        assert (result.written, result.rejected_count, result.dropped) == (2, 0, [1])
        (record, _) = handler.asked[0]
        assert (record.topic, record.partition, record.value, record.key) == ("latest", 0, b"b", None)
        assert "dropped=1" in repr(result)


class Raising(ProducerExceptionHandler):
    def __init__(self) -> None:
        raise ZeroDivisionError("no such luck")


class Unconfigurable(ProducerExceptionHandler):
    def configure(self, settings: Any) -> None:
        raise ZeroDivisionError("no such luck")


class TestHandlerOption:
    @pytest.mark.parametrize("given", [Handler(), Handler, f"{__name__}.Handler"], ids=["object", "class", "dotted name"])
    def test_option_accepts_object_class_and_dotted_name(self, make: Make, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Handler=Handler))
        with make(given) as producer:
            assert producer.send("orders", LARGE).result(0).dropped

    WRONG = (
        ("no.such.module.Handler", "it cannot be imported"),
        ("chaffinch.NoSuchThing", "it cannot be imported"),
        ("Handler", "it must be a dotted name, such as package.module.Handler"),
        (".Handler", "it must be a dotted name, such as package.module.Handler"),
        ("chaffinch.Producer", "cannot be 'chaffinch.Producer': it must be a ProducerExceptionHandler"),
        (int, "must be a ProducerExceptionHandler"),
        (7, "must be a ProducerExceptionHandler"),
        (Raising, "no such luck"),
        (Unconfigurable, "no such luck"),
    )

    @pytest.mark.parametrize(("given", "text"), WRONG, ids=lambda value: str(value)[:30])
    def test_invalid_handler_is_an_error_at_construction(self, make: Make, given: Any, text: str) -> None:
        threads = threading.active_count()
        with pytest.raises(ConfigException, match=text) as raised:
            make(given)
        assert "custom.exception.handler.class" in str(raised.value)
        assert threading.active_count() == threads

    def test_handler_is_configured_first_and_closed_last(self, make: Make) -> None:
        handler = Handler()
        producer = make(handler, linger_ms=7)
        assert handler.settings is not None
        assert handler.settings["linger.ms"] == 7
        producer.send("orders", b"v")
        assert handler.closed == 0
        producer.close()
        producer.close()
        assert handler.closed == 1

    def test_error_in_close_is_logged(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(ProducerExceptionHandler):
            def close(self) -> None:
                raise ZeroDivisionError("in close")

        with caplog.at_level(logging.ERROR):
            make(Broken).close()
        assert "raised in close" in caplog.text


class TestLocks:
    """A handler may use the producer, and wait for threads that do: no lock is held while it thinks."""

    @pytest.mark.parametrize("topic", ["orders", "ordres"])
    def test_handler_on_the_callers_thread_holds_no_lock(self, make: Make, topic: str) -> None:
        with ThreadPoolExecutor(1) as pool:

            def wait_for_another_thread() -> Any:
                pool.submit(producer.metrics).result(LATEST_S)
                return NonRetriableResponse.SWALLOW if topic == "orders" else RetriableResponse.SWALLOW

            with make(Handler(too_large=wait_for_another_thread, unknown=wait_for_another_thread)) as producer:
                assert producer.send(topic, LARGE if topic == "orders" else b"v").result(LATEST_S).dropped

    def test_handler_on_the_senders_thread_holds_no_lock(self, make: Make, broker: EmbeddedBroker) -> None:
        with ThreadPoolExecutor(1) as pool:

            def wait_for_another_thread() -> RetriableResponse:
                pool.submit(producer.metrics).result(LATEST_S)
                return RetriableResponse.SWALLOW

            with make(Handler(unknown=wait_for_another_thread)) as producer:
                producer.partitions_for("orders")
                broker.faults.add(api="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
                assert producer.send("orders", b"v").result(LATEST_S).dropped


def test_responses_have_the_ids_of_the_kip() -> None:
    assert {response.name: response.id for response in NonRetriableResponse} == {"FAIL": 0, "SWALLOW": 1}
    assert {response.name: response.id for response in RetriableResponse} == {"FAIL": 0, "RETRY": 1, "SWALLOW": 2}
    assert NonRetriableResponse.FAIL != RetriableResponse.FAIL  # type: ignore[comparison-overlap]


def test_handle_refuses_other_exceptions() -> None:
    with pytest.raises(TypeError, match="not handled"):
        ProducerExceptionHandler().handle(ProducerRecord("orders"), TimeoutException("late"))
