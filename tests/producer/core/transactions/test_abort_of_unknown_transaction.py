"""Abort of a transaction that the coordinator does not have, because the request that opens it was lost or refused."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.errors import codes
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tests.producer.core.rig import LOST, OK
from tests.producer.core.transactions.test_manager import GROUP, OFFSETS, STEPS, response_with_code, rig_in


@pytest.mark.parametrize("step", [Step.ADD_PARTITIONS, Step.ADD_OFFSETS], ids=lambda step: step.name)
@pytest.mark.parametrize(
    "answer",
    [LOST, codes.CONCURRENT_TRANSACTIONS, codes.TOPIC_AUTHORIZATION_FAILED],
    ids=["lost", "retriable", "refused"],
)
def test_abort_of_an_unknown_transaction_succeeds(step: Step, answer: Any) -> None:
    """The coordinator responds with INVALID_TXN_STATE (protocol version 1); the producer goes on."""
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.hold.add(STEPS[step])
    if step is Step.ADD_PARTITIONS:
        rig.send("b")
    else:
        rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
    rig.call(events.AbortCalled, "abort")
    rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=codes.INVALID_TXN_STATE.number)]
    (request,) = rig.held
    rig.hold.clear()
    if answer is LOST:
        rig.step(RequestFailed(address=request.address, token=request.token, reason=LOST, was_sent=True))
    else:
        rig.step(ResponseReceived(address=request.address, token=request.token, message=response_with_code(step, request.message, answer)))
    rig.sleep(5_000)
    assert rig.calls["abort"] == "done"
    rig.call(events.BeginTransactionCalled, "next")
    rig.send("c")
    rig.sleep(5_000)
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "commit") == "done"
    assert rig.trace == ["c@0/1" if answer is LOST else "c@0/0"], "the lost request may arrive late: a new epoch fences it"
