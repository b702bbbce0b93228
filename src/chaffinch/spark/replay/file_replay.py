"""Replays of Parquet files of dead letters: each is one transaction, and moves to the folder `_replayed` below when that has ended."""

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

_NAME_IT: Final = "name the one that errors.dead.letter.path had"
REPLAYED_FOLDER: Final = "_replayed"
"""Folder of the Parquet files that are done with; Spark leaves out what begins with `_`."""
ATTEMPTS_MAX: Final = 10
"""How often the letters of a file are read once more, because another replay was written in between."""
_NO_TOPIC: Final = "its letters name no topic; name it with --to or --repair topic=..."
_OF_BATCH_WRITES: Final = f"-{0:09d}.parquet"
"""How the files of replays end, as those of all batch writes (`parquet_name`)."""


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
                left = f"nothing of {name} was written, the files before it, by name, are replayed"
                report += replay.file(name, left)
    return report


def _unsettled(plan: ReplayPlan, folder: Folder, names: Collection[str]) -> set[str]:
    """Files of a replay, with a token or without one, that died before its transaction ended: their letters are those of another file,
    which is still there, or is replayed meanwhile."""
    tokens = {_rejected_file_name(token): token for name in names for token in (_file_token(plan, folder, name), _own_token(folder, name))}
    known = {*names, *folder.below(REPLAYED_FOLDER).names()}
    begun = {name: tokens[name] for name in names if name in tokens}
    for name in names:
        if name not in begun and name.endswith(_OF_BATCH_WRITES) and _is_token_of_file(query := _token_in(folder, name), known):
            begun[name] = query
    return {name for name, token in begun.items() if not writing.is_written(plan.client, token)}


def _is_token_of_file(token: str, names: Collection[str]) -> bool:
    """Whether somebody's --token stands in it, before the name of one of these files."""
    return any(token[index + 1 :] in names for index, mark in enumerate(token) if mark == "-")


def _token_in(folder: Folder, name: str) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """How letters of a file are written: under which token, where the marker lies, where letters go, and with which notes in the topic that
    has them too."""

    token: str
    run: str
    marker_topic: str
    dead_letter_options: Mapping[str, str]
    notes: ReplayNotes


@dataclass(frozen=True, slots=True)
class _FileReplay:
    """A replay of the files of a folder, one after the other."""

    spark: SparkSession
    plan: ReplayPlan
    folder: Folder
    topics: MatchingTopics

    def file(self, name: str, left: str) -> ReplayReport:
        """`left`: what is written where it fails for a repair."""
        folder = self.folder
        token = _file_token(self.plan, folder, name)  # Of the file as it is before it is read: another replay may move it.
        if name not in folder.names():
            return ReplayReport()  # As if that replay had come first.
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._replay_file(name, name, token, left)
            except Refusal as refusal:
                if refusal.name != CONCURRENT_REPLAY:
                    raise
                # Another replay has written in between, of this file, of another one, or of the topic: its notes say what.
                self.topics.forget_all()
            except Exception:
                if name in folder.names() or name not in folder.below(REPLAYED_FOLDER).names():
                    raise
                # By another replay, which has written it; and if under this token, the write is told so. A look before it may come before
                # the marker.
                self.topics.forget_all()
                return self._replay_file(name, f"{REPLAYED_FOLDER}/{name}", token, left)
        raise Refusal(
            Group.APPLICATION_RECOVERABLE,
            CONCURRENT_REPLAY,
            f"other replays were written in all {ATTEMPTS_MAX} attempts of this one; begin again",
        )

    def _replay_file(self, name: str, location: str, token: str, left: str) -> ReplayReport:
        """`location`: where in the folder the file is now."""
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
        """Letters that no other replay has written, as far as they are selected."""
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
                if plan.token is not None:  # It moves no letter.
                    return before + self._report_written(name, write.token, count, None)
                return self._report_written(name, write.token, count + classified.counts[LetterClass.NOT_SELECTED], by)
            if writing.writer_of(plan.client, write.token) not in (None, write.run):
                raise concurrent_replay(topic.ledger.topic)
            topic.noted(write.notes, write.token)
            return earlier + self._report_written(name, write.token, count + classified.counts[LetterClass.NOT_SELECTED], None)

    def _plan_of(
        self, name: str, token: str, found: DataFrame, target: str, topic: MatchingTopic | None, classified: ClassifiedLetters
    ) -> _Write:  # fmt: skip
        """How the chosen letters are written. Those that are not selected move to the file of those that are rejected once more."""
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
        """Of a file that is written, under this token. `by`: the replay that has done so, if it was another one."""
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
    """Whether another replay has written in the meantime, under the same token. Where it cannot be told: no, which fails nothing."""
    with suppress(Refusal):
        # Of another's the write has waited until Kafka shows the marker; it may not yet show that of a moment ago.
        return writing.writer_of(plan.client, token) not in (None, run)
    return False


