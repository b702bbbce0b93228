"""The sink for `foreachBatch`, with a frame of paper; `test_spark_pipeline.py` has real ones."""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.spark.kafka_sink import KafkaSink
from chaffinch.spark.refusals import Refusal, tag_in
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.task_facts import TaskContextFacts

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}
ABORTABLE = "An error occurred.\n: x KAFKA[TransactionAbortable] SNAPSHOT_CHANGED: topic orders changed SQLSTATE: 1"
LOST = "KAFKA[ApplicationRecoverable] STAGING_LOST: gone"
INVALID = "KAFKA[InvalidConfiguration] ROWS_REJECTED: 1 of 2"
TIMED_OUT = "KAFKA[Retriable] REQUEST_TIMED_OUT: no answer"

_runs = count()


class Frame:
    """Stands for a DataFrame in foreachBatch: takes what is written, or fails with the next of `errors`."""

    def __init__(self, *errors: str, run: str | None = None, query: str | None = "q") -> None:
        self.errors = list(errors)
        self.given: list[dict[str, str]] = []
        description = f"\nid = {query}\nrunId = {run or f'run-{next(_runs)}'}\nbatch = 0"
        properties = {"sql.streaming.queryId": query, "spark.job.description": description}
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=properties.get))
        self.write = self

    def format(self, name: str) -> Frame:
        assert name == "chaffinch"
        return self

    def mode(self, name: str) -> Frame:
        assert name == "append"
        return self

    def options(self, **options: str) -> Frame:
        self.given.append(options)
        return self

    def save(self) -> None:
        if self.errors and (error := self.errors.pop(0)):
            raise RuntimeError(error)


def sink(**options: Any) -> Callable[[Any, Any], None]:
    """A sink, which is called with frames of paper and with other things."""
    return KafkaSink(SERVERS, **{"topic": "orders", **options})


def test_call_writes_with_options_of_query_and_batch() -> None:
    frame = Frame()
    sink(checkpointLocation="/c", errors_tolerance="all", errors_dead_letter_queue_topic_name="dead", kafka_batch_size=1000)(frame, 7)
    (given,) = frame.given
    parsed = SinkOptions.parse(given, is_stream=False)
    assert (parsed.sink_name, parsed.batch_id, parsed.checkpoint_location) == ("orders", 7, "/c")
    assert (parsed.dead_letter_topic, parsed.batch_bytes) == ("dead", 1000)


def test_sink_is_picklable() -> None:
    frame = Frame()
    pickle.loads(pickle.dumps(sink(name="a")))(frame, 0)
    assert frame.given[0]["chaffinch.sink"] == "a"


@pytest.mark.parametrize("error", [ABORTABLE, TIMED_OUT, "KAFKA[RefreshRetriable] NOT_LEADER_OR_FOLLOWER: moved"])
def test_retriable_error_is_retried(error: str) -> None:
    frame = Frame(error, error)
    sink()(frame, 0)
    assert len(frame.given) == 3


@pytest.mark.parametrize(
    ("errors", "attempts_max", "attempts", "group"),
    [
        ([ABORTABLE] * 9, 3, 3, Group.TRANSACTION_ABORTABLE),
        ([ABORTABLE], 1, 1, Group.TRANSACTION_ABORTABLE),
        ([INVALID], 3, 1, Group.INVALID_CONFIGURATION),
        ([TIMED_OUT, LOST], 3, 2, Group.APPLICATION_RECOVERABLE),
    ],
)
def test_permanent_error_is_raised_with_tag(errors: Sequence[str], attempts_max: int, attempts: int, group: Group) -> None:
    frame = Frame(*errors)
    with pytest.raises(Refusal, match=r"^KAFKA\[") as caught:
        sink(attempts_max=attempts_max)(frame, 0)
    assert (len(frame.given), caught.value.group) == (attempts, group)


def test_other_error_is_raised_unchanged() -> None:
    with pytest.raises(RuntimeError, match="division by zero"):
        sink()(Frame("division by zero"), 0)


@pytest.mark.parametrize(
    "reason",
    [
        "java.lang.InterruptedException",
        "java.nio.channels.ClosedByInterruptException: x",
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 4 cancelled Query [id = a, runId = b] was stopped SQLSTATE: XXKDA",
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 4 cancelled Query my own [id = a, runId = b] was stopped SQLSTATE: X",
    ],
)
def test_stopped_query_raises_without_java_trace(reason: str) -> None:
    """What Spark knows a stop by is there; on all the rest its regular expression overflows the stack."""
    frame, said = Frame("\n\tat ".join([f"An error occurred while calling o1.save.\n: {reason}", *["org.apache.Class.method"] * 100])), []
    try:
        sink()(frame, 0)
    except RuntimeError as error:
        said += [traceback.format_exc(), str(error.__context__)]
    assert said[0].endswith(f"py4j.protocol.Py4JJavaError: An error occurred while calling o1.save.\n: {reason}\n")
    assert "org.apache.Class.method" not in said[0]
    assert said[1].count("org.apache.Class.method") == 100  # For who catches it, all is there.
    assert len(frame.given) == 1


