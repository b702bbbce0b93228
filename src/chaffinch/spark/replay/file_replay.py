"""Replay of Parquet files of dead letters: one transaction for each file, which then moves to the subfolder `_replayed`."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from chaffinch.errors.codes import Group
from chaffinch.settings import shown_value
from chaffinch.spark.error_texts import first_line
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import dead_letters, writing
from chaffinch.spark.replay.ledger import CONCURRENT_REPLAY, concurrent_replay, unused_token
from chaffinch.spark.replay.letter_matching import MatchingTopic, MatchingTopics
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.replay.selection import ClassifiedLetters, LetterClass, classify
from chaffinch.spark.replay.topic_replay import refuse_large_notes
from chaffinch.spark.sink.options import NOTES, REPLAY_TOKEN_PREFIX, RETAINED_ROWS, WRITER
from chaffinch.spark.tasks.dead_letter_headers import Origin
from chaffinch.spark.tasks.dead_letters import parquet_name, pending_name
from chaffinch.spark.tasks.replay_notes import ReplayNotes, RetainedRows
from chaffinch.spark.workers import advice_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME_IT: Final = "give the value of errors.dead.letter.path"
REPLAYED_FOLDER: Final = "_replayed"
"""Subfolder of replayed Parquet files. Spark ignores names that begin with `_`."""
ATTEMPTS_MAX: Final = 10
"""Attempts to replay a file while other replays are written concurrently."""
_NO_TOPIC: Final = "its letters have no topic; set it with --to or --repair topic=..."
_OF_BATCH_WRITES: Final = f"-{0:09d}.parquet"
"""Suffix of the files of replays, as of all batch writes (`parquet_name`)."""


def replay_files(spark: SparkSession, plan: ReplayPlan, path: str) -> ReplayReport:
    folder = check_folder(path)
    names = dead_letter_files(folder.names())
    report = ReplayReport()
    with MatchingTopics(spark, plan) as topics:
        replay = _FileReplay(spark, plan, folder, topics)
        for number, name in enumerate(sorted(names - _unsettled(plan, folder, names))):
            if not number or plan.is_dry_run:
                report += replay.file(name, "nothing was written")
                continue
            with writing.note_on_interruption(f"the files before {name}, by name, are replayed"):
                left = f"no letters of {name} were written; the files before it, by name, are replayed"
                report += replay.file(name, left)
    return report


def _unsettled(plan: ReplayPlan, folder: Folder, names: Collection[str]) -> set[str]:
    """Files written by a replay that died before its transaction ended, with a token or without.

    Their letters are those of another file, which still exists or is being replayed.
    """
    tokens = {_rejected_file_name(token): token for name in names for token in (_file_token(plan, folder, name), _own_token(folder, name))}
    known = {*names, *folder.below(REPLAYED_FOLDER).names()}
    begun = {name: tokens[name] for name in names if name in tokens}
    for name in names:
        if name not in begun and name.endswith(_OF_BATCH_WRITES) and _is_token_of_file(query := _token_in(folder, name), known):
            begun[name] = query
    return {name for name, token in begun.items() if not writing.is_written(plan.client, token)}


def _is_token_of_file(token: str, names: Collection[str]) -> bool:
    """Whether the token consists of a --token and the name of one of these files."""
    return any(token[index + 1 :] in names for index, mark in enumerate(token) if mark == "-")


def _token_in(folder: Folder, name: str) -> str:
    """The token under which the letters of a file were written; empty if it cannot be read, which the replay reports later."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """Parameters of a write: token, run, topic of the marker, options for dead letters, and notes for the topic that has the letters
    too.
    """

    token: str
    run: str
    marker_topic: str
    dead_letter_options: Mapping[str, str]
    notes: ReplayNotes


@dataclass(frozen=True, slots=True)
class _FileReplay:
    """Replay of the files of a folder, one after another."""

    spark: SparkSession
    plan: ReplayPlan
    folder: Folder
    topics: MatchingTopics

    def file(self, name: str, left: str) -> ReplayReport:
        """Replay one file. `left`: what is written if a repair fails, for the message."""
        folder = self.folder
        token = _file_token(self.plan, folder, name)  # Computed before the file is read, because another replay may move it.
        if name not in folder.names():
            return ReplayReport()  # Another replay has moved it.
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._replay_file(name, name, token, left)
            except Refusal as refusal:
                if refusal.name != CONCURRENT_REPLAY:
                    raise
                # Another replay has written in between: this file, another one, or the topic. Its notes show which letters.
                self.topics.forget_all()
            except Exception:
                if name in folder.names() or name not in folder.below(REPLAYED_FOLDER).names():
                    raise
                # Another replay has written and moved the file. If it used this token, the write detects that; an earlier check may
                # precede the marker.
                self.topics.forget_all()
                return self._replay_file(name, f"{REPLAYED_FOLDER}/{name}", token, left)
        raise Refusal(
            Group.APPLICATION_RECOVERABLE,
            CONCURRENT_REPLAY,
            f"other replays were written in all {ATTEMPTS_MAX} attempts of this one; start again",
        )

    def _replay_file(self, name: str, location: str, token: str, left: str) -> ReplayReport:
        """`location`: the current path of the file in the folder."""
        plan, folder = self.plan, self.folder
        found = _read_dead_letters(self.spark, folder, location)
        read = found.count()
        topic = self.topics.of_file(folder, location)
        writer_id, written_as = writing.writer_of(plan.client, token), token
        earlier = None if topic is None else topic.ledger.of_file(token)
        if earlier is not None:
            writer_id, written_as = earlier.notes.run, earlier.token
        if writer_id is not None:
            if not plan.is_dry_run:
                _rename_pending_file(folder, written_as, writer_id)
            if plan.token is not None:
                return ReplayReport(is_repetition=True)
            by = f"replay {writer_id} of a Parquet file" if earlier is None or topic is None else earlier.of(topic.ledger.topic)
            return self._report_written(name, written_as, read, by)
        with writing.removals_reported(), writing.failing_repair_named(found, plan, left):
            marked = found.selectExpr("*", "CAST(NULL AS INT) AS done_by") if topic is None else topic.with_done_by(found)
            classified = classify(marked, plan, with_ranges=topic is not None or plan.selects)
            if topic is not None:
                _refuse_unknown(plan, folder, name, topic, marked)
        return self._write_chosen(name, token, left, found, topic, classified)

    def _write_chosen(
        self, name: str, token: str, left: str, found: DataFrame, topic: MatchingTopic | None, classified: ClassifiedLetters
    ) -> ReplayReport:
        """Write the selected letters that no other replay has written."""
        plan, folder, count = self.plan, self.folder, classified.counts[LetterClass.CHOSEN]
        earlier = ReplayReport() if topic is None else ReplayReport.of_earlier(topic.ledger.written_by(classified.done))
        before = earlier + ReplayReport(not_selected=classified.counts[LetterClass.NOT_SELECTED])
        if not count:
            if not classified.counts[LetterClass.NOT_SELECTED] and not plan.is_dry_run and plan.token is None:
                _move_to_replayed(folder, name)
            return before
        whole = found.where(classified.at(LetterClass.CHOSEN)) if topic is not None or plan.selects else found
        rows = writing.repair(whole, plan)
        with writing.failing_repair_named(whole, plan, left):
            target = plan.to or _first_topic(rows)
            if target is None:
                return before + ReplayReport.of(count, {"INVALID_TOPIC_EXCEPTION": count}, [f"{name}: {_NO_TOPIC}"])
            if plan.is_dry_run:
                return before + writing.dry_run(plan, rows)
            write = self._plan_of(name, token, found, target, topic, classified)
            writing.write(rows, plan, write.token, write.marker_topic, write.dead_letter_options)
        with writing.note_on_interruption(f"{name} is written"):
            if topic is None:
                is_others = plan.token is None and _is_of_another(plan, write.token, write.run)
                by = f"another replay of {name}" if is_others else None
                if plan.token is not None:  # A replay with a token does not move the file.
                    return before + self._report_written(name, write.token, count, None)
                return self._report_written(name, write.token, count + classified.counts[LetterClass.NOT_SELECTED], by)
            if writing.writer_of(plan.client, write.token) not in (None, write.run):
                raise concurrent_replay(topic.ledger.topic)
            topic.noted(write.notes, write.token)
            return earlier + self._report_written(name, write.token, count + classified.counts[LetterClass.NOT_SELECTED], None)

    def _plan_of(
        self, name: str, token: str, found: DataFrame, target: str, topic: MatchingTopic | None, classified: ClassifiedLetters
    ) -> _Write:  # fmt: skip
        """Parameters for writing the chosen letters. Unselected letters move to the file of those that are rejected again."""
        run, dead_letter_options = secrets.token_hex(8), {"errors.dead.letter.path": self.folder.location}
        retained = classified.ranges.get(LetterClass.NOT_SELECTED, {}).get(0, ())
        if self.plan.token is None:
            dead_letter_options |= {WRITER: run} | (
                {RETAINED_ROWS: RetainedRows(name=name, ranges=retained).to_option()} if retained else {}
            )
        if topic is None:
            marker_topic = _marker_topic(self.plan, _first_topic(found), target)
            return _Write(
                token=token, run=run, marker_topic=marker_topic, dead_letter_options=dead_letter_options, notes=ReplayNotes(run=run)
            )
        ledger = topic.ledger
        ranges = topic.matching_ranges(found, classified)
        notes = ReplayNotes(ranges=ranges, run=run, file=token, number=ledger.number + 1, partition_count=topic.partition_count)
        written_as = unused_token(self.spark, self.plan.client, ledger)
        refuse_large_notes(self.plan.client, ledger.topic, notes, written_as)
        dead_letter_options |= {"errors.dead.letter.queue.topic.name": ledger.topic, NOTES: notes.to_option()}
        return _Write(token=written_as, run=run, marker_topic=ledger.topic, dead_letter_options=dead_letter_options, notes=notes)

    def _report_written(self, name: str, token: str, read: int, by: str | None) -> ReplayReport:
        """Report on a file that was written under this token, and move it. `by`: the replay that has written it, if it was another one."""
        rejected_file = _rejected_file_name(token)
        dropped = writing.dropped_under(self.plan, token, is_others=by is not None)
        report = ReplayReport.of(read, {}, (), dropped)
        if rejected_file in self.folder.names():
            outcome = dead_letters.outcome_in_file(self.spark, self.folder.in_spark(rejected_file), token)
            retained = 0 if self.plan.token is not None else outcome.retained
            report = replace(ReplayReport.of(read - retained, outcome.rejected, outcome.examples, dropped), not_selected=retained)
        if self.plan.token is None and not self.plan.is_dry_run:
            _move_to_replayed(self.folder, name)
        return report if by is None else replace(report, written_before=report.written, written_before_by={by: report.written})


def _is_of_another(plan: ReplayPlan, token: str, run: str) -> bool:
    """Whether another replay has written in the meantime under the same token; False if that cannot be determined."""
    with suppress(Refusal):
        # The write has waited for the marker of another replay; its own marker may not be visible yet.
        return writing.writer_of(plan.client, token) not in (None, run)
    return False


def _refuse_unknown(plan: ReplayPlan, folder: Folder, name: str, topic: MatchingTopic, marked: DataFrame) -> None:
    """Refuse letters that are no longer in a topic that was replayed: it is unknown whether that replay wrote them."""
    if not topic.ledger.replays:
        return
    ((missing, count),) = marked.selectExpr("count_if(NOT is_there)", "count(*)").collect()
    if missing:
        where = topic.ledger.topic
        text = f"--parquet={folder.shown}: {missing} of {count} letters of {name} are not in topic {where}, which was replayed"
        advice = "look for them in their target topics, and write missing ones with --where and your own --token"
        raise Refusal(Group.INVALID_CONFIGURATION, "LETTERS_NOT_IN_TOPIC", f"{text}: it is unknown whether they were written; {advice}")


def _first_topic(frame: DataFrame) -> str | None:
    """The first topic by name; None if no row has one."""
    ((found,),) = frame.selectExpr("min(topic)").collect()
    return None if found is None else str(found)


def _marker_topic(plan: ReplayPlan, original: str | None, repaired: str) -> str:
    """The topic of the marker for a file: the original topic of its letters, so that only one of two concurrent replays writes, whatever
    their repairs. If that does not exist, the new topic.
    """
    if original is None or original == repaired or writing.topic_now(plan.client, original) is None:
        return repaired
    return original


def _read_dead_letters(spark: SparkSession, folder: Folder, name: str) -> DataFrame:
    """Read a file. Raises Refusal if the sink cannot have written it, or Spark cannot read it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return dead_letters.dead_letters_in_file(spark, folder.in_spark(name))
    except (PySparkException, Py4JError) as error:
        if (advice := advice_for(str(error))) is not None:
            text = f"--parquet={folder.shown}: Spark cannot read it: {advice}"
            raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", text) from None
        text = f"--parquet={folder.shown}: {name} is not a file of dead letters: {first_line(None, str(error))}"
        text += "; the files before it, by name, are replayed; move it elsewhere and start again"
        raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text) from None


