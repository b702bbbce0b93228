"""Keeping a query running: a query of paper and a clock by hand; `test_spark_pipeline.py` has real ones."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.spark.commit.marker import CheckpointState, Remembered
from chaffinch.spark.commit.messages import BatchCounts
from chaffinch.spark.folders import safe_name
from chaffinch.spark.refusals import ErrorTag
from chaffinch.spark.supervision import supervisor
from chaffinch.spark.supervision.metrics import Metrics, families
from chaffinch.spark.supervision.rules import Limits
from chaffinch.spark.supervision.supervisor import SupervisionEnded, supervise

RETRIABLE = "[STREAM_FAILED] x\nRefusal: KAFKA[Retriable] REQUEST_TIMED_OUT: no answer\n at y"
INVALID = "KAFKA[InvalidConfiguration] ROWS_REJECTED: 4 of 20 rows are rejected"
TAKEN = "KAFKA[ApplicationRecoverable] ANOTHER_WRITER: batch 3 was written by another run"


class Query(StreamingQuery):
    """Ends with an error, or without."""

    name = ""
    id = "4711"

    def __init__(self, ending: BaseException | None) -> None:
        self.ending = ending
        self.is_stopped = False
        self.interruptions = 0

    def awaitTermination(self, timeout: int | None = None) -> bool:
        if self.interruptions:
            self.interruptions -= 1
            signal.raise_signal(signal.SIGINT)
            return False
        if self.ending is not None:
            raise self.ending
        return True

    def stop(self) -> None:
        self.is_stopped = True


class Queries:
    """What `start` is to bring, one after the other: None for a good end, a text for an error."""

    def __init__(self, *endings: BaseException | str | None) -> None:
        self.endings = [RuntimeError(ending) if isinstance(ending, str) else ending for ending in endings]
        self.started: list[Query] = []

    def __call__(self) -> Query:
        self.started.append(Query(self.endings[len(self.started)]))
        return self.started[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that passes only in pauses, of which `pauses` has the list."""
    found = SimpleNamespace(now_s=0.0, pauses=[])

    def sleep(seconds: float) -> None:
        found.pauses.append(seconds)
        found.now_s += seconds

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: found.now_s, sleep=sleep))
    return found


def test_query_without_error_is_returned(clock: SimpleNamespace) -> None:
    queries = Queries(None)
    assert supervise(queries) is queries.started[0]
    assert clock.pauses == []


def test_failed_query_restarts_after_growing_pauses(clock: SimpleNamespace) -> None:
    queries = Queries(*[RETRIABLE] * 4, None)
    calls = []
    ended = supervise(queries, pause_s=2, pause_max_s=10, on_restart=lambda *what: calls.append(what))
    assert ended is queries.started[4]
    assert clock.pauses == [2, 4, 8, 10]
    assert [(tag.name, number, pause) for tag, number, pause in calls] == [("REQUEST_TIMED_OUT", 1 + n, clock.pauses[n]) for n in range(4)]


@pytest.mark.parametrize(
    ("error", "tag", "text"),
    [
        (INVALID, "ROWS_REJECTED",
         f"{INVALID}; not started again: a restart alone does not help: correct the data, the options or the topic"),
        (TAKEN, "ANOTHER_WRITER",
         f"{TAKEN}; not started again: another query has taken over this checkpoint: after a restart each would fence the other again"),
        ("[DIVIDE_BY_ZERO] Division by zero.\n at z", None,
         "[DIVIDE_BY_ZERO] Division by zero.; not started again: this is not an error of Kafka, and a restart may not help"),
        ("[STREAM_FAILED] x\nModuleNotFoundError: No module named 'numba'\n at z", None,
         "[STREAM_FAILED] x; not started again: the Python of a worker, or that of PYSPARK_PYTHON on the driver, lacks the package numba: "
         "install it for that Python on every worker, or ship it with the query (docs/how-to/spark-cluster.md)"),
    ],
)  # fmt: skip
def test_permanent_errors_end_supervision(clock: SimpleNamespace, error: str, tag: str | None, text: str) -> None:
    queries = Queries(RETRIABLE, error)
    with pytest.raises(SupervisionEnded) as caught:
        supervise(queries)
    assert str(caught.value) == text
    assert (caught.value.tag and caught.value.tag.name) == tag
    assert caught.value.restarts == 1
    assert caught.value.__cause__ is queries.endings[1]


