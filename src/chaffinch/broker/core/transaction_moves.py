"""The transaction coordinator's legal moves, as data: states, who may follow whom, and what each request gets in each state.

Protocol version 1 (before KIP-890's epoch bump at every end). A pair that is absent is a programmer's mistake, never a silent no-op.
Follows Apache Kafka's TransactionMetadata (predecessors) and TransactionCoordinator (answers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode


class TransactionState(Enum):
    """States with Kafka's own numbers. PREPARE_EPOCH_FENCE is only ever pending: it is passed through, not stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


_S = TransactionState

LEGAL_PREDECESSORS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.PREPARE_EPOCH_FENCE}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

COMPLETED: Mapping[TransactionState, TransactionState] = {
    _S.PREPARE_COMMIT: _S.COMPLETE_COMMIT,
    _S.PREPARE_ABORT: _S.COMPLETE_ABORT,
}
"""Where a decided transaction goes once every marker is written."""


class Move(Enum):
    """What a request may do in a state, when it is not refused."""

    NEW_EPOCH = "give the producer its next epoch"
    FENCE = "raise the epoch, abort, ask the client to come again"
    ADD = "write the new partitions down"
    DECIDE = "write the decision down, then the markers"
    ALREADY_DONE = "the same decision was taken: success again"


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is refused in this state, with this code."""

    code: ErrorCode


Answer = Move | Refused
_CONCURRENT = Refused(codes.CONCURRENT_TRANSACTIONS)
_INVALID_STATE = Refused(codes.INVALID_TXN_STATE)

INIT_PRODUCER_ID: Mapping[TransactionState, Answer] = {
    _S.EMPTY: Move.NEW_EPOCH,
    _S.ONGOING: Move.FENCE,
    _S.PREPARE_COMMIT: _CONCURRENT,
    _S.PREPARE_ABORT: _CONCURRENT,
    _S.COMPLETE_COMMIT: Move.NEW_EPOCH,
    _S.COMPLETE_ABORT: Move.NEW_EPOCH,
}

ADD_PARTITIONS: Mapping[TransactionState, Answer] = {
    _S.EMPTY: Move.ADD,
    _S.ONGOING: Move.ADD,
    _S.PREPARE_COMMIT: _CONCURRENT,
    _S.PREPARE_ABORT: _CONCURRENT,
    _S.COMPLETE_COMMIT: Move.ADD,
    _S.COMPLETE_ABORT: Move.ADD,
}

END_COMMIT: Mapping[TransactionState, Answer] = {
    _S.EMPTY: _INVALID_STATE,
    _S.ONGOING: Move.DECIDE,
    _S.PREPARE_COMMIT: _CONCURRENT,
    _S.PREPARE_ABORT: _INVALID_STATE,
    _S.COMPLETE_COMMIT: Move.ALREADY_DONE,
    _S.COMPLETE_ABORT: _INVALID_STATE,
}

END_ABORT: Mapping[TransactionState, Answer] = {
    _S.EMPTY: _INVALID_STATE,
    _S.ONGOING: Move.DECIDE,
    _S.PREPARE_COMMIT: _INVALID_STATE,
    _S.PREPARE_ABORT: _CONCURRENT,
    _S.COMPLETE_COMMIT: _INVALID_STATE,
    _S.COMPLETE_ABORT: Move.ALREADY_DONE,
}
