"""Replay notes: records in a dead letter topic that mark letters as replayed; and retained rows of Parquet files. Pure.

The committing process writes notes in the transaction of the replayed rows, so rows are never written without their notes. Notes are not
rows: no option limits them, they never become dead letters, and a topic that rejects one aborts the transaction.

A note has one of two formats:

- 1: all letters below an offset of each partition are replayed. Written by a replay of a whole topic.
- 2: letters in ranges of offsets are replayed. Written by a replay of selected letters, and by one of a Parquet file whose letters are
also in the topic. Versions that only support format 1 fail on its header and write nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import StagedBatch, StagedBytes

NOTE: Final = "chaffinch.replayed"
"""Header of a note. In format 1 its value is JSON, `{"0":23}`: for each partition the offset below which letters are replayed.

Each note covers all partitions, so a reader needs only one of the notes of a replay.
"""
NOTE_TOKEN: Final = "chaffinch.replayed.by"
NEWER_FORMAT: Final = "format of this note, which an earlier version of Chaffinch cannot read"
"""Key in the header of notes above format 1, in place of a partition; its value is the format number. Earlier versions parse the key as
a number and fail with this text."""
RANGES_FORMAT: Final = 2

Ranges = Mapping[int, tuple[tuple[int, int], ...]]
"""Partition -> ranges of offsets, each from its first to one after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayNotes:
    """The notes of one replay, which are identical, one in each partition that they cover.

    `ends`: partition -> offset below which its letters are replayed (format 1). `ranges`: the replayed letters (format 2). `file`: the
    default token of the Parquet file that was replayed; empty for a replay of the topic. `run`: distinguishes this replay from another
    one with the same start and token.
    """

    ends: Mapping[int, int] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    run: str
    file: str = ""
    number: int = 0
    """For format 2: the number of the newest earlier note plus one."""
    partition_count: int = 0
    """Partition count of the topic, for format 2: each partition has a note. A reader of one of them sees everything written before it."""

    @property
    def partitions(self) -> Iterable[int]:
        """The partitions with a note."""
        return self.ends or range(self.partition_count)

    def to_option(self) -> str:
        """The option value that passes them to the sink."""
        if self.ends:
            return json.dumps({"ends": self._by_name(), "run": self.run})
        return json.dumps({**self._fields(), "partitions": self.partition_count})

    @classmethod
    def of_option(cls, text: str) -> ReplayNotes | None:
        """Parse a value of `to_option`; None if it is not one."""
        match _parsed(text):
            case {"ends": dict(ends), "run": str(run)} as found if len(found) == 2 and all(_is_end(*pair) for pair in ends.items()):
                return cls(ends={int(name): end for name, end in ends.items()}, run=run)
            case {"partitions": int(count)} if count > 0:
                ranges = cls.of_ranges(text)
                return None if ranges is None else replace(ranges, partition_count=count)
        return None

    @classmethod
    def of_ranges(cls, text: str) -> ReplayNotes | None:
        """Parse the value of a note of format 2; None if it is not one."""
        match _parsed(text):
            case {"ranges": dict(ranges), "run": str(run), "file": str(file), "number": int(number)}:
                if all(_is_ranges(*pair) for pair in ranges.items()):
                    found = {int(name): tuple((start, end) for start, end in pairs) for name, pairs in ranges.items()}
                    return cls(ranges=found, run=run, file=file, number=number)
        return None

    def encoded(self, token: str, wall_ms: int) -> bytes:
        """The record batch of one note; all are identical."""
        from chaffinch.records import batch as batches
        from chaffinch.records.columns import RecordColumns

        header = self._by_name() if self.ends else {NEWER_FORMAT: RANGES_FORMAT}
        value = self.run if self.ends else json.dumps(self._fields(), separators=(",", ":"))
        headers = [(NOTE, json.dumps(header, separators=(",", ":")).encode()), (NOTE_TOKEN, token.encode())]
        record = RecordColumns.from_lists([None], [value.encode()], [wall_ms], [headers])
        return bytes(batches.encode(record, is_transactional=True))

    def staged(self, topic: str, token: str, wall_ms: int) -> tuple[StagedBatch, ...]:
        """The batches of all notes: one in each partition, so that retention never deletes a note before the letters that it covers."""
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
    """Rows of a Parquet file that a replay does not select, as `ranges` of row numbers. They stay dead letters unchanged."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    def to_option(self) -> str:
        """The option value that passes them to the sink."""
        return json.dumps({"name": self.name, "ranges": self.ranges})

    @classmethod
    def of_option(cls, text: str) -> RetainedRows | None:
        """Parse a value of `to_option`; None if it is not one."""
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
