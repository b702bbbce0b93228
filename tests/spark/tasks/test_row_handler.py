"""KIP-1038 over rows: what a user's handler, and the options that stand for one, do in tasks and in the commit."""

import itertools
import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from chaffinch import NonRetriableResponse, ProducerExceptionHandler
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors import ApiException, ConfigException, codes
from chaffinch.errors.exceptions import RecordTooLargeException, UnknownTopicOrPartitionException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.exception_handler import RetriableResponse
from chaffinch.producer.records import ProducerRecord
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit.messages import Rejection
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.tasks.row_handler import HandlerOptions, RowHandler, handler_for
from tests.spark.query_driver import QueryDriver
from tests.spark.test_spark_write import alter, values

HERE = "tests.spark.tasks.test_row_handler"
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
_numbers = itertools.count()
asked: list[tuple[str | bytes | None, str]] = []


class SwallowOdd(ProducerExceptionHandler):
    """Leaves out what has an odd value, and what is too large; waits for no topic."""

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.client_id = settings.get("client.id")

    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        asked.append((record.key, exception.name))
        return NonRetriableResponse.SWALLOW

    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        asked.append((record.topic, exception.name))
        return RetriableResponse.SWALLOW if record.topic == "gone" else RetriableResponse.FAIL

    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse:
        asked.append((record.value, exception.name))
        return NonRetriableResponse.SWALLOW if int(record.value or 0) % 2 else NonRetriableResponse.FAIL


class RejectedOnly(ProducerExceptionHandler):
    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse:
        return NonRetriableResponse.SWALLOW if int(record.value or 0) % 2 else NonRetriableResponse.FAIL


class SwallowsTopics(ProducerExceptionHandler):
    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        return RetriableResponse.SWALLOW


class RetriesTopics(ProducerExceptionHandler):
    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        return RetriableResponse.RETRY


class Raises(SwallowOdd):
    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse:
        raise RuntimeError("broken")


class Nonsense(ProducerExceptionHandler):
    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> str:
        return "SWALLOW"


class Leaves(SwallowOdd):
    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        raise SystemExit(3)

    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse:
        raise SystemExit(3)

    def close(self) -> None:
        raise SystemExit(3)


class IsInterrupted(SwallowOdd):
    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse:
        raise KeyboardInterrupt


class LeavesAtOnce(ProducerExceptionHandler):
    def __init__(self) -> None:
        raise SystemExit("a script")


class CannotBeMade(ProducerExceptionHandler):
    def __init__(self) -> None:
        raise RuntimeError("no")


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


def blamed(code: codes.ErrorCode = codes.INVALID_COMPACTION_KEY, count: int = 3) -> tuple[RecordColumns, list[Rejection]]:
    """`count` records with values 0, 1, ..., each rejected."""
    columns = RecordColumns.from_lists([None] * count, [b"%d" % number for number in range(count)], np.zeros(count, np.int64))
    where = TopicPartition("orders", 0)
    return columns, [Rejection(row=10 + index, topic_partition=where, code=code, message="why") for index in range(count)]


def options(class_name: str | None = None, *, drops_large: bool = False) -> HandlerOptions:
    return HandlerOptions(class_name=class_name, drops_large=drops_large, settings=(("client.id", "me"),))


def made(options: HandlerOptions) -> RowHandler:
    handler = handler_for(options)
    assert handler is not None
    return handler


