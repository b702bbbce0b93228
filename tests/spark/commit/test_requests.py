"""Requests of a commit beside Produce, asked by hand: what the next question says of the coordinator."""

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.operations import Lost, Reply, Step, Wait


def answer(code):
    return AddOffsetsToTxnResponse(error_code=code.number)


@pytest.mark.parametrize(
    ("said", "is_another"),
    [
        (answer(codes.NOT_COORDINATOR), True),
        (answer(codes.COORDINATOR_NOT_AVAILABLE), True),
        (Lost(reason="connection closed"), True),
        (answer(codes.COORDINATOR_LOAD_IN_PROGRESS), False),
        (answer(codes.CONCURRENT_TRANSACTIONS), False),
    ],
    ids=["not coordinator", "not available", "no answer", "loading", "ending a transaction"],
)
def test_a_coordinator_is_looked_for_anew_where_another_may_be_it(said, is_another):
    """Else the one that is not it would be asked until kafka.max.block.ms is over."""
    asking = requests.add_offsets(Step.ADD_OFFSETS, "t", ProducerIdentity(7, 0), "g", 60_000)
    first = next(asking)
    assert isinstance(asking.send(Reply(now_ms=0, value=said)), Wait)
    again = asking.send(Reply(now_ms=requests.WAIT_MS, value=None))
    assert (first.to.refresh, again.to.refresh) == (False, is_another)
