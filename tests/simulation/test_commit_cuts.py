"""Spark's commit protocol cut at every step, in every way, in every state of the world: each row is there exactly once.

Half of the table, in one world per cell; `make cuts` plays all of it, in more worlds.
"""

from __future__ import annotations

from itertools import product

import pytest

from chaffinch.spark.commit.operations import Step
from simulation.queries.cuts import CutKind
from tests.simulation.commit_cuts import (
    CUTS,
    STEPS_WITH_CHECKPOINT,
    UNREACHABLE,
    Cell,
    Ends,
    Phase,
    fault_of,
    fault_of_token_write,
    is_reached,
    play,
    play_token_write,
)


def test_table_is_complete() -> None:
    assert set(CUTS) == {Cell(step=step, kind=kind, phase=phase) for step, kind, phase in product(Step, CutKind, Phase)}


def test_unreachable_cells_have_a_reason() -> None:
    """And can be reached in no phase."""
    for cell, ends in CUTS.items():
        if ends is Ends.UNREACHABLE:
            assert cell.kind in UNREACHABLE, cell
            assert {CUTS[Cell(step=cell.step, kind=cell.kind, phase=phase)] for phase in Phase} == {ends}, cell


def is_played(cell: Cell) -> bool:
    """All of the first tries, with what cannot be reached; of the other phases every other cell, as on a chessboard."""
    if cell.phase is Phase.FIRST:
        return True
    indices = [list(kinds).index(own) for kinds, own in ((Step, cell.step), (CutKind, cell.kind), (Phase, cell.phase))]
    return CUTS[cell] is not Ends.UNREACHABLE and sum(indices) % 2 == 0


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name.lower())
@pytest.mark.parametrize("step", Step, ids=lambda step: step.value)
def test_each_cut_ends_as_in_the_table(step: Step, phase: Phase) -> None:
    for cell in (Cell(step=step, kind=kind, phase=phase) for kind in CutKind):
        if is_played(cell):
            assert fault_of(cell, play(cell, seed=0)) is None, cell


@pytest.mark.parametrize("step", Step, ids=lambda step: step.value)
def test_each_cut_of_write_with_token_leaves_its_rows_once(step: Step) -> None:
    """`write_table`, and a batch write of Spark: no checkpoint, one batch, repeated with the same token."""
    for kind in (CutKind.DRIVER_DIES_BEFORE, CutKind.DRIVER_DIES_AFTER, CutKind.ZOMBIE):
        cell = Cell(step=step, kind=kind, phase=Phase.FIRST)
        report = play_token_write(cell, seed=0)
        assert fault_of_token_write(report) is None, cell
        assert is_reached(cell, report) is (step not in STEPS_WITH_CHECKPOINT), cell
