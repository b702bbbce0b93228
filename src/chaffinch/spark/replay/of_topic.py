"""Replays of a dead letter topic, which is read as a queue.

With the rows, in the same transaction, goes a note for each of its partitions that says up to where its letters are done with; the next
replay begins there. What is rejected once more becomes a new letter behind the note.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition, counted
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import letters, writing
from chaffinch.spark.replay.letters import Outcome, Span
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.sink.options import NOTES, REPLAY
from chaffinch.spark.source.errors import refusals
from chaffinch.spark.tasks.notes import Notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENT_TIMEOUT_MS: Final = 60_000
VALUE_CUT: Final = "VALUE_CUT"
NO_LETTER: Final = "NOT_A_DEAD_LETTER"
_CUT_ADVICE: Final = (
    "{count} letters hold only a digest of what was too large for the topic: replay them from the Parquet files, if there are any"
)
_STRANGERS: Final = "the first is {where}: without the header __connect.errors.topic it is nobody's dead letter, and is left where it is"


def replay_topic(spark: SparkSession, plan: ReplayPlan, topic: str) -> ReplayReport:
    if plan.token is not None and writing.is_written(plan.client, plan.token):
        return ReplayReport(is_repetition=True)
    with writing.removals_told():
        known = letters.spans_in(spark, plan.client, topic, is_all=plan.token is not None)
    spans = tuple(span for span in known if not span.is_empty)
    if not spans:
        return ReplayReport()
    found = letters.letters_in_topic(spark, plan.client, topic, spans)
    counts = "count(*)", "count_if(is_letter)", "count_if(is_letter AND is_cut)", "min(if(is_letter, null, place))"
    with writing.removals_told():
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
    whole = found.where("is_letter AND NOT is_cut")
    rows = writing.repaired(whole, plan)
    ends = {span.partition: span.end for span in spans}
    notes = None if plan.token is not None else Notes(ends=ends, run=secrets.token_hex(8))
    if notes is not None:
        _refuse_large(plan.client, topic, notes, _token(topic, known, 0))
    if plan.is_dry_run:
        with writing.failing_repairs_told(whole, plan):
            return left + writing.tried(plan, rows)
    token = plan.token or _unused_token(spark, plan.client, topic, known)
    if notes is not None or real > cut:
        beside = {} if notes is None else {NOTES: notes.to_option()}
        with writing.failing_repairs_told(whole, plan):
            writing.write(rows, plan, token, topic, {"errors.dead.letter.queue.topic.name": topic, **beside})
    with _told_as_written():
        outcome = _outcome(spark, plan.client, topic, known, token)
    if notes is not None and outcome.runs != {notes.run}:
        raise _meanwhile(topic)
    return left + ReplayReport.of(real - cut, outcome.rejected, outcome.examples)


@contextmanager
def _told_as_written() -> Iterator[None]:
    """Of what goes wrong behind the write."""
    try:
        with writing.noted_of_interruptions("what was replayed is written"):
            yield
    except Refusal as refusal:
        text = f"what was replayed is written, what became of it cannot be told: {refusal.reason}"
        raise Refusal(refusal.group, refusal.name, text, refusal.remedy) from None


def _refuse_large(client: Mapping[str, str], topic: str, notes: Notes, token: str) -> None:
    """Before anything is written, where the topic tells its limit; elsewhere the topic refuses the notes, and the rows with them."""
    from chaffinch.spark.target import find_topic, wall_ms

    size = len(notes.encoded(token, wall_ms()))
    with writing.asking(client) as asked:
        found = find_topic(asked, topic, CLIENT_TIMEOUT_MS)
    if found is None or size <= found.batch_bytes_max:
        return
    what = f"the note of up to where letters in {counted(len(notes.ends), 'partition')} of {topic} are done with takes {size} bytes"
    text = f"{what}, max.message.bytes of {topic} allows {found.batch_bytes_max}; nothing was written"
    advice = f"raise it to {size} at least, and begin again"
    raise Refusal(Group.INVALID_CONFIGURATION, codes.MESSAGE_TOO_LARGE.name, f"{text}; {advice}")


def _outcome(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span], token: str) -> Outcome:
    return letters.outcome_in_topic(spark, client, topic, spans, _wait_for_ends(client, topic), token)


def _unused_token(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span]) -> str:
    """The token for these spans. It was used before where all notes are gone with their letters, as after an expired retention."""
    number = 0
    while writing.is_written(client, token := _token(topic, spans, number)):
        if _outcome(spark, client, topic, spans, token).runs:
            raise _meanwhile(topic)
        number += 1
    return token


def _meanwhile(topic: str) -> Refusal:
    text = f"another replay of {topic} was written meanwhile, nothing was written by this one; begin again for letters that are left"
    return Refusal(Group.APPLICATION_RECOVERABLE, "REPLAYED_MEANWHILE", text)


def _token(topic: str, spans: Sequence[Span], number: int) -> str:
    """The same for all who begin where the last replay has ended, whatever has come since: of these one writes."""
    digest = writing.digest(*((span.partition, span.replayed) for span in spans if span.replayed))
    return f"{REPLAY}{topic}-{digest}" + (f"-{number}" if number else "")


def _wait_for_ends(client: Mapping[str, str], topic: str) -> int:
    """Until all that is in a topic now can be read: brokers end a transaction everywhere only after they have said that it is ended.

    How many partitions it has."""
    from chaffinch.spark.source.options import SourceOptions
    from chaffinch.spark.source.topic_discovery import Discovery
    from chaffinch.spark.target import client_for, forget_client

    options = SourceOptions.parse({**client, "subscribe": topic})
    discovery = Discovery(client_for(options.client), options)
    try:
        with refusals():
            partitions = discovery.partitions().partitions
            discovery.wait_until_readable(discovery.written(partitions))
            return len(partitions)
    finally:
        forget_client(options.client)
