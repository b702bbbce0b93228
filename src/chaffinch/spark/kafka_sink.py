"""`foreachBatch(KafkaSink(...))`: the sink for output mode `update`, and for several outputs of one query (decision 45).

Each call is a batch write that belongs to a micro-batch of the query: one Kafka transaction with a marker, as the format's own sink
for streams has it. A query's sinks are told apart by their names: each has its own marker, transactional id, state and staging.

On Spark Connect the function runs in a process beside the server, and neither it nor the tasks are told which query calls. There the
query is known by its checkpoint, in which Spark has written its id and that this batch is under way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.settings import shown_value
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal, invalid, line_first, tag_in
from chaffinch.spark.session import to_conf_string
from chaffinch.spark.sink.option_tables import SINK
from chaffinch.spark.sink.options import SinkOptions, refuse_own_options
from chaffinch.spark.sink.places import located
from chaffinch.spark.task_facts import DESCRIPTION_PROPERTY, host, run_in
from chaffinch.spark.tasks.row_handler import handler_for
from chaffinch.spark.versions import EARLIER, versions_differ
from chaffinch.version import VERSION

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

NAME_BYTES_MAX: Final = 1_000
"""With the query's id it becomes the name of a group and of a transaction, which have 32767."""
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
# Nothing of the batch is visible, or its marker tells: the same rows are written again without a restart of the query.
_RETRIED_GROUPS: Final = (Group.TRANSACTION_ABORTABLE, Group.RETRIABLE, Group.REFRESH_RETRIABLE)

# Of a write that ends because its query is stopped, by the thread that is interrupted or the job that is cancelled; Java's trace
# follows. A job that somebody cancels in Spark's UI, and java.io.InterruptedIOException, as of a timeout, are no stop.
_STOPPED: Final = re.compile(
    r".*\n: (?:java\.lang\.InterruptedException(?![\w.$])|java\.nio\.channels\.ClosedByInterruptException(?![\w.$])"
    r"|org\.apache\.spark\.SparkException: \[SPARK_JOB_CANCELLED\] .*\bQuery .*\[id = \S+, runId = \S+\] was stopped\b).*"
)

# By run of a query and name of a sink: the newest batch that was written, or is being written. Each run has few sinks.
_claimed_batches: dict[tuple[str | None, str], int] = {}
_transactional_id_owners: dict[tuple[str | None, str], str] = {}
"""By run of a query and transactional id that was given: the name of the sink that has it."""
_claims_lock = Lock()


