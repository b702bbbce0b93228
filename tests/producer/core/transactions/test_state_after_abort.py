"""State that an abort leaves to the next transaction: reusable sequences, and nothing else."""

from __future__ import annotations

import pytest

from chaffinch.errors import IllegalStateException
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, ORDERS_1
from tests.producer.core.transactions.test_manager import GROUP, OFFSETS, rig_in


@pytest.mark.parametrize(
    ("answer", "fate", "sent_next"),
    [(LOST, "TransactionAbortableException possibly", "c@0/1"), (NOT_SENT, "TransactionAbortableException no", "c@1/0")],
    ids=["lost", "not sent"],
)
def test_sequences_of_an_aborted_retry_are_reused_unless_possibly_stored(answer: str, fate: str, sent_next: str) -> None:
    """With reused sequences the broker would take the batch for a duplicate, and store nothing."""
    rig = rig_in(State.IN_TRANSACTION)
    rig.send("b")
    rig.answer(answer)
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert rig.fate("b") == [fate]
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("c")
    assert rig.trace == ["a@0/0", "b@1/0", sent_next]


def test_failure_does_not_outlive_its_transaction() -> None:
    """A later call in the wrong order raises IllegalStateException, not the error of the aborted transaction."""
    rig = rig_in(State.ABORTABLE_ERROR)
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert isinstance(rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP), IllegalStateException)


def test_partition_not_yet_added_is_not_added_to_the_next_transaction() -> None:
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.hold.add(AddPartitionsToTxnRequest)
    rig.send("a", ORDERS_0)
    rig.send("b", ORDERS_1)
    rig.call(events.AbortCalled, "abort")
    rig.hold.clear()
    rig.release()
    assert rig.calls["abort"] == "done"
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("c", ORDERS_0)
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "commit") == "done"
    added = [request for request in rig.requests if isinstance(request, AddPartitionsToTxnRequest)]
    assert [[topic.partitions for topic in request.v3_and_below_topics] for request in added] == [[[0]], [[0]]]
