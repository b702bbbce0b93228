"""Table of all cuts of a batch commit: step x kind x phase -> result.

`test_commit_cuts.py` plays half of it in one world per cell, `make cuts` (`all_cuts.py`) in several, at several operations of each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from chaffinch.spark.commit.operations import Step
from simulation.nemesis import FaultSchedule
from simulation.network import CALM
from simulation.queries.cuts import Cut, CutKind
from simulation.report import Report
from simulation.scenario import run


class Phase(Enum):
    """In which state of the world a cut comes."""

    FIRST = "in the first try"
    RESTART = "in the next try, the first ended before this step"
    BESIDE = "while a second driver begins"
    OVERTAKEN = "when a second driver has done its work"
    TIMED_OUT = "after the driver slept beyond the transaction's time-out"
    BROKER_RESTARTED = "after the broker died and came back"


LARGE_ROWS: Final = 40
LARGE_BATCHES: Final = 4
FIRST_OF: Final = {
    Phase.BESIDE: CutKind.SECOND_DRIVER,
    Phase.OVERTAKEN: CutKind.ZOMBIE,
    Phase.TIMED_OUT: CutKind.DRIVER_STALLS,
    Phase.BROKER_RESTARTED: CutKind.BROKER_RESTARTS,
}
WAY_TO: Final = {
    Step.ABORT: (Cut(kind=CutKind.FILE_FAILS, step=Step.NOTE_ENDING),),
    Step.READ_MARKER_AFTER_FENCING: (Cut(kind=CutKind.DRIVER_STALLS, step=Step.PUSH),),
}
"""What has to happen before so that a commit takes these steps."""
WAY_TO_IN_TOKEN_WRITE: Final = {**WAY_TO, Step.ABORT: (Cut(kind=CutKind.FILE_FAILS, step=Step.WRITE_DEAD_LETTERS),)}


class Ends(Enum):
    """What becomes of the batch after the cut; each row is there once in any case."""

    WRITTEN = "w"
    SKIPPED = "s"
    """A driver finds the batch in Kafka."""
    REFUSED = "r"
    """A driver says why it does not go on; another one writes the batch, or finds it in Kafka."""
    RACE = "?"
    """Any of these. Of two drivers, the order of their requests decides, and whether the broker dies in a disk operation before or after it
    answers the second one. Or the next batch, if there is one, is the one that meets a broker that is away."""
    UNREACHABLE = "-"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One row of the table."""

    step: Step
    kind: CutKind
    phase: Phase

    def cuts(self, occurrence: int = 0, ways: Mapping[Step, tuple[Cut, ...]] = WAY_TO) -> tuple[Cut, ...]:
        way = ways.get(self.step, ())
        last = Cut(kind=self.kind, step=self.step, occurrence=occurrence, first=FIRST_OF.get(self.phase))
        if self.phase is Phase.RESTART:
            return (*way, Cut(kind=CutKind.DRIVER_DIES_BEFORE, step=self.step), *way, last)
        return (*way, last)


def play(cell: Cell, seed: int, *, occurrence: int = 0, ways: Mapping[Step, tuple[Cut, ...]] = WAY_TO, **knobs: Any) -> Report:
    """A world in which nothing else happens."""
    calm: dict[str, Any] = {
        "plain_count": 0, "transactional_count": 0, "version_2_count": 0, "reader_count": 0, "transformer_count": 0, "query_count": 1,
        "faults": CALM, "fault_schedule": FaultSchedule(), "node_count": 1, "lost_response_at": 0, "validation_first_share": 0.0,
        "query_batches": 2, "query_rows": 12, "query_may_be_empty": False, "query_has_checkpoint": True, "bad_share": 0.3,
    }  # fmt: skip
    return run(seed, cuts=cell.cuts(occurrence, ways), **{**calm, **knobs})


def play_token_write(cell: Cell, seed: int, *, occurrence: int = 0, **knobs: Any) -> Report:
    """The same world with one write that has a token and no checkpoint, as `write_table` and `df.write` do it, repeated until it
    succeeds."""
    one_write: dict[str, Any] = {"query_is_stream": False, "query_has_checkpoint": False, "query_batches": 1}
    return play(cell, seed, occurrence=occurrence, ways=WAY_TO_IN_TOKEN_WRITE, **{**one_write, **knobs})


def fault_of_token_write(report: Report) -> str | None:
    """The fault of a world with such a write: its rows are not there exactly once, or it never succeeds."""
    if report.violations:
        return report.violations[0]
    return None if report.counters.keys() & {"batches written", "batches skipped"} else "never succeeds"


def is_reached(cell: Cell, report: Report) -> bool:
    """Whether all of a cell's cuts have had their effect."""
    expected: Counter[str] = Counter()
    for cut in cell.cuts():
        expected.update(f"cut: {kind.value}" for kind in (cut.kind, cut.first) if kind is not None)
    return all(report.counters.get(name, 0) == count for name, count in expected.items())


