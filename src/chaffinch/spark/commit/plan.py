"""Plan and result of the commit of one batch. Plain data."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import BatchCounts, StagedBatch, TaskOutcome
from chaffinch.spark.commit.operations import Operation, Reply
from chaffinch.spark.commit.retry_policy import RetryPolicy
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot

Commit = Generator[Operation, Reply, "CommitResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """One batch to commit, with all decisions that precede the commit."""

    query: str
    """Name under which the batch is written: the query's id, or the token or name of a batch write, and the sink's name."""
    batch_id: int
    wall_ms: int
    """Start of the commit, in ms since 1970."""
    writer_id: str
    """Identifies this run of the query; the marker names it as the writer."""
    outcomes: tuple[TaskOutcome, ...]
    target: TargetSnapshot
    """The target as the committer sees it; the tasks' snapshots are older."""
    notes: tuple[StagedBatch, ...] = ()
    """Notes of a replay, for the dead letter topic: rows are not written without them."""
    transactional_id: str
    group_id: str | None
    """The marker's group. None for a batch write without a token: it has no marker, and a repetition writes the rows again."""
    marker_partition: TopicPartition
    """Unused if tasks send: they write no marker, and the checkpoint names the partition of an earlier marker."""
    is_stream: bool
    digest: str = ""
    has_checkpoint: bool = False
    """The checkpoint's location is known, so `<checkpoint>/chaffinch/` can be used."""
    writes_without_marker: bool = False
    tolerance: Tolerance
    writes_dead_letter_file: bool = False
    retains_dead_letters: bool = False
    """The dead letter file also gets the dead letters of an older one that a replay skips."""
    has_handler: bool = False
    """The user's handler is called for rows that the broker refuses (KIP-1038)."""
    transaction_timeout_ms: int | None = None
    """The user's option; None: derived from the staged size."""
    push_bytes_per_s: float
    """Measured by earlier batches."""
    retry_policy: RetryPolicy
    """For each request. It also sets the wait before a refused batch is resent, until the transaction times out."""

    def batches(self) -> tuple[StagedBatch, ...]:
        return tuple(batch for outcome in self.outcomes for batch in outcome.batches)

    def dead_batches(self) -> tuple[StagedBatch, ...]:
        """All batches for the dead letter topic, notes first."""
        return (*self.notes, *(batch for outcome in self.outcomes for batch in outcome.dead_batches))

    def partitions(self) -> set[TopicPartition]:
        """Partitions with staged batches; rows that the broker refuses may add more with their dead letters."""
        return {batch.topic_partition for batch in (*self.batches(), *self.dead_batches())}

    def topic_partitions(self) -> Iterator[TopicPartition]:
        """All partitions of the topics known at planning time."""
        return (TopicPartition(topic.topic, number) for topic in self.target.topics for number in range(topic.partition_count))

    @property
    def topic_ids(self) -> dict[str, UUID]:
        """The ids of the topics in `target`; zero from brokers before 2.8."""
        return {topic.topic: UUID(bytes=topic.topic_id) for topic in self.target.topics}

    @property
    def partition_counts(self) -> dict[str, int]:
        return {topic.topic: topic.partition_count for topic in self.target.topics}

    def snapshots(self) -> tuple[TopicSnapshot, ...]:
        """The topics as the tasks saw them."""
        return tuple(snapshot for outcome in self.outcomes for snapshot in outcome.snapshots)

    def topics_used(self) -> set[str]:
        """Topics of the tasks' rows, and of staged dead letters."""
        return {where.topic for where in self.partitions()} | {used.topic for used in self.snapshots()}

    @property
    def has_own_id(self) -> bool:
        """Whether no other query uses the transactional id: it is the default id of this query, or fixed in its checkpoint. An id given to
        a batch write may be used by other writes before and after it.
        """
        return self.is_stream or self.transactional_id == self.group_id

    @property
    def byte_count(self) -> int:
        return sum(outcome.byte_count for outcome in self.outcomes)

    @property
    def row_count(self) -> int:
        return sum(outcome.row_count for outcome in self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """Result of a commit. `skipped`: the batch was in Kafka already; `empty`: there was nothing to write."""

    outcome: Literal["written", "skipped", "empty"]
    counts: BatchCounts = field(default_factory=BatchCounts)
