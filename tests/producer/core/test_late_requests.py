"""Late requests: one that got no response may still reach the broker, so a new epoch fences it first.

A transactional request may reach the coordinator during the next transaction. In protocol version 1 all transactions of a producer have
the same epoch, so a late EndTxn would end the next transaction (KIP-890). The simulation found it: a successful commit had lost the records
written before the late request.
"""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.errors import Stored, TransactionAbortableException, codes
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.exception_handler import NonRetriableResponse
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, Answer, Rig

GAP = Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
OFFSETS = {TopicPartition("input", 0): OffsetAndMetadata(5)}


def transaction(rig: Rig, value: str) -> None:
    """One transaction with a record and offsets, committed."""
    rig.call(events.BeginTransactionCalled, f"begin {value}")
    rig.send(value)
    rig.sleep(1_000)
    rig.answer(OK)
    rig.call(events.SendOffsetsCalled, f"offsets {value}", offsets=OFFSETS, group=GroupMetadata("group"))
    rig.sleep(1_000)
    rig.call(events.CommitCalled, f"commit {value}")
    rig.sleep(1_000)
    assert rig.calls[f"commit {value}"] == "done"


def initialized() -> Rig:
    rig = Rig(options={"transactional.id": "t"})
    rig.call(events.InitTransactionsCalled, "init")
    return rig


def acknowledge_out_of_order(rig: Rig) -> None:
    """`z` is written; while the handler decides about `x`, a broker without the producer's state accepts `b`, which is behind `x`."""
    rig.defers_handler = True
    rig.send("z")
    rig.sleep(1_000)
    rig.answer(OK)
    rig.send("x")
    rig.send("b")
    rig.answer(Answer(codes.INVALID_RECORD, [0]))
    rig.answer(OK)
    rig.complete_handler_call()


@pytest.mark.parametrize("kind", [EndTxnRequest, AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_lost_response_gives_the_next_transaction_a_new_epoch(kind: type) -> None:
    """Only once: the transaction after that keeps its epoch."""
    rig = initialized()
    rig.scripted[kind] = [LOST]
    for value in "abc":
        transaction(rig, value)
    assert rig.trace == ["a@0/0", "b@0/1", "c@1/1"]
    assert [request.producer_epoch for request in rig.requests if isinstance(request, InitProducerIdRequest)] == [-1, 0]


def test_new_epoch_is_requested_before_anything_else_of_the_transaction() -> None:
    rig = initialized()
    rig.scripted[EndTxnRequest] = [LOST]
    transaction(rig, "a")
    before = len(rig.requests)
    transaction(rig, "b")
    requested: list[Any] = [type(request) for request in rig.requests[before:] if not isinstance(request, FindCoordinatorRequest)]
    assert requested[:2] == [InitProducerIdRequest, AddPartitionsToTxnRequest]


@pytest.mark.parametrize("lost", [None, NOT_SENT], ids=["nothing lost", "never sent"])
def test_epoch_stays_without_a_lost_request(lost: str | None) -> None:
    rig = initialized()
    rig.scripted[EndTxnRequest] = [] if lost is None else [lost]
    for value in "ab":
        transaction(rig, value)
    assert rig.trace == ["a@0/0", "b@1/0"]


class TestBatchesBehindARefusedOne:
    """A lost attempt may arrive when its sequence has become the next one, and would then be stored twice.

    The simulation found it, with a connection whose last bytes arrived a second after those of the next connection.
    """

    def test_batch_that_may_arrive_late_is_retried_under_a_new_epoch(self) -> None:
        rig = Rig()
        rig.send("z")
        rig.answer(OK)
        rig.send("x")
        rig.send("b")
        rig.answer(Answer(codes.INVALID_RECORD, [0]))
        rig.answer(LOST)
        rig.sleep(2_000)
        rig.answer(GAP)
        rig.sleep(2_000)
        rig.answer(Answer(base_offset=1))
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0", "b@2/0", "b@0/1"]
        assert rig.fate("b") == ["1"]

    def test_batch_that_cannot_arrive_late_takes_the_refused_sequence(self) -> None:
        rig = Rig()
        rig.send("z")
        rig.answer(OK)
        rig.send("x")
        rig.send("b")
        rig.answer(Answer(codes.INVALID_RECORD, [0]))
        rig.answer(GAP)
        rig.sleep(2_000)
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0", "b@1/0"]

    @pytest.mark.parametrize("answer", [NonRetriableResponse.FAIL, NonRetriableResponse.SWALLOW], ids=lambda answer: answer.name)
    def test_passed_sequences_are_not_reused(self, answer: NonRetriableResponse) -> None:
        """While the handler decides about the first batch, a broker without the producer's state (a recreated topic) accepts the second.

        The simulation found it: the broker took the next batch for a duplicate of the second, acknowledged it, and it was lost.
        """
        rig = Rig(handler_responses={"x": answer})
        acknowledge_out_of_order(rig)
        rig.send("c")
        rig.answer(Answer(base_offset=1))
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0", "c@0/1"]
        assert rig.fate("zbc") == ["0", "0", "1"]

    def test_next_transaction_is_unaffected_by_passed_sequences(self) -> None:
        """All its records are written or dropped: it is committed, and the next one begins with another epoch."""
        rig = Rig(options={"transactional.id": "t"}, handler_responses={"x": NonRetriableResponse.SWALLOW})
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        acknowledge_out_of_order(rig)
        assert rig.call(events.CommitCalled, "commit") == "done"
        transaction(rig, "c")
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0", "c@0/1"]
        assert [request.producer_epoch for request in rig.requests if isinstance(request, InitProducerIdRequest)] == [-1, 0]

    def test_next_batch_of_the_transaction_and_its_commit_fail(self) -> None:
        rig = Rig(options={"transactional.id": "t"}, handler_responses={"x": NonRetriableResponse.SWALLOW})
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        acknowledge_out_of_order(rig)
        rig.send("c")
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0"]
        assert rig.fate("zxbc") == ["0", "dropped", "0", "TransactionAbortableException no"]
        assert "the partition needs another epoch" in str(rig.error("c"))
        assert isinstance(rig.call(events.CommitCalled, "commit"), TransactionAbortableException)

    def test_batch_in_a_transaction_that_needs_another_epoch_fails(self) -> None:
        rig = initialized()
        rig.call(events.BeginTransactionCalled, "begin")
        rig.send("z")
        rig.sleep(1_000)
        rig.answer(OK)
        rig.send("xy")
        rig.send("b")
        rig.answer(Answer(codes.MESSAGE_TOO_LARGE))
        rig.answer(LOST)
        rig.sleep(2_000)
        rig.answer(GAP)
        assert rig.trace == ["z@0/0", "xy@1/0", "b@3/0", "b@3/0"]
        rig.sleep(2_000)
        assert isinstance(rig.error("b"), TransactionAbortableException)
        assert rig.error("b").stored is Stored.POSSIBLY
