"""The states of a transactional producer and the moves between them: data, and the one function that looks them up.

States as in Kafka's TransactionManager.java; which failure leads where follows KIP-1050 (decision 29 of the design): abortable and
invalid-configuration failures leave the producer usable after an abort, application-recoverable ones end it, and that end is never
overwritten. The diagram in the documentation is printed from this table.
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
        """Name of the call that makes this move, if one does."""
        return self.value.split()[0]


class IllegalMove(Exception):
    """A pair that is not in the table: for calls the user's mistake, for anything else ours."""

    def __init__(self, state: State, move: Move) -> None:
        super().__init__(state, move)
        self.state = state
        self.move = move

    def __str__(self) -> str:
        return f"{self.move.value} while {self.state.value}"


MOVES: Final[dict[tuple[State, Move], State]] = {
    (State.UNINITIALIZED, Move.INIT_CALLED): State.INITIALIZING,
    # Called again after its time-out: the same initialization goes on.
    (State.INITIALIZING, Move.INIT_CALLED): State.INITIALIZING,
    (State.INITIALIZING, Move.INITIALIZED): State.READY,
    # Not allowed, or a timeout the broker does not accept: nothing has begun, and the call may be made again.
    (State.INITIALIZING, Move.INIT_REFUSED): State.UNINITIALIZED,
    (State.READY, Move.BEGIN_CALLED): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Move.COMMIT_CALLED): State.COMMITTING,
    (State.IN_TRANSACTION, Move.ABORT_CALLED): State.ABORTING,
    (State.IN_TRANSACTION, Move.FAILED_ABORTABLY): State.ABORTABLE_ERROR,
    # Called again after its time-out: the commit may have happened, so it can only be asked about, never aborted.
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

# Calls that are refused with the error that led to the state, rather than as a mistake of the caller's.
REFUSED_WITH_ERROR: Final = frozenset(
    {
        *((State.FATAL_ERROR, move) for move in (Move.INIT_CALLED, Move.BEGIN_CALLED, Move.COMMIT_CALLED, Move.ABORT_CALLED)),
        (State.ABORTABLE_ERROR, Move.COMMIT_CALLED),
    }
)


# What to do about a call that the state does not allow.
_NEXT_CALL: Final = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "init_transactions() is not done: call it again",
    State.READY: "no transaction is open: call begin_transaction() first",
    State.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    State.COMMITTING: "commit_transaction() is not done: whoever got a TimeoutException of it calls it again until it is",
    State.ABORTABLE_ERROR: "the transaction has failed: call abort_transaction() first",
    State.ABORTING: "abort_transaction() is not done: call it again",
    State.FATAL_ERROR: "the producer cannot go on: close it, and start a new one",
}


def call_order_error(call: str, state: State) -> str:
    """Why a call cannot be made in this state, and which one comes first."""
    if call == "init_transactions" and state is not State.UNINITIALIZED:
        return f"{call}() a second time: once after the start is enough, every transaction begins with begin_transaction()"
    return f"{call}() is not possible now: {_NEXT_CALL[state]}"


def state_after(state: State, move: Move) -> State:
    """The state after a move. IllegalMove when the table has no such pair."""
    after = MOVES.get((state, move))
    if after is None:
        raise IllegalMove(state, move)
    return after
