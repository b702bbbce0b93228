"""Spark's commit protocol cut at every step, in every way, in every state of the world: each row is there exactly once.

All cells of the table that can be reached, in one world each; `make cuts` plays more.
"""

from __future__ import annotations

from itertools import product

import pytest

from chaffinch.simulation.cuts import CutKind
from chaffinch.spark.operations import Step
from tests.simulation.commit_cuts import CUTS, UNREACHABLE, Cell, Ends, Phase, fault_of, play


def test_the_table_has_every_step_every_kind_and_every_phase() -> None:
    assert set(CUTS) == {Cell(step=step, kind=kind, phase=phase) for step, kind, phase in product(Step, CutKind, Phase)}


def test_what_cannot_be_reached_has_a_reason() -> None:
    """And can be reached in no phase."""
    for cell, ends in CUTS.items():
        if ends is Ends.UNREACHABLE:
            assert cell.kind in UNREACHABLE, cell
            assert {CUTS[Cell(step=cell.step, kind=cell.kind, phase=phase)] for phase in Phase} == {ends}, cell


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name.lower())
@pytest.mark.parametrize("step", Step, ids=lambda step: step.value)
def test_each_cut_ends_as_the_table_says(step: Step, phase: Phase) -> None:
    """That a cut cannot come is tried once: it does not depend on the phase."""
    for kind in CutKind:
        cell = Cell(step=step, kind=kind, phase=phase)
        if CUTS[cell] is not Ends.UNREACHABLE or phase is Phase.FIRST:
            assert fault_of(cell, play(cell, seed=0)) is None, cell
