"""Transaction version 2 (KIP-890): partitions are added by the write itself, and each end of a transaction raises the epoch."""

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
from tests.producer.core.transactions.test_manager import GROUP, OFFSETS, REFUSED, rig_in, run_transaction

LOOK_UPS = (MetadataRequest, FindCoordinatorRequest)


@pytest.fixture(autouse=True)
def version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "transaction_version", 2)


def request_types(rig: Rig) -> list[type]:
    """Types of all requests except Produce and lookups."""
    return [type(request) for request in rig.requests if not isinstance(request, LOOK_UPS)]


def ends(rig: Rig) -> list[tuple[bool, int]]:
    """Each EndTxn: whether it commits, and its epoch."""
    return [(request.committed, request.producer_epoch) for request in rig.requests if isinstance(request, EndTxnRequest)]


def transaction(rig: Rig, value: str, end: type = events.CommitCalled) -> None:
    """Run one transaction with a record."""
    rig.call(events.BeginTransactionCalled, f"begin {value}")
    rig.send(value)
    rig.answer(OK)
    rig.call(end, f"end {value}")
    rig.sleep(1_000)
    assert rig.calls[f"end {value}"] == "done"


def test_no_partitions_are_added_and_every_end_raises_the_epoch() -> None:
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin a")
    rig.send("a")
    rig.answer(OK)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
    assert rig.call(events.CommitCalled, "end a") == "done"
    transaction(rig, "b", events.AbortCalled)
    transaction(rig, "c")
    assert request_types(rig) == [InitProducerIdRequest, TxnOffsetCommitRequest, EndTxnRequest, EndTxnRequest, EndTxnRequest]
    assert rig.trace == ["a@0/0", "b@0/1", "c@0/2"]
    assert ends(rig) == [(True, 0), (False, 1), (True, 2)]


def test_several_partitions_are_sent_at_once() -> None:
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.append("a", ORDERS_0)
    rig.append("b", ORDERS_1)
    rig.step(events.TimePassed())
    assert sorted(rig.trace) == ["a@0/0", "b@0/0"]


@pytest.mark.parametrize(("request_type", "version"), [(EndTxnRequest, 5), (TxnOffsetCommitRequest, 5), (InitProducerIdRequest, None)])
@pytest.mark.parametrize("cluster_version", [1, 2])
def test_requests_use_versions_of_the_transaction_version(
    monkeypatch: pytest.MonkeyPatch, request_type: type, version: int | None, cluster_version: int
) -> None:
    monkeypatch.setattr(Rig, "transaction_version", cluster_version)
    rig = Rig(options={"transactional.id": "t"}, hold={request_type})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
    rig.call(events.CommitCalled, "commit")
    (held,) = rig.held
    assert held.version_max == (version if cluster_version == 2 else None)


def transaction_with_dropped_record() -> Rig:
    """A transaction whose only record the handler has dropped."""
    rig = Rig(options={"transactional.id": "t"}, handler_responses={"x": NonRetriableResponse.SWALLOW})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("x")
    rig.answer(Answer(codes.INVALID_RECORD, [0]))
    return rig


def test_transaction_whose_records_were_dropped_is_aborted() -> None:
    """The coordinator may not have it, and refuses to commit an unknown transaction."""
    rig = transaction_with_dropped_record()
    assert rig.fate("x") == ["dropped"]
    assert rig.call(events.CommitCalled, "commit") == "done"
    transaction(rig, "b")
    assert ends(rig) == [(False, 0), (True, 1)]
    assert rig.trace == ["x@0/0", "b@0/1"]


def test_end_without_response_is_repeated_with_its_epoch() -> None:
    """The epoch identifies the repetition; late requests are then fenced by the next epoch."""
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [LOST]
    transaction(rig, "a")
    transaction(rig, "b")
    assert ends(rig) == [(True, 0), (True, 0), (True, 1)]
    assert rig.trace == ["a@0/0", "b@0/1"]
    assert request_types(rig).count(InitProducerIdRequest) == 1


def test_producer_id_of_the_end_response_is_used() -> None:
    """After the last epoch the response has another producer id."""
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [EndTxnResponse(producer_id=PRODUCER_ID + 1, producer_epoch=0)]
    transaction(rig, "a")
    transaction(rig, "b")
    assert [(batch.producer_id, str(batch)) for batch in rig.sent] == [(PRODUCER_ID, "a@0/0"), (PRODUCER_ID + 1, "b@0/0")]


def test_end_response_without_producer_id_causes_init_producer_id() -> None:
    """A broker of an older version responds without them."""
    rig = rig_in(State.READY)
    rig.scripted[EndTxnRequest] = [EndTxnResponse()]
    transaction(rig, "a")
    rig.call(events.BeginTransactionCalled, "begin b")
    rig.send("b")
    assert rig.trace == ["a@0/0", "b@0/1"]
    assert request_types(rig) == [InitProducerIdRequest, EndTxnRequest, InitProducerIdRequest, AddPartitionsToTxnRequest]


