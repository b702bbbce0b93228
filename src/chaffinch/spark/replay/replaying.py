"""Dead letters back to their topics, exactly once, after a repair where one is given: what `chaffinch replay` does.

A dead letter topic is read as a queue. With the rows, in the same transaction, goes a note for each of its partitions that says up to
where its letters are done with; the next replay begins there. What is rejected once more becomes a new letter behind the note. So
nothing is replayed twice, whatever dies where, and of two replays at the same time one writes. A file of Parquet is one transaction,
with a token made from its name, and moves to the folder `_replayed` below when that has ended.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition, counted
from chaffinch.spark.commit.messages import REJECTIONS_NAMED_MAX
from chaffinch.spark.error_texts import first_line
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Kind, Refusal, tag_in, worded_for
from chaffinch.spark.replay import letters
from chaffinch.spark.replay.dry_run import dry_run_of
from chaffinch.spark.replay.letters import Outcome, Span
from chaffinch.spark.tasks.dead_letters import Origin, parquet_name
from chaffinch.spark.tasks.row_codec import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chaffinch.client.sync_client import SyncClient

_WAIT_S: Final = 0.05
CLIENT_TIMEOUT_MS: Final = 60_000
DONE: Final = "_replayed"
"""Folder of the Parquet files that are done with; Spark leaves out what begins with `_`."""
VALUE_CUT: Final = "VALUE_CUT"
NO_LETTER: Final = "NOT_A_DEAD_LETTER"
_CUT_ADVICE: Final = (
    "{count} letters hold only a digest of what was too large for the topic: replay them from the Parquet files, if there are any"
)
_STRANGERS: Final = "the first is {where}: without the header __connect.errors.topic it is nobody's dead letter, and is left where it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What to replay: the letters of `topic`, or the Parquet files in `path`. Names are those of the command's options.

    `client`: options of the cluster, named `kafka.*`. `repairs`: column (of `letters.WRITTEN`) -> SQL expression over `letters.COLUMNS`.
    `token`: all letters that there are, replayed before or not, once under this name.
    """

    client: Mapping[str, str]
    topic: str | None = None
    path: str | None = None
    to: str | None = None
    repairs: Mapping[str, str] = field(default_factory=dict)
    token: str | None = None
    is_dry_run: bool = False

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.path is None):
            raise ConfigException("what to replay is said by one of --topic and --parquet")
        for column in self.repairs:
            if column not in letters.WRITTEN:
                raise ConfigException(f"--repair {column}=...: a row has no such column; there are: {', '.join(letters.WRITTEN)}")
        if self.to is not None and self.to == self.topic:
            raise ConfigException(f"--to cannot be {self.to}: that is the topic that the letters are read from")
        if self.to is not None and "topic" in self.repairs:
            raise ConfigException("the topic is said twice: by --to and by --repair topic=...")
        if self.token is not None and not self.token.strip():
            raise ConfigException("--token is empty: give it a name, or leave it out")
        if self.to is not None and not self.to.strip():
            raise ConfigException("--to is empty: name a topic, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What became of the letters. `examples`: the first reasons of those that are still rejected.

    `is_repetition`: something was written under the token before, and nothing now.
    """

    read: int = 0
    written: int = 0
    still_rejected: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    is_repetition: bool = False

    @classmethod
    def of(cls, read: int, rejected: Mapping[str, int], examples: Sequence[str]) -> ReplayReport:
        written = read - sum(rejected.values())
        return cls(read=read, written=written, still_rejected=dict(rejected), examples=tuple(examples[:REJECTIONS_NAMED_MAX]))

    def __add__(self, other: ReplayReport) -> ReplayReport:
        rejected = Counter(self.still_rejected) + Counter(other.still_rejected)
        report = ReplayReport.of(self.read + other.read, rejected, self.examples + other.examples)
        return replace(report, is_repetition=self.is_repetition or other.is_repetition)


def replay(spark: SparkSession, plan: ReplayPlan) -> ReplayReport:
    """Replays, or tells what would become of it. Raises Refusal, ConfigException for a repair that cannot be, and Spark's own errors."""
    with worded_for(Kind.BATCH_ONCE):
        return _replay_topic(spark, plan, plan.topic) if plan.topic is not None else _replay_files(spark, plan, str(plan.path))


@contextmanager
def _removals_told() -> Iterator[None]:
    """Retention may take letters away while they are read: then nothing is written, for what goes on behind them would count as done."""
    try:
        yield
    except Exception as error:
        tag = tag_in(str(error))
        if tag is None or tag.name != codes.OFFSET_OUT_OF_RANGE.name:
            raise
        text = f"{tag.text.partition(';')[0]}: letters were removed while they were read; nothing was written"
        raise Refusal(Group.APPLICATION_RECOVERABLE, "LETTERS_REMOVED", f"{text}; begin again for those that are left") from None


def _replay_topic(spark: SparkSession, plan: ReplayPlan, topic: str) -> ReplayReport:
    if plan.token is not None and _is_written(plan.client, plan.token):
        return ReplayReport(is_repetition=True)
    with _removals_told():
        known = letters.spans_in(spark, plan.client, topic, is_all=plan.token is not None)
    spans = tuple(span for span in known if not span.is_empty)
    if not spans:
        return ReplayReport()
    found = letters.letters_in_topic(spark, plan.client, topic, spans)
    counts = "count(*)", "count_if(is_letter)", "count_if(is_letter AND is_cut)", "min(if(is_letter, null, place))"
    with _removals_told():
        ((read, real, cut, stranger),) = found.selectExpr(*counts).collect()
    if not read:
        return ReplayReport()
    if not real and not any(span.replayed for span in known):
        text = f"none of the {counted(read, 'record')} in {topic} has the header __connect.errors.topic, as dead letters have"
        raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", f"{text}; nothing was written; name the dead letter topic")
    left = ReplayReport()
    if stranger is not None:
        where = f"{TopicPartition(topic, stranger['partition'])} at offset {stranger['offset']}"
        left += ReplayReport.of(read - real, {NO_LETTER: read - real}, [_STRANGERS.format(where=where)])
    if cut:
        left += ReplayReport.of(cut, {VALUE_CUT: cut}, [_CUT_ADVICE.format(count=cut)])
    rows = _repaired(found.where("is_letter AND NOT is_cut"), plan)
    if plan.is_dry_run:
        return left + _tried(plan, rows, topic)
    token = plan.token or _unused_token(spark, plan.client, topic, known)
    if plan.token is None:
        rows = rows.unionByName(letters.notes(spark, topic, spans, token))
    if plan.token is None or real > cut:
        _write(rows, plan, token, topic, {"errors.dead.letter.queue.topic.name": topic})
    outcome = _outcome(spark, plan.client, topic, known, token)
    if plan.token is None and outcome.notes != {letters.note_of(spans)}:
        raise _meanwhile(topic)
    return left + ReplayReport.of(real - cut, outcome.rejected, outcome.examples)


def _outcome(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span], token: str) -> Outcome:
    return letters.outcome_in_topic(spark, client, topic, spans, _wait_for_ends(client, topic), token)


