"""Shared code of topic and file replays: repairs, dry runs, writes under a token, and checks whether they were written."""

from __future__ import annotations

import hashlib
import pickle
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import Group
from chaffinch.spark.commit.marker import Marker
from chaffinch.spark.commit.messages import TaskOutcome
from chaffinch.spark.commit.tolerance import Tally
from chaffinch.spark.error_texts import first_line, tag_of
from chaffinch.spark.refusals import ADVICE, Kind, Refusal, Remedy, invalid, tag_in
from chaffinch.spark.replay import dead_letters
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.tasks.row_codec import check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame

    from chaffinch.client.sync_client import SyncClient
    from chaffinch.spark.sink.options import SinkOptions
    from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
    from chaffinch.spark.tasks.staging import StagedWriter


CLIENT_TIMEOUT_MS: Final = 60_000
MARKER_WAIT_S: Final = 30.0
MARKER_PAUSE_S: Final = 0.05
_STATE: Final = re.compile(r" SQLSTATE: \w+$")


@contextmanager
def removals_reported() -> Iterator[None]:
    """Report letters that retention removes while they are read. Then nothing is written, because letters after them would count as
    replayed.
    """
    try:
        yield
    except Exception as error:
        tag = tag_in(str(error))
        if tag is None or tag.name != codes.OFFSET_OUT_OF_RANGE.name:
            raise
        text = f"{tag.text.partition(';')[0]}: letters were removed while they were read; nothing was written"
        raise Refusal(Group.APPLICATION_RECOVERABLE, "LETTERS_REMOVED", f"{text}; start again for the remaining ones") from None


@contextmanager
def note_on_interruption(what: str) -> Iterator[None]:
    """Add a note about what is written to KeyboardInterrupt and SystemExit. Without a note nothing is written."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as interruption:
        interruption.add_note(what)
        raise


@removals_reported()
def dry_run(plan: ReplayPlan, rows: DataFrame) -> ReplayReport:
    """Check the rows with the tasks of the sink, and write nothing. Rejections by brokers are not found. Raises Refusal like the sink."""
    from chaffinch.spark.sink.writers import checked_options
    from chaffinch.spark.target import client_for, forget_client, take_snapshot

    options = checked_options({**plan.client, **plan.writing}, rows.schema, is_stream=False)
    try:
        target = take_snapshot(client_for(options.client), [], options.block_max_ms)
    finally:
        forget_client(options.client)

    def checked(arrow_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = pickle.dumps(_checked(options, target, arrow_batches))
        yield pa.RecordBatch.from_arrays([pa.array([found], pa.binary())], names=["found"])

    # The pickles come from our own tasks.
    outcomes: list[TaskOutcome] = [pickle.loads(row["found"]) for row in rows.mapInArrow(checked, "found binary").collect()]
    tally = Tally.of(outcomes)
    named = [str(rejection) for outcome in outcomes for rejection in outcome.rejections]
    return ReplayReport.of(tally.row_count, tally.task_found, named, tally.task_dropped)


def _checked(options: SinkOptions, target: TargetSnapshot, arrow_batches: Iterable[pa.RecordBatch]) -> TaskOutcome:
    """Check the rows of one task."""
    from chaffinch.spark.sink.writers import task_facts, task_plan
    from chaffinch.spark.tasks.row_check import BadRows, RowCheck

    plan, nothing = task_plan(options, target, task_facts(), ""), cast("StagedWriter", None)
    check = RowCheck(plan, BadRows(plan, nothing, lambda records, dead_letters: None))
    for _ in check.good(arrow_batches):
        pass
    return check.outcome()


def repair(found: DataFrame, plan: ReplayPlan) -> DataFrame:
    """The repaired rows. Raises ConfigException for an expression that Spark does not accept, or of a wrong type."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import coalesce, expr, lit

    found = found.select(*dead_letters.COLUMNS)
    for column, expression in plan.repairs.items():
        try:
            # Inside another expression Spark rejects explode() and similar functions, which would produce several rows from a letter.
            found = found.withColumn(column, coalesce(expr(expression)))
        except AnalysisException as error:
            raise ConfigException(f"--repair {column}={expression}: {_reason_of(error)}") from None
    if plan.to is not None:
        found = found.withColumn("topic", lit(plan.to))
    rows = found.select(*dead_letters.WRITTEN)
    try:
        check_schema(rows.schema, has_topic=False)
    except ConfigException as error:
        given = " ".join(f"--repair {column}={expression}" for column, expression in plan.repairs.items())
        raise ConfigException(f"{given}: {error}") from None
    return rows