def _file_token(plan: ReplayPlan, folder: Folder, name: str) -> str:
    return f"{plan.token}-{name}" if plan.token else _own_token(folder, name)


def _own_token(folder: Folder, name: str) -> str:
    """The default token of a file, without --token."""
    return f"{REPLAY_TOKEN_PREFIX}{writing.digest(name, *_stamp(folder, name))}"


def _rejected_file_name(token: str) -> str:
    """The Parquet file of letters that are rejected again under a token."""
    return parquet_name(Origin(query=token, batch_id=0, task=-1))


def _rename_pending_file(folder: Folder, token: str, writer_id: str) -> None:
    """Rename the pending file of rejected letters, if its writer died before it did so."""
    origin = Origin(query=token, batch_id=0, task=-1)
    folder.rename(pending_name(origin, writer_id), parquet_name(origin))


def _stamp(folder: Folder, name: str) -> tuple[object, ...]:
    """Size and modification time, which distinguish a file from a later one of the same name."""
    filesystem, _ = folder.opened()
    found = filesystem.get_file_info(folder.path(name))
    return found.size, found.mtime_ns


def _move_to_replayed(folder: Folder, name: str) -> None:
    filesystem, _ = folder.opened()
    with folder.refusing(f"has a file {name} that is replayed and cannot be moved to {REPLAYED_FOLDER}"):
        filesystem.create_dir(folder.path(REPLAYED_FOLDER), recursive=True)
        # A concurrent replay has moved it.
        with suppress(FileNotFoundError):
            filesystem.move(folder.path(name), folder.path(f"{REPLAYED_FOLDER}/{name}"))


