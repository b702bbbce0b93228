"""Transaction version 2 (KIP-890): who is written to adds itself, and each end of a transaction raises the epoch."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.client.connections import ResponseReceived
from chaffinch.errors import ApiException, ErrorCode, ProducerFencedException, Stored, codes
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.produce_requests import VERSION_THAT_ADDS
from chaffinch.producer.core.exception_handler import NonRetriableResponse
from chaffinch.producer.core.transactions.manager import CONCURRENT_WAIT_MS
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.transactions.requests import Step, transaction_version_of
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.producer.core.rig import LOST, OK, ORDERS_0, ORDERS_1, PRODUCER_ID, Answer, Rig, committed
from tests.producer.core.transactions.test_manager import GROUP, OFFSETS, REFUSED, rig_in, run_whole

LOOK_UPS = (MetadataRequest, FindCoordinatorRequest)


@pytest.fixture(autouse=True)
def version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "transaction_version", 2)


def asked(rig: Rig) -> list[type]:
    """Requests but for Produce and those that look something up."""
    return [type(request) for request in rig.requests if not isinstance(request, LOOK_UPS)]


def ends(rig: Rig) -> list[tuple[bool, int]]:
    """Each EndTxn: whether it commits, and its epoch."""
    return [(request.committed, request.producer_epoch) for request in rig.requests if isinstance(request, EndTxnRequest)]


def transaction(rig: Rig, value: str, end: type = events.CommitCalled) -> None:
    """One with a record, ended."""
    rig.call(events.BeginTransactionCalled, f"begin {value}")
    rig.send(value)
    rig.answer(OK)
    rig.call(end, f"end {value}")
    rig.sleep(1_000)
    assert rig.calls[f"end {value}"] == "done"


def test_nothing_is_added_and_every_end_raises_the_epoch() -> None:
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin a")
    rig.send("a")
    rig.answer(OK)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
    assert rig.call(events.CommitCalled, "end a") == "done"
    transaction(rig, "b", events.AbortCalled)
    transaction(rig, "c")
    assert asked(rig) == [InitProducerIdRequest, TxnOffsetCommitRequest, EndTxnRequest, EndTxnRequest, EndTxnRequest]
    assert rig.trace == ["a@0/0", "b@0/1", "c@0/2"]
    assert ends(rig) == [(True, 0), (False, 1), (True, 2)]


def test_several_partitions_go_at_once() -> None:
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.append("a", ORDERS_0)
    rig.append("b", ORDERS_1)
    rig.step(events.TimePassed())
    assert sorted(rig.trace) == ["a@0/0", "b@0/0"]


@pytest.mark.parametrize(("request_type", "version"), [(EndTxnRequest, 5), (TxnOffsetCommitRequest, 5), (InitProducerIdRequest, None)])
@pytest.mark.parametrize("spoken", [1, 2])
def test_requests_use_versions_of_the_transaction_version(
    monkeypatch: pytest.MonkeyPatch, request_type: type, version: int | None, spoken: int
) -> None:
    monkeypatch.setattr(Rig, "transaction_version", spoken)
    rig = Rig(options={"transactional.id": "t"}, hold={request_type})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
    rig.call(events.CommitCalled, "commit")
    (held,) = rig.held
    assert held.version_max == (version if spoken == 2 else None)


def left_with_nothing() -> Rig:
    """In a transaction whose only record a handler has dropped."""
    rig = Rig(options={"transactional.id": "t"}, says={"x": NonRetriableResponse.SWALLOW})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("x")
    rig.answer(Answer(codes.INVALID_RECORD, [0]))
    return rig


def test_a_transaction_that_has_nothing_after_all_is_not_committed() -> None:
    """The coordinator may not know of it, and refuses to commit what it does not know."""
    rig = left_with_nothing()
    assert rig.fate("x") == ["dropped"]
    assert rig.call(events.CommitCalled, "commit") == "done"
    transaction(rig, "b")
    assert ends(rig) == [(False, 0), (True, 1)]
    assert rig.trace == ["x@0/0", "b@0/1"]


def test_an_end_without_an_answer_is_repeated_under_its_epoch() -> None:
    """By which the coordinator knows that it is the same; what then comes late is kept out by the next epoch."""
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [LOST]
    transaction(rig, "a")
    transaction(rig, "b")
    assert ends(rig) == [(True, 0), (True, 0), (True, 1)]
    assert rig.trace == ["a@0/0", "b@0/1"]
    assert asked(rig).count(InitProducerIdRequest) == 1


def test_the_identity_of_the_answer_counts() -> None:
    """After the last epoch it is another producer id."""
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [EndTxnResponse(producer_id=PRODUCER_ID + 1, producer_epoch=0)]
    transaction(rig, "a")
    transaction(rig, "b")
    assert [(batch.producer_id, str(batch)) for batch in rig.sent] == [(PRODUCER_ID, "a@0/0"), (PRODUCER_ID + 1, "b@0/0")]


def test_after_an_answer_without_an_identity_one_is_asked_for() -> None:
    """Of a broker that the others are ahead of."""
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [EndTxnResponse()]
    transaction(rig, "a")
    rig.call(events.BeginTransactionCalled, "begin b")
    rig.send("b")
    assert rig.trace == ["a@0/0", "b@0/1"]
    assert asked(rig) == [InitProducerIdRequest, EndTxnRequest, InitProducerIdRequest, AddPartitionsToTxnRequest]


def test_numbers_left_behind_cost_no_epoch_of_their_own() -> None:
    """A batch that may be stored and failed: the abort has raised the epoch."""
    rig = rig_in(State.READY, **{"delivery.timeout.ms": 1_000, "request.timeout.ms": 500})
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(LOST)
    rig.sleep(2_000)
    rig.answer(LOST)
    rig.sleep(2_000)
    assert rig.fate("a") == ["TransactionAbortableException possibly"]
    rig.call(events.AbortCalled, "abort")
    rig.sleep(2_000)
    assert rig.calls["abort"] == "done"
    transaction(rig, "b")
    assert rig.trace[-1] == "b@0/1"
    assert asked(rig) == [InitProducerIdRequest, EndTxnRequest, EndTxnRequest]


class TestWhileTheLastOneIsBeingCompleted:
    """The first that is written to cannot add itself yet: it is tried again soon, and that is no failed attempt."""

    def test_records(self) -> None:
        rig = rig_in(State.READY, retries=1)
        transaction(rig, "a")
        rig.call(events.BeginTransactionCalled, "begin b")
        rig.send("b")
        for _ in range(3):
            rig.answer(Answer(codes.CONCURRENT_TRANSACTIONS))
            rig.sleep(CONCURRENT_WAIT_MS)
        rig.answer(OK)
        assert rig.call(events.CommitCalled, "end b") == "done"
        assert rig.trace == ["a@0/0", *["b@0/1"] * 4]

    def test_offsets(self) -> None:
        rig = rig_in(State.READY)
        transaction(rig, "a")
        rig.call(events.BeginTransactionCalled, "begin b")
        rig.hold.add(TxnOffsetCommitRequest)
        rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
        for _ in range(3):
            (sent,) = rig.held
            rig.held.clear()
            rig.step(
                ResponseReceived(address=sent.address, token=sent.token, message=committed(sent.message, codes.CONCURRENT_TRANSACTIONS))
            )
            rig.sleep(CONCURRENT_WAIT_MS)
        rig.release()
        assert rig.calls["offsets"] == "done"

    def test_once_it_is_open_that_is_like_any_other_answer(self) -> None:
        rig = rig_in(State.READY)
        rig.call(events.BeginTransactionCalled, "begin")
        rig.send("a")
        rig.answer(OK)
        rig.send("b")
        rig.answer(Answer(codes.CONCURRENT_TRANSACTIONS))
        rig.sleep(CONCURRENT_WAIT_MS)
        assert rig.trace == ["a@0/0", "b@1/0"]


@pytest.mark.parametrize("told", [(2, 0), (2, 1)])
def test_the_latest_word_counts_from_the_next_transaction_on(told: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "transaction_version", 1)
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.connect(*told)
    rig.send("a")
    assert AddPartitionsToTxnRequest in asked(rig)
    assert rig.open[0].version_max == VERSION_THAT_ADDS - 1
    rig.answer(OK)
    rig.hold.add(EndTxnRequest)
    rig.call(events.CommitCalled, "end")
    assert rig.held[0].version_max is None
    rig.hold.clear()
    rig.release()
    assert rig.calls["end"] == "done"
    monkeypatch.setattr(Rig, "transaction_version", 2)
    transaction(rig, "b")
    assert asked(rig).count(AddPartitionsToTxnRequest) == 1


@pytest.mark.parametrize("level", [0, 1])
def test_earlier_features_are_ignored(level: int) -> None:
    rig = Rig(options={"transactional.id": "t"})
    rig.connect(2, epoch=7)
    rig.connect(level, epoch=6)
    rig.call(events.InitTransactionsCalled, "init")
    transaction(rig, "a")
    assert AddPartitionsToTxnRequest not in asked(rig)
    rig.connect(level, epoch=8)
    transaction(rig, "b")
    assert AddPartitionsToTxnRequest in asked(rig)


def test_what_may_come_late_of_version_1_is_kept_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has gone up between two transactions, the end of the first has an answer that got lost."""
    monkeypatch.setattr(Rig, "transaction_version", 1)
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [LOST]
    transaction(rig, "a")
    rig.connect(2, epoch=1)
    rig.call(events.BeginTransactionCalled, "begin b")
    rig.send("b")
    rig.sleep(1_000)
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "end b") == "done"
    monkeypatch.setattr(Rig, "transaction_version", 2)
    transaction(rig, "c")
    assert rig.trace[:2] == ["a@0/0", "b@0/1"]
    assert asked(rig).count(InitProducerIdRequest) == 2
    assert asked(rig).count(AddPartitionsToTxnRequest) == 2, "the one that comes after what is late, and no later one"