def test_restart_limit_ends_supervision(clock: SimpleNamespace) -> None:
    with pytest.raises(SupervisionEnded, match=r"^KAFKA\[Retriable\] REQUEST_TIMED_OUT: no answer; not started again: 3 restarts within"):
        supervise(Queries(*[RETRIABLE] * 4), restarts_max=3)
    assert clock.pauses == [1, 2, 4]


def test_old_restarts_do_not_count(clock: SimpleNamespace) -> None:
    queries = Queries(*[RETRIABLE] * 9, None)

    def start() -> Query:
        clock.now_s += 50
        return queries()

    supervise(start, restarts_max=1, window_s=50)
    assert clock.pauses == [1] * 9


@pytest.mark.parametrize("raised", [RuntimeError(RETRIABLE)])
def test_start_with_kafka_error_is_retried(clock: SimpleNamespace, raised: RuntimeError) -> None:
    calls: list[None] = []

    def start() -> Query:
        calls.append(None)
        if len(calls) == 1:
            raise raised
        return Query(None)

    supervise(start)
    assert clock.pauses == [1]


def test_other_error_of_start_is_raised_unchanged(clock: SimpleNamespace) -> None:
    def start() -> NoReturn:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        supervise(start)


def test_interruption_stops_query(clock: SimpleNamespace) -> None:
    queries = Queries(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        supervise(queries)
    assert queries.started[0].is_stopped


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Py4JError('An error occurred while calling o57.start.\n: java.io.IOException: No FileSystem for scheme "s3"\n\tat x'),
         'java.io.IOException: No FileSystem for scheme "s3"; not started again: Spark has no driver for locations that begin with s3: '),
        (AnalysisException("checkpointLocation must be specified\nplan"),
         "checkpointLocation must be specified; not started again: this is not an error of Kafka"),
    ],
)  # fmt: skip
def test_spark_start_error_is_one_line(clock: SimpleNamespace, error: AnalysisException | Py4JError, text: str) -> None:
    def start() -> NoReturn:
        raise error

    with pytest.raises(SupervisionEnded) as caught:
        supervise(start)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_ended_java_before_start_is_one_line(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Py4JNetworkError("Answer from Java side is empty")

    def activate() -> None:
        raise gone

    monkeypatch.setattr(supervisor, "activate_session", activate)
    with pytest.raises(SupervisionEnded, match="Answer from Java side is empty; not started again") as caught:
        supervise(Queries(None))
    assert caught.value.__cause__ is gone


def test_ctrl_c_during_java_call_is_deferred(clock: SimpleNamespace) -> None:
    """PySpark's handler would ask Java too, in the middle of that call."""
    queries = Queries(None)

    def start() -> Query:
        query = queries()
        query.interruptions = 1
        return query

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        supervise(start)
    assert queries.started[0].is_stopped
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_start_stops_query(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` has no query to give back yet, so no other code can stop it."""
    queries = Queries(None)

    def start() -> Query:
        query = queries()
        monkeypatch.setattr(query, "awaitTermination", lambda timeout: False)
        signal.raise_signal(signal.SIGINT)
        return query

    with pytest.raises(KeyboardInterrupt):
        supervise(start)
    assert queries.started[0].is_stopped


@pytest.mark.parametrize("asks_spark", [True, False], ids=["start makes the session", "it is there before"])
def test_ctrl_c_is_deferred_if_start_creates_session(
    clock: SimpleNamespace, asks_spark: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark sets a handler of its own, which would ask Java in the midst of another call to it."""
    queries, said = Queries(None), []
    before = signal.getsignal(signal.SIGINT)

    def asked(timeout: int) -> bool:
        signal.raise_signal(signal.SIGINT)
        said.append("Java has answered")
        return False

    def start() -> Query:
        if asks_spark:
            signal.signal(signal.SIGINT, lambda *_: said.append("Java is asked"))
        query = queries()
        monkeypatch.setattr(query, "awaitTermination", asked)
        return query

    try:
        with pytest.raises(KeyboardInterrupt):
            supervise(start)
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == ["Java has answered"]
    assert queries.started[0].is_stopped
    line = "interrupted: stopping the query; interrupt again to exit without waiting for it"
    assert [record.message for record in caplog.records] == [line]


def test_ctrl_c_during_start_of_ended_query_is_raised(clock: SimpleNamespace) -> None:
    def start() -> Query:
        signal.raise_signal(signal.SIGINT)
        return Queries(None)()

    with pytest.raises(KeyboardInterrupt):
        supervise(start)


def test_ctrl_c_that_fails_query_is_raised(clock: SimpleNamespace) -> None:
    def start() -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError(RETRIABLE)

    with pytest.raises(KeyboardInterrupt):
        supervise(start)
    assert clock.pauses == []


def test_second_ctrl_c_ends_blocked_start(clock: SimpleNamespace) -> None:
    def start() -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was to be ended by the second one")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        supervise(start)
    assert signal.getsignal(signal.SIGINT) is before


def test_query_is_stopped_if_metrics_fail(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Metrics, "watch", lambda self, query: 1 / 0)
    queries = Queries(None)
    with pytest.raises(ZeroDivisionError):
        supervise(queries, metrics="127.0.0.1:0", checkpoint=str(tmp_path))
    assert queries.started[0].is_stopped


SOURCE_LOST = """org.apache.spark.SparkException: x
\tat org.apache.spark.sql.execution.streaming.StreamExecution.run(StreamExecution.scala:311)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(PythonStreamingSourceRunner.scala:166)
"""


@pytest.mark.parametrize(("trace", "restarts"), [(SOURCE_LOST, 1), (SOURCE_LOST.replace("EOFException", "Error"), 0), (None, 0)])
def test_died_source_process_restarts_query(clock: SimpleNamespace, trace: str | None, restarts: int) -> None:
    """Spark's text says nothing of it: it is in Java's trace, which PySpark keeps beside it."""
    died = RuntimeError("[STREAM_FAILED] Query [id = x] terminated with exception:  SQLSTATE: XXKST")
    vars(died)["_stackTrace"] = trace
    calls = []
    with nullcontext() if restarts else pytest.raises(SupervisionEnded):
        supervise(Queries(died, None), on_restart=lambda tag, *_: calls.append(tag.name))
    assert calls == ["WORKER_LOST"] * restarts


def test_ignored_sigint_stays_ignored(clock: SimpleNamespace) -> None:
    queries = Queries(None)

    def start() -> Query:
        query = queries()
        query.interruptions = 2
        return query

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert supervise(start) is queries.started[0]
    finally:
        signal.signal(signal.SIGINT, before)


def test_interruption_is_raised_even_if_stop_fails(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Query, "stop", lambda self: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        supervise(Queries(KeyboardInterrupt()))
    assert "the query could not be stopped: division by zero" in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"restarts_max": -1}, "restarts_max cannot be -1"),
        ({"metrics": "127.0.0.1:0"}, "metrics needs checkpoint"),
        ({"checkpoint": "/x"}, "checkpoint is only used with metrics"),
        ({"metrics": "nowhere", "checkpoint": "/x"}, "metrics cannot be 'nowhere': it must be HOST:PORT"),
        ({"metrics": "203.0.113.1:1", "checkpoint": "/x"}, "metrics=203.0.113.1:1: cannot listen on it: "),
        ({"on_restart": 5}, "on_restart cannot be 5: it must be a function"),
        ({"restarts_max": 1.5}, "restarts_max cannot be 1.5: it must be a whole number, 0 or more"),
        ({"restarts_max": True}, "restarts_max cannot be True: it must be a whole number, 0 or more"),
        ({"pause_s": float("inf")}, "pause_s cannot be inf: it must be at most 1e+06 seconds"),
        ({"metrics": 5, "checkpoint": "/x"}, "metrics cannot be 5: it must be a string such as 127.0.0.1:9464"),
        ({"metrics": "127.0.0.1:0", "checkpoint": " "}, "checkpoint cannot be ' ': it must be a string such as /data/checkpoint"),
    ],
)
def test_wrong_options_are_refused(options: Mapping[str, Any], text: str) -> None:
    queries = Queries()
    with pytest.raises(ConfigException, match=re.escape(text)):
        supervise(queries, **options)
    assert queries.started == []


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (5, "start cannot be 5: it must be a function that starts the query"),
        (lambda: None, "start returned None: it must return the query that it has started"),
    ],
)
def test_wrong_start_is_refused(start: Any, text: str) -> None:
    with pytest.raises(ConfigException, match=re.escape(text)):
        supervise(start)


class TestMetrics:
    COUNTS = BatchCounts(rows_written=7, rejected={"INVALID_RECORD": 2}, byte_count=900, push_ms=250)

    def state(self, batch_id: int, counts: BatchCounts, sink: str = "") -> CheckpointState:
        newest = Remembered(batch_id=batch_id, phase="written", digest="", noted_ms=0, counts=self.COUNTS)
        return CheckpointState(remembered=newest, totals=counts, sink=sink)

    def read(self, metrics: Metrics, path: str = "/metrics") -> tuple[str, str]:
        with urllib.request.urlopen(f"http://{metrics.address}{path}") as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def test_metrics_read_checkpoint_on_request(self, tmp_path: Path, clock: SimpleNamespace) -> None:
        seen: list[None] = []
        checkpoint = tmp_path / "checkpoint"

        def start() -> Query:
            (checkpoint / "chaffinch" / safe_name("bills.eu")).mkdir(parents=True, exist_ok=True)
            (checkpoint / "chaffinch" / "staging").mkdir(exist_ok=True)
            (checkpoint / "chaffinch" / "state.json").write_text(self.state(3, self.COUNTS + self.COUNTS).to_text())
            state = self.state(2, self.COUNTS, "bills.eu")
            (checkpoint / "chaffinch" / safe_name("bills.eu") / "state.json").write_text(state.to_text())
            return Query(RuntimeError(RETRIABLE) if not seen else None)

        with Metrics("127.0.0.1:0", str(checkpoint)) as metrics:
            assert "chaffinch_spark_rows_written_total{" not in self.read(metrics)[1]
            supervisor._supervised(start, Limits(), metrics, lambda *_: seen.append(None))
            kind, text = self.read(metrics)
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines == [
            'chaffinch_spark_rows_written_total{query="4711"} 14',
            'chaffinch_spark_rows_written_total{query="4711",sink="bills.eu"} 7',
            'chaffinch_spark_rows_rejected_total{query="4711",error="INVALID_RECORD"} 4',
            'chaffinch_spark_rows_rejected_total{query="4711",sink="bills.eu",error="INVALID_RECORD"} 2',
            'chaffinch_spark_bytes_total{query="4711"} 1800',
            'chaffinch_spark_bytes_total{query="4711",sink="bills.eu"} 900',
            'chaffinch_spark_staged_bytes_total{query="4711"} 0',
            'chaffinch_spark_staged_bytes_total{query="4711",sink="bills.eu"} 0',
            'chaffinch_spark_restarts_total{query="4711",group="Retriable"} 1',
            'chaffinch_spark_last_batch_id{query="4711"} 3',
            'chaffinch_spark_last_batch_id{query="4711",sink="bills.eu"} 2',
            'chaffinch_spark_push_seconds{query="4711"} 0.25',
            'chaffinch_spark_push_seconds{query="4711",sink="bills.eu"} 0.25',
        ]

    def test_metrics_use_default_file_system_of_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            SparkSession, "getActiveSession", lambda: SimpleNamespace(conf={"spark.hadoop.fs.defaultFS": "hdfs://names:8020/"})
        )
        metrics = Metrics("127.0.0.1:0", "/checkpoints/1")
        with metrics:
            metrics.watch(Query(None))
            assert metrics._folder.location == "hdfs://names:8020/checkpoints/1/chaffinch"

    def test_metrics_refuse_dns_rebinding(self, tmp_path: Path) -> None:
        with Metrics("127.0.0.1:0", str(tmp_path)) as metrics:
            for host, status in (("evil.example", 403), ("localhost:9464", 200), ("10.0.0.7", 200)):
                request = urllib.request.Request(f"http://{metrics.address}/metrics", headers={"Host": host})
                try:
                    with urllib.request.urlopen(request) as answer:
                        found = answer.status
                except urllib.error.HTTPError as error:
                    found = error.code
                    error.close()
                assert found == status, host

    def test_public_metrics_address_is_logged_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for address, count in (("0.0.0.0:0", 1), ("127.0.0.1:0", 0)):
            caplog.clear()
            with Metrics(address, str(tmp_path)):
                warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len(warnings) == count
            assert all("metrics=0.0.0.0:" in text and "can be reached from other machines" in text for text in warnings)

    def test_metrics_listen_on_ipv6(self, tmp_path: Path) -> None:
        try:
            metrics = Metrics("[::1]:0", str(tmp_path))
        except ConfigException as error:
            pytest.skip(str(error))
        with metrics:
            assert metrics.address.startswith("[::1]:")
            assert "chaffinch_spark_last_batch_id" in self.read(metrics)[1]

    def test_damaged_state_is_logged_and_other_metrics_are_served(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "chaffinch").mkdir()
        (tmp_path / "chaffinch" / "state.json").write_text("{")
        with Metrics("127.0.0.1:0", str(tmp_path)) as metrics:
            metrics.restarted(ErrorTag(group=Group.RETRIABLE, name="N", text="t"))
            assert 'restarts_total{query="",group="Retriable"} 1' in self.read(metrics)[1]
        assert "cannot be read" in caplog.text

    def test_failed_metrics_response_is_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Broken(Metrics):
            def text(self) -> str:
                raise RuntimeError("no text")

        with Broken("127.0.0.1:0", str(tmp_path)) as metrics, pytest.raises(OSError, match="closed connection"):
            self.read(metrics)
        assert "metrics could not be sent to ('127.0.0.1'" in caplog.text
        assert "no text" in caplog.text
        assert capsys.readouterr().err == ""

    def test_other_paths_and_head_requests(self, tmp_path: Path) -> None:
        with Metrics("127.0.0.1:0", str(tmp_path)) as metrics:
            with pytest.raises(urllib.error.HTTPError) as caught:
                self.read(metrics, "/")
            assert json.loads(caught.value.read()) == {"error": "there is no /: only /metrics"}
            caught.value.close()
            head = urllib.request.Request(f"http://{metrics.address}/metrics", method="HEAD")
            with urllib.request.urlopen(head) as answer:
                assert (answer.status, answer.read()) == (200, b"")

    def test_metrics_count_dropped_rows(self) -> None:
        (family,) = (found for found in families("q", {"": self.state(0, BatchCounts(dropped={"X": 3}))}, {}) if "dropped" in found.name)
        assert family.text.splitlines()[-1] == 'chaffinch_spark_rows_dropped_total{query="q",error="X"} 3'
