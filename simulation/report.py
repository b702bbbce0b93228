"""Result of one world, and whether the required events happened: enough records, a broker crash and a lost Produce answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

REQUIRED_RECORDS: Final = 200
CRASHES: Final = ("broker killed", "broker power lost")
"""Counters of broker deaths other than an orderly stop."""
CRASHES_UNDER_FAULTS: Final = "broker crashes under faults"
"""Counts all crashes but the final one of every world, after which all logs are read again."""
PRODUCE_RESPONSES_LOST: Final = "produce responses lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of one world. `digest` covers the whole trace: two runs with the same digest were the same."""

    seed: int
    violations: tuple[str, ...]
    counters: Mapping[str, int]
    digest: str
    virtual_ms: int
    trace: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Required events that did not happen; without them the world tests too little. Empty if there are violations: it may have ended
        early."""
        return () if self.violations else tuple(_missing(self.counters))


def _missing(counters: Mapping[str, int]) -> Iterator[str]:
    records = counters.get("records sent", 0) + counters.get("rows", 0)
    if records < REQUIRED_RECORDS:
        yield f"{records} records, not {REQUIRED_RECORDS}"
    if not counters.get(CRASHES_UNDER_FAULTS):
        yield "no crash of the broker"
    if not counters.get(PRODUCE_RESPONSES_LOST):
        yield "no lost response to a Produce"