@pytest.mark.parametrize(
    ("step", "code", "call", "error", "state"),
    [row for row in REFUSED if row[0] not in (Step.ADD_PARTITIONS, Step.ADD_OFFSETS)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_refused_fails_its_call_by_its_group(step: Step, code: ErrorCode, call: str, error: type[Any] | None, state: State) -> None:
    rig = run_whole(step, code)
    assert isinstance(rig.calls[call], error or ApiException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state


def test_an_abort_that_is_refused_ends_the_producer() -> None:
    """The coordinator aborts what it does not know, too: it refuses when the transaction has come to another end."""
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(Answer(codes.TOPIC_AUTHORIZATION_FAILED))
    rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=codes.INVALID_TXN_STATE.number)]
    rig.call(events.AbortCalled, "abort")
    assert isinstance(rig.calls["abort"], ApiException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is State.FATAL_ERROR


@pytest.mark.parametrize("is_first", [True, False], ids=["which has it", "whose answer got lost"])
def test_what_a_broker_has_is_committed(is_first: bool) -> None:
    """However it is known: from the answer, or from that to a repetition."""
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    if not is_first:
        rig.answer(LOST)
        rig.sleep(1_000)
    rig.answer(OK if is_first else Answer(codes.DUPLICATE_SEQUENCE_NUMBER))
    assert rig.call(events.CommitCalled, "end") == "done"
    assert ends(rig) == [(True, 0)]


def test_commit_without_content_is_never_in_doubt() -> None:
    rig = left_with_nothing()
    rig.scripted[EndTxnRequest] = [LOST, EndTxnResponse(error_code=codes.PRODUCER_FENCED.number)]
    rig.call(events.CommitCalled, "commit")
    rig.sleep(1_000)
    assert isinstance(rig.calls["commit"], ProducerFencedException)
    assert rig.calls["commit"].stored is not Stored.POSSIBLY


@pytest.mark.parametrize(("levels", "version"), [({}, 1), *(({"transaction.version": level}, min(2, max(1, level))) for level in range(4))])
def test_which_version_is_spoken(levels: dict[str, int], version: int) -> None:
    assert transaction_version_of(levels) == version


def test_what_is_under_way_is_sent_again_though_the_transaction_has_failed() -> None:
    """Whether it is stored is to be known."""
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.send("x", ORDERS_1)
    rig.answer(LOST)
    rig.answer(Answer(codes.INVALID_RECORD))
    rig.sleep(1_000)
    rig.answer(OK)
    assert rig.fate("a") == ["0"]
    assert rig.call(events.AbortCalled, "abort") == "done"


def test_open_transaction_with_records_is_logged() -> None:
    rig = rig_in(State.READY)
    transaction_of = rig.core.transaction
    assert transaction_of is not None
    rig.call(events.BeginTransactionCalled, "begin")
    assert transaction_of.left_open(is_cut_off=True) is None
    rig.send("a")
    assert "is left open" in (transaction_of.left_open(is_cut_off=True) or "")
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "end") == "done"
    assert transaction_of.left_open(is_cut_off=True) is None
