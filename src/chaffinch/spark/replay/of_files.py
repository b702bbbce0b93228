"""Replays of Parquet files of dead letters: each is one transaction, and moves to the folder `_replayed` below when that has ended."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from chaffinch.errors.codes import Group
from chaffinch.settings import shown_value
from chaffinch.spark.error_texts import first_line
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import letters, writing
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.sink.options import REPLAY, WRITER
from chaffinch.spark.tasks.dead_letters import Origin, parquet_name, pending_name
from chaffinch.spark.workers import advice_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLIENT_TIMEOUT_MS: Final = 60_000
_NAME_IT: Final = "name the one that errors.dead.letter.path had"
DONE: Final = "_replayed"
"""Folder of the Parquet files that are done with; Spark leaves out what begins with `_`."""
_NO_TOPIC: Final = "its letters name no topic; name it with --to or --repair topic=..."
_OF_BATCH_WRITES: Final = f"-{0:09d}.parquet"
"""How the files of replays end, as those of all batch writes (`parquet_name`)."""


class LettersFolder(Folder):
    """One that is there already, because a query has written into it."""

    def refusal(self, what: str, error: Exception, remedy: str = _NAME_IT) -> Refusal:
        return super().refusal(what, error, remedy)


def look_at_folder(path: str) -> Folder:
    """The folder of dead letters. Refusal where there is none, or nobody may look into it."""
    from pyarrow import fs

    folder = LettersFolder(path, "--parquet")
    filesystem, at = folder.opened()
    try:
        kind = filesystem.get_file_info(at).type
    except OSError as error:
        raise folder.refusal("cannot be looked at", error) from None
    if kind != fs.FileType.Directory:
        what = "there is no such folder" if kind == fs.FileType.NotFound else "that is a file, and letters are replayed by their folder"
        raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", f"--parquet={folder.shown}: {what}; {_NAME_IT}")
    _refuse_folder_above(folder)
    return folder


def _refuse_folder_above(folder: Folder) -> None:
    """The one above that of the letters. One without letters may be that of a query that has set nothing aside."""
    names = folder.names()
    if DONE in names or _files_of_letters(names):
        return
    for name in sorted(name for name in names if not name.startswith((".", "_"))):
        if _holds_letters(folder.below(name)):
            text = f"--parquet={folder.shown}: there is no Parquet file in that folder, but in {shown_value(name)} below it; {_NAME_IT}"
            raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text)


def _holds_letters(folder: Folder) -> bool:
    with suppress(Refusal):  # That is no folder, or one of others.
        return bool(_files_of_letters(folder.names()))
    return False


def _files_of_letters(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(".parquet") and not name.startswith((".", "_"))}


def replay_files(spark: SparkSession, plan: ReplayPlan, path: str) -> ReplayReport:
    folder = look_at_folder(path)
    names = _files_of_letters(folder.names())
    report = ReplayReport()
    for number, name in enumerate(sorted(names - _unsettled(plan, folder, names))):
        if not number or plan.is_dry_run:
            report += _replay_file(spark, plan, folder, name, "nothing was written")
            continue
        with writing.noted_of_interruptions(f"the files before {name}, by name, are replayed"):
            left = f"nothing of {name} was written, the files before it, by name, are replayed"
            report += _replay_file(spark, plan, folder, name, left)
    return report


def _unsettled(plan: ReplayPlan, folder: Folder, names: Collection[str]) -> set[str]:
    """Files of a replay, with a token or without one, that died before its transaction ended: their letters are those of another file,
    which is still there, or is replayed meanwhile."""
    tokens = {_letters_of(token): token for name in names for token in (_file_token(plan, folder, name), _own_token(folder, name))}
    known = {*names, *folder.below(DONE).names()}
    begun = {name: tokens[name] for name in names if name in tokens}
    for name in names:
        if name not in begun and name.endswith(_OF_BATCH_WRITES) and _is_of_one(query := _query_in(folder, name), known):
            begun[name] = query
    return {name for name, token in begun.items() if not writing.is_written(plan.client, token)}


def _is_of_one(token: str, names: Collection[str]) -> bool:
    """Whether somebody's --token stands in it, before the name of one of these files."""
    return any(token[place + 1 :] in names for place, mark in enumerate(token) if mark == "-")