def _unused_token(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span]) -> str:
    """The token for these spans. It was used before where all notes are gone with their letters, as after an expired retention."""
    number = 0
    while _is_written(client, token := _token(topic, spans, number)):
        if _outcome(spark, client, topic, spans, token).notes:
            raise _meanwhile(topic)
        number += 1
    return token


def _meanwhile(topic: str) -> Refusal:
    text = f"another replay of {topic} was written meanwhile, nothing was written by this one; begin again for letters that are left"
    return Refusal(Group.APPLICATION_RECOVERABLE, "REPLAYED_MEANWHILE", text)


def _replay_files(spark: SparkSession, plan: ReplayPlan, path: str) -> ReplayReport:
    folder = Folder(path, "--parquet")
    if not folder.exists():
        text = f"--parquet={path}: there is no such folder; name the one that errors.dead.letter.path had"
        raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", text)
    names = {name for name in folder.names() if name.endswith(".parquet") and not name.startswith((".", "_"))}
    report = ReplayReport()
    for name in sorted(names - _unsettled(plan, folder, names)):
        report += _replay_file(spark, plan, folder, name)
    return report


def _unsettled(plan: ReplayPlan, folder: Folder, names: Collection[str]) -> set[str]:
    """Files of a replay that died before its transaction ended: their letters are those of another file that is still there."""
    tokens = {_letters_of(token): token for token in (_file_token(plan, folder, name) for name in names)}
    return {name for name in tokens.keys() & set(names) if not _is_written(plan.client, tokens[name])}