class TestWhatIsAsked:
    def test_no_handler_drops_no_row(self) -> None:
        assert handler_for(None) is None
        handler = RowHandler(ProducerExceptionHandler())
        assert (handler.too_large(*blamed()), handler.rejected(*blamed())) == (frozenset(), frozenset())
        columns, rejections = blamed()
        assert handler.unknown_topic(columns, rejections[0]) is RetriableResponse.RETRY

    def test_drop_option_drops_only_large_records(self) -> None:
        handler = made(options(drops_large=True))
        assert (handler.too_large(*blamed()), handler.rejected(*blamed())) == (frozenset(range(3)), frozenset())

    def test_handler_decides_row_by_row(self) -> None:
        handler = made(options(f"{HERE}.SwallowOdd"))
        assert handler.rejected(*blamed()) == {1}
        assert asked == [(b"0", "INVALID_COMPACTION_KEY"), (b"1", "INVALID_COMPACTION_KEY"), (b"2", "INVALID_COMPACTION_KEY")]
        assert isinstance(handler._handler, SwallowOdd)
        assert handler._handler.client_id == "me"

    def test_handler_is_created_once_per_process(self) -> None:
        assert made(options(f"{HERE}.SwallowOdd")) is made(options(f"{HERE}.SwallowOdd"))

    @pytest.mark.parametrize("name", ["Raises", "Nonsense", "Leaves"])
    def test_failing_handler_counts_as_fail(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        handler = RowHandler(globals()[name]())
        assert handler.rejected(*blamed()) == frozenset()
        (line,) = caplog.messages  # Once, however many rows it is asked about.
        assert line.startswith(f"the exception handler {name} failed, its rows stay bad rows: ")
        assert line.endswith(", called for row 10 for orders-0: INVALID_COMPACTION_KEY: why")

    def test_keyboard_interrupt_of_handler_is_raised(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            RowHandler(IsInterrupted()).rejected(*blamed())

    def test_system_exit_of_close_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        RowHandler(Leaves()).close()
        assert caplog.messages == ["close() of the exception handler Leaves failed"]

    def test_handler_is_not_called_for_other_errors(self) -> None:
        assert made(options(f"{HERE}.SwallowOdd")).rejected(*blamed(codes.TOPIC_AUTHORIZATION_FAILED)) == frozenset()
        assert asked == []

    def test_missing_partition_calls_unknown_topic_handler(self) -> None:
        columns, rejections = blamed(codes.UNKNOWN_TOPIC_OR_PARTITION, 2)
        rejections[1] = replace(rejections[1], topic_partition=TopicPartition("gone", 9))
        assert made(options(f"{HERE}.SwallowOdd")).rejected(columns, rejections) == {1}
        assert asked == [("orders", "UNKNOWN_TOPIC_OR_PARTITION"), ("gone", "UNKNOWN_TOPIC_OR_PARTITION")]
        assert RowHandler(RetriesTopics()).rejected(columns, rejections) == frozenset(), "RETRY finds no partition"
        assert made(options(drops_large=True)).rejected(columns, rejections) == frozenset()

    def test_record_above_topic_limit_calls_too_large_handler(self) -> None:
        """Only a handler without an answer to that is asked by its method for rejected records."""
        large = blamed(codes.MESSAGE_TOO_LARGE)
        assert made(options(f"{HERE}.SwallowOdd")).rejected(*large) == {0, 1, 2}
        assert asked == [(None, "MESSAGE_TOO_LARGE")] * 3
        assert made(options(drops_large=True)).rejected(*large) == {0, 1, 2}
        assert RowHandler(RejectedOnly()).rejected(*large) == {1}


class HandledQuery(QueryDriver):
    """A query into a topic of its own."""

    def __init__(self, broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        super().__init__(monkeypatch, broker.bootstrap_servers, tmp_path / "checkpoint", topic=topic)
        self.broker, self.topic = broker, topic


@pytest.fixture(scope="module")
def served() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"dead": {"partitions": 1}}) as broker:
        yield broker


@pytest.fixture
def query(served: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandledQuery]:
    topic = f"handled-{next(_numbers)}"
    served.create_topic(topic, 1, 1, {})
    played = HandledQuery(served, topic, monkeypatch, tmp_path)
    yield played
    played.close()


ROWS = {"key": ["a", None, None, "d"], "value": [b"0", b"1", b"2", b"3"]}
TOLERANT: dict[str, Any] = {"errors__tolerance": "all", "errors__dead__letter__queue__topic__name": "dead"}
OURS: dict[str, Any] = {"kafka__custom__exception__handler__class": f"{HERE}.SwallowOdd"}


@GUARANTEES
def test_rows_rejected_by_task_call_handler(query: HandledQuery, caplog: pytest.LogCaptureFixture, guarantee: str) -> None:
    alter(query.broker, query.topic, "cleanup.policy", "compact")
    with caplog.at_level(logging.INFO, "chaffinch.spark"):
        query.run(ROWS, deliveryGuarantee=guarantee, **TOLERANT, **OURS)
    assert values(query.broker, query.topic) == {"0": 1, "3": 1}
    line = "2 rows written, 1 rejected (1 INVALID_COMPACTION_KEY), 1 dropped (1 INVALID_COMPACTION_KEY), "
    assert line in caplog.messages[-1]


@GUARANTEES
def test_rows_rejected_by_broker_call_handler(query: HandledQuery, caplog: pytest.LogCaptureFixture, guarantee: str) -> None:
    changes = {"deliveryGuarantee": guarantee, **TOLERANT, **OURS}
    before = query.writer(**changes)
    query._monkeypatch.setattr(query, "writer", lambda **_: before)
    if guarantee == "exactly-once":
        messages = query.write(ROWS, **changes)
        alter(query.broker, query.topic, "cleanup.policy", "compact")
    else:
        alter(query.broker, query.topic, "cleanup.policy", "compact")
        messages = query.write(ROWS, **changes)
    with caplog.at_level(logging.INFO, "chaffinch.spark"):
        query.commit(messages, **changes)
    assert values(query.broker, query.topic) == {"0": 1, "3": 1}
    assert sorted(asked) == [(b"1", "INVALID_COMPACTION_KEY"), (b"2", "INVALID_COMPACTION_KEY")]
    assert "1 rejected (1 INVALID_COMPACTION_KEY), 1 dropped (1 INVALID_COMPACTION_KEY), " in caplog.messages[-1]


@GUARANTEES
def test_swallowed_rows_need_no_tolerance(query: HandledQuery, guarantee: str) -> None:
    alter(query.broker, query.topic, "cleanup.policy", "compact")
    query.run({"key": ["a", None], "value": [b"0", b"1"]}, deliveryGuarantee=guarantee, **OURS)
    assert values(query.broker, query.topic) == {"0": 1}
    with pytest.raises(Refusal, match="1 of 2 rows are rejected"):
        query.run({"key": ["a", None], "value": [b"0", b"2"]}, batch_id=1, deliveryGuarantee=guarantee, **OURS)


@GUARANTEES
@pytest.mark.parametrize("how", [OURS, {"kafka__drop__invalid__large__records": "true"}], ids=["handler", "option"])
def test_rows_above_max_request_size_call_handler(query: HandledQuery, guarantee: str, how: dict[str, Any]) -> None:
    rows = {"key": ["a", "b"], "value": [b"x" * 2000, b"0"]}
    query.run(rows, deliveryGuarantee=guarantee, kafka__max__request__size="1000", **how)
    assert values(query.broker, query.topic) == {"0": 1}
    with pytest.raises(Refusal, match=r"MESSAGE_TOO_LARGE: \d+ bytes, kafka.max.request.size allows 1000"):
        query.run(rows, batch_id=1, deliveryGuarantee=guarantee, kafka__max__request__size="1000")


@GUARANTEES
@pytest.mark.parametrize("how", [OURS, {"kafka__drop__invalid__large__records": "true"}], ids=["handler", "option"])
@pytest.mark.parametrize("request_size", [{}, {"kafka__max__request__size": "5000"}], ids=["default", "above the topic's"])
def test_rows_above_topic_limit_call_handler(
    query: HandledQuery, guarantee: str, how: dict[str, Any], request_size: dict[str, Any]
) -> None:
    """The limit that counts is the smaller one."""
    alter(query.broker, query.topic, "max.message.bytes", "1000")
    rows = {"key": ["a", "b"], "value": [random.Random(7).randbytes(2000), b"0"]}
    query.run(rows, deliveryGuarantee=guarantee, **request_size, **how)
    assert values(query.broker, query.topic) == {"0": 1}
    with pytest.raises(Refusal, match="MESSAGE_TOO_LARGE"):
        query.run(rows, batch_id=1, deliveryGuarantee=guarantee, **request_size)


@pytest.mark.parametrize("how", [OURS, {"kafka__drop__invalid__large__records": "true"}], ids=["handler", "option"])
def test_rows_above_topic_limit_at_commit_call_handler(query: HandledQuery, how: dict[str, Any]) -> None:
    messages = query.write({"key": ["a", "b"], "value": [random.Random(7).randbytes(2000), b"0"]}, **how)
    alter(query.broker, query.topic, "max.message.bytes", "1000")
    query.commit(messages, **how)
    assert values(query.broker, query.topic) == {"0": 1}


@GUARANTEES
def test_rows_for_missing_partitions_call_handler(query: HandledQuery, guarantee: str) -> None:
    rows = {"value": [b"0", b"1"], "partition": pa.array([0, 7], pa.int32())}
    handler: dict[str, Any] = {"kafka__custom__exception__handler__class": f"{HERE}.SwallowsTopics"}
    query.run(rows, deliveryGuarantee=guarantee, **handler)
    assert values(query.broker, query.topic) == {"0": 1}
    with pytest.raises(Refusal, match=r"1 of 2 rows are rejected \(1 UNKNOWN_TOPIC_OR_PARTITION\)"):
        query.run(rows, batch_id=1, deliveryGuarantee=guarantee, **OURS)


@GUARANTEES
def test_unknown_topics_call_handler(query: HandledQuery, guarantee: str) -> None:
    """Asked once per topic, with its first row; the handler's FAIL waits for no topic, so the long wait is not begun."""
    del query.options["topic"]
    marker: dict[str, Any] = {"markerTopic": query.topic} if guarantee == "exactly-once" else {}
    rows = {"value": [b"0", b"1", b"2", b"3"], "topic": [query.topic, "gone", "gone", "missing"]}
    changes: dict[str, Any] = {"kafka__retry__unknown__topic__partition__ms": "600000", "deliveryGuarantee": guarantee, **marker, **OURS}
    query.run(rows, **TOLERANT, **changes)
    assert sorted(asked) == [("gone", "UNKNOWN_TOPIC_OR_PARTITION"), ("missing", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert values(query.broker, query.topic) == {"0": 1}


@pytest.mark.parametrize(("retry_ms", "block_ms", "looks_ms"), [("600000", "5000", 5_000), ("300", "5000", 300)])
def test_wait_for_topic_ends_at_max_block_ms(query: HandledQuery, retry_ms: str, block_ms: str, looks_ms: int) -> None:
    writer = query.writer(kafka__retry__unknown__topic__partition__ms=retry_ms, kafka__max__block__ms=block_ms)
    assert writer._options.topic_wait_ms == looks_ms


def test_topic_created_during_wait_is_used(query: HandledQuery) -> None:
    del query.options["topic"]
    new = f"{query.topic}-new"
    query.broker.faults.add(api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", topic=new, count=2)
    query.broker.create_topic(new, 1, 1, {})
    rows = {"value": [b"0"], "topic": [new]}
    with pytest.raises(Refusal, match="UNKNOWN_TOPIC_OR_PARTITION"):
        query.run(rows, markerTopic=query.topic, kafka__retry__unknown__topic__partition__ms="0")
    query.broker.faults.clear()
    query.broker.faults.add(api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", topic=new, count=2)
    query.run(rows, markerTopic=query.topic, kafka__retry__unknown__topic__partition__ms="60000")
    assert values(query.broker, new) == {"0": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no.such.module.Handler", r"No module named 'no'\); each Python that Spark starts must find its module"),
        (f"{HERE}.HERE", "must be a ProducerExceptionHandler"),
        (f"{HERE}.CannotBeMade", "raised RuntimeError"),
        (f"{HERE}.LeavesAtOnce", r"LeavesAtOnce\(\) raised SystemExit\('a script'\)"),
    ],
)
def test_wrong_handler_class_is_refused_before_tasks(name: str, text: str) -> None:
    with pytest.raises(ConfigException, match=text):
        made(options(name))


@pytest.mark.parametrize(
    ("name", "text", "says"), [("half_written", "class Handler(:", "SyntaxError"), ("script", "import sys; sys.exit(2)", "SystemExit")]
)
def test_failing_handler_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, says: str) -> None:
    (tmp_path / f"{name}_handlers.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigException, match=rf"it cannot be imported \({says}\("):
        made(options(f"{name}_handlers.Handler"))


@GUARANTEES
def test_system_exit_of_handler_leaves_bad_row(query: HandledQuery, guarantee: str) -> None:
    leaves: dict[str, Any] = {"kafka__custom__exception__handler__class": f"{HERE}.Leaves", "kafka__max__request__size": "1000"}
    query.run({"key": ["a", "b"], "value": [b"x" * 2000, b"0"]}, deliveryGuarantee=guarantee, **leaves, **TOLERANT)
    assert values(query.broker, query.topic) == {"0": 1}
