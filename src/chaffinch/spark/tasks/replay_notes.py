"""What the writes of a replay leave beside their rows: notes in a dead letter topic, and letters that it passes over. Pure.

Notes say which letters of the topic are done with. They are no rows. The committing process writes them, in the transaction of the rows:
no option limits them, none ever becomes a dead letter, and a topic that refuses one ends the transaction. So rows are never written
without their notes.

A note has one of two formats:

- 1: all letters below an offset of each partition are done with. A replay of a whole topic leaves it.
- 2: letters in ranges of offsets are done with. A replay of selected letters leaves it, and a replay of a Parquet file whose letters are
  in the topic too. Versions that know format 1 only fail on its header, and write nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import StagedBatch, StagedBytes

NOTE: Final = "chaffinch.replayed"
"""Header of a note. In format 1 up to which offset letters are done with, of each partition: JSON, `{"0":23}`.

Each note speaks of all partitions, so that it does not matter which of a replay's notes can be seen already.
"""
NOTE_TOKEN: Final = "chaffinch.replayed.by"
NEWER_FORMAT: Final = "format of this note, which an earlier version of Chaffinch cannot read"
"""What stands in place of a partition in the header of a note of another format than 1, with the format's number. Earlier versions take it
for a number, and fail with this text."""
RANGES_FORMAT: Final = 2

Ranges = Mapping[int, tuple[tuple[int, int], ...]]
"""Partition -> ranges of offsets, each from its first to behind its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayNotes:
    """Those of one replay, all alike, one in each partition of which they speak.

    `ends`: partition -> up to where its letters are done with (format 1). `ranges`: which letters are done with (format 2).
    `file`: the Parquet file whose letters were replayed, by the token that it has by itself; empty for a replay of the topic.
    `run`: tells this replay from another one that began where it did, under the same token.
    """

    ends: Mapping[int, int] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    run: str
    file: str = ""
    number: int = 0
    """Of a note of format 2: one more than that of the newest one before it."""
    partition_count: int = 0
    """Of the topic: notes of format 2 lie in each partition. Whoever sees one of them sees all that it was written after."""

    @property
    def partitions(self) -> Iterable[int]:
        """Where the notes lie."""
        return self.ends or range(self.partition_count)

    def to_option(self) -> str:
        """As the sink is told of them."""
        if self.ends:
            return json.dumps({"ends": self._by_name(), "run": self.run})
        return json.dumps({**self._fields(), "partitions": self.partition_count})

    @classmethod
    def of_option(cls, text: str) -> ReplayNotes | None:
        """From what `to_option` gave; None where it is anything else."""
        match _parsed(text):
            case {"ends": dict(ends), "run": str(run)} as found if len(found) == 2 and all(_is_end(*pair) for pair in ends.items()):
                return cls(ends={int(name): end for name, end in ends.items()}, run=run)
            case {"partitions": int(count)} if count > 0:
                ranges = cls.of_ranges(text)
                return None if ranges is None else replace(ranges, partition_count=count)
        return None

    @classmethod
    def of_ranges(cls, text: str) -> ReplayNotes | None:
        """From the value of a note of format 2; None where it is anything else."""
        match _parsed(text):
            case {"ranges": dict(ranges), "run": str(run), "file": str(file), "number": int(number)}:
                if all(_is_ranges(*pair) for pair in ranges.items()):
                    found = {int(name): tuple((start, end) for start, end in pairs) for name, pairs in ranges.items()}
                    return cls(ranges=found, run=run, file=file, number=number)
        return None

    def encoded(self, token: str, wall_ms: int) -> bytes:
        """One of them as a record batch; they are all alike."""
        from chaffinch.records import batch as batches
        from chaffinch.records.columns import RecordColumns

        header = self._by_name() if self.ends else {NEWER_FORMAT: RANGES_FORMAT}
        value = self.run if self.ends else json.dumps(self._fields(), separators=(",", ":"))
        headers = [(NOTE, json.dumps(header, separators=(",", ":")).encode()), (NOTE_TOKEN, token.encode())]
        record = RecordColumns.from_lists([None], [value.encode()], [wall_ms], [headers])
        return bytes(batches.encode(record, is_transactional=True))

    def staged(self, topic: str, token: str, wall_ms: int) -> tuple[StagedBatch, ...]:
        """All of them, so that none goes before the letters that it speaks of."""
        one = self.encoded(token, wall_ms)
        staged = StagedBytes(data=one, byte_count=len(one))
        return tuple(StagedBatch(topic_partition=TopicPartition(topic, number), record_count=1, bytes=staged) for number in self.partitions)

    def _by_name(self) -> dict[str, int]:
        return {str(number): end for number, end in self.ends.items()}

    def _fields(self) -> dict[str, Any]:
        ranges = {str(number): ranges for number, ranges in self.ranges.items()}
        return {"run": self.run, "file": self.file, "number": self.number, "ranges": ranges}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedRows:
    """Rows of a Parquet file of letters that a replay passes over: those in `ranges` of its row numbers. They stay letters as they are."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    def to_option(self) -> str:
        """As the sink is told of them."""
        return json.dumps({"name": self.name, "ranges": self.ranges})

    @classmethod
    def of_option(cls, text: str) -> RetainedRows | None:
        """From what `to_option` gave; None where it is anything else."""
        match _parsed(text):
            case {"name": str(name), "ranges": list(ranges)} if "/" not in name and _is_ranges("0", ranges):
                return cls(name=name, ranges=tuple((start, end) for start, end in ranges))
        return None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_end(name: str, end: object) -> bool:
    return name.isascii() and name.isdecimal() and type(end) is int


def _is_ranges(name: str, ranges: object) -> bool:
    pairs = ranges if isinstance(ranges, list) else [None]
    return (
        name.isascii()
        and name.isdecimal()
        and all(isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair) for pair in pairs)
    )
