"""Errors of fenced producers name the cause; errors of a too long transaction.timeout.ms name the limit."""

from __future__ import annotations

import pytest

from chaffinch.errors import ProducerFencedException, codes
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.producer.core.rig import ORDERS_0, ORDERS_1, Answer, Rig
from tests.producer.core.transactions.test_manager import rig_in

OTHER, ADVICE = "another producer with transactional.id 't' took over", "; producers that run at the same time need different ids"


@pytest.mark.parametrize(
    ("open_ms", "text"),
    [
        (9_000, f"the transaction was open for 9.0 s, transaction.timeout.ms is 4000: the broker has aborted it, or {OTHER}"),
        (3_900, f"the transaction was open for 3.9 s, transaction.timeout.ms is 4000: {OTHER}"),
    ],
)
def test_fenced_error_names_cause_and_limits(open_ms: int, text: str) -> None:
    rig = rig_in(State.IN_TRANSACTION, **{"transaction.timeout.ms": 4_000, "max.block.ms": 3_999})
    rig.steady_ms += open_ms
    rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=codes.PRODUCER_FENCED.number)]
    error = rig.call(events.CommitCalled, "commit")
    assert isinstance(error, ProducerFencedException)
    assert error.message == text + ADVICE


def test_close_reports_an_expired_transaction_once_with_max_block_ms() -> None:
    """By default a call may wait as long as a transaction may last: the abort after such a failure finds the producer fenced."""
    rig = rig_in(State.IN_TRANSACTION)
    rig.steady_ms += 60_000
    rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=codes.PRODUCER_FENCED.number)]
    error = rig.call(events.AbortCalled, "close", closes_within="max.block.ms")
    aborted = "the broker has aborted it (set it above max.block.ms, 60000, for which one call may wait)"
    assert error.message == f"the transaction was open for 60.0 s, transaction.timeout.ms is 60000: {aborted}, or {OTHER}{ADVICE}"
    assert rig.reports == []


def test_fenced_record_error_has_cause_and_broker_message() -> None:
    rig = rig_in(State.IN_TRANSACTION)
    rig.steady_ms += 1_000
    rig.send("x")
    rig.answer(Answer(codes.INVALID_PRODUCER_EPOCH, message="producer 16 epoch 0 is fenced."))
    text = f"producer 16 epoch 0 is fenced; the transaction was open for 1.0 s, transaction.timeout.ms is 60000: {OTHER}{ADVICE}"
    assert rig.error("x").message == text
    outcome = rig.call(events.CommitCalled, "commit")
    assert outcome.message == text
    assert outcome.__cause__ is None


def test_record_in_flight_fails_with_the_fencing_error() -> None:
    """There is nothing left to abort: the record fails with the error that ended the producer."""
    rig = rig_in(State.IN_TRANSACTION)
    rig.send("x", ORDERS_0)
    rig.send("y", ORDERS_1)
    rig.answer(Answer(codes.INVALID_PRODUCER_EPOCH))
    rig.answer(Answer(codes.NOT_LEADER_OR_FOLLOWER))
    assert rig.fate("xy") == ["InvalidProducerEpochException no", "InvalidProducerEpochException possibly"]
    assert rig.error("y").topic_partition == ORDERS_1


def test_fenced_without_transaction_names_only_the_other_producer() -> None:
    rig = Rig(options={"transactional.id": "t"})
    rig.scripted[InitProducerIdRequest] = [InitProducerIdResponse(error_code=codes.PRODUCER_FENCED.number)]
    assert rig.call(events.InitTransactionsCalled, "init").message == OTHER + ADVICE


def test_too_long_transaction_timeout_error_names_the_limit() -> None:
    rig = Rig(options={"transactional.id": "t", "transaction.timeout.ms": 1_000_000})
    rig.scripted[InitProducerIdRequest] = [InitProducerIdResponse(error_code=codes.INVALID_TRANSACTION_TIMEOUT.number)]
    error = rig.call(events.InitTransactionsCalled, "init")
    text = "transaction.timeout.ms=1000000 exceeds the broker's transaction.max.timeout.ms, 900000 unless it is set: "
    assert text + "give a smaller one, or raise the broker's limit" in str(error)