def _replay_file(spark: SparkSession, plan: ReplayPlan, folder: Folder, name: str) -> ReplayReport:
    found = _letters_in(spark, folder, name)
    rows = _repaired(found, plan)
    read = found.count()
    target = plan.to or _first_topic(rows)
    if target is None:
        return ReplayReport.of(read, {"INVALID_TOPIC_EXCEPTION": read}, [f"{name}: its letters name no topic; name it with --to"])
    target = _marker_topic(plan, _first_topic(found), target)
    token = _file_token(plan, folder, name)
    is_written = _is_written(plan.client, token)
    if plan.token is not None and is_written:
        return ReplayReport(is_repetition=True)
    if plan.is_dry_run and not is_written:
        return _tried(plan, rows, target)
    if not is_written:  # Asked here too, because the marker is looked for in the target topic, which may be another one now.
        _write(rows, plan, token, target, {"errors.dead.letter.path": folder.location})
    again = _letters_of(token)
    report = ReplayReport.of(read, {}, ())
    if again in folder.names():
        outcome = letters.outcome_in_file(spark, f"{folder.location.rstrip('/')}/{again}")
        report = ReplayReport.of(read, outcome.rejected, outcome.examples)
    if plan.token is None and not plan.is_dry_run:
        _done_with(folder, name)
    return report


def _first_topic(frame: DataFrame) -> str | None:
    """By name; None where no row names one."""
    ((found,),) = frame.selectExpr("min(topic)").collect()
    return None if found is None else str(found)


def _marker_topic(plan: ReplayPlan, original: str | None, repaired: str) -> str:
    """Where the marker of a file lies: on the topic that its letters were to go to at first, so that of two replays beside each other one
    writes, whatever their repairs; where that is gone, on the one that they go to now."""
    from chaffinch.spark.target import find_topic

    if original in (None, repaired):
        return repaired
    with _asking(plan.client) as client:
        return original if find_topic(client, str(original), CLIENT_TIMEOUT_MS) is not None else repaired


def _letters_in(spark: SparkSession, folder: Folder, name: str) -> DataFrame:
    """Refuses a file that the sink cannot have written."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return letters.letters_in_file(spark, f"{folder.location.rstrip('/')}/{name}")
    except (PySparkException, Py4JError) as error:
        text = f"--parquet={folder.location}: {name} is no file of dead letters: {first_line(None, str(error))}"
        text += "; the files before it, by name, are replayed; move it elsewhere and begin again"
        raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text) from None


def _file_token(plan: ReplayPlan, folder: Folder, name: str) -> str:
    return f"{plan.token}-{name}" if plan.token else f"replay-{_digest(name, *_stamp(folder, name))}"


def _letters_of(token: str) -> str:
    """The Parquet file of what is rejected once more under a token."""
    return parquet_name(Origin(query=token, batch_id=0, task=-1))


@_removals_told()
def _tried(plan: ReplayPlan, rows: DataFrame, marker_topic: str) -> ReplayReport:
    """What would become of the rows."""
    tried = dry_run_of({**plan.client, "markerTopic": marker_topic}, rows)
    return ReplayReport.of(tried.row_count, tried.rejected, list(map(str, tried.rejections)))


def _repaired(found: DataFrame, plan: ReplayPlan) -> DataFrame:
    """The rows to be written. ConfigException for an expression that Spark does not take, or of a wrong type."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import coalesce, expr, lit

    for column, expression in plan.repairs.items():
        try:
            # Within another expression Spark takes no explode() and the like, which would make several rows of a letter.
            found = found.withColumn(column, coalesce(expr(expression)))
        except AnalysisException as error:
            raise ConfigException(f"--repair {column}={expression}: {first_line(None, str(error))}") from None
    if plan.to is not None:
        found = found.withColumn("topic", lit(plan.to))
    rows = found.select(*letters.WRITTEN)
    try:
        check_schema(rows.schema, has_topic=False)
    except ConfigException as error:
        raise ConfigException(f"--repair: {error}") from None
    return rows