def _refuse_unknown(plan: ReplayPlan, folder: Folder, name: str, topic: MatchingTopic, marked: DataFrame) -> None:
    """Refuses letters that are no longer in a topic that was replayed: it is not known whether that replay wrote them."""
    if not topic.ledger.replays:
        return
    ((missing, count),) = marked.selectExpr("count_if(NOT is_there)", "count(*)").collect()
    if missing:
        where = topic.ledger.topic
        text = f"--parquet={folder.shown}: {missing} of {count} letters of {name} are not in topic {where}, which was replayed"
        advice = "look for them where they were to go, and write those that are missing with --where and a --token of your own"
        raise Refusal(Group.INVALID_CONFIGURATION, "LETTERS_NOT_IN_TOPIC", f"{text}: it is not known whether they are written; {advice}")


def _first_topic(frame: DataFrame) -> str | None:
    """By name; None where no row names one."""
    ((found,),) = frame.selectExpr("min(topic)").collect()
    return None if found is None else str(found)


def _marker_topic(plan: ReplayPlan, original: str | None, repaired: str) -> str:
    """Where the marker of a file lies: on the topic that its letters were to go to at first, so that of two replays beside each other one
    writes, whatever their repairs; where that is gone, on the one that they go to now."""
    if original is None or original == repaired or writing.topic_now(plan.client, original) is None:
        return repaired
    return original


def _read_dead_letters(spark: SparkSession, folder: Folder, name: str) -> DataFrame:
    """Refuses a file that the sink cannot have written, or Spark cannot read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return dead_letters.dead_letters_in_file(spark, folder.in_spark(name))
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
    return f"{REPLAY_TOKEN_PREFIX}{writing.digest(name, *_stamp(folder, name))}"


def _rejected_file_name(token: str) -> str:
    """The Parquet file of what is rejected once more under a token."""
    return parquet_name(Origin(query=token, batch_id=0, task=-1))


def _rename_pending_file(folder: Folder, token: str, writer_id: str) -> None:
    """What is rejected once more under a token: whoever has written may have died before its file had its name."""
    origin = Origin(query=token, batch_id=0, task=-1)
    folder.rename(pending_name(origin, writer_id), parquet_name(origin))


def _stamp(folder: Folder, name: str) -> tuple[object, ...]:
    """What tells a file from a later one under the same name."""
    filesystem, _ = folder.opened()
    found = filesystem.get_file_info(folder.path(name))
    return found.size, found.mtime_ns


def _move_to_replayed(folder: Folder, name: str) -> None:
    filesystem, _ = folder.opened()
    with folder.refusing(f"has a file {name} that is replayed and cannot be moved to {REPLAYED_FOLDER}"):
        filesystem.create_dir(folder.path(REPLAYED_FOLDER), recursive=True)
        # A replay beside this one has moved it.
        with suppress(FileNotFoundError):
            filesystem.move(folder.path(name), folder.path(f"{REPLAYED_FOLDER}/{name}"))


# The folder of the files ---------------------------------------------------------------------------------------------------------------


class DeadLetterFolder(Folder):
    """One that is there already, because a query has written into it."""

    def refusal(self, what: str, error: Exception, remedy: str = _NAME_IT) -> Refusal:
        return super().refusal(what, error, remedy)


def check_folder(path: str) -> Folder:
    """The folder of dead letters. Refusal where there is none, or nobody may look into it."""
    from pyarrow import fs

    folder = DeadLetterFolder(path, "--parquet")
    filesystem, at = folder.opened()
    with folder.refusing("cannot be looked at"):
        kind = filesystem.get_file_info(at).type
    if kind != fs.FileType.Directory:
        what = "there is no such folder" if kind == fs.FileType.NotFound else "that is a file, and letters are replayed by their folder"
        raise Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", f"--parquet={folder.shown}: {what}; {_NAME_IT}")
    _refuse_folder_above(folder)
    return folder


def _refuse_folder_above(folder: Folder) -> None:
    """The one above that of the letters. One without letters may be that of a query that has set nothing aside."""
    names = folder.names()
    if REPLAYED_FOLDER in names or dead_letter_files(names):
        return
    for name in sorted(name for name in names if not name.startswith((".", "_"))):
        if _has_dead_letter_files(folder.below(name)):
            text = f"--parquet={folder.shown}: there is no Parquet file in that folder, but in {shown_value(name)} below it; {_NAME_IT}"
            raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", text)


def _has_dead_letter_files(folder: Folder) -> bool:
    with suppress(Refusal):  # That is no folder, or one of others.
        return bool(dead_letter_files(folder.names()))
    return False


def dead_letter_files(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(".parquet") and not name.startswith((".", "_"))}
