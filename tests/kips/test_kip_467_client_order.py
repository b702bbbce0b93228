"""KIP-467, section 3.b.ii, "reset the sequence number": in which order batches follow a rejection, and under which numbers.

Decision 14 of the design, for one and for several batches in flight. Scenarios read as in `test_kip_467_client.py`.
"""

from __future__ import annotations

import pytest

from chaffinch.errors import (
    ErrorCode,
    InvalidRecordException,
    NetworkException,
    codes,
)
from tests.kips.refused_batches import rejected
from tests.producer.core.rig import LOST, OK, ORDERS_0, ORDERS_1, Answer, Rig


class TestOrder:
    """Decision 14: innocents keep their order, nothing of their partition overtakes them, and numbering restarts when all is quiet."""

    def test_innocents_are_sent_before_waiting_batches(self) -> None:
        rig = Rig()
        rig.send("abc")
        rig.send("de")
        rig.answer(rejected(1))
        assert rig.trace == ["abc@0/0", "ac@0/0"]
        rig.answer(OK)
        rig.answer(OK)
        assert rig.trace[-1] == "de@2/0"

    def test_second_batch_is_resent_after_the_innocents(self) -> None:
        rig = Rig()
        self._acknowledge_one(rig)
        rig.send("abc")
        rig.send("de")
        assert rig.trace[1:] == ["abc@1/0", "de@4/0"]
        rig.answer(rejected(1))
        rig.send("f")
        assert len(rig.trace) == 3, "while a batch is in flight nothing new is started"
        rig.answer(Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER))
        rig.sleep(200)
        rig.answer(OK)
        rig.answer(OK)
        rig.answer(OK)
        assert rig.trace[3:] == ["ac@1/0", "de@3/0", "f@5/0"]
        assert rig.core.is_idle

    def test_lost_second_batch_is_resent_under_its_old_sequence_first(self) -> None:
        rig = Rig()
        self._acknowledge_one(rig)
        rig.send("abc")
        rig.send("de")
        rig.answer(LOST, request=1)
        rig.answer(rejected(1))
        rig.sleep(5_000)
        assert rig.trace[3:] == ["de@4/0"], "its fate is open, so its numbers are not given up"
        rig.answer(Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER))
        rig.sleep(5_000)
        rig.answer(OK)
        rig.answer(OK)
        assert rig.trace[4:] == ["ac@0/1", "de@2/1"], "the attempt that was lost may still come, and is of no use then"

    def test_lost_and_refused_first_batch_holds_the_second(self) -> None:
        rig = Rig()
        self._acknowledge_one(rig)
        rig.send("abc")
        rig.send("de")
        rig.answer(LOST)
        rig.answer(Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER))
        rig.sleep(5_000)
        assert rig.trace[3:] == ["abc@1/0"]
        rig.answer(rejected(1))
        rig.answer(OK)
        assert rig.trace[4:] == ["de@0/1"]
        assert [type(rig.error(value)) for value in "abc"] == [NetworkException, InvalidRecordException, NetworkException]

    def test_first_acknowledgement_allows_more_in_flight(self) -> None:
        rig = Rig()
        for batch in ("a", "b", "c"):
            rig.send(batch)
        assert rig.trace == ["a@0/0"]
        rig.answer(OK)
        assert rig.trace == ["a@0/0", "b@1/0", "c@2/0"]

    def test_ten_idle_minutes_limit_to_one_in_flight(self) -> None:
        rig = Rig()
        self._acknowledge_one(rig)
        rig.sleep(600_001)
        rig.send("b")
        rig.send("c")
        assert rig.trace == ["z@0/0", "b@1/0"]

    def test_other_partitions_finish_the_old_epoch_and_restart_at_0(self) -> None:
        rig = Rig()
        rig.send("a", ORDERS_1)
        rig.send("b", ORDERS_0)
        rig.answer(rejected(), request=1)
        rig.send("c", ORDERS_0)
        rig.send("d", ORDERS_1)
        assert rig.trace == ["a@0/0", "b@0/0", "c@0/1"]
        rig.answer(LOST)
        rig.sleep(5_000)
        assert rig.trace[3:] == ["a@0/0"], "its number was given under the old epoch"
        rig.answer(OK, request=1)
        assert rig.trace[4:] == ["d@0/1"]

    def test_culprits_leave_other_partitions_alone(self) -> None:
        """Their numbers are given to the innocents, so the epoch stays, and no other partition has to finish its batches."""
        rig = Rig()
        for tp in (ORDERS_0, ORDERS_1):
            rig.send("y" if tp == ORDERS_0 else "z", tp)
            rig.answer(OK)
        rig.send("ab", ORDERS_0)
        rig.send("c", ORDERS_1)
        rig.answer(rejected(1))
        rig.send("d", ORDERS_1)
        assert rig.trace[2:] == ["ab@1/0", "c@1/0", "a@1/0", "d@2/0"]
        assert rig.core.context.counts["epoch_bumps"] == 0

    def test_exhausted_epoch_gets_a_new_producer_id(self) -> None:
        rig = Rig()
        rig.send("ab")
        rig.core.identity._own = rig.core.identity._own._replace(epoch=2**15 - 1)
        rig.core.response_handler.queue(ORDERS_0)._identity = rig.core.identity._own
        rig.sent.clear()
        rig.answer(rejected())
        rig.send("c")
        assert rig.trace == ["c@0/0"]

    @staticmethod
    def _acknowledge_one(rig: Rig) -> None:
        rig.send("z")
        rig.answer(OK)


class TestGaps:
    """Codes 45 and 59 without culprits: surely not stored, so sent with new numbers, while time and retries last."""

    @pytest.mark.parametrize("code", [codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID])
    def test_gap_code_gives_new_sequences(self, code: ErrorCode) -> None:
        rig = Rig()
        rig.send("ab")
        rig.answer(Answer(code))
        rig.sleep(200)
        rig.answer(OK)
        assert rig.trace == ["ab@0/0", "ab@0/1"]

    def test_gap_code_fails_after_all_retries(self) -> None:
        rig = Rig(options={"retries": 2})
        rig.send("ab")
        for _ in range(3):
            rig.answer(Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER))
            rig.sleep(2_000)
        assert rig.fate("ab") == ["OutOfOrderSequenceException no"] * 2
