"""`append` returns whether the core needs a round: if not, a round would have had no effect.

The shell wakes its thread only on that. A record whose round is forgotten stays until a response or another record arrives, or for ever.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import record_size
from chaffinch.producer.core.transactions.moves import State
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, ORDERS_1, RETURNS_0, TIMED_OUT, Answer, Rig, new_record

STEPS = 150
TPS = (ORDERS_0, ORDERS_0, ORDERS_1, RETURNS_0)
OUTCOMES: tuple[Answer | str, ...] = (
    OK, OK, OK, OK, LOST, NOT_SENT, TIMED_OUT, Answer(codes.NOT_LEADER_OR_FOLLOWER), Answer(codes.INVALID_RECORD, [0]),
    Answer(codes.CORRUPT_MESSAGE), Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER),
)  # fmt: skip
SLOW = (AddPartitionsToTxnRequest, InitProducerIdRequest, MetadataRequest)


class Callers:
    """Random calls of threads on a core whose shell sleeps until the next deadline unless a round is needed."""

    def __init__(self, rng: random.Random, *, is_transactional: bool) -> None:
        options = {
            "linger.ms": rng.choice([0, 5, 1_000]),
            "batch.size": rng.choice([1, 200, 300, 16_384]),
            "max.in.flight.requests.per.connection": rng.choice([1, 2, 5]),
            "max.request.size": rng.choice([300, 1_048_576]),
            "retry.backoff.max.ms": rng.choice([100, 5_000]),
            "delivery.timeout.ms": 40_000,
        }
        self.rng = rng
        self.rig = Rig(
            options=options | ({"transactional.id": "me"} if is_transactional else {"enable.idempotence": rng.choice([True, False])}),
            nodes=rng.choice([1, 2]),
            hold=set(rng.sample(SLOW, rng.randrange(3))),
        )
        self.values = iter(map(chr, range(0x4E00, 0x9FFF)))
        self.calls = map(str, range(STEPS))
        self.skipped_rounds = 0
        """Number of appends that needed no round."""
        if is_transactional:
            self.rig.call(events.InitTransactionsCalled, "init")

    def step(self) -> None:
        rig, rng = self.rig, self.rng
        match rng.randrange(8):
            case 0 | 1 | 2:
                self.hand_over()
            case 3:
                rig.sleep(rng.choice([0, 0, 1, 1, 10, 300, 50_000]))
            case 4:
                self.call()
            case 5 if rig.held:
                rig.release()
            case 6:
                self.wait_for_memory()
            case _ if rig.open:
                rig.answer(rng.choice(OUTCOMES), request=rng.randrange(len(rig.open)))

    def hand_over(self) -> None:
        """Append one or more records on one thread; it wakes the shell once for all that need a round."""
        transaction = self.rig.core.transaction
        if transaction is not None and transaction.state is not State.IN_TRANSACTION:
            return
        wakeup_ms = self.rig.core.next_deadline_ms
        rounds_needed = list(self.rng.choice([self.append_table, self.append_records, self.append_without_keys])())
        self.run_round(wakeup_ms, needs_round=any(rounds_needed))

    def append_table(self) -> Iterator[bool]:
        batches = ["".join(next(self.values) for _ in range(self.rng.randint(1, 3))) for _ in range(self.rng.randint(1, 3))]
        yield from self.rig.hand_over(*batches, tp=self.rng.choice(TPS))

    def append_records(self) -> Iterator[bool]:
        tp = self.rng.choice(TPS)
        for _ in range(self.rng.randint(1, 4)):
            value = next(self.values)
            yield self.append(tp, value, value.encode())

    def append_without_keys(self) -> Iterator[bool]:
        """Append records without keys: they stick to a partition until its batch is full, then join the next one."""
        core = self.rig.core
        for _ in range(self.rng.randint(1, 4)):
            value = next(self.values)
            content = value.encode()
            if core.join("orders", None, content, self.rig.steady_ms, value) is None:
                size = record_size(None, content, ())
                tp = TopicPartition("orders", core.choose_partition("orders", None, content, 2, size))
                yield self.append(tp, value, None)
                core.remember_sticky_batch(tp, None)

    def append(self, tp: TopicPartition, value: str, key: bytes | None) -> bool:
        content = value.encode()
        return self.rig.core.append(tp, new_record(key, content, value, tp.partition), self.rig.steady_ms)[1]

    def wait_for_memory(self) -> None:
        core = self.rig.core
        if core.callers.memory_waiters:
            core.callers.memory_waiters -= 1
            return
        wakeup_ms = core.next_deadline_ms
        self.run_round(wakeup_ms, needs_round=core.memory_wait_began())

    def call(self) -> None:
        rig, transaction = self.rig, self.rig.core.transaction
        name = next(self.calls)
        match None if transaction is None else transaction.state:
            case None:
                rig.call(events.FlushCalled, name)
            case State.READY:
                rig.call(events.BeginTransactionCalled, name)
            case State.IN_TRANSACTION if transaction is not None and not transaction.callers.has_any and self.rng.random() < 0.3:
                rig.call(events.CommitCalled, name)
            case State.ABORTABLE_ERROR if transaction is not None and not transaction.callers.has_any:
                rig.call(events.AbortCalled, name)

    def run_round(self, wakeup_ms: int | None, *, needs_round: bool) -> None:
        """Run a round if it is needed. If not, check that there is no work now, or before the shell wakes by itself."""
        rig = self.rig
        if needs_round:
            rig.step(events.TimePassed())
            return
        self.skipped_rounds += 1
        assert rig.core.handle(events.TimePassed(), rig.steady_ms) == []
        deadline_ms = rig.core.next_deadline_ms
        assert deadline_ms is None or (wakeup_ms is not None and wakeup_ms <= deadline_ms)


@pytest.mark.parametrize("seed", range(60))
def test_skipped_round_would_have_no_effect(seed: int) -> None:
    callers = Callers(random.Random(seed), is_transactional=seed % 3 == 0)
    for _ in range(STEPS):
        callers.step()
    assert callers.skipped_rounds
    assert callers.rig.fates


def test_record_that_closes_a_batch_needs_a_round() -> None:
    rig = Rig(options={"linger.ms": 1_000, "batch.size": 200})
    for tp in (ORDERS_0, ORDERS_1):
        rig.append("a", tp)
    rig.step(events.TimePassed())
    size, core = record_size(None, b"b", ()), rig.core
    for _ in range(100):
        tp = TopicPartition("orders", core.choose_partition("orders", None, b"b", 2, size))
        joins, other = core.accumulator.growing(tp) is not None, ORDERS_1 if tp == ORDERS_0 else ORDERS_0
        needs_wakeup = core.append(tp, new_record(None, b"b", "b", tp.partition, size=size), rig.steady_ms)[1]
        if joins and core.accumulator.growing(other) is None:
            assert needs_wakeup
            return
    raise AssertionError("no batch was closed for a record of another partition")
