"""Calls of a producer whose transaction the broker has aborted after transaction.timeout.ms.

The responses are those of `chaffinch broker` and Apache Kafka 4: the epoch was raised, so all but an abort in version 2 is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.errors import Group, IllegalStateException, KafkaException, codes, group_of
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tests.producer.core.rig import OK, Answer, Rig
from tests.producer.core.transactions.test_manager import GROUP, OFFSETS, rig_in

TIMEOUT_MS = 4_000
FENCED = EndTxnResponse(error_code=codes.PRODUCER_FENCED.number)
STALE = Answer(codes.INVALID_PRODUCER_EPOCH, message="producer 4711 epoch 0 is fenced")


def timed_out(version: int, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A producer with an open transaction that the broker has aborted."""
    monkeypatch.setattr(Rig, "transaction_version", version)
    rig = rig_in(State.IN_TRANSACTION, **{"transaction.timeout.ms": TIMEOUT_MS, "max.block.ms": TIMEOUT_MS - 1})
    rig.sleep(2 * TIMEOUT_MS)
    return rig


def commit(rig: Rig) -> Any:
    refused = codes.INVALID_TXN_STATE if rig.transaction_version > 1 else codes.PRODUCER_FENCED
    rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=refused.number)]
    return rig.call(events.CommitCalled, f"commit {len(rig.calls)}")


def abort(rig: Rig) -> Any:
    rig.scripted[EndTxnRequest] = [] if rig.transaction_version > 1 else [FENCED]  # In version 2 it is done already (KIP-890).
    return rig.call(events.AbortCalled, f"abort {len(rig.calls)}")


def begin(rig: Rig) -> Any:
    return rig.call(events.BeginTransactionCalled, f"begin {len(rig.calls)}")


def send(rig: Rig) -> Any:
    assert rig.core.transaction is not None
    refusal = rig.core.transaction.refusal_of_send()
    if refusal is not None:
        return refusal
    value = chr(ord("b") + len(rig.fates))
    rig.send(value)
    rig.answer(STALE if rig.sent[-1].epoch == 0 else OK)
    return rig.fates[value]


def offsets(rig: Rig) -> Any:
    rig.scripted[AddOffsetsToTxnRequest] = [AddOffsetsToTxnResponse(error_code=codes.PRODUCER_FENCED.number)]
    return rig.call(events.SendOffsetsCalled, f"offsets {len(rig.calls)}", offsets=OFFSETS, group=GROUP)


def commit_next(rig: Rig) -> Any:
    rig.scripted.clear()
    return rig.call(events.CommitCalled, "the next commit")


Call = Callable[[Rig], Any]
ENDED = "the producer has ended"
WRONG_ORDER = "the order is wrong"
ORDERS: list[tuple[int, list[tuple[Call, object]]]] = [
    (1, [(commit, ENDED), (abort, ENDED), (begin, ENDED), (send, ENDED)]),
    (1, [(abort, ENDED), (begin, ENDED), (send, ENDED), (commit, ENDED)]),
    (1, [(send, ENDED), (commit, ENDED), (abort, ENDED), (begin, ENDED)]),
    (1, [(offsets, ENDED), (abort, ENDED), (begin, ENDED)]),
    (1, [(begin, WRONG_ORDER), (abort, ENDED)]),
    (2, [(commit, ENDED), (abort, ENDED), (begin, ENDED), (send, ENDED)]),
    (2, [(abort, "done"), (begin, "done"), (send, 0), (commit_next, "done")]),
    (2, [(send, ENDED), (commit, ENDED), (abort, ENDED), (begin, ENDED)]),
    (2, [(begin, WRONG_ORDER), (abort, "done"), (begin, "done"), (send, 0), (commit_next, "done")]),
]


@pytest.mark.parametrize(
    ("version", "order"), ORDERS, ids=[f"version {version}: " + ", ".join(call.__name__ for call, _ in order) for version, order in ORDERS]
)
def test_calls_after_the_broker_aborted_the_transaction(
    version: int, order: list[tuple[Call, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = timed_out(version, monkeypatch)
    first: KafkaException | None = None
    for call, expected in order:
        outcome = call(rig)
        if expected == ENDED:
            assert isinstance(outcome, KafkaException)
            assert group_of(outcome) is Group.APPLICATION_RECOVERABLE
            assert "the broker has aborted it" in str(outcome)
            first = first or outcome
            assert outcome.name == first.name, "every later call raises what ended the producer"
        elif expected == WRONG_ORDER:
            assert isinstance(outcome, IllegalStateException)
            assert "commit or abort it first" in str(outcome)
        else:
            assert outcome == expected