class KafkaSink:
    """Writes a micro-batch when it is called with its DataFrame and its id. Picklable.

    `options`: those of the format's sink, `checkpointLocation` of the query among them, so that its state is kept there (on Spark
    Connect it must be given); keywords are options too, `kafka_acks` for `kafka.acks`. `name` tells several sinks of one query apart,
    and must stay the same as long as its checkpoint lives; default: the option `topic`. An error that lets the batch be written again
    is met in place, `attempts_max` times in all; the frame is computed again for that. Errors: ConfigException when it is made, also
    of an exception handler that this process cannot import or make; Refusal, or Spark's own, when it is called.
    """

    def __init__(
        self, options: Mapping[str, object] | None = None, *, name: str | None = None, attempts_max: int = 3, **keywords: object
    ) -> None:
        if options is not None and not isinstance(options, Mapping):
            text = f"options cannot be a {type(options).__name__}: they must be a mapping of names to values"  # Which may be secret.
            raise ConfigException(text)
        if wrong := [option for option in options or {} if not isinstance(option, str)]:
            raise ConfigException(f"an option has the name {wrong[0]!r}, which is not a string")
        if both := sorted(set(keywords) & set(options or {})):
            raise ConfigException(f"option {both[0]} is given twice: in options and as a keyword")
        given = {**(options or {}), **keywords}
        refuse_own_options(given)
        self._options = {option: to_conf_string(f"option {option}", value) for option, value in given.items() if value is not None}
        if not self._options:  # `SinkOptions.parse` speaks of those that Spark keeps to itself then.
            SINK.parse({})
        if not _is_integer(attempts_max) or attempts_max < 1:
            raise ConfigException(f"attempts_max cannot be {attempts_max!r}: it must be a whole number, at least 1")
        self._attempts_max = attempts_max
        self._made_with = VERSION
        _check_name(name)
        parsed = SinkOptions.parse(self._batch_options("?", 0), is_stream=False)
        handler_for(parsed.handler)
        if not (name or parsed.topic):
            raise ConfigException("a sink whose rows name their topic needs a name: KafkaSink(..., name=...), another one for each sink")
        self.name: str = name or str(parsed.topic)
        self._transactional_id = parsed.transactional_id
        self._checkpoint = parsed.checkpoint_location
        if self._checkpoint is not None and not self._checkpoint.strip():
            raise ConfigException("option checkpointLocation is empty: give it that of the query, or leave it out")

    @line_first()
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Writes the rows of one micro-batch exactly once, however often the batch is run. Not twice for one batch in one run."""
        for what, value, fits in (
            ("frame", frame, hasattr(frame, "write") and hasattr(frame, "sparkSession")),
            ("batch_id", batch_id, _is_integer(batch_id) and batch_id >= 0),
        ):
            if not fits:
                text = f"{what} cannot be {shown_value(value)}: foreachBatch calls a KafkaSink with a DataFrame and a number"
                raise invalid(ConfigException(text))  # As the end of a query, where its tag is looked for.
        if (version := getattr(self, "_made_with", EARLIER)) != VERSION:  # On Spark Connect: the client's.
            raise versions_differ(host(), VERSION, version)
        options = self._batch_options(self.name, batch_id)
        context = _context_of(frame)
        if context is not None:
            run_id = _run_of(frame.sparkSession, context)
        else:
            run_id = None  # A process serves one run there.
            options["chaffinch.query.id"] = self._query_on_connect(frame, batch_id)
        self._claim_batch(run_id, batch_id)
        try:
            self._write(frame, options)
        except BaseException:
            with _claims_lock:
                del _claimed_batches[run_id, self.name]
            raise

    def _query_on_connect(self, frame: DataFrame, batch_id: int) -> str:
        """The id of the query that calls, by its checkpoint. It has to be a query that is in the middle of this batch."""
        if self._checkpoint is None:
            raise _unknown("on Spark Connect a KafkaSink knows its query by the option checkpointLocation: give it that of the query")
        located_at = located(self._checkpoint, frame.sparkSession.conf.get("spark.hadoop.fs.defaultFS", None))
        checkpoint = Folder(located_at, "checkpointLocation")
        metadata = checkpoint.read("metadata")
        if metadata is None:
            reason = "has no file metadata"
        elif checkpoint.below("offsets").read(str(batch_id)) is None:  # Written before a batch,
            reason = f"knows of no batch {batch_id}"
        elif checkpoint.below("commits").read(str(batch_id)) is not None:  # and this one after it.
            reason = f"says that batch {batch_id} is over"
        else:
            try:
                return str(json.loads(metadata)["id"])
            except (ValueError, KeyError, TypeError):
                reason = f"has a file metadata that is damaged ({metadata[:80]!r})"
        raise _unknown(f"checkpointLocation={checkpoint.shown} {reason}: give the KafkaSink that of the query that calls it")

    def _claim_batch(self, run_id: str | None, batch_id: int) -> None:
        """Two outputs under one name would find each other's marker, and the second one's rows would be lost."""
        with _claims_lock:
            own_id = self._transactional_id
            if own_id is not None and (owner := _transactional_id_owners.setdefault((run_id, own_id), self.name)) != self.name:
                text = f"option kafka.transactional.id cannot be {own_id!r} here: the sink {owner!r} of this query has it, and each has "
                raise invalid(ConfigException(text + "transactions of its own; give each another one, or leave it out"))
            if _claimed_batches.get((run_id, self.name)) == batch_id:
                text = f"batch {batch_id} was given to a sink named {self.name!r} already: its rows would be taken for written"
                raise Refusal(
                    Group.INVALID_CONFIGURATION, "DUPLICATE_OUTPUT", f"{text}; give each output a name of its own, KafkaSink(..., name=...)"
                )
            _claimed_batches[run_id, self.name] = batch_id

    def _write(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        for attempt in range(1, self._attempts_max + 1):
            writer = frame.write.format("chaffinch").mode("append").options(**options)
            try:
                return writer.save()
            except Exception as error:
                tag = tag_in(str(error))
                if tag is None:
                    if stopped := _STOPPED.match(str(error)):
                        # Spark looks for these two lines with a regular expression that a longer text takes out of its stack. The
                        # traceback is that text, and a __cause__ would be in it: Java's whole error is the __context__, which is not.
                        raise RuntimeError(f"the query was stopped: py4j.protocol.Py4JJavaError: {stopped[0]}") from None
                    raise
                if attempt == self._attempts_max or tag.group not in _RETRIED_GROUPS:
                    raise Refusal(tag.group, tag.name, tag.text) from None
        raise AssertionError("the last attempt returns or raises")

    def _batch_options(self, name: str, batch_id: int) -> dict[str, str]:
        return {**self._options, "chaffinch.sink": name, "chaffinch.batch.id": str(batch_id)}


def _context_of(frame: DataFrame) -> SparkContext | None:
    """None on Spark Connect, which has none."""
    try:
        return frame.sparkSession.sparkContext
    except Exception:
        return None


def _run_of(session: SparkSession, context: SparkContext) -> str:
    """The run of the query that calls."""
    query_id = context.getLocalProperty(_QUERY_PROPERTY)
    if query_id is None:
        text = "a KafkaSink was called outside of foreachBatch, or in another thread than the one that foreachBatch calls"
        raise _unknown(f"{text}: the query that the rows belong to is not known there")
    found = run_in(context.getLocalProperty(DESCRIPTION_PROPERTY) or "")
    if found is not None:
        return found
    # The function has described its jobs. The session of a query is a copy, whose `streams` know of nothing.
    queries_of_all_sessions = session._jsparkSession.sharedState().activeStreamingQueries()
    return str(queries_of_all_sessions.get(context._jvm.java.util.UUID.fromString(query_id)).runId())  # type: ignore[union-attr]


def _unknown(text: str) -> Refusal:
    return Refusal(Group.INVALID_CONFIGURATION, "QUERY_UNKNOWN", text)


def _check_name(name: object) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        allowed = f"a string of characters that can be printed, at most {NAME_BYTES_MAX} bytes of them"
        raise ConfigException(f"name cannot be {shown_value(name)}: it must be {allowed}")
    if not name.strip():
        raise ConfigException("name is empty: give the sink one, or leave it out where there is an option topic")


def _is_integer(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
