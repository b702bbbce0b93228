"""KIP-467, section 3.b.ii, with several batches in flight: what becomes of those behind a refused one (decisions 13 and 14).

Each scenario is a table: what was sent, what the broker answered to which open request, what was sent next (values@base sequence/epoch),
the fate of every record. Each begins with an acknowledged `z`, because until then one batch at a time is in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import pytest

from chaffinch.errors import (
    InvalidRecordException,
    KafkaException,
    OutOfOrderSequenceException,
    TimeoutException,
    TransactionAbortableException,
    codes,
)
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.in_flight import PredecessorState
from chaffinch.producer.core.options import IDEMPOTENT_IN_FLIGHT_MAX
from chaffinch.producer.core.refusals.batch_responses import BatchResponse, Situation
from chaffinch.producer.core.refusals.culprits import FailAll, judge
from chaffinch.records.byte_columns import NO_ENTRIES
from tests.kips.refused_batches import INVALID, rejected
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, TIMED_OUT, Answer, Rig

UNKNOWN = "NetworkException possibly"
ABORTED = "TransactionAbortableException no"
GAP = Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
MOVED = Answer(codes.NOT_LEADER_OR_FOLLOWER)
TOO_LARGE = Answer(codes.MESSAGE_TOO_LARGE)
LATER = "five seconds pass"

Step: TypeAlias = "Answer | str | tuple[int, Answer | str]"
"""The outcome of the oldest open request, or of another one: (its place among the open ones, outcome)."""


def at(offset: int) -> Answer:
    return Answer(base_offset=offset)


class Scenario(NamedTuple):
    """`sent`: all that follows `z`. `fates`: of the records in their order."""

    name: str
    batches: str
    steps: list[Step]
    sent: str
    fates: list[str]


SCENARIOS = [
    # What is behind is refused for the gap, is surely not stored, and goes again behind the innocents, at once and in its old order.
    Scenario("a culprit in the first", "abc de f", [rejected(1), GAP, GAP, at(1), at(3), at(5)],
             "abc@1/0 de@4/0 f@6/0 ac@1/0 de@3/0 f@5/0", ["1", INVALID, "2", "3", "4", "5"]),
    Scenario("a culprit in the second", "ab cd ef", [at(1), rejected(0), GAP, at(3), at(4)],
             "ab@1/0 cd@3/0 ef@5/0 d@3/0 ef@4/0", ["1", "2", INVALID, "3", "4", "5"]),
    Scenario("a culprit in the last", "ab cd", [at(1), rejected(1), at(3)], "ab@1/0 cd@3/0 c@3/0", ["1", "2", "3", INVALID]),
    # Brokers look at records before they look at sequences: all are refused for their own culprits, in one round trip.
    Scenario("a culprit in each", "ab cd ef", [rejected(0), rejected(0), rejected(1), at(1), at(2), at(3)],
             "ab@1/0 cd@3/0 ef@5/0 b@1/0 d@2/0 e@3/0", [INVALID, "1", INVALID, "2", "3", INVALID]),
    Scenario("all of the first are culprits", "ab cd", [rejected(0, 1), GAP, at(1)], "ab@1/0 cd@3/0 cd@1/0", [INVALID, INVALID, "1", "2"]),
    Scenario("a broker that names no record", "ab cd", [rejected(), GAP, at(1)], "ab@1/0 cd@3/0 cd@0/1", [INVALID, INVALID, "1", "2"]),
    Scenario("a broker that names one that is not there", "ab cd", [rejected(2), GAP, at(1)],
             "ab@1/0 cd@3/0 cd@0/1", [INVALID, INVALID, "1", "2"]),
    Scenario("a broker that names one at a time", "abc de", [rejected(0), GAP, rejected(0), GAP, at(1), at(2)],
             "abc@1/0 de@4/0 bc@1/0 de@3/0 c@1/0 de@2/0", [INVALID, INVALID, "1", "2", "3"]),
    Scenario("a broker that took what is behind", "ab cd", [rejected(0), at(1), at(3)], "ab@1/0 cd@3/0 b@0/1", [INVALID, "3", "1", "2"]),
    Scenario("too large", "abcd ef", [TOO_LARGE, GAP, at(1), at(3), at(5)],
             "abcd@1/0 ef@5/0 ab@1/0 cd@3/0 ef@5/0", ["1", "2", "3", "4", "5", "6"]),
    # 3.a: what may still succeed keeps its numbers, and so does what is behind it.
    Scenario("the first retriable, a gap behind it", "ab cd ef", [MOVED, GAP, GAP, LATER, at(1), at(3), at(5)],
             "ab@1/0 cd@3/0 ef@5/0 ab@1/0 cd@3/0 ef@5/0", ["1", "2", "3", "4", "5", "6"]),
    Scenario("a gap before the front has its answer", "ab cd", [(1, GAP), MOVED, LATER, at(1), at(3)],
             "ab@1/0 cd@3/0 ab@1/0 cd@3/0", ["1", "2", "3", "4"]),
    Scenario("all moved", "ab cd ef", [MOVED, MOVED, MOVED, LATER, at(1), LATER, at(3), LATER, at(5)],
             "ab@1/0 cd@3/0 ef@5/0 ab@1/0 cd@3/0 ef@5/0", ["1", "2", "3", "4", "5", "6"]),
    Scenario("retriable, then refused", "abc de", [MOVED, GAP, LATER, rejected(1), at(1), at(3)],
             "abc@1/0 de@4/0 abc@1/0 ac@1/0 de@3/0", ["1", INVALID, "2", "3", "4"]),
    Scenario("never left, then refused", "abc de", [NOT_SENT, NOT_SENT, LATER, rejected(1), at(1), at(3)],
             "abc@1/0 de@4/0 abc@1/0 ac@1/0 de@3/0", ["1", INVALID, "2", "3", "4"]),
    # Without an answer the number is kept: the broker recognises what it has.
    Scenario("all responses lost", "ab cd ef", [LOST, LOST, LOST, LATER, at(1), LATER, at(3), LATER, at(5)],
             "ab@1/0 cd@3/0 ef@5/0 ab@1/0 cd@3/0 ef@5/0", ["1", "2", "3", "4", "5", "6"]),
    # Its lost attempt may still come, and would fit behind what is written next: but for another epoch.
    Scenario("the last one's response lost, the first refused", "abc de", [(1, LOST), rejected(1), LATER, GAP, at(1), at(3)],
             "abc@1/0 de@4/0 de@4/0 ac@0/1 de@2/1", ["1", INVALID, "2", "3", "4"]),
    Scenario("stored all the same", "ab cd", [Answer(codes.REQUEST_TIMED_OUT), at(3), LATER, at(1)],
             "ab@1/0 cd@3/0 ab@1/0", ["1", "2", "3", "4"]),
    # Decision 13: a batch whose first response was lost is refused: its innocents may be there. Behind it nothing is guessed either.
    Scenario("lost, then refused; a gap behind it", "abc de", [LOST, GAP, LATER, rejected(1), at(1)],
             "abc@1/0 de@4/0 abc@1/0 de@0/1", [UNKNOWN, "InvalidRecordException possibly", UNKNOWN, "1", "2"]),
    Scenario("both lost, then one refused and one with a gap", "abc de", [LOST, LOST, LATER, rejected(1), LATER, GAP],
             "abc@1/0 de@4/0 abc@1/0 de@4/0", [UNKNOWN, "InvalidRecordException possibly", UNKNOWN, UNKNOWN, UNKNOWN]),
    Scenario("lost and forgotten", "ab cd", [LOST, at(3), LATER, GAP], "ab@1/0 cd@3/0 ab@1/0", [UNKNOWN, UNKNOWN, "3", "4"]),
    # A fence without a transaction: each batch fails for itself, and the producer lives.
    Scenario("fenced", "ab cd", [Answer(codes.INVALID_PRODUCER_EPOCH)] * 2, "ab@1/0 cd@3/0", ["InvalidProducerEpochException no"] * 4),
]  # fmt: skip


def play(rig: Rig, batches: str, steps: list[Step]) -> None:
    """Send the batches, and let the steps happen. Each record ends once: the rig sees to it."""
    for batch in batches.split():
        rig.send(batch)
    for step in steps:
        if step == LATER:
            rig.sleep(5_000)
        else:
            tp, outcome = step if isinstance(step, tuple) else (0, step)
            rig.answer(outcome, request=tp)


def begun(**options: Any) -> Rig:
    rig = Rig(options=options)
    if "transactional.id" in options:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send("z")
    rig.answer(OK)
    return rig


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_gives_requests_and_fates(scenario: Scenario) -> None:
    rig = begun()
    play(rig, scenario.batches, scenario.steps)
    assert " ".join(rig.trace[1:]) == scenario.sent
    assert rig.fate(scenario.batches.replace(" ", "")) == scenario.fates
    assert rig.core.is_idle
    assert rig.core.accumulator.memory_free == rig.core.accumulator.memory_bytes


class TestRoundTrips:
    """One more round trip per affected batch; a batch without a culprit pays nothing."""

    def test_accepted_batches_do_not_wait(self) -> None:
        rig = begun()
        play(rig, "a b c d e f g", [OK] * 3)
        assert rig.trace[1:] == ["a@1/0", "b@2/0", "c@3/0", "d@4/0", "e@5/0", "f@6/0", "g@7/0"]
        assert len(rig.open) == 4

    def test_innocents_and_following_batches_are_resent_at_once(self) -> None:
        rig = begun()
        play(rig, "ab cd ef gh ij", [rejected(0), *[GAP] * 4, OK])
        assert rig.trace[6:] == ["b@1/0", "cd@2/0", "ef@4/0", "gh@6/0", "ij@8/0"]

    def test_in_flight_batches_are_limited_to_five(self) -> None:
        rig = begun()
        play(rig, "a b c d e f g", [])
        assert len(rig.open) == IDEMPOTENT_IN_FLIGHT_MAX

    def test_oldest_unanswered_batch_stays_among_the_last_five(self) -> None:
        """The oldest without an answer stays among the last five, so that its repetition is recognised."""
        rig = begun()
        play(rig, "a b c d e f", [(1, OK), (1, OK), (1, OK), (1, OK)])
        assert rig.trace[-1] == "e@5/0"
        rig.answer(OK)
        assert rig.trace[-1] == "f@6/0"

    @pytest.mark.parametrize("count", [1, 3])
    def test_option_limits_in_flight_batches(self, count: int) -> None:
        rig = begun(**{"max.in.flight.requests.per.connection": count})
        play(rig, "a b c d e f", [])
        assert len(rig.open) == count


class TestWithoutIdempotence:
    """Order is kept only with one in flight, as in Kafka; each record ends once with any number."""

    def test_without_idempotence_any_number_is_in_flight(self) -> None:
        rig = Rig(options={"acks": "1", "max.in.flight.requests.per.connection": 9})
        play(rig, "a b c d e f g h i j", [])
        assert rig.trace == [*"abcdefghi"]

    def test_innocents_are_sent_before_waiting_batches(self) -> None:
        rig = Rig(options={"acks": "1", "max.in.flight.requests.per.connection": 2})
        play(rig, "ab cd ef", [rejected(0), at(0), at(2), at(3)])
        assert rig.trace == ["ab", "cd", "b", "ef"]
        assert rig.fate("abcdef") == [INVALID, "2", "0", "1", "3", "4"]

    def test_order_is_kept_with_one_in_flight(self) -> None:
        rig = Rig(options={"acks": "1", "max.in.flight.requests.per.connection": 1})
        play(rig, "ab cd", [MOVED, LATER, rejected(0), at(0), at(1)])
        assert rig.trace == ["ab", "ab", "b", "cd"]

    def test_acks_0_completes_without_responses(self) -> None:
        rig = Rig(options={"acks": "0"})
        play(rig, "a b", [])
        rig.written()
        rig.written()
        assert rig.fate("ab") == ["-1", "-1"]


class TestTime:
    """`delivery.timeout.ms` ends in the middle: records fail, numbers wait for the answer."""

    OPTIONS = {"delivery.timeout.ms": 40_000}  # noqa: RUF012

    def expired(self, *outcomes: Answer | str) -> Rig:
        """`ab` expired, `cd` sent 20 s later in flight behind it."""
        rig = begun(**self.OPTIONS)
        rig.send("ab")
        for outcome in outcomes:
            rig.answer(outcome)
        rig.sleep(20_000)
        rig.send("cd")
        rig.sleep(20_001)
        assert rig.fate("abcd") == ["TimeoutException possibly"] * 2 + ["open"] * 2
        return rig

    def test_late_response_keeps_the_sequence(self) -> None:
        rig = self.expired()
        play(rig, "ef", [OK, OK, OK])
        assert rig.trace[1:] == ["ab@1/0", "cd@3/0", "ef@5/0"]

    def test_expired_batch_not_stored_bumps_the_epoch(self) -> None:
        rig = self.expired()
        play(rig, "ef", [MOVED, GAP, GAP, OK, OK])
        assert rig.trace[4:] == ["cd@0/1", "ef@2/1"]
        assert rig.core.is_idle

    def test_expired_batch_of_unknown_fate_bumps_the_epoch(self) -> None:
        rig = self.expired()
        play(rig, "ef", [LOST, GAP, GAP, OK, OK])
        assert rig.trace[4:] == ["cd@0/1", "ef@2/1"]

    def test_lost_responses_after_expiry_bump_the_epoch(self) -> None:
        rig = self.expired()
        play(rig, "", [LOST, TIMED_OUT, LATER, GAP])
        assert rig.fate("cd") == ["TimeoutException possibly"] * 2
        rig.send("ef")
        assert rig.trace[3:] == ["cd@3/0", "ef@0/1"]

    @pytest.mark.parametrize("predecessors", [PredecessorState.OPEN, PredecessorState.FAILED, PredecessorState.UNSTORED])
    def test_expired_batch_after_a_gap_fails_with_a_timeout(self, predecessors: PredecessorState) -> None:
        """The error is not the gap that another batch has left."""
        situation = Situation(topic_partition=ORDERS_0, count=1, keys_of=lambda _: NO_ENTRIES, predecessors=predecessors, may_retry=False)
        verdict = judge(BatchResponse(code=codes.OUT_OF_ORDER_SEQUENCE_NUMBER), situation)
        assert isinstance(verdict, FailAll)
        assert isinstance(verdict.error, TimeoutException)
        assert isinstance(verdict.error.__cause__, OutOfOrderSequenceException)


class TestTransaction:
    """Within a transaction the epoch stays: numbers are taken back, and only those of batches that are surely not stored."""

    def test_split_resends_following_batches(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "abcd ef g", [TOO_LARGE, GAP, GAP, at(1), at(3), at(5), at(7)])
        assert rig.trace[4:] == ["ab@1/0", "cd@3/0", "ef@5/0", "g@7/0"]
        assert rig.fate("abcdefg") == ["1", "2", "3", "4", "5", "6", "7"]
        assert rig.call(events.CommitCalled, "commit") == "done"

    def test_split_before_a_lost_batch_aborts(self) -> None:
        """The lost attempt may still come, and fit behind the halves; a transaction has no other epoch to keep it out with."""
        rig = begun(**{"transactional.id": "t"})
        play(rig, "abcd ef", [TOO_LARGE, LOST, LATER, GAP])
        assert rig.fate("abcdef") == [ABORTED] * 4 + ["TransactionAbortableException possibly"] * 2
        self.goes_on_after_the_abort(rig, "g@0/1")

    def test_retriable_code_resends_following_batches(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "ab cd", [MOVED, GAP, LATER, at(1), at(3)])
        assert rig.trace[3:] == ["ab@1/0", "cd@3/0"]
        assert rig.call(events.CommitCalled, "commit") == "done"

    def test_culprit_aborts_following_batches(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "abc de f", [rejected(1), GAP, GAP])
        assert rig.fate("abcdef") == [ABORTED, INVALID, ABORTED, ABORTED, ABORTED, ABORTED]
        assert isinstance(rig.call(events.CommitCalled, "commit"), InvalidRecordException)
        self.goes_on_after_the_abort(rig, "g@1/0")

    def test_numbers_of_an_unknown_fate_use_up_the_epoch(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "ab cd", [LOST, GAP, LATER, rejected(0)])
        assert rig.fate("abcd") == ["InvalidRecordException possibly", "TransactionAbortableException possibly", ABORTED, ABORTED]
        self.goes_on_after_the_abort(rig, "g@0/1")

    def test_unknown_fate_uses_up_the_epoch_though_later_sequences_could_be_reused(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "ab cd", [(1, rejected(0)), LOST, LATER, rejected(0)])
        self.goes_on_after_the_abort(rig, "g@0/1")

    def test_split_before_a_stored_batch_bumps_the_epoch(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "abcd ef", [TOO_LARGE, at(1)])
        assert rig.fate("abcdef") == [ABORTED] * 4 + ["1", "2"]
        assert isinstance(rig.call(events.CommitCalled, "commit"), TransactionAbortableException)
        self.goes_on_after_the_abort(rig, "g@0/1")

    def test_unexplained_gap_aborts_and_bumps_the_epoch(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "ab", [GAP])
        assert isinstance(rig.error("a"), OutOfOrderSequenceException)
        assert isinstance(rig.call(events.CommitCalled, "commit"), KafkaException)
        self.goes_on_after_the_abort(rig, "g@0/1")

    def test_a_fence_ends_the_producer(self) -> None:
        rig = begun(**{"transactional.id": "t"})
        play(rig, "ab cd ef", [Answer(codes.PRODUCER_FENCED), GAP, LOST])
        assert rig.fate("abef") == ["ProducerFencedException no"] * 2 + ["ProducerFencedException possibly"] * 2
        assert not [value for value in "abcdef" if rig._fate(value) == "open"]
        assert rig.core.is_idle

    @staticmethod
    def goes_on_after_the_abort(rig: Rig, sent: str) -> None:
        assert rig.call(events.AbortCalled, "abort") == "done"
        rig.call(events.BeginTransactionCalled, "begin again")
        rig.send("g")
        assert rig.trace[-1] == sent


FRONTS: dict[str, tuple[Answer | str, dict[str, Any]]] = {
    "a culprit": (rejected(0), {}),
    "no record named": (rejected(), {}),
    "too large": (TOO_LARGE, {}),
    "not allowed": (Answer(codes.TOPIC_AUTHORIZATION_FAILED), {}),
    "abortable": (Answer(codes.TRANSACTION_ABORTABLE), {}),
    "retriable, until no attempt is left": (MOVED, {"retries": 1}),
    "unclear, until no attempt is left": (Answer(codes.REQUEST_TIMED_OUT), {"retries": 1}),
    "lost, until no attempt is left": (LOST, {"retries": 1}),
    "late": (LOST, {"delivery.timeout.ms": 1_000, "request.timeout.ms": 500}),
    "fenced": (Answer(codes.PRODUCER_FENCED), {}),
    "unknown": (Answer(codes.by_number(999)), {}),
}


@pytest.mark.parametrize("behind", [GAP, Answer(codes.UNKNOWN_PRODUCER_ID)], ids=["gap", "forgotten"])
@pytest.mark.parametrize("called", [None, events.CommitCalled, events.AbortCalled])
@pytest.mark.parametrize("predecessors", FRONTS)
def test_gap_left_by_another_batch_is_not_reported_in_a_transaction(predecessors: str, called: type | None, behind: Answer) -> None:
    """Five batches in flight, the first refused: those behind it fail with the transaction, or with what has ended the producer."""
    answer, options = FRONTS[predecessors]
    rig = begun(**{"transactional.id": "t"}, **options)
    rig.send("a")
    rig.sleep(800 if predecessors == "late" else 0)
    for batch in ("bc", "de", "fg", "hi"):
        rig.send(batch)
    rig.sleep(300 if predecessors == "late" else 0)
    if called is events.CommitCalled:
        rig.call(called, "call")
    first = rig.open[0]
    rig.answer(answer)
    if called is events.AbortCalled:
        rig.call(called, "call")
    while rig.open:
        rig.answer(answer if rig.open[0].message == first.message else behind)
        rig.sleep(300)
    ends = {"fenced": "ProducerFencedException", "unknown": "UnknownServerException"}
    assert {rig._fate(value).partition(" ")[0] for value in "bcdefghi"} == {ends.get(predecessors, "TransactionAbortableException")}
