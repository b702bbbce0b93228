"""KIP-467 within a transaction: a failed record makes it abortable, and its innocents fail with it (decisions 13, 14 and 16).

Scenarios read as in `test_kip_467_client.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.errors import (
    InvalidRecordException,
    TimeoutException,
    TransactionAbortableException,
    codes,
)
from chaffinch.producer.core import events
from tests.kips.refused_batches import INVALID, rejected
from tests.producer.core.rig import LOST, OK, Answer, Rig


def transactional(**more: Any) -> Rig:
    rig = Rig(options={"transactional.id": "t", **more})
    assert rig.call(events.InitTransactionsCalled, "init") == "done"
    assert rig.call(events.BeginTransactionCalled, "begin") == "done"
    return rig


class TestTransaction:
    """Decision 16: a failed record makes the transaction abortable; its innocents fail with it; a commit raises the culprit's own class."""

    def test_culprit_aborts_innocents_and_is_raised_by_the_commit(self) -> None:
        rig = transactional()
        rig.send("abc")
        rig.answer(rejected(1))
        assert rig.fate("abc") == ["TransactionAbortableException no", INVALID, "TransactionAbortableException no"]
        assert rig.error("a").__cause__ is rig.error("b")
        assert isinstance(rig.call(events.CommitCalled, "commit"), InvalidRecordException)
        assert rig.call(events.AbortCalled, "abort") == "done"

    def test_commit_raises_the_error_of_the_first_culprit(self) -> None:
        rig = transactional()
        rig.send("abcd")
        rig.answer(rejected(1, 3))
        error = rig.call(events.CommitCalled, "commit")
        assert (type(error), str(error)) == (InvalidRecordException, str(rig.error("b")))
        assert str(error) != str(rig.error("d"))

    @pytest.mark.parametrize(
        ("at_fault", "named"),
        [
            ([1], "record 1 of the batch's 9 was rejected"),
            ([1, 3, 4, 5, 6, 7, 8], "records 1, 3, 4, 5, 6 and 2 more of the batch's 9 were rejected"),
        ],
    )
    def test_error_of_an_innocent_names_the_culprits(self, at_fault: list[int], named: str) -> None:
        rig = transactional()
        rig.send("abcdefghi")
        rig.answer(rejected(*at_fault))
        assert str(rig.error("a")).startswith(
            f"Produce for orders-0: TRANSACTION_ABORTABLE (120): not at fault, but aborted with the transaction: {named}; not stored; "
        )
        assert str(rig.error("b")).startswith("Produce for orders-0, record 1: INVALID_RECORD (87): ")

    def test_error_of_an_innocent_of_unknown_fate_names_the_culprit(self) -> None:
        rig = transactional()
        rig.send("abc")
        rig.answer(LOST)
        rig.sleep(5_000)
        rig.answer(rejected(0))
        text = str(rig.error("b"))
        assert text.startswith("Produce for orders-0: TRANSACTION_ABORTABLE (120): ")
        assert "the next one was refused because of record 0 of its 3: whether this record is stored is unknown" in text

    def test_refused_batch_returns_its_sequences(self) -> None:
        rig = transactional()
        rig.send("abc")
        rig.answer(OK)
        rig.send("de")
        rig.answer(rejected(0))
        rig.call(events.AbortCalled, "abort")
        rig.call(events.BeginTransactionCalled, "begin again")
        rig.send("f")
        assert rig.trace == ["abc@0/0", "de@3/0", "f@3/0"]

    def test_unknown_fate_bumps_the_epoch_after_the_abort(self) -> None:
        rig = transactional()
        rig.send("abc")
        rig.answer(LOST)
        rig.sleep(5_000)
        rig.answer(rejected(0))
        assert rig.fate("abc") == ["InvalidRecordException possibly"] + ["TransactionAbortableException possibly"] * 2
        assert rig.call(events.AbortCalled, "abort") == "done"
        rig.call(events.BeginTransactionCalled, "begin again")
        rig.send("d")
        assert rig.trace[-1] == "d@0/1"

    def test_split_keeps_the_epoch(self) -> None:
        rig = transactional()
        rig.send("abcd")
        rig.answer(Answer(codes.MESSAGE_TOO_LARGE))
        rig.answer(OK)
        rig.answer(OK)
        assert rig.trace == ["abcd@0/0", "ab@0/0", "cd@2/0"]
        assert rig.call(events.CommitCalled, "commit") == "done"

    def test_waiting_batches_fail_with_the_transaction(self) -> None:
        rig = transactional()
        rig.send("ab")
        rig.send("c")
        rig.answer(rejected(0))
        assert rig.fate("c") == ["TransactionAbortableException no"]

    def test_expired_records_are_abortable_and_so_is_the_commit(self) -> None:
        rig = transactional(**{"delivery.timeout.ms": 35_000})
        rig.send("a")
        rig.answer(Answer(codes.NOT_ENOUGH_REPLICAS))
        rig.call(events.CommitCalled, "commit")
        rig.sleep(36_000)
        assert rig.fate("a") == ["TransactionAbortableException possibly"], "its last attempt was still without an answer"
        assert isinstance(rig.error("a").__cause__, TimeoutException)
        assert isinstance(rig.calls["commit"], TransactionAbortableException)
