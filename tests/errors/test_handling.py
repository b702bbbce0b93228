"""Handling of error codes, by group, kind of API, and open transaction."""

import pytest

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.handling import ADVICE, PRODUCE, TRANSACTION, Handling, handling_of, normalized_coordinator_code

RETRY, REFRESH, ABORT, RESTART = Handling.RETRY, Handling.REFRESH_AND_RETRY, Handling.ABORT, Handling.RESTART
FIX, FAIL, COMPLETE = Handling.FIX_CONFIGURATION, Handling.FAIL, Handling.COMPLETE


@pytest.mark.parametrize(
    ("code", "produce", "produce_in_transaction", "transaction"),
    [
        (codes.CORRUPT_MESSAGE, RETRY, RETRY, RETRY),
        (codes.REQUEST_TIMED_OUT, RETRY, RETRY, RETRY),
        (codes.CONCURRENT_TRANSACTIONS, RETRY, RETRY, RETRY),
        (codes.NOT_LEADER_OR_FOLLOWER, REFRESH, REFRESH, REFRESH),
        (codes.NOT_COORDINATOR, REFRESH, REFRESH, REFRESH),
        (codes.TRANSACTION_ABORTABLE, FAIL, ABORT, ABORT),
        (codes.INVALID_TXN_STATE, FAIL, ABORT, RESTART),
        (codes.INVALID_PRODUCER_EPOCH, FAIL, RESTART, RESTART),
        (codes.PRODUCER_FENCED, FAIL, RESTART, RESTART),
        (codes.UNKNOWN_SERVER_ERROR, FAIL, RESTART, RESTART),
        (codes.INVALID_RECORD, FIX, FIX, FIX),
        (codes.INVALID_COMPACTION_KEY, FIX, FIX, FIX),
        (codes.TOPIC_AUTHORIZATION_FAILED, FIX, FIX, FIX),
        (codes.INVALID_TRANSACTION_TIMEOUT, FIX, FIX, FIX),
        # Left out by KIP-1050: in a transaction it cannot go on, outside one the records fail.
        (codes.OUT_OF_ORDER_SEQUENCE_NUMBER, FAIL, ABORT, RESTART),
        (codes.UNKNOWN_PRODUCER_ID, FAIL, ABORT, ABORT),
        # Not a failure: the record is in the log.
        (codes.DUPLICATE_SEQUENCE_NUMBER, COMPLETE, COMPLETE, RESTART),
        (codes.NONE, COMPLETE, COMPLETE, COMPLETE),
        # Codes that no producer receives, and unknown ones.
        (codes.TOPIC_ALREADY_EXISTS, FAIL, RESTART, RESTART),
        (codes.by_number(200), FAIL, RESTART, RESTART),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_handling(code: ErrorCode, produce: Handling, produce_in_transaction: Handling, transaction: Handling) -> None:
    assert handling_of(code) is handling_of(code, PRODUCE, in_transaction=False) is produce
    assert handling_of(code, PRODUCE, in_transaction=True) is produce_in_transaction
    assert handling_of(code, TRANSACTION, in_transaction=True) is transaction
    # A transaction API acts on a transactional producer, whether or not a transaction is open.
    assert handling_of(code, TRANSACTION) is transaction


def test_every_code_has_a_handling() -> None:
    for row in codes.ALL:
        for api in (PRODUCE, TRANSACTION):
            for in_transaction in (False, True):
                assert handling_of(row, api, in_transaction=in_transaction) in Handling


def test_only_retriable_codes_are_sent_again() -> None:
    for row in codes.ALL:
        assert (handling_of(row) in (RETRY, REFRESH)) == row.is_retriable


def test_every_group_has_advice_except_none() -> None:
    assert {group for group in Group if ADVICE[group]} == set(Group) - {Group.NONE}


def test_invalid_producer_epoch_of_a_coordinator_means_fenced() -> None:
    """KIP-588. Nothing else is read into an answer."""
    changed = {code: normalized_coordinator_code(code) for code in codes.ALL if normalized_coordinator_code(code) is not code}
    assert changed == {codes.INVALID_PRODUCER_EPOCH: codes.PRODUCER_FENCED}
