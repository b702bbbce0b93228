"""Pushing batches: order, windows, sequences, retries and culprits, against a partition that checks sequences like a broker."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from chaffinch.client.backoff import RETRY_BACKOFF
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.spark.commit.messages import Rejection, StagedBatch, StagedBytes
from chaffinch.spark.commit.operations import BatchResponse, Lost, NextResponse, Operation, Reply, SendBatch, Step, Wait
from chaffinch.spark.commit.push import BYTES_IN_FLIGHT_MAX, IN_FLIGHT_MAX, ROUNDS_MAX, Fenced, Push, RestartTransaction
from chaffinch.spark.refusals import Refusal

IDENTITY = ProducerIdentity(7, 1)
ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
DICE = random.Random(7)

Steps: TypeAlias = Generator[Operation, Reply, None]
Script: TypeAlias = dict[str, Any]
"""Fields of a `BatchResponse`, and whether the batch is stored though."""
Judge: TypeAlias = Callable[[list[str]], Script | None]


def backoff_ms(failures: int) -> int:
    return RETRY_BACKOFF.wait_ms(failures, DICE)


def staged(records: Sequence[str], where: TopicPartition = ORDERS) -> StagedBatch:
    """A batch whose content is the list of its record names."""
    return StagedBatch(topic_partition=where, record_count=len(records), bytes=StagedBytes(data="|".join(records).encode(), byte_count=100))


def names_in(batch: StagedBatch) -> list[str]:
    assert batch.bytes.data is not None
    return batch.bytes.data.decode().split("|")


def next_batch(steps: Steps, reply: Reply | None = None) -> SendBatch:
    """The batch that is sent next."""
    operation = next(steps) if reply is None else steps.send(reply)
    assert isinstance(operation, SendBatch)
    return operation


class FakeLeader:
    """Stores what comes in sequence. `script`: for each batch that would be stored, in order, an answer in place of that (None: store)."""

    def __init__(self, script: Sequence[Script | None] = (), judge: Judge | None = None) -> None:
        self.script = deque(script)
        self.judge = judge
        self.stored: dict[TopicPartition, list[str]] = {}
        self.sequence: dict[TopicPartition, int] = {}
        self.sent: list[SendBatch] = []
        self.in_flight_max: dict[TopicPartition, list[int]] = {}
        self.under_way: deque[SendBatch] = deque()
        self.steady_ms = 0
        self.waits: list[int] = []
        self.is_cut = False
        self.culprits: list[tuple[str, str]] = []

    def run(self, push_steps: Steps) -> FakeLeader:
        """Drives a generator of `Push.send` to its end."""
        try:
            operation = next(push_steps)
            while True:
                value = self.perform(operation)
                operation = push_steps.send(Reply(steady_ms=self.steady_ms, value=value))
        except StopIteration:
            return self

    def perform(self, operation: Operation) -> BatchResponse | None:
        match operation:
            case SendBatch():
                self.is_cut = False
                self.sent.append(operation)
                self.under_way.append(operation)
                where = operation.batch.topic_partition
                under_way = sum(sent.batch.topic_partition == where for sent in self.under_way)
                self.in_flight_max.setdefault(where, []).append(under_way)
            case NextResponse():
                return self.answer(self.under_way.popleft())
            case Wait():
                self.waits.append(operation.ms)
                self.steady_ms += operation.ms
        return None

    def answer(self, sent: SendBatch) -> BatchResponse:
        if self.is_cut:
            # One connection: what was behind the lost one is lost with it.
            return BatchResponse(send_id=sent.send_id, lost=Lost(reason="cut"))
        names = names_in(sent.batch)
        record_indices = names if sent.record_indices is None else [names[index] for index in sent.record_indices]
        where = sent.batch.topic_partition
        expected = self.sequence.get(where, 0)
        if sent.base_sequence < expected:
            return BatchResponse(send_id=sent.send_id, code=codes.DUPLICATE_SEQUENCE_NUMBER)
        if sent.base_sequence > expected:
            return BatchResponse(send_id=sent.send_id, code=codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
        answer = self.script.popleft() if self.script else None
        if answer is None and self.judge is not None:
            answer = self.judge(record_indices)
        self.is_cut = answer is not None and "lost" in answer
        if answer is not None and not answer.get("stores"):
            return BatchResponse(send_id=sent.send_id, **{key: value for key, value in answer.items() if key != "stores"})
        self.stored.setdefault(where, []).extend(record_indices)
        self.sequence[where] = expected + len(record_indices)
        if answer is not None:
            return BatchResponse(send_id=sent.send_id, lost=answer["lost"])
        return BatchResponse(send_id=sent.send_id, code=codes.NONE)

    def handle_culprits(self, batch: StagedBatch, culprits: tuple[Rejection, ...]) -> Steps:
        names = names_in(batch)
        self.culprits += [(names[culprit.row], culprit.code.name) for culprit in culprits]
        return
        yield


def refused(code: codes.ErrorCode, *culprits: int, message: str = "why") -> Script:
    return {"code": code, "message": message, "culprits": tuple((index, code, message) for index in culprits)}


LOST = {"lost": Lost(reason="cut")}
LOST_BEFORE_SENT = {"lost": Lost(reason="refused", was_sent=False)}
LOST_AFTER_STORED = {"lost": Lost(reason="cut"), "stores": True}


def pushed(
    batches: Sequence[StagedBatch],
    script: Sequence[Script | None] = (),
    judge: Judge | None = None,
    deadline_ms: int = 60_000,
) -> FakeLeader:
    leader = FakeLeader(script, judge)
    push = Push(IDENTITY, deadline_ms, "transaction.timeout.ms=60000", backoff_ms)
    return leader.run(push.send(Step.PUSH, batches, leader.handle_culprits))


def names(count: int, prefix: str = "r") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_batches_go_out_in_order_with_consecutive_sequences() -> None:
    batches = [staged([f"{number}a", f"{number}b"]) for number in range(10)]
    leader = pushed(batches)
    assert leader.stored[ORDERS] == [f"{number}{letter}" for number in range(10) for letter in "ab"]
    assert [sent.base_sequence for sent in leader.sent] == list(range(0, 20, 2))


def test_first_batch_is_sent_alone_before_window_opens() -> None:
    leader = pushed([staged([str(number)]) for number in range(20)])
    assert leader.in_flight_max[ORDERS][0] == 1
    assert max(leader.in_flight_max[ORDERS]) == IN_FLIGHT_MAX
    # The second one was not sent before the first one's answer.
    assert leader.in_flight_max[ORDERS][1] == 1


def test_each_partition_has_its_own_window_and_sequences() -> None:
    leader = pushed([staged(["a"]), staged(["b"], OTHER), staged(["c"]), staged(["d"], OTHER)])
    assert leader.stored == {ORDERS: ["a", "c"], OTHER: ["b", "d"]}
    assert [sent.batch.topic_partition for sent in leader.sent[:2]] == [ORDERS, OTHER]


def test_bytes_in_flight_are_limited_over_all_partitions() -> None:
    """What the pushing process holds of a batch of any size."""
    size = BYTES_IN_FLIGHT_MAX // 3
    batches = []
    for number in range(60):
        batch = staged([str(number)], TopicPartition("orders", number % 20))
        batches.append(replace(batch, bytes=replace(batch.bytes, byte_count=size)))
    under_way = []

    class Watched(FakeLeader):
        def perform(self, operation: Operation) -> BatchResponse | None:
            value = super().perform(operation)
            under_way.append(len(self.under_way))
            return value

    leader = Watched()
    leader.run(Push(IDENTITY, 60_000, "", backoff_ms).send(Step.PUSH, batches, leader.handle_culprits))
    assert max(under_way) == 3
    # To the end, too: what is answered makes room.
    assert max(under_way[-20:]) == 3


def test_dead_letters_continue_the_sequences_of_a_partition() -> None:
    leader = FakeLeader()
    push = Push(IDENTITY, 60_000, "", backoff_ms)
    leader.run(push.send(Step.PUSH, [staged(["a", "b"])], leader.handle_culprits))
    leader.run(push.send(Step.PUSH_DEAD_LETTERS, [staged(["c"])], leader.handle_culprits))
    assert [sent.base_sequence for sent in leader.sent] == [0, 2]


@pytest.mark.parametrize(
    "failure",
    [
        refused(codes.NOT_LEADER_OR_FOLLOWER), refused(codes.REQUEST_TIMED_OUT), refused(codes.NOT_ENOUGH_REPLICAS),
        refused(codes.CORRUPT_MESSAGE), LOST, LOST_BEFORE_SENT, LOST_AFTER_STORED,
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", range(6))
def test_retriable_failure_is_retried_with_same_sequence(failure: Script, at: int) -> None:
    batches = [staged([f"{number}a", f"{number}b"]) for number in range(8)]
    leader = pushed(batches, script=[*[None] * at, failure])
    assert leader.stored[ORDERS] == [f"{number}{letter}" for number in range(8) for letter in "ab"]
    assert leader.waits


def test_leader_is_looked_up_once_after_failure() -> None:
    leader = pushed([staged([str(number)]) for number in range(3)], script=[refused(codes.NOT_LEADER_OR_FOLLOWER)])
    assert [sent.refresh for sent in leader.sent] == [False, True, False, False]


def nominal(waits: Sequence[int]) -> list[int]:
    """Each is a fifth shorter or longer by chance."""
    return [min((100, 200, 400, 800, 1_000), key=lambda ms: abs(ms - wait)) for wait in waits]


def test_backoff_grows_and_success_resets_it() -> None:
    failure = refused(codes.NOT_ENOUGH_REPLICAS)
    leader = pushed([staged(["a"]), staged(["b"])], script=[*[failure] * 3, None, failure, failure])
    assert nominal(leader.waits) == [100, 200, 400, 100, 200]
    assert leader.waits != nominal(leader.waits)


def test_other_partitions_continue_during_backoff_and_missing_response() -> None:
    late, others = staged(["late"]), [staged([str(number)], OTHER) for number in range(100)]
    steps = Push(IDENTITY, 60_000, "", backoff_ms).send(Step.PUSH, [late, *others], FakeLeader().handle_culprits)
    sent = [next_batch(steps), next_batch(steps, Reply(steady_ms=0))]
    waits = steps.send(Reply(steady_ms=0))
    refusal = BatchResponse(send_id=sent[0].send_id, code=codes.NOT_ENOUGH_REPLICAS)
    waits = steps.send(Reply(steady_ms=0, value=refusal))
    assert isinstance(waits, NextResponse)
    assert waits.until_ms is not None
    assert 80 <= waits.until_ms <= 120
    operation = steps.send(Reply(steady_ms=50, value=BatchResponse(send_id=sent[1].send_id, code=codes.NONE)))
    for _ in range(IN_FLIGHT_MAX):
        assert isinstance(operation, SendBatch)
        assert operation.batch.topic_partition == OTHER
        operation = steps.send(Reply(steady_ms=50))
    assert operation == waits
    again = next_batch(steps, Reply(steady_ms=waits.until_ms, value=None))
    assert (again.batch, again.refresh) == (late, True)
    last = steps.send(Reply(steady_ms=waits.until_ms))
    assert isinstance(last, NextResponse)
    assert last.until_ms is None


def test_backoffs_of_partitions_run_in_parallel() -> None:
    places = [TopicPartition("orders", number) for number in range(200)]
    leader = FakeLeader()
    leader.judge = lambda record_indices: refused(codes.NOT_LEADER_OR_FOLLOWER) if leader.steady_ms < 20_000 else None
    leader.run(Push(IDENTITY, 60_000, "", backoff_ms).send(Step.PUSH, [staged(["a"], tp) for tp in places], leader.handle_culprits))
    assert set(leader.stored) == set(places)
    assert 20_000 <= leader.steady_ms < 21_500


def test_retries_end_at_transaction_timeout() -> None:
    with pytest.raises(
        Refusal, match=r"not acknowledged within transaction\.timeout\.ms=60000; the last error was: NOT_ENOUGH_REPLICAS"
    ) as caught:
        pushed([staged(["a"])], script=[refused(codes.NOT_ENOUGH_REPLICAS)] * 10_000)
    assert caught.value.group is codes.Group.TRANSACTION_ABORTABLE


class TestCulprits:
    @pytest.mark.parametrize("at", range(4))
    def test_innocents_are_resent_with_the_same_sequences(self, at: int) -> None:
        batches = [staged(names(4, f"{number}-")) for number in range(5)]
        leader = pushed(batches, script=[None] * at + [refused(codes.INVALID_RECORD, 1, 3)])
        expected = [name for number in range(5) for name in names(4, f"{number}-") if name not in (f"{at}-1", f"{at}-3")]
        assert leader.stored[ORDERS] == expected
        assert leader.culprits == [(f"{at}-1", "INVALID_RECORD"), (f"{at}-3", "INVALID_RECORD")]

    def test_all_records_rejected(self) -> None:
        leader = pushed([staged(names(3)), staged(["good"])], script=[refused(codes.INVALID_TIMESTAMP, 0, 1, 2)])
        assert leader.stored[ORDERS] == ["good"]
        assert len(leader.culprits) == 3

    def test_indices_of_a_second_round_are_those_of_the_staged_batch(self) -> None:
        leader = pushed([staged(names(5))], script=[refused(codes.INVALID_RECORD, 1), refused(codes.INVALID_RECORD, 2)])
        assert leader.stored[ORDERS] == ["r0", "r2", "r4"]
        assert [name for name, _ in leader.culprits] == ["r1", "r3"]

    def test_batch_without_culprits_is_halved_to_single_record(self) -> None:
        def judge(record_indices: Sequence[str]) -> Script | None:
            return refused(codes.MESSAGE_TOO_LARGE) if "r5" in record_indices else None

        leader = pushed([staged(names(16)), staged(["after"])], judge=judge)
        assert leader.stored[ORDERS] == [name for name in names(16) if name != "r5"] + ["after"]
        assert leader.culprits == [("r5", "MESSAGE_TOO_LARGE")]

    def test_a_broker_that_names_one_culprit_at_a_time_does_not_make_it_quadratic(self) -> None:
        bad = {f"r{number}" for number in range(0, 400, 2)}

        def judge(record_indices: Sequence[str]) -> Script | None:
            first = next((index for index, name in enumerate(record_indices) if name in bad), None)
            return None if first is None else refused(codes.INVALID_RECORD, first)

        leader = pushed([staged(names(400))], judge=judge)
        assert leader.stored[ORDERS] == [name for name in names(400) if name not in bad]
        assert sum(len(sent.record_indices or names(400)) for sent in leader.sent) < 400 * (ROUNDS_MAX + 1) * 10

    def test_an_index_outside_the_batch_refuses_all(self) -> None:
        with pytest.raises(Refusal, match="blamed record 9 of a batch of 3"):
            pushed([staged(names(3))], script=[refused(codes.INVALID_RECORD, 9)])

    @pytest.mark.parametrize("possibly_written", [LOST, refused(codes.REQUEST_TIMED_OUT), refused(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)])
    def test_refusal_after_possibly_stored_attempt_restarts_transaction(self, possibly_written: Script) -> None:
        with pytest.raises(RestartTransaction, match="an earlier attempt may be stored"):
            pushed([staged(names(3))], script=[possibly_written, refused(codes.INVALID_RECORD, 0)])

    def test_refusal_after_unsent_attempt_is_a_plain_refusal(self) -> None:
        leader = pushed([staged(names(3))], script=[LOST_BEFORE_SENT, refused(codes.INVALID_RECORD, 0)])
        assert leader.stored[ORDERS] == ["r1", "r2"]

    def test_unknown_code_with_culprits_rejects_them(self) -> None:
        leader = pushed([staged(names(3))], script=[refused(codes.by_number(4711), 2)])
        assert leader.culprits == [("r2", "UNKNOWN_4711")]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (codes.INVALID_PRODUCER_EPOCH, Fenced), (codes.PRODUCER_FENCED, Fenced), (codes.INVALID_PRODUCER_ID_MAPPING, Fenced),
        (codes.INVALID_TXN_STATE, RestartTransaction), (codes.TRANSACTION_ABORTABLE, RestartTransaction),
        (codes.UNKNOWN_PRODUCER_ID, RestartTransaction),
        (codes.CONCURRENT_TRANSACTIONS, RestartTransaction), (codes.OUT_OF_ORDER_SEQUENCE_NUMBER, RestartTransaction),
        (codes.TOPIC_AUTHORIZATION_FAILED, Refusal), (codes.UNSUPPORTED_VERSION, Refusal), (codes.by_number(4711), Refusal),
    ],
)  # fmt: skip
def test_errors_not_caused_by_records(code: codes.ErrorCode, error: type[Any]) -> None:
    with pytest.raises(error):
        pushed([staged(["a"]), staged(["b"])], script=[refused(code)])


def test_restart_waits_for_all_batches_in_flight() -> None:
    """A batch that reaches its leader after the abort would begin a transaction of its own there, and be committed with the next."""
    leader = FakeLeader([refused(codes.INVALID_TXN_STATE)])
    push = Push(IDENTITY, 60_000, "", backoff_ms)
    with pytest.raises(RestartTransaction):
        leader.run(push.send(Step.PUSH, [staged(["a"]), staged(["b"], OTHER)], leader.handle_culprits))
    assert not leader.under_way


def test_a_refusal_carries_the_class_of_its_code() -> None:
    with pytest.raises(Refusal, match=r"KAFKA\[InvalidConfiguration\] TOPIC_AUTHORIZATION_FAILED: orders-0: why"):
        pushed([staged(["a"])], script=[refused(codes.TOPIC_AUTHORIZATION_FAILED)])


def test_possibly_stored_successor_restarts_transaction() -> None:
    """Taking sequences back behind a refused batch is right only when nothing after it can be in the log."""
    leader = FakeLeader()
    push = Push(IDENTITY, 60_000, "", backoff_ms)
    steps = push.send(Step.PUSH, [staged([f"{number}a", f"{number}b"]) for number in range(3)], leader.handle_culprits)
    first = next_batch(steps)
    steps.send(Reply(steady_ms=0))
    second = next_batch(steps, Reply(steady_ms=0, value=BatchResponse(send_id=first.send_id, code=codes.NONE)))
    third = next_batch(steps, Reply(steady_ms=0))
    steps.send(Reply(steady_ms=0))
    steps.send(
        Reply(
            steady_ms=0, value=BatchResponse(send_id=second.send_id, code=codes.INVALID_RECORD, culprits=((0, codes.INVALID_RECORD, "w"),))
        )
    )
    with pytest.raises(RestartTransaction, match="an earlier attempt may be stored"):
        steps.send(Reply(steady_ms=0, value=BatchResponse(send_id=third.send_id, lost=Lost(reason="cut"))))


def test_stored_batch_after_refused_predecessor_restarts_transaction() -> None:
    """It cannot happen with a broker that checks sequences; if it does, nothing of the transaction can be trusted."""
    leader = FakeLeader()
    push = Push(IDENTITY, 60_000, "", backoff_ms)
    steps = push.send(Step.PUSH, [staged([str(number)]) for number in range(3)], leader.handle_culprits)
    first = next_batch(steps)
    steps.send(Reply(steady_ms=0))
    second = next_batch(steps, Reply(steady_ms=0, value=BatchResponse(send_id=first.send_id, code=codes.NONE)))
    third = next_batch(steps, Reply(steady_ms=0))
    steps.send(Reply(steady_ms=0))
    steps.send(Reply(steady_ms=0, value=BatchResponse(send_id=second.send_id, code=codes.NOT_LEADER_OR_FOLLOWER)))
    with pytest.raises(RestartTransaction, match="stored a batch whose predecessor it refused"):
        steps.send(Reply(steady_ms=0, value=BatchResponse(send_id=third.send_id, code=codes.NONE)))


def test_failing_partition_reports_its_wait() -> None:
    """Also while a response of another partition is waited for; the one that has failed for longest."""
    push = Push(IDENTITY, 60_000, "transaction.timeout.ms=60000", lambda failures: 100)
    steps = push.send(Step.PUSH, [staged(["a"]), staged(["b"], OTHER)], FakeLeader().handle_culprits)
    first, second = next_batch(steps), next_batch(steps, Reply(steady_ms=0))
    answer = steps.send(Reply(steady_ms=0))
    assert isinstance(answer, NextResponse)
    assert answer.wait_info is None
    lost = Lost(reason="orders-0 does not exist")
    answer = steps.send(Reply(steady_ms=5, value=BatchResponse(send_id=first.send_id, lost=lost)))
    assert isinstance(answer, NextResponse)
    assert answer.wait_info is not None
    assert (answer.until_ms, answer.wait_info.line(3_005)) == (
        105,
        "an acknowledged batch for orders-0, for 3000 ms: orders-0 does not exist; "
        "retrying for up to 56995 ms more (transaction.timeout.ms)",
    )
    waiting = steps.send(Reply(steady_ms=9, value=BatchResponse(send_id=second.send_id, lost=lost)))
    assert isinstance(waiting, Wait)
    assert waiting.wait_info is not None
    assert waiting.wait_info.since_ms == 5
