"""The ledger of a dead letter topic: what its notes say of the replays of its letters, and of the same letters in Parquet files.

Each replay that leaves a note begins with the ledger that it has read: its token is made of that. So of two replays that begin with the
same ledger, of the topic or of files, one writes.
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
    """An earlier replay, by its notes. `at_ms`: when it was written, in ms since 1970."""

    notes: ReplayNotes
    token: str
    at_ms: int

    def of(self, topic: str) -> str:
        """As people read it."""
        what = f"of a Parquet file, noted in {topic}" if self.notes.file else f"of {topic}"
        run = f" {self.notes.run}" if self.notes.run else ""
        return f"replay{run} {what}, {datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What is in a dead letter topic, and which replays have noted something there.

    `spans`: all that there is, of each partition that has, or had, something; `Span.replayed` says up to where replays of the whole
    topic have come.
    """

    topic: str
    spans: tuple[Span, ...]
    replays: tuple[Replay, ...]

    @property
    def token(self) -> str:
        """The same for all who begin where the last replay has ended, whatever letters have come since."""
        noted = [(span.partition, span.replayed) for span in self.spans if span.replayed]
        return f"{REPLAY_TOKEN_PREFIX}{self.topic}-{writing.digest(*noted, *([self.number] if self.number else []))}"

    @property
    def number(self) -> int:
        """Of the newest note of format 2; 0 where there is none."""
        return max((replay.notes.number for replay in self.replays), default=0)

    def spans_to_read(self, *, is_all: bool) -> tuple[Span, ...]:
        """Those with letters that no replay of the whole topic has passed; `is_all`: with any letters."""
        found = (span if is_all else replace(span, start=max(span.start, span.replayed)) for span in self.spans)
        return tuple(span for span in found if not span.is_empty)

    def written_by(self, counts: Mapping[int, int]) -> dict[str, int]:
        """Counts by the indices of replays, by their names."""
        return {self.replays[index].of(self.topic): count for index, count in sorted(counts.items())}

    def of_file(self, token: str) -> Replay | None:
        """The replay of a Parquet file that has this token by itself."""
        return next((replay for replay in self.replays if replay.notes.file == token), None)

    def with_notes(self, notes: ReplayNotes, token: str, at_ms: int) -> Ledger:
        """After a replay that left these."""
        return replace(self, replays=(*self.replays, Replay(notes=notes, token=token, at_ms=at_ms)))

    def done_by(self) -> Column:
        """Of letters with `is_cut` and their places: the index of the replay that has written a letter; null where none has.

        A replay of the whole topic passes over letters that are cut, and writes none of them."""
        from pyspark.sql.functions import coalesce, col, expr, when

        explicit, passed = _ranges_of(self.replays), _passed(self.replays)
        found = lookup(explicit, "at_partition", "at_offset")
        if not passed:
            return found
        return coalesce(found, when(~col("is_cut"), lookup(passed, "at_partition", "at_offset")).otherwise(expr("CAST(NULL AS INT)")))


Labelled = Mapping[int, Sequence[tuple[int, int, int]]]
"""Partition -> ranges of offsets that do not overlap, in their order, each with a number."""


def lookup(ranges: Labelled, partition: str, offset: str) -> Column:
    """The number of the range that holds a place; null where none does."""
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

    # Rows that Spark pickles: with Arrow it would take pandas.
    return udf(find, "int", useArrow=False)(col(partition), col(offset))


def _ranges_of(replays: Sequence[Replay]) -> Labelled:
    """Those that notes of format 2 name."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for index, replay in enumerate(replays):
        for number, ranges in replay.notes.ranges.items():
            found.setdefault(number, []).extend((start, end, index) for start, end in ranges)
    return {number: sorted(ranges) for number, ranges in found.items()}


def _passed(replays: Sequence[Replay]) -> Labelled:
    """Those that notes of format 1 have passed over, each from the end of the one before."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for number in {number for replay in replays for number in replay.notes.ends}:
        start = 0
        for end, index in sorted((replay.notes.ends[number], index) for index, replay in enumerate(replays) if number in replay.notes.ends):
            if start < end:
                found.setdefault(number, []).append((start, end, index))
                start = end
    return found


def read_ledger(spark: SparkSession, client: Mapping[str, str], topic: str) -> Ledger:
    """What is there now, of what can be read. Refuses notes of a later version."""
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
            # Each partition has the same note.
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
    """Of one note; None for a record that only looks like one. In formats behind the first, the header has the format's number under
    another name than a partition's. Refuses a later format by name."""
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
    """The ledger's token. It was used before where all notes are gone with their letters, as after an expired retention. Refusal where
    another replay has used it since the ledger was read."""
    number = 0
    while writing.is_written(client, token := ledger.token + (f"-{number}" if number else "")):
        starts = ends_of(spark, client, ledger)
        if dead_letters.outcome_in_topic(spark, client, ledger.topic, starts, token).runs:
            raise concurrent_replay(ledger.topic)
        number += 1
    return token


def ends_of(spark: SparkSession, client: Mapping[str, str], ledger: Ledger) -> dict[str, int]:
    """Partition -> where the ledger ends there; of all partitions, once all that is in the topic now can be read."""
    count = writing.wait_for_ends(client, ledger.topic)
    return {str(number): OFFSET_EARLIEST for number in range(count)} | {str(span.partition): span.end for span in ledger.spans}


def concurrent_replay(topic: str) -> Refusal:
    text = f"another replay of {topic} was written meanwhile, nothing was written by this one; begin again for letters that are left"
    return Refusal(Group.APPLICATION_RECOVERABLE, CONCURRENT_REPLAY, text)


__all__ = ["Ledger", "Replay", "concurrent_replay", "ends_of", "lookup", "read_ledger", "unused_token"]