# Checks of the folder.


class DeadLetterFolder(Folder):
    """An existing folder, into which a query has written dead letters."""

    def refusal(self, what: str, error: Exception, remedy: str = _NAME_IT) -> Refusal:
        return super().refusal(what, error, remedy)


def check_folder(path: str) -> Folder:
    """The folder of dead letters. Raises Refusal if it does not exist or is not readable."""
    from pyarrow import fs

    folder = DeadLetterFolder(path, "--parquet")
    filesystem, at = folder.opened()
    with folder.refusing("cannot be inspected"):
        kind = filesystem.get_file_info(at).type
    if kind != fs.FileType.Directory:
        what = "there is no such folder" if kind == fs.FileType.NotFound else "it is a file: give its folder"
        raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", f"--parquet={folder.shown}: {what}; {_NAME_IT}")
    _refuse_folder_above(folder)
    return folder


def _refuse_folder_above(folder: Folder) -> None:
    """Refuse the parent of a folder with letters. A folder without letters is accepted: its query may not have rejected any row."""
    names = folder.names()
    if REPLAYED_FOLDER in names or dead_letter_files(names):
        return
    for name in sorted(name for name in names if not name.startswith((".", "_"))):
        if _has_dead_letter_files(folder.below(name)):
            text = f"--parquet={folder.shown}: the folder has no Parquet file, but its subfolder {shown_value(name)} has; {_NAME_IT}"
            raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text)


def _has_dead_letter_files(folder: Folder) -> bool:
    with suppress(Refusal):  # Not a folder, or not readable.
        return bool(dead_letter_files(folder.names()))
    return False


def dead_letter_files(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(".parquet") and not name.startswith((".", "_"))}
