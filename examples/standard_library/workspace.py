"""The directory of one run of the demo, and shared names and numbers."""

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
"""Micro-batches of the stream, for any number of files: some systems package a third of the standard library separately."""
BROKER_KILL_BATCH = 1
"""The broker is killed once Spark has committed this micro-batch, in the middle of the stream."""
QUERY_KILL_BATCH = 4
"""The query is killed in this micro-batch, after Kafka's commit and before Spark's."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """All paths of a run, below one directory."""

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
        """Created by the query when it waits at the step where it is killed."""
        return self.folder / "query-is-at-step"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def batches_committed(self) -> int:
        """Number of micro-batches that Spark has committed."""
        folder = self.checkpoint / "commits"
        return sum(1 for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else 0


def files_per_trigger(files: list[SourceFile]) -> int:
    """Number of non-empty files in a micro-batch; the list of empty files is read in the first one."""
    return max(1, ceil(_files_with_bytes(files) / BATCHES))


def batches_expected(files: list[SourceFile]) -> int:
    """Number of micro-batches: BATCHES, or fewer if the files do not divide evenly."""
    return ceil(_files_with_bytes(files) / files_per_trigger(files))


def _files_with_bytes(files: list[SourceFile]) -> int:
    return sum(file.size > 0 for file in files)
