"""Matching of letters in a Parquet file with the same letters in a dead letter topic.

A letter is identified by its query, batch, task and row, and by digests of its content. Letters of earlier versions have no row in the
topic: identical ones are matched by count, those that a replay has written last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaffinch.spark.folders import Folder
from chaffinch.spark.replay import dead_letters, writing
from chaffinch.spark.replay.ledger import Ledger, lookup, read_ledger
from chaffinch.spark.replay.plan import ReplayPlan
from chaffinch.spark.replay.selection import ClassifiedLetters, LetterClass, merged
from chaffinch.spark.sink.parquet_file import FORMAT, DeadLetterFileInfo
from chaffinch.spark.tasks.replay_notes import Ranges, ReplayNotes
from chaffinch.spark.versions import NewerFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_OF_TOPIC: Final = ("query", "batch", "row", "content", "is_cut", "at_partition", "at_offset")


class MatchingTopic:
    """A dead letter topic with the letters of files, at the time of reading. Call `noted` after each write, and `close` at the end."""

    def __init__(self, spark: SparkSession, plan: ReplayPlan, topic: str) -> None:
        from pyspark.sql import Window
        from pyspark.sql.functions import row_number

        # The letters of the files are written there. Letters that are not readable yet would count as missing.
        self.partition_count = writing.wait_for_ends(plan.client, topic)
        self.ledger: Ledger = read_ledger(spark, plan.client, topic)
        spans = [span for span in self.ledger.spans if not span.is_empty]
        self._letters: DataFrame | None = None
        if spans:
            found = dead_letters.dead_letters_in_topic(spark, plan.client, topic, spans).where("is_letter").select(*_OF_TOPIC)
            number = row_number().over(Window.partitionBy("at_partition").orderBy("at_offset"))
            self._letters = found.withColumn("number", number).cache()

    def close(self) -> None:
        if self._letters is not None:
            self._letters.unpersist()

    def noted(self, notes: ReplayNotes, token: str) -> None:
        """Record the notes that this replay has written."""
        from chaffinch.spark.target import wall_ms

        self.ledger = self.ledger.with_notes(notes, token, wall_ms())

    def match(self, found: DataFrame) -> DataFrame:
        """For letters of a file: `row_number`, and `at_partition`, `at_offset`, `number` and `done_by` of each equal letter in the
        topic; nulls if there is none.
        """
        from pyspark.sql import Window
        from pyspark.sql.functions import array, broadcast, col, concat, explode, lit, row_number, when

        nth = row_number().over(Window.partitionBy("content").orderBy("at_offset"))
        by_row, by_count = concat(lit("row "), "row", lit("|"), "content"), concat(lit("copy "), "copy", lit("|"), "content")
        wanted = found.withColumn("copy", nth).select(col("at_offset").alias("row_number"), explode(array(by_row, by_count)).alias("id"))
        if self._letters is None:
            nothing = "CAST(NULL AS INT) AS at_partition, CAST(NULL AS BIGINT) AS at_offset, 0 AS number, CAST(NULL AS INT) AS done_by"
            return wanted.selectExpr("row_number", *nothing.split(", "))
        batches = broadcast(found.select("query", "batch").distinct())
        existing = self._letters.join(batches, ["query", "batch"], "left_semi").withColumn("done_by", self.ledger.done_by())
        of_alike = Window.partitionBy("content").orderBy(col("done_by").isNotNull(), "at_partition", "at_offset")
        existing = existing.withColumn("copy", row_number().over(of_alike)).select(
            when(col("row").isNotNull(), by_row).otherwise(by_count).alias("id"), "at_partition", "at_offset", "number", "done_by"
        )
        return wanted.join(existing, "id", "left")

    def with_done_by(self, found: DataFrame) -> DataFrame:
        """The letters of a file with the columns `done_by`, and `is_there`: whether the topic has them."""
        from pyspark.sql.functions import col, count, min

        of_rows = self.match(found).groupBy("row_number").agg(min("done_by").alias("done_by"), (count("at_offset") > 0).alias("is_there"))
        return found.join(of_rows, col("at_offset") == col("row_number"))

    def matching_ranges(self, found: DataFrame, classified: ClassifiedLetters) -> Ranges:
        """Offset ranges of the chosen letters in the topic."""
        from pyspark.sql import Window
        from pyspark.sql import functions as fn
        from pyspark.sql.functions import col, lit, row_number

        rows = [(start, end, 0) for start, end in classified.ranges.get(LetterClass.CHOSEN, {}).get(0, ())]
        is_chosen = lookup({0: rows}, "zero", "row_number").isNotNull()
        same = self.match(found).withColumn("zero", lit(0)).where(is_chosen & col("done_by").isNull() & col("at_offset").isNotNull())
        matched = same.select("at_partition", "at_offset", "number").distinct()
        run = col("number") - row_number().over(Window.partitionBy("at_partition").orderBy("number"))
        ranges = (
            matched.withColumn("run", run)
            .groupBy("at_partition", "run")
            .agg(fn.min("at_offset").alias("start"), (fn.max("at_offset") + 1).alias("end"))
        )
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for row in ranges.collect():
            by_partition.setdefault(row["at_partition"], []).append((row["start"], row["end"]))
        return merged(by_partition)


class MatchingTopics:
    """Dead letter topics for the files of one replay; each is read once. Use it with `with`."""

    def __init__(self, spark: SparkSession, plan: ReplayPlan) -> None:
        self._spark = spark
        self._plan = plan
        self._opened: dict[str, MatchingTopic] = {}
        self._exists: dict[tuple[str, bytes], bool] = {}

    def __enter__(self) -> MatchingTopics:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all topics, because they have changed: they are read again when needed."""
        while self._opened:
            self._opened.popitem()[1].close()

    def of_file(self, folder: Folder, name: str) -> MatchingTopic | None:
        """The topic that also has the letters of a file, from the file or else the plan. None if there is none, or the plan has a token."""
        if self._plan.token is not None:
            return None
        info = _info(folder, name)
        topic = info.topic if info.topic is not None and self._is_there(info.topic, info.topic_id) else self._plan.topic
        if topic is None:
            return None
        if topic not in self._opened:
            self._opened[topic] = MatchingTopic(self._spark, self._plan, topic)
        return self._opened[topic]

    def _is_there(self, topic: str, topic_id: bytes) -> bool:
        """Whether the cluster has this topic, and not another one of the same name."""
        if (topic, topic_id) not in self._exists:
            found = writing.topic_now(self._plan.client, topic)
            is_same = found is not None and (not any(topic_id) or not any(found.topic_id) or found.topic_id == topic_id)
            self._exists[topic, topic_id] = is_same
        return self._exists[topic, topic_id]


def _info(folder: Folder, name: str) -> DeadLetterFileInfo:
    """Metadata of a file; empty if it cannot be read, which the replay reports later."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, _ = folder.opened()
    try:
        with filesystem.open_input_file(folder.path(name)) as file:
            metadata: Mapping[bytes, bytes] | None = pq.read_schema(file).metadata
        info = DeadLetterFileInfo.of(metadata)
    except (OSError, ValueError, pa.ArrowException):
        return DeadLetterFileInfo()
    if info.format > FORMAT:
        raise NewerFormat(info.format, FORMAT).refusal(f"--parquet={folder.shown}: {name}")
    return info
