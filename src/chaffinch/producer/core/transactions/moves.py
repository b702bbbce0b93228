"""State table of a transactional producer: states, moves, and the function that looks them up.

States as in Kafka's TransactionManager.java. Failures follow KIP-1050 (decision 29 of the design): after abortable and
invalid-configuration failures the producer is usable once the transaction is aborted. Application-recoverable failures end it for good.
The diagram in the documentation is printed from this table.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTABLE_ERROR = "abortable error"
    ABORTING = "aborting"
    FATAL_ERROR = "fatal error"


class Move(Enum):
    INIT_CALLED = "init_transactions called"
    INITIALIZED = "initialized"
    INIT_REFUSED = "init refused"
    BEGIN_CALLED = "begin_transaction called"
    COMMIT_CALLED = "commit_transaction called"
    ABORT_CALLED = "abort_transaction called"
    ENDED = "transaction ended"
    FAILED_ABORTABLY = "abortable failure"
    FAILED_FATALLY = "fatal failure"

    @property
    def call(self) -> str:
        """Name of the public method that makes this move, if one does."""
        return self.value.split()[0]


class IllegalMove(Exception):
    """A pair that is not in the table: a mistake of the user for calls, otherwise a bug."""

    def __init__(self, state: State, move: Move) -> None:
        super().__init__(state, move)
        self.state = state
        self.move = move

    def __str__(self) -> str:
        return f"{self.move.value} while {self.state.value}"


MOVES: Final[dict[tuple[State, Move], State]] = {
    (State.UNINITIALIZED, Move.INIT_CALLED): State.INITIALIZING,
    # Called again after a time-out: the same initialization continues.
    (State.INITIALIZING, Move.INIT_CALLED): State.INITIALIZING,
    (State.INITIALIZING, Move.INITIALIZED): State.READY,
    # Not authorized, or a timeout that the broker does not accept: nothing has begun, and the call may be repeated.
    (State.INITIALIZING, Move.INIT_REFUSED): State.UNINITIALIZED,
    (State.READY, Move.BEGIN_CALLED): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Move.COMMIT_CALLED): State.COMMITTING,
    (State.IN_TRANSACTION, Move.ABORT_CALLED): State.ABORTING,
    (State.IN_TRANSACTION, Move.FAILED_ABORTABLY): State.ABORTABLE_ERROR,
    # Called again after a time-out: the commit may have happened, so it can only be repeated, never aborted.
    (State.COMMITTING, Move.COMMIT_CALLED): State.COMMITTING,
    (State.COMMITTING, Move.ENDED): State.READY,
    (State.COMMITTING, Move.FAILED_ABORTABLY): State.ABORTABLE_ERROR,
    (State.ABORTABLE_ERROR, Move.ABORT_CALLED): State.ABORTING,
    (State.ABORTABLE_ERROR, Move.FAILED_ABORTABLY): State.ABORTABLE_ERROR,
    (State.ABORTING, Move.ABORT_CALLED): State.ABORTING,
    # Records that fail while their transaction is being aborted change nothing.
    (State.ABORTING, Move.FAILED_ABORTABLY): State.ABORTING,
    (State.ABORTING, Move.ENDED): State.READY,
    (State.FATAL_ERROR, Move.FAILED_ABORTABLY): State.FATAL_ERROR,
    **{(state, Move.FAILED_FATALLY): State.FATAL_ERROR for state in State},
}

# Calls that are refused with the error that led to the state, rather than with IllegalStateException.
REFUSED_WITH_ERROR: Final = frozenset(
    {
        *((State.FATAL_ERROR, move) for move in (Move.INIT_CALLED, Move.BEGIN_CALLED, Move.COMMIT_CALLED, Move.ABORT_CALLED)),
        (State.ABORTABLE_ERROR, Move.COMMIT_CALLED),
    }
)


# Advice for a call that the state does not allow.
_NEXT_CALL: Final = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "init_transactions() is not done: call it again",
    State.READY: "no transaction is open: call begin_transaction() first",
    State.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    State.COMMITTING: "commit_transaction() is not done: after a TimeoutException call it again until it succeeds",
    State.ABORTABLE_ERROR: "the transaction has failed: call abort_transaction() first",
    State.ABORTING: "abort_transaction() is not done: call it again",
    State.FATAL_ERROR: "the producer cannot go on: close it, and start a new one",
}


def call_order_error(call: str, state: State) -> str:
    """Error text for a call that the state does not allow, with the call that must come first."""
    if call == "init_transactions" and state is not State.UNINITIALIZED:
        return f"{call}() was called a second time: call it once; every transaction begins with begin_transaction()"
    return f"{call}() is not possible now: {_NEXT_CALL[state]}"


def state_after(state: State, move: Move) -> State:
    """The state after a move. Raises IllegalMove if the table has no such pair."""
    after = MOVES.get((state, move))
    if after is None:
        raise IllegalMove(state, move)
    return after
