"""Open transactions when the producer is closed or its thread has died."""

from __future__ import annotations

import pytest

from chaffinch.errors import (
    IllegalStateException,
    KafkaException,
    Stored,
    TimeoutException,
    TransactionAbortableException,
    UnknownServerException,
    codes,
)
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import FailCall
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_1, Answer, Rig


def in_transaction() -> Rig:
    """A producer with an open transaction that has one written record."""
    rig = Rig(options={"transactional.id": "t"})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(OK)
    return rig


@pytest.mark.parametrize(
    ("answers", "is_held", "stored", "fate"),
    [
        ([], True, Stored.POSSIBLY, "may have happened, EndTxn got no response"),
        ([LOST], False, Stored.POSSIBLY, "may have happened, EndTxn got no response"),
        ([LOST, NOT_SENT], False, Stored.POSSIBLY, "may have happened, EndTxn got no response"),
        ([NOT_SENT], False, Stored.NO, "did not happen, EndTxn was not sent"),
    ],
)
@pytest.mark.parametrize(
    ("closing_error", "error"),
    [(IllegalStateException("closed"), IllegalStateException), (TimeoutException("died"), UnknownServerException)],
)
def test_given_up_commit_says_whether_it_may_have_happened(
    answers: list[str], is_held: bool, stored: Stored, fate: str, closing_error: KafkaException, error: type[KafkaException]
) -> None:
    rig = in_transaction()
    rig.scripted[EndTxnRequest] = list(answers)
    if is_held:
        rig.hold.add(EndTxnRequest)
    rig.call(events.CommitCalled, "commit")
    while rig.scripted[EndTxnRequest]:
        rig.sleep(10)
    (failed,) = (effect for effect in rig.core.give_up(closing_error) if isinstance(effect, FailCall) and effect.call == "commit")
    assert type(failed.error) is error
    assert failed.error.stored is stored
    assert failed.error.message == f"the commit of transactional.id 't' {fate}: {closing_error.message}"


def test_commit_given_up_with_records_in_flight_did_not_happen() -> None:
    rig = in_transaction()
    rig.call(events.CommitCalled, "an earlier one")
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("b")
    rig.call(events.CommitCalled, "commit")
    (failed,) = (effect for effect in rig.core.give_up(IllegalStateException("closed")) if isinstance(effect, FailCall))
    assert failed.error.stored is Stored.NO


def ends(rig: Rig) -> list[bool]:
    """For each EndTxn request whether it commits."""
    return [request.committed for request in rig.requests if isinstance(request, EndTxnRequest)]


def committing_with(*answers: Answer | str) -> Rig:
    """A commit that waits for its second record, which got these responses."""
    rig = in_transaction()
    rig.send("b", ORDERS_1)
    rig.call(events.CommitCalled, "commit")
    for answer in answers:
        rig.answer(answer)
    return rig


@pytest.mark.parametrize(("answer", "stored"), [(Answer(codes.NOT_LEADER_OR_FOLLOWER), "no"), (LOST, "possibly")], ids=["refused", "lost"])
def test_close_that_times_out_before_the_commit_aborts_it(answer: Answer | str, stored: str) -> None:
    """Otherwise half of the transaction would be committed."""
    rig = committing_with(answer)
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 50)
    rig.sleep(50)
    assert ends(rig) == [False]
    assert rig.fate("b") == [f"TransactionAbortableException {stored}"]
    error = rig.calls["commit"]
    assert isinstance(error, TransactionAbortableException)
    assert error.stored is Stored.NO
    assert error.message == "the transaction cannot be committed: the producer was closed before all of its records had their outcome"
    assert rig.calls["close"] == "done"


def test_close_that_times_out_with_records_in_flight_aborts_after_their_response() -> None:
    rig = committing_with()
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms)
    assert rig.fate("b") == ["TransactionAbortableException possibly"]
    assert isinstance(rig.error("b").__cause__, TimeoutException)
    assert isinstance(rig.calls["commit"], TransactionAbortableException)
    assert rig.calls["close"] == "done"
    assert ends(rig) == []
    rig.answer(OK)
    assert ends(rig) == [False]


@pytest.mark.parametrize(
    ("closes_within", "advice"),
    [(None, "send it again in the next transaction"), ("close's timeout", "send it again with a new producer")],
    ids=["abort", "close"],
)
@pytest.mark.parametrize("is_sent", [False, True], ids=["unsent", "refused"])
def test_record_failed_during_abort_does_not_advise_to_abort(is_sent: bool, closes_within: str | None, advice: str) -> None:
    rig = in_transaction()
    if is_sent:
        rig.send("bc")
    else:
        rig.append("bc")
    rig.call(events.AbortCalled, "abort", closes_within=closes_within)
    if is_sent:
        rig.answer(Answer(codes.INVALID_RECORD, (0,)))
    error = rig.error("c")
    assert isinstance(error, TransactionAbortableException)
    assert str(error).endswith(f"; not stored; {advice}")
    assert rig.calls["abort"] == "done"


def test_record_given_up_by_close_does_not_advise_to_abort() -> None:
    rig = committing_with()
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms)
    assert str(rig.error("b")).endswith("; possibly stored; send it again with a new producer")


def test_close_does_not_abort_a_commit_whose_end_txn_was_sent() -> None:
    rig = committing_with()
    rig.hold.add(EndTxnRequest)
    rig.answer(OK)
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms)
    assert ends(rig) == [True]
    rig.release()
    assert rig.calls["commit"] == "done"


def test_close_waits_for_the_abort_of_a_failed_transaction() -> None:
    rig = committing_with()
    rig.hold.add(EndTxnRequest)
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 300_000)
    rig.answer(Answer(codes.INVALID_RECORD))
    assert ends(rig) == [False]
    assert rig.calls["commit"].code is codes.INVALID_RECORD
    assert "close" not in rig.calls
    rig.release()
    assert rig.calls["close"] == "done"


def test_close_waits_for_the_abort_at_most_max_block_ms() -> None:
    rig = committing_with()
    rig.hold.add(EndTxnRequest)
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 300_000)
    rig.answer(Answer(codes.INVALID_RECORD))
    rig.sleep(59_999)
    assert "close" not in rig.calls
    rig.sleep(2)
    assert rig.calls["close"] == "done"
