"""How a client handles each error code: a table used by the producer's core and printed by `chaffinch errors`.

Follows KIP-1050: the group decides, and the group depends on the API only where the table in `codes.py` says so. Only one part of the
client's state matters, whether a transaction is open: without one only the records fail, and the producer stays usable.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group


class Api(Enum):
    """The two columns of KIP-1050: Produce, and the requests that manage a transaction."""

    PRODUCE = "produce"
    TRANSACTION = "transaction"


class Handling(Enum):
    """What to do next. In a transaction ABORT and FIX_CONFIGURATION both leave it abortable and the producer usable after the abort."""

    COMPLETE = "complete"
    """No failure: the record is in the log. For DUPLICATE_SEQUENCE_NUMBER its offset is unknown."""
    RETRY = "retry"
    REFRESH_AND_RETRY = "refresh and retry"
    """Refresh the metadata (15 and 16: the coordinator) before sending again."""
    ABORT = "abort"
    RESTART = "restart"
    """The producer is unusable; the application starts a new one."""
    FIX_CONFIGURATION = "fix configuration"
    FAIL = "fail"
    """The records fail; nothing else changes."""


PRODUCE: Final = Api.PRODUCE
TRANSACTION: Final = Api.TRANSACTION

# Advice for people once the error is raised, that is, after the client's retries.
ADVICE: Final = {
    Group.RETRIABLE: "it may be tried again",
    Group.REFRESH_RETRIABLE: "it may be tried again with fresh metadata",
    Group.TRANSACTION_ABORTABLE: "abort the transaction and go on with the same producer",
    Group.APPLICATION_RECOVERABLE: "close this producer and start a new one",
    Group.INVALID_CONFIGURATION: "correct the data or the configuration, the producer stays usable",
    Group.NONE: "",
}
# For records: sending one again sends a new record, which no broker recognises as a repetition.
RETRIABLE_GROUPS: Final = frozenset({Group.RETRIABLE, Group.REFRESH_RETRIABLE})
ADVICE_IF_POSSIBLY_STORED: Final = "if it is sent again, it may be stored twice"
# For records whose transaction is being aborted, or whose producer is being closed: there is nothing to abort.
ADVICE_IF_ABORTED: Final = "send it again in the next transaction"
ADVICE_IF_CLOSED: Final = "send it again with a new producer"
# Advice for any client, such as a consumer: for requests that no producer sends, and for connections.
ADVICE_FOR_ANY_CLIENT: Final = {
    Group.RETRIABLE: ADVICE[Group.RETRIABLE],
    Group.REFRESH_RETRIABLE: ADVICE[Group.REFRESH_RETRIABLE],
    Group.INVALID_CONFIGURATION: "correct the data or the configuration",
}

# (group, in a transaction?) -> handling.
_BY_GROUP: Final = {
    (Group.RETRIABLE, False): Handling.RETRY,
    (Group.RETRIABLE, True): Handling.RETRY,
    (Group.REFRESH_RETRIABLE, False): Handling.REFRESH_AND_RETRY,
    (Group.REFRESH_RETRIABLE, True): Handling.REFRESH_AND_RETRY,
    (Group.TRANSACTION_ABORTABLE, False): Handling.FAIL,
    (Group.TRANSACTION_ABORTABLE, True): Handling.ABORT,
    (Group.APPLICATION_RECOVERABLE, False): Handling.FAIL,
    (Group.APPLICATION_RECOVERABLE, True): Handling.RESTART,
    (Group.INVALID_CONFIGURATION, False): Handling.FIX_CONFIGURATION,
    (Group.INVALID_CONFIGURATION, True): Handling.FIX_CONFIGURATION,
    (Group.NONE, False): Handling.FAIL,
    (Group.NONE, True): Handling.ABORT,
}


def handling_of(code: ErrorCode, api: Api = PRODUCE, *, in_transaction: bool = False) -> Handling:
    """How a client handles `code` in a response of this kind of API.

    A transaction API always acts on a transactional producer, so an application-recoverable error ends it even if no transaction is open (a
    fenced InitProducerId). Outside a transaction Produce fails only its records (decision 17 of the design: one bad record never kills a
    producer).
    """
    if code is codes.NONE or (code is codes.DUPLICATE_SEQUENCE_NUMBER and api is PRODUCE):
        return Handling.COMPLETE
    group = code.group_produce if api is PRODUCE else code.group_transaction
    return _BY_GROUP[group, in_transaction or api is TRANSACTION]


def normalized_coordinator_code(code: ErrorCode) -> ErrorCode:
    """The code of a transaction request's response, with INVALID_PRODUCER_EPOCH replaced by PRODUCER_FENCED.

    For a fenced producer, coordinators before Kafka 2.7 (KIP-588) return INVALID_PRODUCER_EPOCH, and for TxnOffsetCommit all of them do.
    Java's producer treats it the same way (TransactionManager.java).
    """
    return codes.PRODUCER_FENCED if code is codes.INVALID_PRODUCER_EPOCH else code
