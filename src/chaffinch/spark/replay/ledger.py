"""Ledger of a dead letter topic: the replays recorded in its notes, of the topic and of the same letters in Parquet files.

The token of a replay is derived from the ledger that it has read. So of two concurrent replays with the same ledger, of the topic or of
files, only one writes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from chaffinch.errors.codes import Group
from chaffinch.identifiers import OFFSET_EARLIEST
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import dead_letters, writing
from chaffinch.spark.replay.dead_letters import Span
from chaffinch.spark.sink.options import REPLAY_TOKEN_PREFIX
from chaffinch.spark.tasks.replay_notes import NOTE, NOTE_TOKEN, RANGES_FORMAT, ReplayNotes
from chaffinch.spark.versions import NewerFormat

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

CONCURRENT_REPLAY: Final = "REPLAYED_MEANWHILE"
_FOUND: Final = "struct({note} AS note, {token} AS token, CAST(value AS STRING) AS value, unix_millis(timestamp) AS at_ms)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An earlier replay, from its notes. `at_ms`: time of the write, in ms since 1970."""

    notes: ReplayNotes
    token: str
    at_ms: int

    def of(self, topic: str) -> str:
        """A description for messages."""
        what = f"of a Parquet file, noted in {topic}" if self.notes.file else f"of {topic}"
        run = f" {self.notes.run}" if self.notes.run else ""
        return f"replay{run} {what}, {datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Content of a dead letter topic: its letters, and the replays with notes in it.

    `spans`: the offset range of each partition that has or had records; `Span.replayed` is the end of replays of the whole topic.
    """

    topic: str
    spans: tuple[Span, ...]
    replays: tuple[Replay, ...]

    @property
    def token(self) -> str:
        """The token of the next replay. It depends on the earlier replays, not on letters that were added later."""
        noted = [(span.partition, span.replayed) for span in self.spans if span.replayed]
        return f"{REPLAY_TOKEN_PREFIX}{self.topic}-{writing.digest(*noted, *([self.number] if self.number else []))}"

    @property
    def number(self) -> int:
        """The number of the newest note of format 2; 0 if there is none."""
        return max((replay.notes.number for replay in self.replays), default=0)

    def spans_to_read(self, *, is_all: bool) -> tuple[Span, ...]:
        """The spans to replay: letters that no replay of the whole topic has passed; `is_all`: all letters."""
        found = (span if is_all else replace(span, start=max(span.start, span.replayed)) for span in self.spans)
        return tuple(span for span in found if not span.is_empty)

    def written_by(self, counts: Mapping[int, int]) -> dict[str, int]:
        """Converts counts by index of the replay to counts by its description."""
        return {self.replays[index].of(self.topic): count for index, count in sorted(counts.items())}

    def of_file(self, token: str) -> Replay | None:
        """The replay of the Parquet file with this default token."""
        return next((replay for replay in self.replays if replay.notes.file == token), None)

    def with_notes(self, notes: ReplayNotes, token: str, at_ms: int) -> Ledger:
        """The ledger with the notes of one more replay."""
        return replace(self, replays=(*self.replays, Replay(notes=notes, token=token, at_ms=at_ms)))

    def done_by(self) -> Column:
        """Column with the index of the replay that has written a letter, or null; the frame has `is_cut`, `at_partition` and
        `at_offset`.

        A replay of the whole topic skips truncated letters (`is_cut`).
        """
        from pyspark.sql.functions import coalesce, col, expr, when

        explicit, passed = _ranges_of(self.replays), _passed(self.replays)
        found = lookup(explicit, "at_partition", "at_offset")
        if not passed:
            return found
        return coalesce(found, when(~col("is_cut"), lookup(passed, "at_partition", "at_offset")).otherwise(expr("CAST(NULL AS INT)")))


Labelled = Mapping[int, Sequence[tuple[int, int, int]]]
"""Partition -> sorted disjoint ranges of offsets, each with a label: (start, end, label)."""


def lookup(ranges: Labelled, partition: str, offset: str) -> Column:
    """Column with the label of the range that contains the offset; null if none does."""
    from pyspark.sql.functions import col, expr, udf

    if not any(ranges.values()):
        return expr("CAST(NULL AS INT)")
    starts = {number: [start for start, _, _ in found] for number, found in ranges.items()}

    def find(number: int, at: int) -> int | None:
        index = bisect_right(starts.get(number, ()), at) - 1
        if index < 0:
            return None
        _, end, label = ranges[number][index]
        return label if at < end else None

    # Without Arrow, for which Spark needs pandas.
    return udf(find, "int", useArrow=False)(col(partition), col(offset))


def _ranges_of(replays: Sequence[Replay]) -> Labelled:
    """The ranges in notes of format 2."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for index, replay in enumerate(replays):
        for number, ranges in replay.notes.ranges.items():
            found.setdefault(number, []).extend((start, end, index) for start, end in ranges)
    return {number: sorted(ranges) for number, ranges in found.items()}