def ends_of(report: Report) -> Ends:
    """What was seen after the last cut."""
    for ends, outcome in ((Ends.REFUSED, "refused"), (Ends.SKIPPED, "skipped")):
        if f"after the cuts: {outcome}" in report.counters:
            return ends
    return Ends.WRITTEN


_TABLES: Final = """
FIRST
read_state                w w - - w w w w r - w r r r - -
read_marker               w w w w w w w w r r w r r - - -
finish_commit             w w w w w w w w r r w r r - - -
fix_transactional_id      w w - - w w w w r - w r r r r -
init_producer             w w w w w w w w r r w r r - - -
read_marker_again         w w w w w w w w r r w r r - - -
find_remains              w w w w w w w w r r w r r - - -
add_partitions            w w w w w w w w r r w r r - - -
push                      w w w w w w w w r r r r r r r r
push_dead_letters         w w w w w w w w r r r r r - - r
write_dead_letters        w w - - w w w w r - r r r r r -
add_offsets               w w w w w w w w r r r r r - - -
commit_marker             w w w w w w w w r r r r r - - -
note_ending               w w - - w w w w r - r r r r r -
end_transaction           w s w w w w w w r r r r r - - -
name_dead_letters         s s - - w w w w r - w r s r r -
note_done                 s s - - w w w w r - w r s r r -
abort                     w w r r r r r r r r r r r - - -
read_marker_after_fencing w w r r r r r r r r r r r - - -
RESTART
read_state                w w - - w w w w r - w r r r - -
read_marker               w w w w w w w w r r w r r - - -
finish_commit             w w w w w w w w r r w r r - - -
fix_transactional_id      w w - - w w w w r - w r r r r -
init_producer             w w w w w w w w r r w r r - - -
read_marker_again         w w w w w w w w r r w r r - - -
find_remains              w w w w w w w w r r w r r - - -
add_partitions            w w w w w w w w r r w r r - - -
push                      w w w w w w w w r r r r r r r r
push_dead_letters         w w w w w w w w r r r r r - - r
write_dead_letters        w w - - w w w w r - r r r r r -
add_offsets               w w w w w w w w r r r r r - - -
commit_marker             w w w w w w w w r r r r r - - -
note_ending               w w - - w w w w r - r r r r r -
end_transaction           w s w w w w w w r r r r r - - -
name_dead_letters         s s - - s s s s r - s r s r r -
note_done                 s s - - w w w w ? - w ? s r r -
abort                     w w r r r r r r r r r r r - - -
read_marker_after_fencing w w r r r r r r r r r r r - - -
BESIDE
read_state                w w - - r r r r r - r r r r - -
read_marker               w w r r r r r r r r r r r - - -
finish_commit             w w r r r r r r r r r r r - - -
fix_transactional_id      w w - - r r r r r - r r r r r -
init_producer             w w r r r r r r r r r r r - - -
read_marker_again         w w r r r r r r r r r r r - - -
find_remains              w w r r r r r r r r r r r - - -
add_partitions            w w r r r r r r r r r r r - - -
push                      w w r r r r r r r r r r r r r r
push_dead_letters         w w r r r r r r r r r r r - - r
write_dead_letters        w w - - r r r r r - r r r r r -
add_offsets               w w r r r r r r r r r r r - - -
commit_marker             w w r r r r r r r r r r r - - -
note_ending               w w - - r r r r r - r r r r r -
end_transaction           w s r r r ? r r r r r r r - - -
name_dead_letters         s s - - r ? r s r - s r r r r -
note_done                 s s - - r ? r s r - s r r r r -
abort                     w w r r r r r r r r r r r - - -
read_marker_after_fencing w w r r r r r r r r r r r - - -
OVERTAKEN
read_state                w w - - r r r r r - r r r r - -
read_marker               w w r r r r r r r r r r r - - -
finish_commit             w w r r r r r r r r r r r - - -
fix_transactional_id      w w - - r r r r r - r r r r r -
init_producer             w w r r r r r r r r r r r - - -
read_marker_again         w w r r r r r r r r r r r - - -
find_remains              w w r r r r r r r r r r r - - -
add_partitions            w w r r r r r r r r r r r - - -
push                      w w r r r r r r r r r r r r r r
push_dead_letters         w w r r r r r r r r r r r - - r
write_dead_letters        w w - - r r r r r - r r r r r -
add_offsets               w w r r r r r r r r r r r - - -
commit_marker             w w r r r r r r r r r r r - - -
note_ending               w w - - r r r r r - r r r r r -
end_transaction           w w r r r r r r r r r r r - - -
name_dead_letters         s s - - s s s s s - s s s r r -
note_done                 s s - - s s s s s - s s s r r -
abort                     w w r r r r r r r r r r r - - -
read_marker_after_fencing w w r r r r r r r r r r r - - -
TIMED_OUT
read_state                w w - - w w w w r - w r r r - -
read_marker               w w w w w w w w r r w r r - - -
finish_commit             w w w w w w w w r r w r r - - -
fix_transactional_id      w w - - w w w w r - w r r r r -
init_producer             w w w w w w w w r r w r r - - -
read_marker_again         w w w w w ? w w r r w r r - - -
find_remains              w w w w w w w w r r w r r - - -
add_partitions            w w w w w ? r w r r w r r - - -
push                      w w r r r r r r r r r r r r r r
push_dead_letters         w w r r r r r r r r r r r - - r
write_dead_letters        w w - - r r r r r - r r r r r -
add_offsets               w w r r r r r r r r r r r - - -
commit_marker             w w r r r r r r r r r r r - - -
note_ending               w w - - r r r r r - r r r r r -
end_transaction           w w r r r r r r r r r r r - - -
name_dead_letters         s s - - w w w w r - w r s r r -
note_done                 s s - - w w w w r - w r s r r -
abort                     w w r r r r r r r r r r r - - -
read_marker_after_fencing w w r r r r r r r r r r r - - -
BROKER_RESTARTED
read_state                w w - - w w w w r - w r r r - -
read_marker               w w w w w w w w r r w r r - - -
finish_commit             w w w w w w w w r r w r r - - -
fix_transactional_id      w w - - w w w w r - w r r r r -
init_producer             w w w w w w w w r r w r r - - -
read_marker_again         w w w w w w w w r r w r r - - -
find_remains              w w w w w w w w r r w r r - - -
add_partitions            w w w w w w w w r r w r r - - -
push                      w w w w w w w w r r r r r r r r
push_dead_letters         w w w w w w w w r r r r r - - r
write_dead_letters        w w - - w w w w r - r r r r r -
add_offsets               w w w w w w w w r r r r r - - -
commit_marker             w w w w w w w w r r r r r - - -
note_ending               w w - - w w w w r - r r r r r -
end_transaction           w s w w w w w w r r r r r - - -
name_dead_letters         s s - - w w w w r - w r s r r -
note_done                 s s - - w w w w r - w r s r r -
abort                     w w r r r r r r r r r r r - - -
read_marker_after_fencing w w r r r r r r r r r r r - - -
"""
_ROWS: Final = [line.split() for line in _TABLES.splitlines() if line]


