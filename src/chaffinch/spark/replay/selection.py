"""Which of the letters a replay writes: sorted out once, by places, so that what is written and what is noted are the same letters.

A condition may say something else each time it is evaluated, as one over the present time does. So Spark evaluates it once, and the
letters that are written are those at the places that were found.
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
    """What becomes of a record that a replay reads."""

    CHOSEN = "it is written"
    CUT = "a letter that is not whole"
    DONE = "another replay has written it"
    NOT_SELECTED = "not selected"
    NOT_SELECTED_DONE = "not selected, and another replay has written it"
    NOT_A_LETTER = "no letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedLetters:
    """How many records are of each sort, and where those are that a selection is about.

    `done`: letters by the index of the replay that has written them. `ranges`: by sort; all of a sort in one range where there is no
    selection. `first_non_letter`: partition and offset.
    """

    counts: Mapping[LetterClass, int]
    done: Mapping[int, int]
    ranges: Mapping[LetterClass, Ranges]
    first_non_letter: tuple[int, int] | None

    @property
    def read(self) -> int:
        return sum(self.counts.values())

    def at(self, sort: LetterClass) -> Column:
        """Whether a letter is of a sort, by its place."""
        ranges: Labelled = {number: [(start, end, 0) for start, end in found] for number, found in self.ranges.get(sort, {}).items()}
        return lookup(ranges, "at_partition", "at_offset").isNotNull()


def selected(plan: ReplayPlan) -> Column:
    """Whether a plan selects a letter; true without a selection."""
    from pyspark.sql.functions import coalesce, col, expr, lit

    found = lit(True)
    if plan.only:
        found = found & col("error_name").isin(*plan.only)
    if plan.where is not None:
        found = found & expr(plan.where)
    return coalesce(found, lit(False))


def classify(letters: DataFrame, plan: ReplayPlan, *, with_ranges: bool) -> ClassifiedLetters:
    """Letters with `is_letter`, `is_cut`, `done_by` and their places. `with_ranges`: say where each is."""
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
    if with_ranges:  # Of the same sort in a row, when the number among all and the number in the sort grow alike.
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
    """In their order, those that touch as one."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for number, found_ranges in ranges.items():
        joined: list[tuple[int, int]] = []
        for start, end in sorted(found_ranges):
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, end))
        found[number] = tuple(joined)
    return found