@pytest.mark.parametrize(
    "reason",
    [
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 4 cancelled by user via the UI (killed) SQLSTATE: XXKDA",
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 4 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA",
        "java.io.InterruptedIOException: timeout",
        "java.lang.InterruptedExceptionally: no such class",
        "org.apache.spark.SparkException: Query [id = a, runId = b] was stopped",
    ],
)
def test_error_similar_to_stop_is_raised_unchanged(reason: str) -> None:
    text = f"An error occurred while calling o1.save.\n: {reason}\n\tat org.apache.Class.method"
    with pytest.raises(RuntimeError) as caught:
        sink()(Frame(text), 0)
    assert str(caught.value) == text


class TestTwoOutputs:
    @pytest.mark.parametrize("is_same_object", [True, False])
    def test_two_outputs_with_same_name_are_refused(self, is_same_object: bool) -> None:
        frame, first = Frame(), sink()
        second = first if is_same_object else sink()
        first(frame, 0)
        with pytest.raises(Refusal, match=r"DUPLICATE_OUTPUT: batch 0 was already given to a sink named 'orders'.*name=") as caught:
            second(frame, 0)
        assert caught.value.group is Group.INVALID_CONFIGURATION
        assert len(frame.given) == 1
        first(frame, 1)

    def test_two_outputs_with_different_names_are_written(self) -> None:
        frame = Frame()
        for name in ("a", "b"):
            sink(name=name)(frame, 0)
        assert [given["chaffinch.sink"] for given in frame.given] == ["a", "b"]

    def test_failed_batch_can_be_written_again(self) -> None:
        frame, output = Frame(INVALID), sink()
        with pytest.raises(Refusal, match="ROWS_REJECTED"):
            output(frame, 0)
        output(frame, 0)

    def test_same_batch_in_another_run_is_written(self) -> None:
        output = sink()
        output(Frame(run="one"), 0)
        output(Frame(run="two"), 0)

    def test_transactional_id_of_another_output_is_refused(self) -> None:
        """A committer requests the end of its own last transaction, which would be that of the other sink."""
        frame = Frame()
        first, second = (sink(name=name, kafka_transactional_id="mine") for name in ("a", "b"))
        first(frame, 0)
        with pytest.raises(Refusal, match=r"CONFIG: option kafka.transactional.id cannot be 'mine' here: the sink 'a' of this query"):
            second(frame, 0)
        first(frame, 1)
        second(Frame(), 0)
        assert len(frame.given) == 2


class ConnectFrame(Frame):
    """As with Spark Connect: without a SparkContext, and so without the id of the query."""

    def __init__(self) -> None:
        super().__init__()
        self.sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: default))


