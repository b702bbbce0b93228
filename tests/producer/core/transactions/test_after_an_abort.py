"""What an abort leaves to the next transaction: numbers that may be given again, and nothing else."""

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
def test_numbers_of_what_waited_to_go_again_are_given_again_unless_it_may_be_stored(answer: str, fate: str, sent_next: str) -> None:
    """There the broker would take what has them for what it has already, and store nothing."""
    rig = rig_in(State.IN_TRANSACTION)
    rig.send("b")
    rig.answer(answer)
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert rig.fate("b") == [fate]
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("c")
    assert rig.trace == ["a@0/0", "b@1/0", sent_next]


def test_a_failure_is_over_with_its_transaction() -> None:
    """Whoever then calls out of order is told so, not of a failure that was aborted long since."""
    rig = rig_in(State.ABORTABLE_ERROR)
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert isinstance(rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP), IllegalStateException)


def test_a_partition_that_was_to_be_added_is_not_added_to_the_next_transaction() -> None:
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
