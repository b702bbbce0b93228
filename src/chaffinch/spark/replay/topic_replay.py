"""Replay of a dead letter topic, which is read as a queue.

The transaction of the rows also writes a note to each partition of the topic with the end of the replayed letters, where the next replay
starts. Rows that are rejected again become new letters after the note.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition, pluralize
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import dead_letters, writing
from chaffinch.spark.replay.dead_letters import Span
from chaffinch.spark.replay.ledger import Ledger, concurrent_replay, ends_of, read_ledger, unused_token
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.replay.selection import ClassifiedLetters, LetterClass, classify, selected
from chaffinch.spark.sink.options import NOTES
from chaffinch.spark.tasks.replay_notes import ReplayNotes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUE_CUT: Final = "VALUE_CUT"
NO_LETTER: Final = "NOT_A_DEAD_LETTER"
_CUT_ADVICE: Final = (
    "{count} letters were too large for the topic, which has only their digests: replay the Parquet files, if there are any, with "
    "--parquet PATH --topic {topic}; letters that were replayed from the topic are not written again"
)
_NOT_LETTERS: Final = "the first is {where}: without the header __connect.errors.topic it is not a dead letter and stays there"


def replay_topic(spark: SparkSession, plan: ReplayPlan, topic: str) -> ReplayReport:
    from pyspark.sql.functions import expr

    if plan.token is not None and writing.is_written(plan.client, plan.token):
        return ReplayReport(is_repetition=True)
    with writing.removals_reported():
        ledger = read_ledger(spark, plan.client, topic)
    spans = ledger.spans_to_read(is_all=plan.token is not None)
    if not spans:
        return ReplayReport()
    found = dead_letters.dead_letters_in_topic(spark, plan.client, topic, spans)
    marked = found.withColumn("done_by", expr("CAST(NULL AS INT)") if plan.token is not None else ledger.done_by())
    with_ranges = plan.selects and plan.token is None
    with writing.removals_reported(), writing.failing_repair_named(found, plan):
        classified = classify(marked, plan, with_ranges=with_ranges)
    counts = classified.counts
    if not classified.read:
        return ReplayReport()
    if classified.read == counts[LetterClass.NOT_A_LETTER] and not ledger.replays:
        text = f"none of the {pluralize(classified.read, 'record')} in {topic} has the header __connect.errors.topic, as dead letters have"
        raise Refusal(Group.INVALID_CONFIGURATION, "NOT_DEAD_LETTERS", f"{text}; nothing was written; name the dead letter topic")
    left = _passed_over(plan, topic, classified) + ReplayReport.of_earlier(ledger.written_by(classified.done))
    whole = marked.where("is_letter AND NOT is_cut AND done_by IS NULL")
    if plan.selects:
        whole = whole.where(classified.at(LetterClass.CHOSEN) if with_ranges else selected(plan))
    rows = writing.repair(whole, plan)
    notes = _notes(plan, topic, ledger, spans, classified)
    if notes is not None:
        refuse_large_notes(plan.client, topic, notes, ledger.token)
    if plan.is_dry_run:
        with writing.failing_repair_named(whole, plan):
            return left + writing.dry_run(plan, rows)
    if plan.selects and not counts[LetterClass.CHOSEN]:
        return left
    token = plan.token or unused_token(spark, plan.client, ledger)
    if notes is not None or counts[LetterClass.CHOSEN]:
        note_options = {} if notes is None else {NOTES: notes.to_option()}
        with writing.failing_repair_named(whole, plan):
            writing.write(rows, plan, token, topic, {"errors.dead.letter.queue.topic.name": topic, **note_options})
    with _errors_after_write():
        outcome = dead_letters.outcome_in_topic(spark, plan.client, topic, ends_of(spark, plan.client, ledger), token)
    if notes is not None and outcome.runs != {notes.run}:
        raise concurrent_replay(topic)
    dropped = writing.dropped_under(plan, token)
    return left + ReplayReport.of(counts[LetterClass.CHOSEN], outcome.rejected, outcome.examples, dropped)


def _passed_over(plan: ReplayPlan, topic: str, classified: ClassifiedLetters) -> ReplayReport:
    """Report of records that were read and not written. A selection does not count records that are not letters."""
    left = ReplayReport(not_selected=classified.counts[LetterClass.NOT_SELECTED])
    if classified.first_non_letter is not None and not plan.selects:
        number, offset = classified.first_non_letter
        count, where = classified.counts[LetterClass.NOT_A_LETTER], f"{TopicPartition(topic, number)} at offset {offset}"
        left += ReplayReport.of(count, {NO_LETTER: count}, [_NOT_LETTERS.format(where=where)])
    if cut := classified.counts[LetterClass.CUT]:
        left += ReplayReport.of(cut, {VALUE_CUT: cut}, [_CUT_ADVICE.format(count=cut, topic=topic)])
    return left


def _notes(plan: ReplayPlan, topic: str, ledger: Ledger, spans: Sequence[Span], classified: ClassifiedLetters) -> ReplayNotes | None:
    """The notes of the replay: with a selection the written letters, or else the ends of the spans."""
    run = secrets.token_hex(8)
    if plan.token is not None:
        return None
    if not plan.selects:
        return ReplayNotes(ends={span.partition: span.end for span in spans}, run=run)
    ranges = classified.ranges.get(LetterClass.CHOSEN, {})
    found = writing.topic_now(plan.client, topic)
    return ReplayNotes(ranges=ranges, run=run, number=ledger.number + 1, partition_count=1 if found is None else found.partition_count)


@contextmanager
def _errors_after_write() -> Iterator[None]:
    """Reword errors that occur after the write."""
    try:
        with writing.note_on_interruption("the replay was written"):
            yield
    except Refusal as refusal:
        text = f"the replay was written, but its outcome cannot be determined: {refusal.reason}"
        raise Refusal(refusal.group, refusal.name, text, refusal.remedy) from None


def refuse_large_notes(client: Mapping[str, str], topic: str, notes: ReplayNotes, token: str) -> None:
    """Refuse notes above max.message.bytes before anything is written, if the limit is known. Otherwise the broker rejects them with the
    rows.
    """
    from chaffinch.spark.target import wall_ms

    size, found = len(notes.encoded(token, wall_ms())), writing.topic_now(client, topic)
    if found is None or size <= found.batch_bytes_max:
        return
    what, advice = f"the note with the ends of the replayed letters in {pluralize(len(notes.ends), 'partition')} of {topic}", "start again"
    if notes.ranges:
        what = f"the note with the replayed letters of {topic}, in {pluralize(sum(map(len, notes.ranges.values())), 'range')} of offsets,"
        advice = "start again, or replay all letters"
    text = f"{what} takes {size} bytes, max.message.bytes of {topic} allows {found.batch_bytes_max}; nothing was written"
    raise Refusal(Group.INVALID_CONFIGURATION, codes.MESSAGE_TOO_LARGE.name, f"{text}; raise it to at least {size}, and {advice}")