def check_condition(found: DataFrame, plan: ReplayPlan) -> None:
    """Raises ConfigException for a condition that Spark does not accept, or that is not boolean."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import coalesce, expr

    if plan.where is None:
        return
    try:
        # Inside another expression Spark rejects explode() and similar functions, which would produce several rows from a letter.
        found.select(*dead_letters.COLUMNS).where(coalesce(expr(plan.where)))
    except AnalysisException as error:
        raise ConfigException(f"--where {plan.where}: {_reason_of(error)}") from None


@contextmanager
def failing_repair_named(found: DataFrame, plan: ReplayPlan, left: str = "nothing was written") -> Iterator[None]:
    """If the block fails with an error that is not of the format, find out whether the condition or a repair fails.

    Then it is named in a ConfigException with the message of Spark. `left`: what was written, for the message.
    """
    try:
        yield
    except Exception as error:
        if tag_of(str(error)) is None and (failed := _failing(found, plan)) is not None:
            raise invalid(ConfigException(f"{failed}; {left}")) from None
        raise


def _failing(found: DataFrame, plan: ReplayPlan) -> str | None:
    """The first repair that fails, with its error. A repair can use the column of an earlier one."""
    from pyspark.sql.functions import expr

    try:
        found.agg(expr("max(xxhash64(value))")).collect()
    except Exception:  # The letters cannot be read, for example because another replay has moved their file.
        return None
    if plan.where is not None:
        try:
            found.agg(expr(f"count_if(({plan.where}\n))")).collect()
        except Exception as error:
            return f"--where {plan.where}: {_STATE.sub('', first_line(None, str(error))).rstrip(' .')}"
    for number, (column, expression) in enumerate(plan.repairs.items(), 1):
        some = replace(plan, repairs=dict(list(plan.repairs.items())[:number]), to=None)
        try:
            repair(found, some).agg(expr(f"max(xxhash64({column}))")).collect()
        except Exception as error:
            return f"--repair {column}={expression}: {_STATE.sub('', first_line(None, str(error))).rstrip(' .')}"
    return None


def _reason_of(error: AnalysisException) -> str:
    """Why Spark does not accept an expression. For a missing column Spark suggests only some of the columns."""
    parameters = error.getMessageParameters() or {}
    if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN") and "objectName" in parameters:
        return f"a letter has no column {parameters['objectName']}; its columns are: {', '.join(dead_letters.COLUMNS)}"
    return first_line(None, str(error))


@note_on_interruption(f"it is unknown whether it was written; {ADVICE[Remedy.LOOK][Kind.BATCH_ONCE]}")
@removals_reported()
def write(rows: DataFrame, plan: ReplayPlan, token: str, marker_topic: str, dead_letter_options: Mapping[str, str]) -> None:
    own: dict[str, str] = {"markerTopic": marker_topic, "idempotencyToken": token, "errors.tolerance": "all"}
    options = {**plan.client, **plan.writing, **dead_letter_options, **own}
    rows.write.format("chaffinch").mode("append").options(**options).save()


def is_written(client: Mapping[str, str], token: str) -> bool:
    """Whether the marker of a token is in Kafka."""
    return writer_of(client, token) is not None


def writer_of(client: Mapping[str, str], token: str) -> str | None:
    """The writer id in the marker of a token in Kafka; None if nothing was written under it."""
    found = _marker_of(client, token)
    return None if found is None else found.writer_id


def _marker_of(client: Mapping[str, str], token: str) -> Marker | None:
    from chaffinch.admin.group_offsets import committed_offsets

    with cluster_client(client) as opened:
        found = committed_offsets(opened, f"chaffinch-{token}")
    for offset in found.values():
        with suppress(ValueError):
            return Marker.from_text(offset.metadata)
    return Marker(batch_id=0, writer_id="") if found else None


def dropped_under(plan: ReplayPlan, token: str, *, is_others: bool = False) -> Mapping[str, int]:
    """Letters that the handler has dropped in the write under a token, by error. `is_others`: written by another replay.

    Waits for the marker: brokers can respond to EndTxn before it is visible in the offsets of the group.
    """
    if not plan.asks_handler and not is_others:
        return {}
    deadline_s = time.monotonic() + MARKER_WAIT_S
    while (found := _marker_of(plan.client, token)) is None and time.monotonic() < deadline_s:
        time.sleep(MARKER_PAUSE_S)  # Brokers send no event when a marker becomes visible.
    return {} if found is None else found.dropped


@contextmanager
def cluster_client(client: Mapping[str, str]) -> Iterator[SyncClient]:
    """The cached client of this process, for the block. Its errors are raised as Refusal."""
    from chaffinch.spark.options import ClientOptions, parse
    from chaffinch.spark.source.options import SOURCE
    from chaffinch.spark.source.reports import refusals
    from chaffinch.spark.target import client_for, forget_client

    with refusals():
        options = ClientOptions.of(parse(SOURCE, client))
        try:
            yield client_for(options)
        finally:
            forget_client(options)


def topic_now(client: Mapping[str, str], topic: str) -> TopicSnapshot | None:
    """The current snapshot of a topic; None if it does not exist."""
    from chaffinch.spark.target import find_topic

    with cluster_client(client) as opened:
        return find_topic(opened, topic, CLIENT_TIMEOUT_MS)


def wait_for_ends(client: Mapping[str, str], topic: str) -> int:
    """Wait until all current records of a topic can be read: brokers respond to EndTxn before the transaction has ended everywhere.

    Returns the number of partitions.
    """
    from chaffinch.spark.source.options import SourceOptions
    from chaffinch.spark.source.topic_discovery import TopicDiscovery

    with cluster_client(client) as opened:
        discovery = TopicDiscovery(opened, SourceOptions.parse({**client, "subscribe": topic}))
        partitions = discovery.partitions().partitions
        discovery.wait_until_readable(discovery.written(partitions))
        return len(partitions)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
