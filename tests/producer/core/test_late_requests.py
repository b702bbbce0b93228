"""A request without an answer may still reach the broker, when something else is in its place: a new epoch fences it first.

A transactional one may reach the coordinator during the next transaction.

In protocol version 1 all transactions of a producer have the same epoch, so an EndTxn that came late would end the next one (KIP-890). The
simulation found it: a commit that succeeded had lost what was written before the late request.
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


def pass_by(rig: Rig) -> None:
    """`z` is written; a handler is asked about `x`, and meanwhile a broker that does not know the producer takes `b`, which is behind."""
    rig.thinks = True
    rig.send("z")
    rig.sleep(1_000)
    rig.answer(OK)
    rig.send("x")
    rig.send("b")
    rig.answer(Answer(codes.INVALID_RECORD, [0]))
    rig.answer(OK)
    rig.say()


@pytest.mark.parametrize("kind", [EndTxnRequest, AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_a_lost_answer_costs_the_next_transaction_a_new_epoch(kind: type) -> None:
    """Once: the transaction after that goes on as ever."""
    rig = initialized()
    rig.scripted[kind] = [LOST]
    for value in "abc":
        transaction(rig, value)
    assert rig.trace == ["a@0/0", "b@0/1", "c@1/1"]
    assert [request.producer_epoch for request in rig.requests if isinstance(request, InitProducerIdRequest)] == [-1, 0]


def test_the_new_epoch_comes_before_anything_else_of_the_transaction() -> None:
    rig = initialized()
    rig.scripted[EndTxnRequest] = [LOST]
    transaction(rig, "a")
    before = len(rig.requests)
    transaction(rig, "b")
    asked: list[Any] = [type(request) for request in rig.requests[before:] if not isinstance(request, FindCoordinatorRequest)]
    assert asked[:2] == [InitProducerIdRequest, AddPartitionsToTxnRequest]


@pytest.mark.parametrize("lost", [None, NOT_SENT], ids=["nothing lost", "never sent"])
def test_without_a_late_request_the_epoch_stays(lost: str | None) -> None:
    rig = initialized()
    rig.scripted[EndTxnRequest] = [] if lost is None else [lost]
    for value in "ab":
        transaction(rig, value)
    assert rig.trace == ["a@0/0", "b@1/0"]


class TestBatchesBehindOneRefused:
    """An attempt without an answer may come when its number is the next, because another batch has the one before: stored twice.

    The simulation found it, with a connection whose last bytes came a second after those of the next.
    """

    def test_what_may_still_come_goes_again_under_a_new_epoch(self) -> None:
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

    def test_what_cannot_come_any_more_goes_again_under_the_number_refused(self) -> None:
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
        """A handler is asked about the first batch, and a broker that does not know the producer takes the second: a topic made anew, say.

        The simulation found it: the next batch was taken for the second one, acknowledged as that, and lost.
        """
        rig = Rig(says={"x": answer})
        pass_by(rig)
        rig.send("c")
        rig.answer(Answer(base_offset=1))
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0", "c@0/1"]
        assert rig.fate("zbc") == ["0", "0", "1"]

    def test_the_next_transaction_does_not_pay_for_numbers_used_up_in_the_last(self) -> None:
        """All it had is written or dropped: it is committed, and the next one begins with another epoch."""
        rig = Rig(options={"transactional.id": "t"}, says={"x": NonRetriableResponse.SWALLOW})
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        pass_by(rig)
        assert rig.call(events.CommitCalled, "commit") == "done"
        transaction(rig, "c")
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0", "c@0/1"]
        assert [request.producer_epoch for request in rig.requests if isinstance(request, InitProducerIdRequest)] == [-1, 0]

    def test_what_is_sent_next_in_the_transaction_fails_at_once_and_so_does_its_commit(self) -> None:
        rig = Rig(options={"transactional.id": "t"}, says={"x": NonRetriableResponse.SWALLOW})
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        pass_by(rig)
        rig.send("c")
        assert rig.trace == ["z@0/0", "x@1/0", "b@2/0"]
        assert rig.fate("zxbc") == ["0", "dropped", "0", "TransactionAbortableException no"]
        assert "the partition needs another epoch" in str(rig.error("c"))
        assert isinstance(rig.call(events.CommitCalled, "commit"), TransactionAbortableException)

    def test_a_transaction_has_no_other_epoch_and_is_aborted(self) -> None:
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
