"""Tolerance of bad rows in a batch: `errors.tolerance` and its cap (decision 44). Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from chaffinch.errors.codes import Group
from chaffinch.settings import shown_value
from chaffinch.spark.commit.messages import REJECTIONS_NAMED_MAX, Rejection, StagedBatch, StagedBytes, TaskOutcome, add_counts
from chaffinch.spark.refusals import Refusal

if TYPE_CHECKING:
    from chaffinch.spark.commit.operations import DeadLetters


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """`tolerates`: bad rows become dead letters. At most one of the caps is set; a share is a percentage of the batch's rows."""

    tolerates: bool
    count_max: int | None = None
    percent_max: Fraction | None = None

    @classmethod
    def parse(cls, tolerance: str, cap: str | None) -> Tolerance:
        """From `errors.tolerance` (`none`, `all`) and `errors.tolerance.max` (`100`, `5%`). Raises ValueError with the allowed values."""
        tolerates = tolerance == "all"
        if cap is None:
            return cls(tolerates=tolerates)
        if not tolerates:
            raise ValueError("errors.tolerance.max needs errors.tolerance=all; without it the first bad row fails the batch")
        found = re.fullmatch(r"(?a:(\d{1,18})|(\d{1,3}(?:\.\d{1,18})?) ?%)", cap.strip())
        if found is not None and found[1] is not None:
            return cls(tolerates=True, count_max=int(found[1]))
        if found is not None and (percent := Fraction(found[2])) <= 100:
            return cls(tolerates=True, percent_max=percent)
        raise ValueError(f"errors.tolerance.max={shown_value(cap)} is neither a count (100) nor a share between 0% and 100% (5%)")

    def is_exceeded(self, rejected_count: int, row_count: int) -> bool:
        if not self.tolerates:
            return rejected_count > 0
        if self.count_max is not None:
            return rejected_count > self.count_max
        # Exact: 29 of 100 are 29 %, not more.
        return self.percent_max is not None and 100 * rejected_count > self.percent_max * row_count

    def __str__(self) -> str:
        if not self.tolerates:
            return "errors.tolerance=none"
        return f"errors.tolerance.max={self.count_max if self.percent_max is None else f'{float(self.percent_max or 0):g}%'}"


@dataclass(slots=True, kw_only=True)
class Tally:
    """All rejected rows of a batch: found by the tasks, and by the broker in the current attempt."""

    row_count: int
    task_found: Counter[str]
    named: list[Rejection]
    broker_found: Counter[str] = field(default_factory=Counter)
    task_dropped: Counter[str] = field(default_factory=Counter)
    """Rows that the user's handler dropped: neither written nor rejected."""
    broker_dropped: Counter[str] = field(default_factory=Counter)
    broker_named: list[Rejection] = field(default_factory=list)
    dead_batches: list[StagedBatch] = field(default_factory=list)
    dead_rows: list[StagedBytes] = field(default_factory=list)

    @classmethod
    def of(cls, outcomes: Iterable[TaskOutcome]) -> Tally:
        tally = cls(row_count=0, task_found=Counter(), named=[])
        for outcome in outcomes:
            tally.row_count += outcome.row_count
            add_counts(tally.task_found, outcome.rejected_by_code)
            tally.task_dropped.update(outcome.dropped_by_code)
            tally.named.extend(rejection.with_task(outcome.context.task) for rejection in outcome.rejections)
        return tally

    @property
    def rejected_count(self) -> int:
        return self.task_found.total() + self.broker_found.total()

    def reset_broker_found(self) -> None:
        """A new attempt pushes every batch again, and the broker refuses the same records again."""
        self.broker_found.clear()
        self.broker_dropped.clear()
        self.broker_named.clear()
        self.dead_batches.clear()
        self.dead_rows.clear()

    def add_broker_found(self, culprits: Iterable[Rejection]) -> None:
        for culprit in culprits:
            self.broker_found[culprit.code.name] += 1
            if len(self.broker_named) < REJECTIONS_NAMED_MAX:
                self.broker_named.append(culprit)

    def drop(self, culprits: Iterable[Rejection]) -> None:
        self.broker_dropped.update(culprit.code.name for culprit in culprits)

    def add_dead_letters(self, made: DeadLetters) -> None:
        self.dead_batches.extend(made.batches)
        self.dead_rows.extend(made.rows)

    def refusal(self, tolerance: Tolerance, *, outcome: str = "nothing was written") -> Refusal | None:
        """The error for a batch with more bad rows than tolerated: their number, by error, and the first ten in full.

        `outcome`: the fate of the good rows.
        """
        if not tolerance.is_exceeded(self.rejected_count, self.row_count):
            return None
        by_code = ", ".join(f"{count} {name}" for name, count in (self.task_found + self.broker_found).most_common())
        named = [*self.named, *self.broker_named][:REJECTIONS_NAMED_MAX]
        allowed, remedy = "none", "set errors.tolerance=all and a dead letter topic or path to write the others"
        if tolerance.tolerates:
            allowed, remedy = "fewer", "correct them, or allow more"
        text = (
            f"{self.rejected_count} of {self.row_count} rows are rejected ({by_code}), {tolerance} allows {allowed}; {outcome}; "
            f"{remedy}; the first {len(named)}: " + "; ".join(str(rejection) for rejection in named)
        )
        return Refusal(Group.INVALID_CONFIGURATION, "ROWS_REJECTED", text)
