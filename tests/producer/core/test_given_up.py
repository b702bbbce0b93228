"""Transactions that nobody can go on with: the producer is closed, or its thread has died."""

from __future__ import annotations

import pytest

from chaffinch.errors import IllegalStateException, KafkaException, Stored, TimeoutException, UnknownServerException
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import FailCall
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, Rig


def in_transaction() -> Rig:
    """A producer with an open transaction that has one record, written."""
    rig = Rig(options={"transactional.id": "t"})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(OK)
    return rig


@pytest.mark.parametrize(
    ("answers", "is_held", "stored", "fate"),
    [
        ([], True, Stored.POSSIBLY, "may have happened, EndTxn has no answer"),
        ([LOST], False, Stored.POSSIBLY, "may have happened, EndTxn has no answer"),
        ([LOST, NOT_SENT], False, Stored.POSSIBLY, "may have happened, EndTxn has no answer"),
        ([NOT_SENT], False, Stored.NO, "did not happen, EndTxn was not sent"),
    ],
)
@pytest.mark.parametrize(
    ("death", "error"),
    [(IllegalStateException("closed"), IllegalStateException), (TimeoutException("died"), UnknownServerException)],
)
def test_a_commit_that_is_given_up_says_whether_it_may_have_happened(
    answers: list[str], is_held: bool, stored: Stored, fate: str, death: KafkaException, error: type[KafkaException]
) -> None:
    rig = in_transaction()
    rig.scripted[EndTxnRequest] = list(answers)
    if is_held:
        rig.hold.add(EndTxnRequest)
    rig.call(events.CommitCalled, "commit")
    while rig.scripted[EndTxnRequest]:
        rig.sleep(10)
    (failed,) = (effect for effect in rig.core.give_up(death) if isinstance(effect, FailCall) and effect.call == "commit")
    assert type(failed.error) is error
    assert failed.error.stored is stored
    assert failed.error.message == f"the commit of transactional.id 't' {fate}: {death.message}"


def test_a_commit_that_is_given_up_while_its_records_are_under_way_did_not_happen() -> None:
    rig = in_transaction()
    rig.call(events.CommitCalled, "an earlier one")
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("b")
    rig.call(events.CommitCalled, "commit")
    (failed,) = (effect for effect in rig.core.give_up(IllegalStateException("closed")) if isinstance(effect, FailCall))
    assert failed.error.stored is Stored.NO
