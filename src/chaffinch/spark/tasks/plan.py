"""Plan of a sink task: its options, and the facts that were determined for it. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.task_facts import TaskContextFacts

if TYPE_CHECKING:
    from chaffinch.spark.tasks.dead_letter_headers import Origin
    from chaffinch.spark.tasks.row_handler import RowHandler

SnapshotOf = Callable[[str, int], TopicSnapshot | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The part of the sink's options that tasks read."""

    topic: str | None
    compression_type: str
    compression_level: int | None
    batch_bytes: int
    request_bytes_max: int | None = None
    """Size limit of a row; None: the limit of the topic."""
    topic_wait_ms: int = 0
    """How long a task waits for an unknown topic of a row."""
    dead_letter_path: str | None = None
    reason_column: str | None = None
    """Column with the reason why a row is a bad row; null or an empty text: no reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """The plan of one task. `snapshot_of(topic, wait_ms)` looks up a topic for at most that long; None if it does not exist."""

    options: TaskOptions
    context: TaskContextFacts
    origin: Origin
    dead_letter_target: TopicSnapshot | None
    snapshot_of: SnapshotOf
    handler: RowHandler | None = None
    wall_ms: int