def _cuts() -> Iterator[tuple[Cell, Ends]]:
    phase = Phase.FIRST
    for name, *letters in _ROWS:
        if name in Phase.__members__:
            phase = Phase[name]
        else:
            kinds = zip(CutKind, letters, strict=True)
            yield from ((Cell(step=Step(name), kind=kind, phase=phase), Ends(letter)) for kind, letter in kinds)


CUTS: Final[Mapping[Cell, Ends]] = dict(_cuts())
"""The columns are the kinds in their order."""
UNREACHABLE: Final = {
    CutKind.REQUEST_LOST: "this step sends no request",
    CutKind.RESPONSE_LOST: "this step sends no request",
    CutKind.BROKER_AWAY_AFTER: "this step sends no request",
    CutKind.FILE_FAILS: "this step touches no file but what is staged",
    CutKind.FILE_UNSURE: "this step changes no file",
    CutKind.STAGING_LOST: "this step reads nothing that is staged",
}
"""Why a kind of cut cannot befall some steps."""


def fault_of(cell: Cell, report: Report) -> str | None:
    """What is wrong with a world in which a cell was played."""
    if report.violations:
        return report.violations[0]
    if CUTS[cell] is Ends.UNREACHABLE:
        return f"was reached, although {UNREACHABLE[cell.kind]}" if is_reached(cell, report) else None
    if not is_reached(cell, report):
        return "was not reached"
    if cell.phase is Phase.BESIDE and "cuts with another driver running" not in report.counters:
        return "no other driver was running"
    if CUTS[cell] not in (Ends.RACE, ends_of(report)):
        return f"ends {ends_of(report).name}, the table says {CUTS[cell].name}"
    return None


def played(task: tuple[Cell, int, int]) -> tuple[str | None, bool]:
    """What is wrong with a cell in a larger world of this seed, cut at this operation of the step, and whether it was cut there.

    How often a step comes, and what becomes of a batch without rows, differs: only when cut at the first operation it must end as in the
    table.
    """
    cell, seed, occurrence = task
    report = play(cell, seed, occurrence=occurrence, query_rows=LARGE_ROWS, query_batches=LARGE_BATCHES, query_may_be_empty=occurrence > 0)
    fault = next(iter(report.violations), None) if occurrence else fault_of(cell, report)
    return fault, is_reached(cell, report)


def token_write_played(task: tuple[Cell, int, int]) -> tuple[str | None, bool]:
    """The fault of a cell in a world with a write that has a token, and whether it was cut there."""
    cell, seed, occurrence = task
    report = play_token_write(cell, seed, occurrence=occurrence, query_rows=LARGE_ROWS)
    return fault_of_token_write(report), is_reached(cell, report)


STEPS_WITH_CHECKPOINT: Final = frozenset({Step.READ_STATE, Step.FIX_TRANSACTIONAL_ID, Step.NOTE_ENDING, Step.NOTE_DONE})
"""A write with a token has none of these."""