def _passed(replays: Sequence[Replay]) -> Labelled:
    """The ranges of notes of format 1, each from the end of the previous one."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for number in {number for replay in replays for number in replay.notes.ends}:
        start = 0
        for end, index in sorted((replay.notes.ends[number], index) for index, replay in enumerate(replays) if number in replay.notes.ends):
            if start < end:
                found.setdefault(number, []).append((start, end, index))
                start = end
    return found


def read_ledger(spark: SparkSession, client: Mapping[str, str], topic: str) -> Ledger:
    """Read the ledger of a topic. Raises Refusal for notes of a later version."""
    from pyspark.sql.functions import expr

    read = spark.read.format("chaffinch").options(**client, subscribe=topic, includeHeaders="true").load()
    note = _FOUND.format(note=dead_letters.header(NOTE), token=dead_letters.header(NOTE_TOKEN))
    wanted = {"first": "min(offset)", "end": "max(offset) + 1", "notes": f"collect_set({note}) FILTER (WHERE {dead_letters.IS_NOTE})"}
    found = read.groupBy("partition").agg(*(expr(text).alias(name) for name, text in wanted.items())).collect()
    replays: dict[tuple[str, str, str], Replay] = {}
    for row in found:
        for text, token, value, at_ms in row["notes"]:
            notes = _notes(topic, text, value)
            if notes is None:
                continue
            # Every partition has the same note.
            replays.setdefault((token or "", text, value or ""), Replay(notes=notes, token=token or "", at_ms=at_ms))
    ordered = tuple(replays[key] for key in sorted(replays, key=lambda key: (replays[key].notes.number, replays[key].at_ms, key)))
    existing = {row["partition"]: (row["first"], row["end"]) for row in found}
    spans = []
    for number in sorted({*existing, *(number for replay in ordered for number in replay.notes.ends)}):
        done = max((replay.notes.ends.get(number, 0) for replay in ordered), default=0)
        first, end = existing.get(number, (done, done))
        spans.append(Span(partition=number, start=first, end=max(end, done), replayed=done))
    return Ledger(topic=topic, spans=tuple(spans), replays=ordered)


def _notes(topic: str, header: str | None, value: str | None) -> ReplayNotes | None:
    """Parse one note; None if it is not a note. Above format 1 the header has the format number under a key that is not a partition.

    Raises Refusal for a later format.
    """
    try:
        fields: dict[str, int] = {name: int(number) for name, number in json.loads(header or "").items()}
    except (TypeError, ValueError, AttributeError):
        return None
    formats = [number for name, number in fields.items() if not (name.isascii() and name.isdecimal())]
    if not formats:
        return ReplayNotes(ends={int(name): end for name, end in fields.items()}, run=value or "")
    if max(formats) > RANGES_FORMAT:
        raise NewerFormat(max(formats), RANGES_FORMAT).refusal(f"a note of a replay in {topic}")
    return ReplayNotes.of_ranges(value or "")


def unused_token(spark: SparkSession, client: Mapping[str, str], ledger: Ledger) -> str:
    """An unused token for the ledger. Its own token may be used already if all notes have expired with their letters.

    Raises Refusal if another replay has used it since the ledger was read.
    """
    number = 0
    while writing.is_written(client, token := ledger.token + (f"-{number}" if number else "")):
        starts = ends_of(spark, client, ledger)
        if dead_letters.outcome_in_topic(spark, client, ledger.topic, starts, token).runs:
            raise concurrent_replay(ledger.topic)
        number += 1
    return token


def ends_of(spark: SparkSession, client: Mapping[str, str], ledger: Ledger) -> dict[str, int]:
    """Partition -> end of the ledger, for all partitions. Waits until all current records of the topic can be read."""
    count = writing.wait_for_ends(client, ledger.topic)
    return {str(number): OFFSET_EARLIEST for number in range(count)} | {str(span.partition): span.end for span in ledger.spans}


def concurrent_replay(topic: str) -> Refusal:
    text = f"another replay of {topic} was written in the meantime, this one wrote nothing; start again for the remaining letters"
    return Refusal(Group.APPLICATION_RECOVERABLE, CONCURRENT_REPLAY, text)


__all__ = ["Ledger", "Replay", "concurrent_replay", "ends_of", "lookup", "read_ledger", "unused_token"]
