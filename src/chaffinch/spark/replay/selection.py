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
from chaffinch.spark.tasks.notes import Ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Sort(StrEnum):
    """What becomes of a record that a replay reads."""

    CHOSEN = "it is written"
    CUT = "a letter that is not whole"
    DONE = "another replay has written it"
    LEFT = "not selected"
    LEFT_DONE = "not selected, and another replay has written it"
    STRANGER = "no letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedOut:
    """How many records are of each sort, and where those are that a selection is about.

    `done`: letters by the index of the replay that has written them. `places`: by sort; all of a sort in one range where there is no
    selection. `first_stranger`: partition and offset.
    """

    counts: Mapping[Sort, int]
    done: Mapping[int, int]
    places: Mapping[Sort, Ranges]
    first_stranger: tuple[int, int] | None

    @property
    def read(self) -> int:
        return sum(self.counts.values())

    def at(self, sort: Sort) -> Column:
        """Whether a letter is of a sort, by its place."""
        ranges: Labelled = {number: [(start, end, 0) for start, end in found] for number, found in self.places.get(sort, {}).items()}
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


def sort_out(letters: DataFrame, plan: ReplayPlan, *, by_place: bool) -> SortedOut:
    """Letters with `is_letter`, `is_cut`, `done_by` and their places. `by_place`: say where each is."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn
    from pyspark.sql.functions import col, lit, row_number, when

    is_done = col("done_by").isNotNull()
    sort = (
        when(~col("is_letter"), Sort.STRANGER.name)
        .when(~selected(plan), when(is_done, Sort.LEFT_DONE.name).otherwise(Sort.LEFT.name))
        .when(is_done, Sort.DONE.name)
        .when(col("is_cut"), Sort.CUT.name)
        .otherwise(Sort.CHOSEN.name)
    )
    found = letters.select("at_partition", "at_offset", "done_by", sort.alias("sort"))
    run = lit(0)
    if by_place:  # Of the same sort in a row, when the number among all and the number in the sort grow alike.
        among_all = Window.partitionBy("at_partition").orderBy("at_offset")
        among_alike = Window.partitionBy("at_partition", "sort", "done_by").orderBy("at_offset")
        run = row_number().over(among_all) - row_number().over(among_alike)
    rows = (
        found.withColumn("run", run)
        .groupBy("at_partition", "sort", "done_by", "run")
        .agg(fn.count(lit(1)).alias("count"), fn.min("at_offset").alias("start"), (fn.max("at_offset") + 1).alias("end"))
        .collect()
    )
    counts: Counter[Sort] = Counter()
    done: Counter[int] = Counter()
    places: dict[Sort, dict[int, list[tuple[int, int]]]] = {}
    for row in rows:
        kind = Sort[row["sort"]]
        counts[kind] += row["count"]
        if kind is Sort.DONE:
            done[row["done_by"]] += row["count"]
        places.setdefault(kind, {}).setdefault(row["at_partition"], []).append((row["start"], row["end"]))
    strangers = [(number, start) for number, ranges in places.get(Sort.STRANGER, {}).items() for start, _ in ranges]
    return SortedOut(
        counts=counts,
        done=done,
        places={kind: merged(found) for kind, found in places.items()},
        first_stranger=min(strangers, default=None),
    )


def merged(places: Mapping[int, list[tuple[int, int]]]) -> Ranges:
    """In their order, those that touch as one."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for number, ranges in places.items():
        joined: list[tuple[int, int]] = []
        for start, end in sorted(ranges):
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, end))
        found[number] = tuple(joined)
    return found
