"""Selection of letters: classifies each letter once, by offset, so that the written letters and those in the notes are the same.

A condition can have a different result each time, for example if it uses the current time. So Spark evaluates it once, and letters are then
written by their offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from chaffinch.spark.replay.ledger import Labelled, lookup
from chaffinch.spark.replay.plan import ReplayPlan
from chaffinch.spark.tasks.replay_notes import Ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class LetterClass(StrEnum):
    """Class of a record that a replay reads."""

    CHOSEN = "to be written"
    CUT = "a truncated letter"
    DONE = "another replay has written it"
    NOT_SELECTED = "not selected"
    NOT_SELECTED_DONE = "not selected, and another replay has written it"
    NOT_A_LETTER = "not a letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedLetters:
    """Counts of records by class, and their offsets.

    `done`: counts by the index of the replay that has written the letters. `ranges`: offsets by class; without a selection one range per
    class. `first_non_letter`: partition and offset.
    """

    counts: Mapping[LetterClass, int]
    done: Mapping[int, int]
    ranges: Mapping[LetterClass, Ranges]
    first_non_letter: tuple[int, int] | None

    @property
    def read(self) -> int:
        return sum(self.counts.values())

    def at(self, sort: LetterClass) -> Column:
        """Column: whether a letter is of this class, by its offset."""
        ranges: Labelled = {number: [(start, end, 0) for start, end in found] for number, found in self.ranges.get(sort, {}).items()}
        return lookup(ranges, "at_partition", "at_offset").isNotNull()


def selected(plan: ReplayPlan) -> Column:
    """Column: whether the plan selects a letter; true without a selection."""
    from pyspark.sql.functions import coalesce, col, expr, lit

    found = lit(True)
    if plan.only:
        found = found & col("error_name").isin(*plan.only)
    if plan.where is not None:
        found = found & expr(plan.where)
    return coalesce(found, lit(False))


def classify(letters: DataFrame, plan: ReplayPlan, *, with_ranges: bool) -> ClassifiedLetters:
    """Classify letters with the columns `is_letter`, `is_cut`, `done_by` and their offsets. `with_ranges`: exact offset ranges."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn
    from pyspark.sql.functions import col, lit, row_number, when

    is_done = col("done_by").isNotNull()
    sort = (
        when(~col("is_letter"), LetterClass.NOT_A_LETTER.name)
        .when(~selected(plan), when(is_done, LetterClass.NOT_SELECTED_DONE.name).otherwise(LetterClass.NOT_SELECTED.name))
        .when(is_done, LetterClass.DONE.name)
        .when(col("is_cut"), LetterClass.CUT.name)
        .otherwise(LetterClass.CHOSEN.name)
    )
    found = letters.select("at_partition", "at_offset", "done_by", sort.alias("sort"))
    run = lit(0)
    if with_ranges:  # Consecutive letters of a class: their numbers among all and within the class differ by the same amount.
        among_all = Window.partitionBy("at_partition").orderBy("at_offset")
        among_alike = Window.partitionBy("at_partition", "sort", "done_by").orderBy("at_offset")
        run = row_number().over(among_all) - row_number().over(among_alike)
    rows = (
        found.withColumn("run", run)
        .groupBy("at_partition", "sort", "done_by", "run")
        .agg(fn.count(lit(1)).alias("count"), fn.min("at_offset").alias("start"), (fn.max("at_offset") + 1).alias("end"))
        .collect()
    )
    counts: Counter[LetterClass] = Counter()
    done: Counter[int] = Counter()
    ranges: dict[LetterClass, dict[int, list[tuple[int, int]]]] = {}
    for row in rows:
        kind = LetterClass[row["sort"]]
        counts[kind] += row["count"]
        if kind is LetterClass.DONE:
            done[row["done_by"]] += row["count"]
        ranges.setdefault(kind, {}).setdefault(row["at_partition"], []).append((row["start"], row["end"]))
    non_letters = [(number, start) for number, found in ranges.get(LetterClass.NOT_A_LETTER, {}).items() for start, _ in found]
    return ClassifiedLetters(
        counts=counts,
        done=done,
        ranges={kind: merged(found) for kind, found in ranges.items()},
        first_non_letter=min(non_letters, default=None),
    )


def merged(ranges: Mapping[int, list[tuple[int, int]]]) -> Ranges:
    """Sort ranges, and merge adjacent ones."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for number, found_ranges in ranges.items():
        joined: list[tuple[int, int]] = []
        for start, end in sorted(found_ranges):
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, end))
        found[number] = tuple(joined)
    return found
