"""The states of a batch: every move from every state, and that no state but the last is an end."""

from __future__ import annotations

from itertools import product

import pytest

from chaffinch.producer.core.batches.batch import MOVES, BatchState, Move
from tests.producer.core.batches.test_in_flight import batch


@pytest.mark.parametrize(("state", "move"), list(product(BatchState, Move)), ids=lambda part: part.name)
def test_a_move_that_is_not_in_the_table_is_a_mistake(state: BatchState, move: Move) -> None:
    moved = batch(0)
    moved.state = state
    if (after := MOVES.get((state, move))) is not None:
        moved.move(move)
        assert moved.state is after
        return
    with pytest.raises(AssertionError, match=f"no move {move.name} for a batch that is {state.name}"):
        moved.move(move)


@pytest.mark.parametrize("state", list(BatchState), ids=lambda state: state.name)
def test_every_batch_can_come_to_its_end(state: BatchState) -> None:
    assert (MOVES.get((state, Move.END)) is BatchState.OVER) is (state is not BatchState.OVER)


def test_every_state_is_reached() -> None:
    assert {BatchState.WAITING, *MOVES.values()} == set(BatchState)
