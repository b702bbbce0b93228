"""`foreachBatch(KafkaSink(...))`: the sink for output mode `update`, and for several outputs of one query (decision 45).

Each call is a batch write that belongs to a micro-batch of the query: one Kafka transaction with a marker, like the sink of the format
for streams. The sinks of a query have different names, and each has its own marker, transactional id, state and staging folder.

With Spark Connect the function runs in a separate process next to the server, and neither it nor the tasks get the id of the query.
There the query is identified by its checkpoint, in which Spark stores its id and the running batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final, Unpack

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.public_names import exported_from
from chaffinch.settings import shown_value
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal, invalid, line_first, tag_in
from chaffinch.spark.session import to_conf_string
from chaffinch.spark.sink.option_tables import SINK
from chaffinch.spark.sink.options import SinkOptions, refuse_own_options
from chaffinch.spark.sink.paths import to_pyarrow_location
from chaffinch.spark.task_facts import DESCRIPTION_PROPERTY, host, run_in
from chaffinch.spark.tasks.row_handler import handler_for
from chaffinch.spark.versions import EARLIER, versions_differ
from chaffinch.version import VERSION

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from chaffinch.spark.option_types import KafkaSinkOptions

NAME_BYTES_MAX: Final = 1_000
"""The name and the query id form a group id and a transactional id, whose limit is 32767 bytes."""
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
# Errors after which no record of the batch is visible, or its marker shows that it was written: a retry needs no restart of the query.
_RETRIED_GROUPS: Final = (Group.TRANSACTION_ABORTABLE, Group.RETRIABLE, Group.REFRESH_RETRIABLE)

# Errors of a write whose query is stopped: its thread is interrupted or its job cancelled; the Java stack trace follows. A job that is
# cancelled in the Spark UI, and java.io.InterruptedIOException (a timeout), do not count.
_STOPPED: Final = re.compile(
    r".*\n: (?:java\.lang\.InterruptedException(?![\w.$])|java\.nio\.channels\.ClosedByInterruptException(?![\w.$])"
    r"|org\.apache\.spark\.SparkException: \[SPARK_JOB_CANCELLED\] .*\bQuery .*\[id = \S+, runId = \S+\] was stopped\b).*"
)

# (run id of the query, name of the sink) -> the newest batch that was or is being written. Each run has few sinks.
_claimed_batches: dict[tuple[str | None, str], int] = {}
_transactional_id_owners: dict[tuple[str | None, str], str] = {}
"""(run id of the query, configured transactional id) -> the name of the sink that uses it."""
_claims_lock = Lock()


@exported_from("chaffinch.spark")
class KafkaSink:
    """Sink for `foreachBatch`: call it with a micro-batch's DataFrame and id. Picklable.

    An error after which the batch can be written again is retried in place; Spark computes the rows again for each attempt.

    Args:
        options: options of the sink, as for `format("chaffinch")`. With the query's `checkpointLocation`, the state is stored there; with
            Spark Connect that option is required.
        name: distinguishes the sinks of one query, and must not change while the checkpoint is in use. At most 1000 bytes of printable
            characters. Default: the option `topic`.
        attempts_max: number of attempts to write a batch, at least 1.
        keywords: further options, such as `kafka_acks` for `kafka.acks`.

    Raises:
        ConfigException: an option, `name` or `attempts_max` is invalid, or the exception handler cannot be imported or created in this
            process.
    """

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        *,
        name: str | None = None,
        attempts_max: int = 3,
        **keywords: Unpack[KafkaSinkOptions],
    ) -> None:
        if options is not None and not isinstance(options, Mapping):
            text = f"options cannot be a {type(options).__name__}: they must be a mapping of names to values"  # Values may be secret.
            raise ConfigException(text)
        if wrong := [option for option in options or {} if not isinstance(option, str)]:
            raise ConfigException(f"an option has the name {wrong[0]!r}, which is not a string")
        if both := sorted(set(keywords) & set(options or {})):
            raise ConfigException(f"option {both[0]} is given twice: in options and as a keyword")
        given = {**(options or {}), **keywords}
        refuse_own_options(given)
        self._options = {option: to_conf_string(f"option {option}", value) for option, value in given.items() if value is not None}
        if not self._options:  # For its error: `SinkOptions.parse` would advise about options that Spark does not pass on.
            SINK.parse({})
        if not _is_integer(attempts_max) or attempts_max < 1:
            raise ConfigException(f"attempts_max cannot be {attempts_max!r}: it must be a whole number, at least 1")
        self._attempts_max = attempts_max
        self._made_with = VERSION
        _check_name(name)
        parsed = SinkOptions.parse(self._batch_options("?", 0), is_stream=False)
        handler_for(parsed.handler)
        if not (name or parsed.topic):
            raise ConfigException("a sink without the option topic needs a name: KafkaSink(..., name=...), a different one for each sink")
        self.name: str = name or str(parsed.topic)
        self._transactional_id = parsed.transactional_id
        self._checkpoint = parsed.checkpoint_location
        if self._checkpoint is not None and not self._checkpoint.strip():
            raise ConfigException("option checkpointLocation is empty: set it to that of the query, or leave it out")

    @line_first()
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write the rows of one micro-batch. They are written exactly once even if Spark runs the batch several times.

        Args:
            frame: the rows, with the columns of the sink: value; optionally key, headers, timestamp, partition, topic, and the one that the
                option errors.column names.
            batch_id: id of the micro-batch, as `foreachBatch` passes it.

        Raises:
            Refusal: the batch cannot be written, or was written before in the same run (DUPLICATE_OUTPUT). `tag_in` finds its tag.
            Exception: errors of Spark itself are raised unchanged.
        """
        for what, value, fits in (
            ("frame", frame, hasattr(frame, "write") and hasattr(frame, "sparkSession")),
            ("batch_id", batch_id, _is_integer(batch_id) and batch_id >= 0),
        ):
            if not fits:
                text = f"{what} cannot be {shown_value(value)}: foreachBatch calls a KafkaSink with a DataFrame and a number"
                raise invalid(ConfigException(text))  # It ends a query, so it needs a tag.
        if (version := getattr(self, "_made_with", EARLIER)) != VERSION:  # With Spark Connect, this is the version of the client.
            raise versions_differ(host(), VERSION, version)
        options = self._batch_options(self.name, batch_id)
        context = _context_of(frame)
        if context is not None:
            run_id = _run_of(frame.sparkSession, context)
        else:
            run_id = None  # With Spark Connect a process serves one run only.
            options["chaffinch.query.id"] = self._query_on_connect(frame, batch_id)
        self._claim_batch(run_id, batch_id)
        try:
            self._write(frame, options)
        except BaseException:
            with _claims_lock:
                del _claimed_batches[run_id, self.name]
            raise

    def _query_on_connect(self, frame: DataFrame, batch_id: int) -> str:
        """The id of the calling query, read from its checkpoint. Raises Refusal unless the query is running this batch."""
        if self._checkpoint is None:
            raise _unknown("with Spark Connect a KafkaSink needs the option checkpointLocation: set it to that of the query")
        located_at = to_pyarrow_location(self._checkpoint, frame.sparkSession.conf.get("spark.hadoop.fs.defaultFS", None))
        checkpoint = Folder(located_at, "checkpointLocation")
        metadata = checkpoint.read("metadata")
        if metadata is None:
            reason = "has no metadata file"
        elif checkpoint.below("offsets").read(str(batch_id)) is None:  # Spark writes this file before a batch
            reason = f"has no batch {batch_id}"
        elif checkpoint.below("commits").read(str(batch_id)) is not None:  # and this one after it.
            reason = f"has committed batch {batch_id} already"
        else:
            try:
                return str(json.loads(metadata)["id"])
            except (ValueError, KeyError, TypeError):
                reason = f"has a damaged metadata file ({metadata[:80]!r})"
        raise _unknown(f"checkpointLocation={checkpoint.shown} {reason}: set it to the checkpoint of the query that calls the KafkaSink")

    def _claim_batch(self, run_id: str | None, batch_id: int) -> None:
        """Reserve the batch for this sink. Raises Refusal if another sink has its name or transactional id.

        Two outputs with the same name would read each other's marker, and the rows of the second would be lost.
        """
        with _claims_lock:
            own_id = self._transactional_id
            if own_id is not None and (owner := _transactional_id_owners.setdefault((run_id, own_id), self.name)) != self.name:
                text = (
                    f"option kafka.transactional.id cannot be {own_id!r} here: the sink {owner!r} of this query uses it, and each sink has "
                )
                raise invalid(ConfigException(text + "its own transactions; give each a different one, or leave it out"))
            if _claimed_batches.get((run_id, self.name)) == batch_id:
                text = f"batch {batch_id} was already given to a sink named {self.name!r}, which would treat its rows as written"
                raise Refusal(
                    Group.INVALID_CONFIGURATION, "DUPLICATE_OUTPUT", f"{text}; give each output its own name, KafkaSink(..., name=...)"
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
                        # Spark matches these two lines with a regular expression that overflows its stack on a longer text. The
                        # traceback is that text and would contain a __cause__; the __context__, Java's whole error, is not included.
                        raise RuntimeError(f"the query was stopped: py4j.protocol.Py4JJavaError: {stopped[0]}") from None
                    raise
                if attempt == self._attempts_max or tag.group not in _RETRIED_GROUPS:
                    raise Refusal(tag.group, tag.name, tag.text) from None
        raise AssertionError("the last attempt returns or raises")

    def _batch_options(self, name: str, batch_id: int) -> dict[str, str]:
        return {**self._options, "chaffinch.sink": name, "chaffinch.batch.id": str(batch_id)}


def _context_of(frame: DataFrame) -> SparkContext | None:
    """The SparkContext; None with Spark Connect."""
    try:
        return frame.sparkSession.sparkContext
    except Exception:
        return None


def _run_of(session: SparkSession, context: SparkContext) -> str:
    """The run id of the calling query."""
    query_id = context.getLocalProperty(_QUERY_PROPERTY)
    if query_id is None:
        text = "a KafkaSink was called outside of foreachBatch, or in a thread other than that of the foreachBatch function"
        raise _unknown(f"{text}: the query of the rows cannot be determined there")
    found = run_in(context.getLocalProperty(DESCRIPTION_PROPERTY) or "")
    if found is not None:
        return found
    # The function has set its own job description. The session of a query is a copy with empty `streams`, so use the shared state.
    queries_of_all_sessions = session._jsparkSession.sharedState().activeStreamingQueries()
    return str(queries_of_all_sessions.get(context._jvm.java.util.UUID.fromString(query_id)).runId())  # type: ignore[union-attr]


def _unknown(text: str) -> Refusal:
    return Refusal(Group.INVALID_CONFIGURATION, "QUERY_UNKNOWN", text)


def _check_name(name: object) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        allowed = f"a string of printable characters, at most {NAME_BYTES_MAX} bytes"
        raise ConfigException(f"name cannot be {shown_value(name)}: it must be {allowed}")
    if not name.strip():
        raise ConfigException("name is empty: give the sink a name, or leave it out if the option topic is set")


def _is_integer(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
