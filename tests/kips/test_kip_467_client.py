"""KIP-467, section 3: what the producer does with a rejected batch. Read as the specification.

Each scenario is a table: what was sent, what the broker answered, what was sent next (values@base sequence/epoch), the fate of every
record. Decisions 12 to 18 of the design settle what the KIP leaves open; each class names its own.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from chaffinch.errors import (
    InvalidRecordException,
    RecordTooLargeException,
    Stored,
    codes,
)
from chaffinch.producer.core import events
from tests.kips.refused_batches import INVALID, MIXED, TIMESTAMP, rejected
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, TIMED_OUT, Answer, Rig


class Scenario(NamedTuple):
    """`sent` has one entry per request, the first one included; `answers` one per request."""

    name: str
    records: str
    answers: list[Answer | str]
    sent: list[str]
    fates: list[str]


SCENARIOS = [
    Scenario("no culprit", "abc", [OK], ["abc@0/0"], ["0", "1", "2"]),
    # 3.b.ii: those named are removed, the rest is a new batch, "and reset the sequence number": to that of the batch refused.
    Scenario("one culprit", "abcd", [rejected(1), OK], ["abcd@0/0", "acd@0/0"], ["0", INVALID, "1", "2"]),
    Scenario("first and last", "abcd", [rejected(0, 3), OK], ["abcd@0/0", "bc@0/0"], [INVALID, "0", "1", INVALID]),
    Scenario("named twice", "abc", [rejected(1, 1), OK], ["abc@0/0", "ac@0/0"], ["0", INVALID, "1"]),
    Scenario("not in order", "abcd", [rejected(3, 0), OK], ["abcd@0/0", "bc@0/0"], [INVALID, "0", "1", INVALID]),
    Scenario("all are culprits", "abc", [rejected(0, 1, 2)], ["abc@0/0"], [INVALID] * 3),
    Scenario("a single record", "a", [rejected(0)], ["a@0/0"], [INVALID]),
    Scenario("one in each round", "abcd", [rejected(0), rejected(1), OK], ["abcd@0/0", "bcd@0/0", "bd@0/0"], [INVALID, "0", INVALID, "1"]),
    # 3.b.i: no record is named, so none is innocent.
    Scenario("no culprits named", "abc", [rejected()], ["abc@0/0"], [INVALID] * 3),
    # An invalid index: it is unknown which record is meant.
    Scenario("index beyond the batch", "abc", [rejected(1, 3)], ["abc@0/0"], [INVALID] * 3),
    Scenario("index below zero", "abc", [rejected(-1)], ["abc@0/0"], [INVALID] * 3),
    # 3.a: a retriable code means the whole batch again, whichever records are named, under its own numbers.
    Scenario("retriable with culprits", "abc", [rejected(1, code=codes.CORRUPT_MESSAGE), OK], ["abc@0/0", "abc@0/0"], ["0", "1", "2"]),
    Scenario(
        "retriable, then culprits",
        "abc",
        [Answer(codes.NOT_LEADER_OR_FOLLOWER), rejected(1), OK],
        ["abc@0/0", "abc@0/0", "ac@0/0"],
        ["0", INVALID, "1"],
    ),
    # One code per partition on the wire; each culprit's own comes with its index (tag 1467), or is the partition's.
    Scenario("timestamps", "abc", [rejected(0, 2, code=codes.INVALID_TIMESTAMP), OK], ["abc@0/0", "b@0/0"], [TIMESTAMP, "0", TIMESTAMP]),
    Scenario(
        "each its own code",
        "abcd",
        [rejected((0, codes.INVALID_TIMESTAMP), (1, codes.INVALID_RECORD), (2, codes.INVALID_COMPACTION_KEY), code=MIXED), OK],
        ["abcd@0/0", "d@0/0"],
        [TIMESTAMP, INVALID, "InvalidCompactionKeyException no", "0"],
    ),
    # Decision 17: an unknown code, with culprits, outside a transaction, is 3.b.ii like any other.
    Scenario(
        "unknown code",
        "abc",
        [rejected(1, code=codes.by_number(2467)), OK],
        ["abc@0/0", "ac@0/0"],
        ["0", "UnknownServerException no", "1"],
    ),
    # KIP numbering: 85 is INVALID_RECORD, 45 with culprits INVALID_COMPACTION_KEY.
    Scenario("85", "abc", [rejected(1, numbering="kip"), OK], ["abc@0/0", "ac@0/0"], ["0", INVALID, "1"]),
    Scenario(
        "45 with culprits",
        "abc",
        [rejected(1, code=codes.INVALID_COMPACTION_KEY, numbering="kip"), OK],
        ["abc@0/0", "ac@0/0"],
        ["0", "InvalidCompactionKeyException no", "1"],
    ),
    # Decision 18: too large is halved, down to single records.
    Scenario(
        "too large",
        "abcd",
        [Answer(codes.MESSAGE_TOO_LARGE), OK, Answer(codes.MESSAGE_TOO_LARGE), OK, Answer(codes.MESSAGE_TOO_LARGE)],
        ["abcd@0/0", "ab@0/0", "cd@2/0", "c@2/0", "d@3/0"],
        ["0", "1", "0", "RecordTooLargeException no"],
    ),
]  # fmt: skip


class TestThreeB:
    """3.a, 3.b.i and 3.b.ii of the KIP for an idempotent producer."""

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    def test_scenario_gives_requests_and_fates(self, scenario: Scenario) -> None:
        rig = Rig()
        rig.send(scenario.records)
        for answer in scenario.answers:
            rig.sleep(150)  # Beyond the first backoff, so that what waits to go again goes.
            rig.answer(answer)
        assert rig.trace == scenario.sent
        assert rig.fate(scenario.records) == scenario.fates
        assert not rig.open
        assert rig.core.is_idle

    def test_innocents_are_resent_without_idempotence(self) -> None:
        rig = Rig(options={"enable.idempotence": False})
        rig.send("abc")
        rig.answer(rejected(1))
        rig.answer(OK)
        assert rig.trace == ["abc", "ac"]
        assert rig.fate("abc") == ["0", INVALID, "1"]

    def test_acks_0_has_no_culprits_and_no_offsets(self) -> None:
        rig = Rig(options={"acks": "0"})
        rig.send("abc")
        rig.written()
        assert rig.fate("abc") == ["-1"] * 3

    def test_culprits_are_removed_from_compressed_batches(self) -> None:
        rig = Rig(options={"compression.type": "gzip"})
        rig.send("abc")
        rig.answer(rejected(1))
        rig.answer(OK)
        assert rig.trace == ["abc@0/0", "ac@0/0"]
        assert rig.fate("abc") == ["0", INVALID, "1"]

    def test_error_names_the_record_and_the_fate_of_the_others(self) -> None:
        rig = Rig()
        rig.send("abc")
        rig.answer(rejected(1, message="the whole batch"))
        error = rig.error("b")
        assert error.topic_partition == ORDERS_0
        assert [(c.batch_index, c.code, c.message) for c in error.culprits] == [(1, codes.INVALID_RECORD, "bad 1")]
        assert "record 1 of 3" in error.message
        assert "key 'b'" in error.message
        assert "the other 2 records are sent again" in error.message

    def test_memory_is_given_back_record_by_record(self) -> None:
        rig = Rig()
        free = rig.core.accumulator.memory_free
        rig.send("abcd")
        assert rig.core.accumulator.memory_free < free
        rig.answer(rejected(1))
        between = rig.core.accumulator.memory_free
        rig.answer(OK)
        assert between < rig.core.accumulator.memory_free == free


class TestRounds:
    """Decision 12: at once, no attempt, within the original time; after eight rounds the rest is halved."""

    def test_resending_innocents_needs_no_attempt_and_no_wait(self) -> None:
        rig = Rig(options={"enable.idempotence": False, "retries": 0})
        rig.send("abcde")
        for _ in range(4):
            rig.answer(rejected(0))  # No time passes.
        rig.answer(OK)
        assert rig.trace == ["abcde", "bcde", "cde", "de", "e"]
        assert rig.fate("abcde") == [INVALID] * 4 + ["0"]

    def test_batch_is_halved_after_eight_rounds(self) -> None:
        rig = Rig()
        records = "abcdefghijklmnopqrst"
        rig.send(records)
        for _ in range(9):
            rig.answer(rejected(0))
        assert rig.trace[8:] == ["ijklmnopqrst@0/0", "jklmno@0/0"]
        rig.answer(OK)
        assert rig.trace[-1] == "pqrst@6/0"
        rig.answer(rejected(0))
        assert rig.trace[-2:] == ["qr@6/0", "st@8/0"], "the broker knows the producer by now"
        rig.answer(OK)
        rig.answer(OK)
        assert rig.core.is_idle
        assert [value for value in records if rig._fate(value) == INVALID] == [*"abcdefghi", "p"]

    def test_resent_innocents_keep_the_delivery_timeout(self) -> None:
        rig = Rig(options={"delivery.timeout.ms": 30_000})
        rig.send("abc")
        rig.sleep(20_000)
        rig.answer(rejected(1))
        rig.sleep(10_001)
        assert rig.fate("abc") == ["TimeoutException possibly", INVALID, "TimeoutException possibly"]


class Fate(NamedTuple):
    """`before`: outcomes of earlier attempts; then the batch `abc` is refused with record 1 as culprit."""

    name: str
    before: list[Answer | str]
    is_resent: bool


FATES = [
    Fate("refused at once", [], True),
    Fate("time-out", [TIMED_OUT], False),
    Fate("connection lost", [LOST], False),
    Fate("code 7", [Answer(codes.REQUEST_TIMED_OUT)], False),
    Fate("code 20", [Answer(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)], False),
    Fate("never left", [NOT_SENT], True),
    Fate("code 2", [Answer(codes.CORRUPT_MESSAGE)], True),
    Fate("code 6", [Answer(codes.NOT_LEADER_OR_FOLLOWER)], True),
    Fate("code 19", [Answer(codes.NOT_ENOUGH_REPLICAS)], True),
    Fate("lost, then never left", [LOST, NOT_SENT], False),
    Fate("lost, then code 2", [LOST, Answer(codes.CORRUPT_MESSAGE)], False),
    Fate("lost, then code 6", [LOST, Answer(codes.NOT_LEADER_OR_FOLLOWER)], False),
]


UNCLEAR = (codes.NETWORK_EXCEPTION, codes.REQUEST_TIMED_OUT, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class TestFate:
    """Decision 13: a refusal proves that this attempt was not stored, not that an earlier one was not."""

    @pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
    def test_innocents_are_resent_only_if_surely_not_stored(self, fate: Fate) -> None:
        rig = Rig()
        rig.send("abc")
        for answer in fate.before:
            rig.answer(answer)
            rig.sleep(5_000)
        rig.answer(rejected(1))
        if fate.is_resent:
            rig.answer(OK)
            assert rig.trace[-1] == "ac@0/0"
            assert rig.fate("abc") == ["0", INVALID, "1"]
        else:
            assert set(rig.trace) == {"abc@0/0"}
            assert rig.error("b").stored is Stored.POSSIBLY
            assert isinstance(rig.error("b"), InvalidRecordException)
            for innocent in "ac":
                assert rig.error(innocent).stored is Stored.POSSIBLY
                assert rig.error(innocent).code in UNCLEAR, "the attempt that got no clear answer, not a later one"
                assert isinstance(rig.error(innocent).__cause__, InvalidRecordException)
                assert "unknown" in rig.error(innocent).message
        assert rig.core.is_idle

    @pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
    def test_halves_are_resent_only_if_surely_not_stored(self, fate: Fate) -> None:
        rig = Rig()
        rig.send("abc")
        for answer in fate.before:
            rig.answer(answer)
            rig.sleep(5_000)
        rig.answer(Answer(codes.MESSAGE_TOO_LARGE))
        if fate.is_resent:
            rig.answer(OK)
            assert rig.trace[-2:] == ["ab@0/0", "c@2/0"]
        else:
            for record in "abc":
                assert rig.error(record).stored is Stored.POSSIBLY
                assert not isinstance(rig.error(record), RecordTooLargeException), "of none of them that is known"
                assert isinstance(rig.error(record).__cause__, RecordTooLargeException)

    def test_batch_with_lost_response_is_resent_under_the_same_sequence(self) -> None:
        rig = Rig()
        rig.send("abc")
        rig.answer(LOST)
        rig.sleep(5_000)
        rig.answer(Answer(base_offset=7))
        assert rig.trace == ["abc@0/0", "abc@0/0"]
        assert rig.fate("abc") == ["7", "8", "9"]

    def test_duplicate_without_offset_counts_as_written(self) -> None:
        rig = Rig()
        rig.send("ab")
        rig.answer(LOST)
        rig.sleep(5_000)
        rig.answer(Answer(codes.DUPLICATE_SEQUENCE_NUMBER))
        assert rig.fate("ab") == ["-1", "-1"]

    def test_unknown_fate_bumps_the_epoch(self) -> None:
        rig = Rig()
        rig.send("abc")
        rig.answer(LOST)
        rig.sleep(5_000)
        rig.answer(rejected(1))
        rig.send("de")
        assert rig.trace[-1] == "de@0/1"

    def test_expired_record_has_stored_and_cause(self) -> None:
        rig = Rig(options={"delivery.timeout.ms": 40_000})
        rig.send("a")
        rig.answer(Answer(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message="two of three"))
        rig.sleep(1_000)
        rig.send("b")
        rig.sleep(40_000)
        assert rig.fate("ab") == ["TimeoutException possibly", "TimeoutException no"]
        cause = rig.error("a").__cause__
        assert cause is not None
        assert "two of three" in str(cause)

    def test_clear_refusal_after_an_unclear_one_stays_possibly_stored(self) -> None:
        rig = Rig(options={"delivery.timeout.ms": 31_000, "request.timeout.ms": 1_000})
        rig.send("a")
        rig.answer(LOST)
        rig.sleep(5_000)
        rig.answer(Answer(codes.CORRUPT_MESSAGE))
        rig.steady_ms += 30_000
        rig.step(events.TimePassed())
        assert rig.fate("a") == ["TimeoutException possibly"]


def test_one_bad_record_never_kills_the_producer() -> None:
    """Decision 17."""
    rig = Rig()
    for code in (codes.INVALID_RECORD, codes.UNKNOWN_SERVER_ERROR, codes.by_number(999), codes.INVALID_PRODUCER_EPOCH):
        rig.fates.clear()
        rig.send("a")
        rig.answer(Answer(code))
        assert rig._fate("a") != "open"
    rig.send("b")
    rig.answer(OK)
    assert rig.fate("b") == ["0"]


def test_single_too_large_record_is_named() -> None:
    rig = Rig()
    rig.send("a")
    rig.answer(Answer(codes.MESSAGE_TOO_LARGE, message="limit 100"))
    assert isinstance(rig.error("a"), RecordTooLargeException)
    assert rig.error("a").topic_partition == ORDERS_0
    assert rig.error("a").message == "limit 100"
