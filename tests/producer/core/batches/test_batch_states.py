"""State machine of a batch: every move from every state; only the last state is final."""

from __future__ import annotations

from itertools import product

import pytest

from chaffinch.producer.core.batches.batch import MOVES, BatchState, Move
from tests.producer.core.batches.test_in_flight import batch


@pytest.mark.parametrize(("state", "move"), list(product(BatchState, Move)), ids=lambda part: part.name)
def test_move_outside_the_table_raises(state: BatchState, move: Move) -> None:
    moved = batch(0)
    moved.state = state
    if (after := MOVES.get((state, move))) is not None:
        moved.move(move)
        assert moved.state is after
        return
    with pytest.raises(AssertionError, match=f"no move {move.name} for a batch that is {state.name}"):
        moved.move(move)


@pytest.mark.parametrize("state", list(BatchState), ids=lambda state: state.name)
def test_every_state_but_the_last_can_end(state: BatchState) -> None:
    assert (MOVES.get((state, Move.END)) is BatchState.OVER) is (state is not BatchState.OVER)


def test_every_state_is_reachable() -> None:
    assert {BatchState.WAITING, *MOVES.values()} == set(BatchState)
