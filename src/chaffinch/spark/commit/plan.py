"""What a commit begins with and comes to: the plan of one batch, and its result. Plain data."""

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
    """One batch to be committed, and all that was decided about it before."""

    query: str
    """The name under which the batch is written: the query's id, or the token or name of a batch write, and the sink's name."""
    batch_id: int
    wall_ms: int
    """When the commit began, in ms since 1970."""
    writer_id: str
    """Of this run of the query; says in the marker who wrote."""
    outcomes: tuple[TaskOutcome, ...]
    target: TargetSnapshot
    """The target as the committer sees it, later than the tasks did."""
    notes: tuple[StagedBatch, ...] = ()
    """For the dead letter topic, of a replay: rows are not written without them."""
    transactional_id: str
    group_id: str | None
    """The marker's group; None for a batch write without a token: no marker, and a repetition writes again."""
    marker_partition: TopicPartition
    """Where tasks send, no marker is written: that of a batch before is as its checkpoint says."""
    is_stream: bool
    digest: str = ""
    has_checkpoint: bool = False
    """The checkpoint's location is known, so `<checkpoint>/chaffinch/` can be used."""
    writes_without_marker: bool = False
    tolerance: Tolerance
    writes_dead_letter_file: bool = False
    retains_dead_letters: bool = False
    """The file gets letters of an older one, too, which a replay passes over."""
    has_handler: bool = False
    """The user's handler is asked about rows that the broker refuses (KIP-1038)."""
    transaction_timeout_ms: int | None = None
    """What the user asked for; None: from the staged size."""
    push_bytes_per_s: float
    """Measured by earlier batches."""
    retry_policy: RetryPolicy
    """With each request; a batch that was refused waits by it before it is sent again, for as long as the transaction may last."""

    def batches(self) -> tuple[StagedBatch, ...]:
        return tuple(batch for outcome in self.outcomes for batch in outcome.batches)

    def dead_batches(self) -> tuple[StagedBatch, ...]:
        """All that goes to the dead letter topic, notes first."""
        return (*self.notes, *(batch for outcome in self.outcomes for batch in outcome.dead_batches))

    def partitions(self) -> set[TopicPartition]:
        """Those that have staged batches; more may get dead letters of what the broker refuses."""
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
        """The topics as tasks have seen them."""
        return tuple(snapshot for outcome in self.outcomes for snapshot in outcome.snapshots)

    def topics_used(self) -> set[str]:
        """Topics that tasks have rows for, and those of staged dead letters."""
        return {where.topic for where in self.partitions()} | {used.topic for used in self.snapshots()}

    @property
    def has_own_id(self) -> bool:
        """Whether nobody else is to use the transactional id: it is this query's by default, or fixed in its checkpoint. One that was given
        to a batch write may be that of others, before it and after it."""
        return self.is_stream or self.transactional_id == self.group_id

    @property
    def byte_count(self) -> int:
        return sum(outcome.byte_count for outcome in self.outcomes)

    @property
    def row_count(self) -> int:
        return sum(outcome.row_count for outcome in self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of the batch. `skipped`: it was in Kafka already; `empty`: there was nothing to write."""

    outcome: Literal["written", "skipped", "empty"]
    counts: BatchCounts = field(default_factory=BatchCounts)
