"""Commits in doubt: once EndTxn may have arrived, no later error reports that the commit did not happen or requests its abort."""

from __future__ import annotations

import pytest

from chaffinch.client.connections import RequestFailed
from chaffinch.errors import (
    ErrorCode,
    Group,
    KafkaException,
    ProducerFencedException,
    SaslAuthenticationException,
    Stored,
    TransactionAbortableException,
    codes,
    group_of,
)
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.producer.core.rig import LOST, NOT_SENT, Rig
from tests.producer.core.transactions.test_manager import rig_in, run_transaction

EVERY_CODE = [code for code in codes.ALL if code is not codes.NONE] + [codes.by_number(31_000)]


def check_in_doubt(rig: Rig, call: str = "end") -> KafkaException:
    """Check that the producer has ended with an error that the commit may have happened."""
    error = rig.calls[call]
    assert isinstance(error, KafkaException)
    assert (group_of(error), error.stored) == (Group.APPLICATION_RECOVERABLE, Stored.POSSIBLY)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is State.FATAL_ERROR
    assert not rig.core.has_open_transaction
    assert all(request.committed for request in rig.requests if isinstance(request, EndTxnRequest))
    return error


@pytest.mark.parametrize("code", EVERY_CODE, ids=lambda code: code.name)
def test_any_response_after_a_lost_end_txn_leaves_the_commit_in_doubt(code: ErrorCode) -> None:
    rig = run_transaction(Step.END, LOST, code)
    if rig.calls["end"] != "done":
        check_in_doubt(rig)


def test_commit_in_doubt_error_has_cause_and_advice() -> None:
    error = check_in_doubt(run_transaction(Step.END, LOST, codes.TRANSACTION_ABORTABLE))
    assert error.message == (
        "the commit of transactional.id 't' may have happened, EndTxn was sent and its result is unknown; it cannot be requested "
        "again: TRANSACTION_ABORTABLE; call init_transactions of a new producer, then read what is committed"
    )
    assert error.__cause__ is not None
    fenced = check_in_doubt(run_transaction(Step.END, LOST, codes.PRODUCER_FENCED))
    assert isinstance(fenced, ProducerFencedException)
    assert "another producer with transactional.id 't' took over" in fenced.message


@pytest.mark.parametrize("call", [events.CommitCalled, events.AbortCalled, events.BeginTransactionCalled])
def test_every_later_call_raises_the_same_error(call: type) -> None:
    rig = run_transaction(Step.END, LOST, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    rig.call(call, "later")
    check_in_doubt(rig, "later")


def test_refused_lookup_of_the_new_coordinator_leaves_the_commit_in_doubt() -> None:
    """The coordinator must be looked up for the next EndTxn, and the lookup is refused."""
    rig = rig_in(State.COMMITTING)
    refusal = FindCoordinatorResponse(error_code=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.number)
    rig.scripted[FindCoordinatorRequest] = [refusal]
    (sent,) = rig.held
    rig.step(RequestFailed(address=sent.address, token=sent.token, reason=LOST, was_sent=True))
    rig.sleep(1_000)
    check_in_doubt(rig, "first commit")


@pytest.mark.parametrize("was_sent", [True, False])
def test_login_refused_after_end_txn_leaves_the_commit_in_doubt(was_sent: bool) -> None:
    rig = rig_in(State.COMMITTING)
    first = rig.held.pop()
    if not was_sent:
        rig.step(RequestFailed(address=first.address, token=first.token, reason=LOST, was_sent=True))
        rig.sleep(1_000)
        first = rig.held.pop()
    refusal = SaslAuthenticationException("wrong password")
    rig.step(RequestFailed(address=first.address, token=first.token, reason="", was_sent=was_sent, error=refusal))
    error = check_in_doubt(rig, "first commit")
    assert "wrong password" in error.message
    assert error.__cause__ is refusal


def test_unknown_error_code_leaves_the_commit_in_doubt() -> None:
    check_in_doubt(run_transaction(Step.END, codes.UNKNOWN_SERVER_ERROR))
    check_in_doubt(run_transaction(Step.END, codes.by_number(31_000)))


@pytest.mark.parametrize("before", [(), (NOT_SENT,)], ids=["at once", "after one that was never sent"])
def test_refused_commit_did_not_happen(before: tuple[str, ...]) -> None:
    rig = run_transaction(Step.END, *before, codes.TRANSACTION_ABORTABLE)
    error = rig.calls["end"]
    assert isinstance(error, TransactionAbortableException)
    assert error.stored is Stored.NO
    rig.scripted[EndTxnRequest] = [EndTxnResponse()]
    assert rig.call(events.AbortCalled, "abort") == "done"
