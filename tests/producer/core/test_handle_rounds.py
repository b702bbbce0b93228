"""Rounds of `ProducerCore.handle`: skipped steps would have had no effect, and only waiting callers are woken."""

from __future__ import annotations

import random

import pytest

from chaffinch.errors import ErrorCode, KafkaException, codes
from chaffinch.identifiers import OffsetAndMetadata
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import WakeCallers
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tests.client.scripted_server import metadata
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, ORDERS_1, Answer, Rig

STEPS = 60
REFUSALS = [Answer(codes.NOT_LEADER_OR_FOLLOWER), Answer(codes.INVALID_RECORD, [0]), Answer(codes.CORRUPT_MESSAGE)]
OUTCOMES: tuple[Answer | str, ...] = (OK, OK, OK, LOST, NOT_SENT, *REFUSALS)


def idle_round_has_no_effect(rig: Rig) -> bool:
    """Whether the core is idle. If so, check that a full round has no effect and that no component has a deadline."""
    core, steady_ms = rig.core, rig.steady_ms
    if core._has_work:
        return False
    core._advance_records(steady_ms)
    assert core.context.out == []
    deadlines = (
        core.batch_sender.next_deadline_ms(steady_ms, skip_linger=False),
        core.completer.next_deadline_ms(),
        core.response_handler.next_deadline_ms(),
        core.callers.deadline_ms,
    )
    assert deadlines == (None, None, None, None)
    return True


@pytest.mark.parametrize("seed", range(8))
def test_skipped_round_of_an_idle_core_would_have_no_effect(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(options={"linger.ms": rng.choice([0, 5]), "enable.idempotence": rng.choice([True, False]), "delivery.timeout.ms": 40_000})
    values = iter(map(chr, range(0x4E00, 0x9000)))
    idle_rounds = 0
    for step in range(STEPS):
        match rng.randrange(5):
            case 0:
                rig.append(next(values), rng.choice([ORDERS_0, ORDERS_1]))
                rig.step(events.TimePassed())
            case 1:
                rig.sleep(rng.choice([1, 10, 300, 50_000]))
            case 2:
                rig.step(events.FlushCalled(call=f"flush {step}"))
            case _ if rig.open:
                rig.answer(rng.choice(OUTCOMES))
        idle_rounds += idle_round_has_no_effect(rig)
    assert idle_rounds
    assert rig.fates


@pytest.mark.parametrize("waiting", [0, 1])
def test_memory_waiter_is_woken_by_free_memory(waiting: int) -> None:
    rig, woken = rig_with_counted_wake_ups()
    rig.core.callers.memory_waiters = waiting
    rig.send("a")
    rig.answer(OK)
    assert len(woken) == waiting


def test_failed_transaction_wakes_waiting_callers() -> None:
    rig, woken = rig_with_counted_wake_ups({"transactional.id": "me"})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(Answer(codes.TOPIC_AUTHORIZATION_FAILED))
    assert rig.fate("a") == ["TopicAuthorizationException no"]
    assert woken


@pytest.mark.parametrize("code", [codes.INVALID_PRODUCER_EPOCH, codes.GROUP_AUTHORIZATION_FAILED], ids=lambda code: code.name)
def test_transaction_failed_by_coordinator_wakes_waiting_callers(code: ErrorCode) -> None:
    """Once with a fatal and once with an abortable error. No record fails: none has been sent."""
    rig, woken = rig_with_counted_wake_ups({"transactional.id": "me"})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.scripted[AddOffsetsToTxnRequest] = [AddOffsetsToTxnResponse(error_code=code.number)]
    woken.clear()
    rig.call(events.SendOffsetsCalled, "offsets", offsets={ORDERS_0: OffsetAndMetadata(1)}, group=GroupMetadata("group"))
    assert isinstance(rig.calls["offsets"], KafkaException)
    assert woken


def test_ready_made_batch_needs_a_round_unless_behind_another() -> None:
    rig = Rig(options={"linger.ms": 1000})
    assert rig.hand_over("a", "b") == [True, False]
    assert rig.hand_over("c", tp=ORDERS_1) == [True]
    rig.step(events.TimePassed())  # The first batch of each partition is sent, "b" remains at the front.
    assert rig.hand_over("d") == [False]
    rig.append("e", ORDERS_1)
    assert rig.hand_over("f", tp=ORDERS_1) == [True], "the record no longer lingers"
    while rig.open:
        rig.answer(OK)
    assert [rig.fate(value) for value in "abcdef"] == [["0"]] * 6
    assert rig.hand_over("g") == [True]


def test_memory_waiter_ends_lingering() -> None:
    rig = Rig(options={"linger.ms": 1000})
    rig.hand_over("a", "b")
    assert not rig.core.memory_wait_began(), "no batch lingers"
    rig.append("c")
    assert rig.core.memory_wait_began()
    assert rig.core.callers.memory_waiters == 2
    for size in (10, 1 << 20):
        rig.core.choose_partition("orders", None, b"d", 1, size)
    assert not rig.core.accumulator.lingers, "the second one does not fit into the batch"
    assert rig.core.memory_wait_began(), "the core has had no round yet"


def rig_with_counted_wake_ups(options: dict[str, str] | None = None) -> tuple[Rig, list[object]]:
    """A rig, and a list that gets one entry for each wake-up."""
    rig = Rig(options=options or {})
    woken: list[object] = []
    apply = rig._apply

    def counted(effect: object) -> None:
        if isinstance(effect, WakeCallers):
            woken.append(effect)
        apply(effect)

    rig._apply = counted  # type: ignore[method-assign]
    return rig, woken


def test_missing_metadata_is_recomputed_after_each_response() -> None:
    """Topics are not searched in each round: a known topic stays known until the next response, or until a new topic is used."""
    rig = Rig()
    watch, cluster = rig.core.context.metadata, rig.core.context.cluster
    rig.steady_ms += 60_000
    assert not watch.is_due(rig.steady_ms), "all topics are known"
    watch.use("payments", rig.steady_ms)
    assert watch.is_due(rig.steady_ms), "one is new"
    cluster.update(metadata({"payments": 1}, {1: 9092}), rig.steady_ms)
    assert not watch.is_due(rig.steady_ms)
    gone = metadata({"payments": 0}, {1: 9092})
    gone.topics[0].error_code = codes.LEADER_NOT_AVAILABLE.number
    cluster.forget("payments")
    cluster.update(gone, rig.steady_ms)
    assert watch.is_due(rig.steady_ms), "one has gone"


def test_all_ready_batches_are_sent_in_one_round() -> None:
    rig = Rig()
    rig.send("a")
    rig.answer(OK)
    for values in ("bcd", "ef"):
        rig.append(values)
        rig.core.accumulator.queue_of(ORDERS_0).close()
    rig.step(events.TimePassed())
    assert rig.trace[1:] == ["bcd@1/0", "ef@4/0"], "two waiting batches"
    rig.answer(OK)
    rig.answer(OK)
    rig.send("ghij")
    rig.answer(Answer(codes.MESSAGE_TOO_LARGE))
    assert rig.trace[3:] == ["ghij@6/0", "gh@6/0", "ij@8/0"], "two halves of a split batch"