@_removals_told()
def _write(rows: DataFrame, plan: ReplayPlan, token: str, marker_topic: str, letters_to: Mapping[str, str]) -> None:
    options = {**plan.client, **letters_to, "markerTopic": marker_topic, "idempotencyToken": token, "errors.tolerance": "all"}
    rows.write.format("chaffinch").mode("append").options(**options).save()


def _is_written(client: Mapping[str, str], token: str) -> bool:
    """Whether the marker of a token is in Kafka."""
    from chaffinch.admin.group_offsets import committed_offsets

    with _asking(client) as asked:
        return bool(committed_offsets(asked, f"chaffinch-{token}"))


@contextmanager
def _asking(client: Mapping[str, str]) -> Iterator[SyncClient]:
    """A client of this process, as long as it is needed. What goes wrong is raised as a Refusal."""
    from chaffinch.spark.options import ClientOptions, parse
    from chaffinch.spark.source.errors import refusals
    from chaffinch.spark.source.options import SOURCE
    from chaffinch.spark.target import client_for, forget_client

    with refusals():
        options = ClientOptions.of(parse(SOURCE, client))
        try:
            yield client_for(options)
        finally:
            forget_client(options)


def _wait_for_ends(client: Mapping[str, str], topic: str) -> int:
    """Until all that is in a topic now can be read: brokers end a transaction everywhere only after they have said that it is ended.

    How many partitions it has."""
    from chaffinch.spark.source.options import SourceOptions
    from chaffinch.spark.source.topic_discovery import Discovery
    from chaffinch.spark.target import client_for, forget_client

    options = SourceOptions.parse({**client, "subscribe": topic})
    discovery = Discovery(client_for(options.client), options)
    deadline_s = time.monotonic() + options.timeout_ms / 1000
    try:
        partitions = discovery.partitions().partitions
        ends = discovery.written(partitions)
        while open_in := [where for where, offset in discovery.latest(partitions).items() if offset < ends[where]]:
            if time.monotonic() >= deadline_s:
                text = f"{open_in[0]} has had an open transaction for {options.timeout_ms} ms, behind which nothing can be read"
                raise Refusal(Group.APPLICATION_RECOVERABLE, codes.REQUEST_TIMED_OUT.name, f"{text}; begin again when it has ended")
            time.sleep(_WAIT_S)  # Nobody tells when a transaction ends.
        return len(partitions)
    finally:
        forget_client(options.client)


def _stamp(folder: Folder, name: str) -> tuple[object, ...]:
    """What tells a file from a later one under the same name."""
    filesystem, _ = folder.opened()
    found = filesystem.get_file_info(folder.path(name))
    return found.size, found.mtime_ns


def _done_with(folder: Folder, name: str) -> None:
    filesystem, path = folder.opened()
    try:
        filesystem.create_dir(f"{path.rstrip('/')}/{DONE}", recursive=True)
        # A replay beside this one has moved it.
        with suppress(FileNotFoundError):
            filesystem.move(folder.path(name), folder.path(f"{DONE}/{name}"))
    except OSError as error:
        raise folder.refusal(f"has a file {name} that is replayed and cannot be moved to {DONE}", error) from None


def _token(topic: str, spans: Sequence[Span], number: int) -> str:
    """The same for all who begin where the last replay has ended, whatever has come since: of these one writes."""
    digest = _digest(*((span.partition, span.replayed) for span in spans if span.replayed))
    return f"replay-{topic}-{digest}" + (f"-{number}" if number else "")


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