def test_unused_sequences_need_no_epoch_beyond_that_of_the_abort() -> None:
    """The failed batch may be stored, but the abort has raised the epoch."""
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
    assert request_types(rig) == [InitProducerIdRequest, EndTxnRequest, EndTxnRequest]


class TestConcurrentTransactions:
    """The previous transaction is still being completed: the first write is retried soon, and that counts as no attempt."""

    def test_records_are_retried_without_counting_an_attempt(self) -> None:
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

    def test_offsets_are_retried(self) -> None:
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

    def test_open_transaction_retries_with_the_normal_backoff(self) -> None:
        rig = rig_in(State.READY)
        rig.call(events.BeginTransactionCalled, "begin")
        rig.send("a")
        rig.answer(OK)
        rig.send("b")
        rig.answer(Answer(codes.CONCURRENT_TRANSACTIONS))
        rig.sleep(CONCURRENT_WAIT_MS)
        assert rig.trace == ["a@0/0", "b@1/0"]


@pytest.mark.parametrize("features", [(2, 0), (2, 1)])
def test_new_version_applies_from_the_next_transaction_on(features: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "transaction_version", 1)
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.connect(*features)
    rig.send("a")
    assert AddPartitionsToTxnRequest in request_types(rig)
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
    assert request_types(rig).count(AddPartitionsToTxnRequest) == 1


@pytest.mark.parametrize("level", [0, 1])
def test_earlier_features_are_ignored(level: int) -> None:
    rig = Rig(options={"transactional.id": "t"})
    rig.connect(2, epoch=7)
    rig.connect(level, epoch=6)
    rig.call(events.InitTransactionsCalled, "init")
    transaction(rig, "a")
    assert AddPartitionsToTxnRequest not in request_types(rig)
    rig.connect(level, epoch=8)
    transaction(rig, "b")
    assert AddPartitionsToTxnRequest in request_types(rig)


def test_late_requests_of_version_1_are_fenced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is upgraded between two transactions, and the EndTxn response of the first was lost."""
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
    assert request_types(rig).count(InitProducerIdRequest) == 2
    assert request_types(rig).count(AddPartitionsToTxnRequest) == 2, "only the one after the late request"


@pytest.mark.parametrize(
    ("step", "code", "call", "error", "state"),
    [row for row in REFUSED if row[0] not in (Step.ADD_PARTITIONS, Step.ADD_OFFSETS)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_refused_request_fails_its_call_by_the_error_group(
    step: Step, code: ErrorCode, call: str, error: type[Any] | None, state: State
) -> None:
    rig = run_transaction(step, code)
    assert isinstance(rig.calls[call], error or ApiException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state


def test_refused_abort_ends_the_producer() -> None:
    """The coordinator aborts unknown transactions too: it refuses only if the transaction has ended otherwise."""
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(Answer(codes.TOPIC_AUTHORIZATION_FAILED))
    rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=codes.INVALID_TXN_STATE.number)]
    rig.call(events.AbortCalled, "abort")
    assert isinstance(rig.calls["abort"], ApiException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is State.FATAL_ERROR


@pytest.mark.parametrize("is_first", [True, False], ids=["acknowledged", "response lost"])
def test_stored_record_is_committed(is_first: bool) -> None:
    """Whether the first response reports it, or the response to the repetition."""
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
    rig = transaction_with_dropped_record()
    rig.scripted[EndTxnRequest] = [LOST, EndTxnResponse(error_code=codes.PRODUCER_FENCED.number)]
    rig.call(events.CommitCalled, "commit")
    rig.sleep(1_000)
    assert isinstance(rig.calls["commit"], ProducerFencedException)
    assert rig.calls["commit"].stored is not Stored.POSSIBLY


@pytest.mark.parametrize(("levels", "version"), [({}, 1), *(({"transaction.version": level}, min(2, max(1, level))) for level in range(4))])
def test_transaction_version_of_feature_levels(levels: dict[str, int], version: int) -> None:
    assert transaction_version_of(levels) == version


def test_record_in_flight_is_retried_in_a_failed_transaction() -> None:
    """The caller gets to know whether it is stored."""
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
    manager = rig.core.transaction
    assert manager is not None
    rig.call(events.BeginTransactionCalled, "begin")
    assert manager.left_open(is_cut_off=True) is None
    rig.send("a")
    assert "is left open" in (manager.left_open(is_cut_off=True) or "")
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "end") == "done"
    assert manager.left_open(is_cut_off=True) is None
