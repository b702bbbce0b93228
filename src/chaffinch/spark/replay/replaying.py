"""Dead letters back to their topics, exactly once, after a repair where one is given: what `chaffinch replay` does.

A dead letter topic is read as a queue. With the rows, in the same transaction, goes a note for each of its partitions that says up to
where its letters are done with; the next replay begins there. What is rejected once more becomes a new letter behind the note. So
nothing is replayed twice, whatever dies where, and of two replays at the same time one writes. A file of Parquet is one transaction,
with a token made from its name, and moves to the folder `_replayed` below when that has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaffinch.spark.refusals import Kind, worded_for
from chaffinch.spark.replay.of_files import replay_files
from chaffinch.spark.replay.of_topic import replay_topic
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReplayPlan", "ReplayReport", "replay"]


def replay(spark: SparkSession, plan: ReplayPlan) -> ReplayReport:
    """Replays, or tells what would become of it. Raises Refusal, ConfigException for a repair that cannot be, and Spark's own errors."""
    with worded_for(Kind.BATCH_ONCE):
        return replay_topic(spark, plan, plan.topic) if plan.topic is not None else replay_files(spark, plan, str(plan.path))
