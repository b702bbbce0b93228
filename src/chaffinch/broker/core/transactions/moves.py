"""State machine of the transaction coordinator: states, legal transitions, and the result of each request in each state.

Transaction versions 1 and 2 (`transaction.version`): in version 2 every end raises the epoch (KIP-890), so the epoch of an end request
shows whether it means the current transaction or repeats the previous end. A missing pair is a programming error, never a silent no-op.
Follows Apache Kafka's TransactionState (predecessors) and TransactionCoordinator (results).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode

VERSION_WITH_EPOCH_BUMP = 2
"""A level of `transaction.version`; 0 and 1 differ only in Kafka's files and are both called version 1 here."""


class TransactionState(Enum):
    """States with Kafka's numbers. PREPARE_EPOCH_FENCE is only transient and never stored.

    DEAD is never reached: an expired id is removed immediately.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name of the state, as shown and filtered by tools: `CompleteCommit`."""
        return self.name.title().replace("_", "")


_S = TransactionState

LEGAL_PREDECESSORS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

"""Version 2 only: aborting a transaction that never began, from a completed state to PREPARE_ABORT."""

COMPLETED: Mapping[TransactionState, TransactionState] = {
    _S.PREPARE_COMMIT: _S.COMPLETE_COMMIT,
    _S.PREPARE_ABORT: _S.COMPLETE_ABORT,
}
"""The state after every marker of a decided transaction is written."""


class Move(Enum):
    """The action of an accepted request in a state."""

    NEW_EPOCH = "give the producer its next epoch"
    FENCE = "raise the epoch, abort, let the client retry"
    ADD = "store the new partitions"
    LOOK = "the partition must be part of the transaction, otherwise TRANSACTION_ABORTABLE"
    DECIDE = "store the decision, then write the markers"
    ALREADY_DONE = "the same decision was taken: success again"


class Ending(Enum):
    """Kinds of EndTxn requests. AGAIN: under the epoch before the last end, so it repeats a request whose response was lost (version 2)."""

    COMMIT = "commit"
    COMMIT_AGAIN = "commit, again"
    ABORT = "abort"
    ABORT_AGAIN = "abort, again"

    @staticmethod
    def of(*, is_commit: bool, is_again: bool) -> Ending:
        return _ENDINGS[is_commit, is_again]


_ENDINGS = {
    (True, False): Ending.COMMIT,
    (True, True): Ending.COMMIT_AGAIN,
    (False, False): Ending.ABORT,
    (False, True): Ending.ABORT_AGAIN,
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is refused in this state, with this code."""

    code: ErrorCode


Answer = Move | Refused
_CONCURRENT = Refused(codes.CONCURRENT_TRANSACTIONS)
_INVALID_STATE = Refused(codes.INVALID_TXN_STATE)
_FENCED = Refused(codes.PRODUCER_FENCED)

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

VERIFY_PARTITIONS: Mapping[TransactionState, Answer] = {
    _S.EMPTY: Refused(codes.TRANSACTION_ABORTABLE),
    _S.ONGOING: Move.LOOK,
    _S.PREPARE_COMMIT: _CONCURRENT,
    _S.PREPARE_ABORT: _CONCURRENT,
    _S.COMPLETE_COMMIT: Refused(codes.TRANSACTION_ABORTABLE),
    _S.COMPLETE_ABORT: Refused(codes.TRANSACTION_ABORTABLE),
}
"""For version 1, whose clients add partitions themselves: is the partition in the transaction (KIP-890 part 1)?"""

END_VERSION_1: Mapping[TransactionState, Mapping[Ending, Answer]] = {
    _S.EMPTY: {Ending.COMMIT: _INVALID_STATE, Ending.ABORT: _INVALID_STATE},
    _S.ONGOING: {Ending.COMMIT: Move.DECIDE, Ending.ABORT: Move.DECIDE},
    _S.PREPARE_COMMIT: {Ending.COMMIT: _CONCURRENT, Ending.ABORT: _INVALID_STATE},
    _S.PREPARE_ABORT: {Ending.COMMIT: _INVALID_STATE, Ending.ABORT: _CONCURRENT},
    _S.COMPLETE_COMMIT: {Ending.COMMIT: Move.ALREADY_DONE, Ending.ABORT: _INVALID_STATE},
    _S.COMPLETE_ABORT: {Ending.COMMIT: _INVALID_STATE, Ending.ABORT: Move.ALREADY_DONE},
}
"""EndTxn up to version 4. The epoch never shows a repetition here."""

END_VERSION_2: Mapping[TransactionState, Mapping[Ending, Answer]] = {
    _S.EMPTY: {
        Ending.COMMIT: _INVALID_STATE,
        Ending.COMMIT_AGAIN: _FENCED,
        Ending.ABORT: Move.DECIDE,
        Ending.ABORT_AGAIN: _FENCED,
    },
    _S.ONGOING: {
        Ending.COMMIT: Move.DECIDE,
        Ending.COMMIT_AGAIN: _FENCED,
        Ending.ABORT: Move.DECIDE,
        Ending.ABORT_AGAIN: _FENCED,
    },
    _S.PREPARE_COMMIT: {
        Ending.COMMIT: _FENCED,
        Ending.COMMIT_AGAIN: _CONCURRENT,
        Ending.ABORT: _FENCED,
        Ending.ABORT_AGAIN: _INVALID_STATE,
    },
    _S.PREPARE_ABORT: {
        Ending.COMMIT: _FENCED,
        Ending.COMMIT_AGAIN: _INVALID_STATE,
        Ending.ABORT: _FENCED,
        Ending.ABORT_AGAIN: _CONCURRENT,
    },
    _S.COMPLETE_COMMIT: {
        Ending.COMMIT: _INVALID_STATE,
        Ending.COMMIT_AGAIN: Move.ALREADY_DONE,
        Ending.ABORT: Move.DECIDE,
        Ending.ABORT_AGAIN: _INVALID_STATE,
    },
    _S.COMPLETE_ABORT: {
        Ending.COMMIT: _INVALID_STATE,
        Ending.COMMIT_AGAIN: _INVALID_STATE,
        Ending.ABORT: Move.DECIDE,
        Ending.ABORT_AGAIN: Move.ALREADY_DONE,
    },
}
"""EndTxn from version 5 on."""


FIRST_VERSION_WITH_FENCED: Mapping[str, int] = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}


def error_number(code: ErrorCode, api: str, version: int) -> int:
    """The wire error code of this API and version: INVALID_PRODUCER_EPOCH before the version that has PRODUCER_FENCED (KIP-588)."""
    if code is codes.PRODUCER_FENCED and version < FIRST_VERSION_WITH_FENCED[api]:
        return codes.INVALID_PRODUCER_EPOCH.number
    return code.number
