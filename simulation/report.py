"""What came of one world, and whether it had what each world must have: its records, a crash of the broker, a lost answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

REQUIRED_RECORDS: Final = 200
CRASHES: Final = ("broker killed", "broker power lost")
"""Counters of deaths that nobody wanted, unlike a stop."""
CRASHES_UNDER_FAULTS: Final = "broker crashes under faults"
"""All but the one after which everything is read again, and that each world has."""
PRODUCE_ANSWERS_LOST: Final = "produce answers lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of one world. `digest` is of the whole story: two runs with the same one were the same."""

    seed: int
    violations: tuple[str, ...]
    counters: Mapping[str, int]
    digest: str
    virtual_ms: int
    trace: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """What this world should have had, or it proves less than is said of it. Nothing if it has violations: it may have ended early."""
        return () if self.violations else tuple(_missing(self.counters))


def _missing(counters: Mapping[str, int]) -> Iterator[str]:
    records = counters.get("records sent", 0) + counters.get("rows", 0)
    if records < REQUIRED_RECORDS:
        yield f"{records} records, not {REQUIRED_RECORDS}"
    if not counters.get(CRASHES_UNDER_FAULTS):
        yield "no crash of the broker"
    if not counters.get(PRODUCE_ANSWERS_LOST):
        yield "no lost answer to a Produce"
