"""State table of a transactional producer."""

from __future__ import annotations

import pytest

from chaffinch.producer.core.transactions.moves import MOVES, IllegalMove, Move, State, state_after
from tools.markdown_tables import producer_transaction_table


@pytest.mark.parametrize("move", Move, ids=lambda move: move.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_and_move_follows_the_table(state: State, move: Move) -> None:
    if (state, move) in MOVES:
        assert state_after(state, move) is MOVES[state, move]
    else:
        with pytest.raises(IllegalMove, match=state.value):
            state_after(state, move)


def test_fatal_error_is_never_overwritten() -> None:
    assert {MOVES.get((State.FATAL_ERROR, move), State.FATAL_ERROR) for move in Move} == {State.FATAL_ERROR}
    assert all(MOVES[state, Move.FAILED_FATALLY] is State.FATAL_ERROR for state in State)


def test_diagram_has_every_state() -> None:
    assert all(state.name in producer_transaction_table() for state in State if state is not State.FATAL_ERROR)
