"""The folder of one run, and the names and numbers that its parts share."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from examples.standard_library.inputs import SourceFile

TOPIC = "standard-library"
DEAD_LETTER_TOPIC = "standard-library-dead-letters"
BASELINE_TOPIC = "standard-library-today"
PARTITIONS = 4
MESSAGE_BYTES_MAX = 262_144
"""`max.message.bytes` of the topic, small enough that some files exceed it."""
BATCHES = 8
"""Micro-batches of the stream, however many files there are: some systems package a third of the standard library apart."""
BROKER_KILL_BATCH = 1
"""The broker is killed once this micro-batch is committed by Spark, so in the middle of the stream."""
QUERY_KILL_BATCH = 4
"""The query is killed in this micro-batch, after Kafka's commit and before Spark's."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Every path below one folder."""

    folder: Path

    @property
    def links(self) -> Path:
        return self.folder / "input" / "files"

    @property
    def empties(self) -> Path:
        return self.folder / "input" / "empty"

    @property
    def broker_data(self) -> Path:
        return self.folder / "broker"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def dead_letters(self) -> Path:
        return self.folder / "dead-letters"

    @property
    def paused(self) -> Path:
        """Written by the query when it has reached the step at which it waits to be killed."""
        return self.folder / "query-is-at-step"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def batches_committed(self) -> int:
        """How many micro-batches Spark itself has committed."""
        folder = self.checkpoint / "commits"
        return sum(1 for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else 0


def files_per_trigger(files: list[SourceFile]) -> int:
    """How many files with bytes a micro-batch has; the list of the empty ones rides along with the first."""
    return max(1, ceil(_files_with_bytes(files) / BATCHES))


def batches_expected(files: list[SourceFile]) -> int:
    """Micro-batches of the stream: BATCHES, or less where they do not come out even."""
    return ceil(_files_with_bytes(files) / files_per_trigger(files))


def _files_with_bytes(files: list[SourceFile]) -> int:
    return sum(file.size > 0 for file in files)