class TestOnConnect:
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        """Of query q, in the middle of batch 1."""
        (tmp_path / "metadata").write_text('{"id":"q"}')
        for name in ("offsets/0", "offsets/1", "commits/0"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    def test_query_id_is_read_from_checkpoint(self, checkpoint: Path) -> None:
        frame = ConnectFrame()
        sink(checkpointLocation=str(checkpoint))(frame, 1)
        options = SinkOptions.parse(frame.given[0], is_stream=False)
        facts = options.completed_facts(TaskContextFacts(task=2))
        assert (facts.task, facts.query_id, facts.batch_id, options.sink_name) == (2, "q", 1, "orders")

    @pytest.mark.parametrize(
        ("batch_id", "missing", "text"),
        [
            (0, None, "has committed batch 0 already"),
            (2, None, "has no batch 2"),
            (1, "metadata", "has no metadata file"),
        ],
    )
    def test_checkpoint_of_another_query_is_refused(self, checkpoint: Path, batch_id: int, missing: str | None, text: str) -> None:
        if missing:
            (checkpoint / missing).unlink()
        self.refused(checkpoint, batch_id, text)

    @pytest.mark.parametrize("metadata", ["", "[]", '{"name":"q"}'])
    def test_damaged_checkpoint_is_refused(self, checkpoint: Path, metadata: str) -> None:
        (checkpoint / "metadata").write_text(metadata)
        self.refused(checkpoint, 1, r"has a damaged metadata file \(b.*\)")

    @staticmethod
    def refused(checkpoint: Path, batch_id: int, text: str) -> None:
        frame = ConnectFrame()
        with pytest.raises(Refusal, match=f"QUERY_UNKNOWN: checkpointLocation=.* {text}: set it to the checkpoint of the query that calls"):
            sink(checkpointLocation=str(checkpoint))(frame, batch_id)
        assert frame.given == []

    def test_missing_checkpoint_option_is_refused(self) -> None:
        with pytest.raises(Refusal, match="QUERY_UNKNOWN: with Spark Connect a KafkaSink needs the option checkpointLocation"):
            sink()(ConnectFrame(), 0)

    def test_two_outputs_with_same_name_are_refused_on_connect(self, checkpoint: Path) -> None:
        sink(name="twice", checkpointLocation=str(checkpoint))(ConnectFrame(), 1)
        with pytest.raises(Refusal, match="DUPLICATE_OUTPUT"):
            sink(name="twice", checkpointLocation=str(checkpoint))(ConnectFrame(), 1)


def test_call_outside_foreach_batch_is_refused() -> None:
    frame = Frame(query=None)
    with pytest.raises(Refusal, match="QUERY_UNKNOWN: a KafkaSink was called outside of foreachBatch"):
        sink()(frame, 0)
    assert frame.given == []


@pytest.mark.parametrize(
    ("frame", "batch_id", "text"),
    [
        (5, 0, "frame cannot be 5: foreachBatch calls a KafkaSink with a DataFrame and a number"),
        (Frame(), "0", "batch_id cannot be '0': foreachBatch calls a KafkaSink with a DataFrame and a number"),
        (Frame(), -1, "batch_id cannot be -1"),
    ],
)
def test_wrong_call_arguments_are_refused(frame: object, batch_id: object, text: str) -> None:
    with pytest.raises(Refusal, match=text) as caught:
        sink()(frame, batch_id)
    tag = tag_in(f"[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: {type(caught.value).__name__}: {caught.value} SQLSTATE: 39000")
    assert tag is not None
    assert (tag.group, tag.name, tag.text) == (Group.INVALID_CONFIGURATION, "CONFIG", caught.value.text)


@pytest.mark.parametrize(
    ("options", "keywords", "text"),
    [
        ({}, {"topic": "t"}, "option kafka.bootstrap.servers is missing: host:port of one or more brokers"),
        (None, {}, "option kafka.bootstrap.servers is missing: host:port of one or more brokers"),
        ({"topic": None}, {}, "option kafka.bootstrap.servers is missing: host:port of one or more brokers"),
        (SERVERS, {"topci": "t"}, "unknown option 'topci': the nearest known one is 'topic'"),
        (SERVERS, {"topic": "t", "idempotencyToken": "x"}, "idempotencyToken is for batch writes"),
        (SERVERS, {"markerTopic": "t"}, "a sink without the option topic needs a name"),
        (SERVERS, {"topic": "t", "attempts_max": 0}, "attempts_max cannot be 0"),
        (SERVERS, {"topic": "t", "attempts_max": "3"}, "attempts_max cannot be '3': it must be a whole number, at least 1"),
        ("localhost:9092", {"topic": "t"}, "options cannot be a str: they must be a mapping of names to values"),
        ([("kafka.sasl.password", "S3cret")], {"topic": "t"}, "options cannot be a list: they must be a mapping of names to values"),
        (
            {**SERVERS, "kafka.sasl.password": b"S3cret"},
            {"topic": "t"},
            "option kafka.sasl.password cannot be a bytes (not shown): it must be a string, a number, True or False",
        ),
        ({**SERVERS, "topic": "t"}, {"topic": "u"}, "option topic is given twice"),
        ({**SERVERS, "topic": "t", "Topic": "u"}, {}, "option topic is given twice, as 'topic' and as 'Topic': give it once"),
        ({**SERVERS, "topic": "t"}, {"TOPIC": "u"}, "option topic is given twice, as 'topic' and as 'TOPIC': give it once"),
        (
            SERVERS,
            {"topic": "t", "checkpointLocation": "/a", "checkpointlocation": "/b"},
            "'checkpointLocation' and as 'checkpointlocation'",
        ),
        (
            {**SERVERS, "kafka.batch.size": 1},
            {"kafka_batch_size": 2},
            "option kafka.batch.size is given twice, as 'kafka.batch.size' and as 'kafka_batch_size'",
        ),
        (SERVERS, {"errors__tolerance": "all"}, "unknown option 'errors__tolerance': the nearest known one is 'errors_tolerance'"),
        (SERVERS, {"topic": "t", "errors_tolerance": "some"}, "errors.tolerance"),
        (SERVERS, {"topic": "t", "attempts_max": True}, "attempts_max cannot be True"),
        (SERVERS, {"topic": "t", "name": ""}, "name is empty: give the sink a name, or leave it out"),
        (SERVERS, {"topic": "t", "name": 5}, "name cannot be 5: it must be a string of printable characters"),
        (SERVERS, {"topic": "t", "name": "a\n"}, r"name cannot be 'a\n': it must be a string of printable characters"),
        (SERVERS, {"topic": "t", "name": "x" * 1001}, "at most 1000 bytes"),
        (SERVERS, {"topic": ["t"]}, "option topic cannot be ['t']: it must be a string, a number, True or False"),
        (
            SERVERS,
            {"topic": "t", "checkpointLocation": " "},
            "option checkpointLocation is empty: set it to that of the query, or leave it out",
        ),
        (SERVERS, {"topic": "t", "kafka_custom_exception_handler_class": "no.such"}, "cannot be 'no.such': it cannot be imported"),
        (
            SERVERS,
            {"topic": "t", "kafka_custom_exception_handler_class": "os.path"},
            "option kafka.custom.exception.handler.class cannot be 'os.path': it must be a ProducerExceptionHandler",
        ),
        (SERVERS | {5: "x"}, {"topic": "t"}, "an option has the name 5, which is not a string"),
    ],
)
def test_wrong_constructor_arguments_are_refused(options: Any, keywords: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ConfigException, match=re.escape(text)):
        KafkaSink(options, **keywords)