def _query_in(folder: Folder, name: str) -> str:
    """Under which token a file's letters were made; empty where nobody can tell, of which more is said when it is to be replayed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, _ = folder.opened()
    try:
        with filesystem.open_input_file(folder.path(name)) as file:
            first = next(pq.ParquetFile(file).iter_batches(1, columns=["query"]), None)
    except (OSError, pa.ArrowException):
        return ""
    found = first.column(0)[0].as_py() if first is not None and first.num_columns and first.num_rows else None
    return found if isinstance(found, str) else ""


def _replay_file(spark: SparkSession, plan: ReplayPlan, folder: Folder, name: str, left: str) -> ReplayReport:
    """`left`: what is written where it fails for a repair."""
    token = _file_token(plan, folder, name)  # Of the file as it is before it is read: another replay may move it.
    if name not in folder.names():
        return ReplayReport()  # As if that replay had come first.
    try:
        return _replay_letters(spark, plan, folder, name, name, token, left)
    except Exception:
        if name in folder.names() or name not in folder.below(DONE).names():
            raise
    # By another replay, which has written it; and if under this token, the write is told so. A look before it may come before the marker.
    return _replay_letters(spark, plan, folder, name, f"{DONE}/{name}", token, left)


def _replay_letters(spark: SparkSession, plan: ReplayPlan, folder: Folder, name: str, place: str, token: str, left: str) -> ReplayReport:
    """`place`: where in the folder the file is now."""
    found = _letters_in(spark, folder, place)
    rows = writing.repaired(found, plan)
    read = found.count()
    with writing.failing_repairs_told(found, plan, left):
        target = plan.to or _first_topic(rows)
        if target is None:
            return ReplayReport.of(read, {"INVALID_TOPIC_EXCEPTION": read}, [f"{name}: {_NO_TOPIC}"])
        target = _marker_topic(plan, _first_topic(found), target)
        run, writer_id = secrets.token_hex(8), writing.writer_of(plan.client, token)
        is_written = writer_id is not None
        if writer_id is not None and not plan.is_dry_run:
            _name_letters(folder, token, writer_id)
        if plan.token is not None and is_written:
            return ReplayReport(is_repetition=True)
        if plan.is_dry_run and not is_written:
            return writing.tried(plan, rows)
        if not is_written:  # Asked here too, because the marker is looked for in the target topic, which may be another one now.
            known_by = {} if plan.token is not None else {WRITER: run}
            writing.write(rows, plan, token, target, {"errors.dead.letter.path": folder.location, **known_by})
    with writing.noted_of_interruptions(f"{name} is written"):
        report = _settled(spark, plan, folder, name, token, read)
        is_others = plan.token is None and (is_written or _is_of_another(plan, token, run))
        return replace(report, written_before=report.written if is_others else 0)


def _is_of_another(plan: ReplayPlan, token: str, run: str) -> bool:
    """Whether another replay has written in the meantime, under the token that is the file's own. This is for people: it fails nothing."""
    with suppress(Refusal):
        # Of another's the write has waited until Kafka shows the marker; it may not yet show that of a moment ago.
        return writing.writer_of(plan.client, token) not in (None, run)
    return False


def _settled(spark: SparkSession, plan: ReplayPlan, folder: Folder, name: str, token: str, read: int) -> ReplayReport:
    """Of a file that is written."""
    again = _letters_of(token)
    report = ReplayReport.of(read, {}, ())
    if again in folder.names():
        outcome = letters.outcome_in_file(spark, folder.in_spark(again))
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
    with writing.asking(plan.client) as client:
        return original if find_topic(client, str(original), CLIENT_TIMEOUT_MS) is not None else repaired


def _letters_in(spark: SparkSession, folder: Folder, name: str) -> DataFrame:
    """Refuses a file that the sink cannot have written, or Spark cannot read."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return letters.letters_in_file(spark, folder.in_spark(name))
    except (PySparkException, Py4JError) as error:
        if (advice := advice_for(str(error))) is not None:
            text = f"--parquet={folder.shown}: Spark cannot read there: {advice}"
            raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", text) from None
        text = f"--parquet={folder.shown}: {name} is no file of dead letters: {first_line(None, str(error))}"
        text += "; the files before it, by name, are replayed; move it elsewhere and begin again"
        raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text) from None


def _file_token(plan: ReplayPlan, folder: Folder, name: str) -> str:
    return f"{plan.token}-{name}" if plan.token else _own_token(folder, name)


def _own_token(folder: Folder, name: str) -> str:
    """Where nobody gives one."""
    return f"{REPLAY}{writing.digest(name, *_stamp(folder, name))}"


def _letters_of(token: str) -> str:
    """The Parquet file of what is rejected once more under a token."""
    return parquet_name(Origin(query=token, batch_id=0, task=-1))


def _name_letters(folder: Folder, token: str, writer_id: str) -> None:
    """What is rejected once more under a token: whoever has written may have died before its file had its name."""
    origin = Origin(query=token, batch_id=0, task=-1)
    folder.rename(pending_name(origin, writer_id), parquet_name(origin))


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
