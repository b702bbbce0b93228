"""The transactional producer: every state with every move, every failure by its group (decisions 16 and 29 to 31), every request."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.client.connections import RequestFailed
from chaffinch.errors import (
    ApiException,
    CommitFailedException,
    ErrorCode,
    FencedInstanceIdException,
    Group,
    IllegalStateException,
    InvalidPidMappingException,
    InvalidProducerEpochException,
    KafkaException,
    ProducerFencedException,
    SaslAuthenticationException,
    TopicAuthorizationException,
    TransactionAbortableException,
    UnknownServerException,
    UnsupportedVersionException,
    codes,
    group_of,
)
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import MOVES, REFUSED_WITH_ERROR, Move, State
from chaffinch.producer.core.transactions.requests import Step, code_of_partitions
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.producer.core.rig import LOST, OK, ORDERS_0, ORDERS_1, Answer, Rig, added, committed

OFFSETS = {TopicPartition("input", 0): OffsetAndMetadata(5)}
GROUP = GroupMetadata("group")


IN_EACH_VERSION = pytest.mark.usefixtures("transaction_version")
ONE_IN_FLIGHT = {"max.in.flight.requests.per.connection": 1}


def rig_in(state: State, **options: Any) -> Rig:
    """A producer brought into a state by its calls and the responses of a broker."""
    rig = Rig(options={"transactional.id": "t", **options})
    if state is State.UNINITIALIZED:
        return rig
    if state is State.INITIALIZING:
        rig.hold.add(InitProducerIdRequest)
    rig.call(events.InitTransactionsCalled, "init")
    if state in (State.INITIALIZING, State.READY):
        return rig
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(OK)
    if state in (State.COMMITTING, State.ABORTING):
        rig.hold.add(EndTxnRequest)
    if state is State.COMMITTING:
        rig.call(events.CommitCalled, "first commit")
    if state is State.ABORTING:
        rig.call(events.AbortCalled, "first abort")
    if state is State.ABORTABLE_ERROR:
        rig.send("x")
        rig.answer(Answer(codes.INVALID_RECORD))
    if state is State.FATAL_ERROR:
        rig.send("x")
        rig.answer(Answer(codes.INVALID_PRODUCER_EPOCH))
    return rig


CALLS = {
    Move.INIT_CALLED: events.InitTransactionsCalled,
    Move.BEGIN_CALLED: events.BeginTransactionCalled,
    Move.COMMIT_CALLED: events.CommitCalled,
    Move.ABORT_CALLED: events.AbortCalled,
}


@IN_EACH_VERSION
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_is_reachable(state: State) -> None:
    rig = rig_in(state)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state


@IN_EACH_VERSION
@pytest.mark.parametrize("move", CALLS, ids=lambda move: move.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_call_in_every_state(state: State, move: Move) -> None:
    """A legal call is accepted; a call after a failure raises that failure; any other is the caller's mistake and changes nothing."""
    rig = rig_in(state)
    outcome = rig.call(CALLS[move], "call")
    assert rig.core.transaction is not None
    if (state, move) in REFUSED_WITH_ERROR:
        assert isinstance(outcome, KafkaException)
        assert not isinstance(outcome, IllegalStateException)
        assert outcome is not rig.core.transaction.error, "each caller gets its own exception"
        assert rig.core.transaction.state is state
    elif (state, move) in MOVES:
        assert not isinstance(outcome, KafkaException)
    else:
        assert isinstance(outcome, IllegalStateException)
        assert rig.core.transaction.state is state


@IN_EACH_VERSION
def test_begin_before_abort_is_refused_with_advice() -> None:
    """The error has the record's error as its cause."""
    rig = rig_in(State.ABORTABLE_ERROR)
    outcome = rig.call(events.BeginTransactionCalled, "call")
    assert rig.core.transaction is not None
    assert isinstance(outcome, IllegalStateException)
    assert outcome.message == "begin_transaction() is not possible now: the transaction has failed: call abort_transaction() first"
    assert outcome.__cause__ is not None
    assert outcome.__cause__ == rig.core.transaction.error
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert rig.call(events.BeginTransactionCalled, "begin again") == "done"


@IN_EACH_VERSION
@pytest.mark.parametrize(
    ("code", "state", "error"),
    [
        (codes.INVALID_RECORD, State.ABORTABLE_ERROR, None),
        (codes.TOPIC_AUTHORIZATION_FAILED, State.ABORTABLE_ERROR, TopicAuthorizationException),
        (codes.TRANSACTION_ABORTABLE, State.ABORTABLE_ERROR, TransactionAbortableException),
        (codes.INVALID_TXN_STATE, State.ABORTABLE_ERROR, TransactionAbortableException),
        (codes.OUT_OF_ORDER_SEQUENCE_NUMBER, State.ABORTABLE_ERROR, TransactionAbortableException),
        (codes.INVALID_PRODUCER_EPOCH, State.FATAL_ERROR, InvalidProducerEpochException),
        (codes.PRODUCER_FENCED, State.FATAL_ERROR, ProducerFencedException),
        (codes.INVALID_PRODUCER_ID_MAPPING, State.FATAL_ERROR, InvalidPidMappingException),
        (codes.by_number(2467), State.FATAL_ERROR, UnknownServerException),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode | State) else "",
)
def test_group_of_a_produce_error_decides_the_state(code: ErrorCode, state: State, error: type | None) -> None:
    rig = rig_in(State.IN_TRANSACTION)
    rig.send("b")
    rig.answer(Answer(code))
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state
    raised = rig.call(events.CommitCalled, "commit")
    assert isinstance(raised, error or ApiException)


STEPS = {
    Step.FIND_COORDINATOR: FindCoordinatorRequest,
    Step.INIT_PRODUCER_ID: InitProducerIdRequest,
    Step.ADD_PARTITIONS: AddPartitionsToTxnRequest,
    Step.ADD_OFFSETS: AddOffsetsToTxnRequest,
    Step.COMMIT_OFFSETS: TxnOffsetCommitRequest,
    Step.END: EndTxnRequest,
}


def response_with_code(step: Step, request: Any, code: ErrorCode) -> Any:
    match step:
        case Step.FIND_COORDINATOR:
            return FindCoordinatorResponse(error_code=code.number, node_id=1, host="127.0.0.1", port=9092)
        case Step.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=code.number)
        case Step.ADD_PARTITIONS:
            return added(request, code)
        case Step.ADD_OFFSETS:
            return AddOffsetsToTxnResponse(error_code=code.number)
        case Step.COMMIT_OFFSETS:
            return committed(request, code)
        case _:
            return EndTxnResponse(error_code=code.number)


def run_transaction(step: Step, *answers: ErrorCode | str, commits: bool = True) -> Rig:
    """Run a whole transaction whose first requests of a step get these responses; all others succeed."""
    rig = Rig(options={"transactional.id": "t"})

    class Scripted(list[Any]):
        """Responses made when the request is known."""

        def pop(self, index: Any = -1) -> Any:
            answer = super().pop(index)
            return answer if isinstance(answer, str) else response_with_code(step, rig.requests[-1], answer)

    rig.scripted[STEPS[step]] = Scripted(answers)
    calls: list[tuple[type, str, dict[str, Any]]] = [
        (events.InitTransactionsCalled, "init", {}),
        (events.BeginTransactionCalled, "begin", {}),
        (events.SendOffsetsCalled, "offsets", {"offsets": OFFSETS, "group": GROUP}),
        (events.CommitCalled if commits else events.AbortCalled, "end", {}),
    ]
    for kind, name, arguments in calls:
        if name == "end":
            rig.send("a")
            rig.sleep(5_000)
            if rig.open:
                rig.answer(OK)
        rig.call(kind, name, **arguments)
        rig.sleep(5_000)
    return rig


RETRIED = [
    (Step.FIND_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE),
    (Step.INIT_PRODUCER_ID, codes.CONCURRENT_TRANSACTIONS),
    (Step.INIT_PRODUCER_ID, codes.NOT_COORDINATOR),
    (Step.ADD_PARTITIONS, codes.CONCURRENT_TRANSACTIONS),
    (Step.ADD_PARTITIONS, codes.COORDINATOR_LOAD_IN_PROGRESS),
    (Step.ADD_PARTITIONS, codes.UNKNOWN_TOPIC_OR_PARTITION),
    (Step.ADD_OFFSETS, codes.NOT_COORDINATOR),
    (Step.COMMIT_OFFSETS, codes.NOT_COORDINATOR),
    (Step.COMMIT_OFFSETS, codes.REQUEST_TIMED_OUT),
    (Step.END, codes.CONCURRENT_TRANSACTIONS),
    (Step.END, codes.NOT_COORDINATOR),
    *((step, LOST) for step in STEPS),
]


@IN_EACH_VERSION
@pytest.mark.parametrize(("step", "answer"), RETRIED, ids=lambda value: getattr(value, "name", "lost"))
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_retriable_and_lost_responses_are_retried(step: Step, answer: Any, commits: bool) -> None:
    rig = run_transaction(step, answer, answer, commits=commits)
    assert rig.calls == {"init": "done", "begin": "done", "offsets": "done", "end": "done"}
    (*_, last) = [request for request in rig.requests if isinstance(request, EndTxnRequest)]
    assert last.committed is commits


@IN_EACH_VERSION
def test_former_coordinator_is_looked_up_again() -> None:
    rig = run_transaction(Step.END, codes.NOT_COORDINATOR)
    kinds = [type(request) for request in rig.requests if not isinstance(request, MetadataRequest)]
    at = kinds.index(EndTxnRequest)
    assert kinds[at : at + 3] == [EndTxnRequest, FindCoordinatorRequest, EndTxnRequest]


REFUSED = [
    # step, code, the call that fails, its class, the state after it
    (Step.INIT_PRODUCER_ID, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "init", None, State.UNINITIALIZED),
    (Step.INIT_PRODUCER_ID, codes.INVALID_TRANSACTION_TIMEOUT, "init", None, State.UNINITIALIZED),
    (Step.INIT_PRODUCER_ID, codes.PRODUCER_FENCED, "init", ProducerFencedException, State.FATAL_ERROR),
    (Step.FIND_COORDINATOR, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "init", None, State.UNINITIALIZED),
    (Step.ADD_PARTITIONS, codes.TOPIC_AUTHORIZATION_FAILED, "end", TopicAuthorizationException, State.ABORTABLE_ERROR),
    (Step.ADD_PARTITIONS, codes.TRANSACTION_ABORTABLE, "end", TransactionAbortableException, State.ABORTABLE_ERROR),
    (Step.ADD_PARTITIONS, codes.PRODUCER_FENCED, "end", ProducerFencedException, State.FATAL_ERROR),
    (Step.ADD_OFFSETS, codes.GROUP_AUTHORIZATION_FAILED, "offsets", None, State.ABORTABLE_ERROR),
    (Step.ADD_OFFSETS, codes.INVALID_TXN_STATE, "offsets", None, State.FATAL_ERROR),
    (Step.COMMIT_OFFSETS, codes.ILLEGAL_GENERATION, "offsets", CommitFailedException, State.FATAL_ERROR),
    (Step.COMMIT_OFFSETS, codes.FENCED_INSTANCE_ID, "offsets", FencedInstanceIdException, State.FATAL_ERROR),
    (Step.END, codes.TRANSACTION_ABORTABLE, "end", TransactionAbortableException, State.ABORTABLE_ERROR),
    (Step.END, codes.INVALID_TXN_STATE, "end", None, State.FATAL_ERROR),
    # Fencing, as coordinators before Kafka 2.7 report it.
    (Step.INIT_PRODUCER_ID, codes.INVALID_PRODUCER_EPOCH, "init", ProducerFencedException, State.FATAL_ERROR),
    (Step.ADD_PARTITIONS, codes.INVALID_PRODUCER_EPOCH, "end", ProducerFencedException, State.FATAL_ERROR),
    (Step.ADD_OFFSETS, codes.INVALID_PRODUCER_EPOCH, "offsets", ProducerFencedException, State.FATAL_ERROR),
    (Step.COMMIT_OFFSETS, codes.INVALID_PRODUCER_EPOCH, "offsets", ProducerFencedException, State.FATAL_ERROR),
    (Step.END, codes.INVALID_PRODUCER_EPOCH, "end", ProducerFencedException, State.FATAL_ERROR),
]


@pytest.mark.parametrize(("step", "code", "call", "error", "state"), REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_refused_request_fails_its_call_by_the_error_group(
    step: Step, code: ErrorCode, call: str, error: type | None, state: State
) -> None:
    rig = run_transaction(step, code)
    assert isinstance(rig.calls[call], error or ApiException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state


def test_refused_init_can_be_repeated() -> None:
    rig = run_transaction(Step.INIT_PRODUCER_ID, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert rig.call(events.InitTransactionsCalled, "second init") == "done"


@pytest.mark.parametrize("request_type", [FindCoordinatorRequest, InitProducerIdRequest])
def test_failed_login_fails_init_which_can_be_repeated(request_type: type) -> None:
    rig = Rig(options={"transactional.id": "t"})
    rig.hold.add(request_type)
    rig.call(events.InitTransactionsCalled, "init")
    (sent,) = rig.held
    refusal = SaslAuthenticationException("no such user")
    rig.step(RequestFailed(address=sent.address, token=sent.token, reason="refused", was_sent=False, error=refusal))
    error = rig.calls["init"]
    assert (type(error), error.message, error.group) == (SaslAuthenticationException, "no such user", Group.INVALID_CONFIGURATION)
    rig.hold.clear()
    assert rig.call(events.InitTransactionsCalled, "again") == "done"


@IN_EACH_VERSION
@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.INVALID_TXN_STATE, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
def test_abort_never_raises_an_abortable_error(code: ErrorCode) -> None:
    """Decision 31: abort returns, times out, or raises an application-recoverable error."""
    rig = run_transaction(Step.END, code, commits=False)
    assert group_of(rig.calls["end"]) is Group.APPLICATION_RECOVERABLE


def test_late_refusal_of_add_partitions_does_not_fail_the_abort() -> None:
    rig = rig_in(State.IN_TRANSACTION)
    rig.hold.add(AddPartitionsToTxnRequest)
    rig.send("b", ORDERS_1)
    rig.call(events.AbortCalled, "abort")
    (request,) = rig.held
    rig.held.clear()
    rig.step(_answered(request, added(request.message, codes.TOPIC_AUTHORIZATION_FAILED)))
    assert rig.calls["abort"] == "done"
    assert rig.fate("b") == ["TransactionAbortableException no"]


@IN_EACH_VERSION
def test_transaction_without_records_sends_no_request() -> None:
    rig = rig_in(State.READY)
    for end in (events.CommitCalled, events.AbortCalled):
        rig.calls.clear()
        rig.call(events.BeginTransactionCalled, "begin")
        assert rig.call(end, "end") == "done"
    assert not [request for request in rig.requests if isinstance(request, EndTxnRequest)]


@IN_EACH_VERSION
def test_empty_offsets_send_no_request() -> None:
    rig = rig_in(State.IN_TRANSACTION)
    before = len(rig.requests)
    assert rig.call(events.SendOffsetsCalled, "offsets", offsets={}, group=GROUP) == "done"
    assert len(rig.requests) == before


def test_records_wait_until_their_partition_is_added() -> None:
    rig = rig_in(State.READY)
    rig.call(events.BeginTransactionCalled, "begin")
    rig.hold.add(AddPartitionsToTxnRequest)
    rig.send("b")
    rig.send("c", ORDERS_1)
    assert rig.trace == []
    rig.release()
    assert rig.trace == ["b@0/0"], "the second partition came while the first was being added"
    rig.release()
    assert rig.trace == ["b@0/0", "c@0/0"]
    assert all(batch.is_transactional for batch in rig.sent)
    rig.answer(OK)
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "commit") == "done"


@IN_EACH_VERSION
def test_commit_sends_lingering_records_first() -> None:
    rig = Rig(options={"transactional.id": "t", "linger.ms": 10_000})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.append("ab")
    rig.step(events.TimePassed())
    assert not rig.trace
    rig.call(events.CommitCalled, "commit")
    assert rig.trace == ["ab@0/0"]
    assert "commit" not in rig.calls
    assert not any(isinstance(request, EndTxnRequest) for request in rig.requests), "no decision before every record has its outcome"
    rig.answer(OK)
    assert rig.calls["commit"] == "done"
    assert isinstance(rig.requests[-1], EndTxnRequest)


@IN_EACH_VERSION
def test_timed_out_offsets_make_the_transaction_abortable() -> None:
    rig = rig_in(State.IN_TRANSACTION)
    rig.hold.add(TxnOffsetCommitRequest)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GROUP)
    rig.sleep(60_001)
    error = rig.calls["offsets"]
    assert isinstance(error, TransactionAbortableException)
    assert isinstance(rig.core.transaction and rig.core.transaction.error, TransactionAbortableException)
    rig.release()
    assert rig.call(events.AbortCalled, "abort") == "done"


@pytest.mark.parametrize("hold", [set(), {MetadataRequest}], ids=["", "without metadata"])
def test_timed_out_offsets_error_names_group_limit_and_last_response(hold: set[type]) -> None:
    rig = Rig(options={"transactional.id": "t", "max.block.ms": 5_000}, hold=hold)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    unknown = TxnOffsetCommitResponsePartition(partition_index=7, error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)
    refusal = TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="input", partitions=[unknown])])
    rig.scripted[TxnOffsetCommitRequest] = [refusal] * 100
    offsets = {TopicPartition("input", index): OffsetAndMetadata(5) for index in (0, 7)}
    rig.call(events.SendOffsetsCalled, "offsets", offsets=offsets, group=GROUP, deadline_ms=rig.steady_ms + 5_000)
    rig.sleep(5_001)
    assert rig.calls["offsets"].message == (
        "the transaction has to be aborted: the offsets of group 'group' for input-0 and 1 more were not accepted within max.block.ms, "
        f"5000 ms; the last response for input-7 was UNKNOWN_TOPIC_OR_PARTITION: {codes.UNKNOWN_TOPIC_OR_PARTITION.text.rstrip('.')}"
    )


def test_old_broker_without_member_ids_gives_advice() -> None:
    rig = rig_in(State.IN_TRANSACTION)
    rig.hold.add(TxnOffsetCommitRequest)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GroupMetadata("group", 1, "member"))
    sent = rig.held.pop()
    why = "cannot encode TxnOffsetCommitRequest v2: generation_id: 1 needs version 3 or later"
    rig.step(RequestFailed(address=sent.address, token=sent.token, reason=why, was_sent=False, is_unsupported=True))
    error = rig.calls["offsets"]
    assert isinstance(error, UnsupportedVersionException)
    assert f"{why}; brokers before 2.5 accept no member and generation of a group" in str(error)
    assert "give send_offsets_to_transaction only the group's id" in str(error)
    assert rig.call(events.AbortCalled, "abort") == "done"


@IN_EACH_VERSION
def test_abort_fails_unsent_records_and_waits_for_those_in_flight() -> None:
    rig = rig_in(State.IN_TRANSACTION, **ONE_IN_FLIGHT)
    rig.send("b")
    rig.send("c")
    rig.call(events.AbortCalled, "abort")
    assert rig.fate("bc") == ["open", "TransactionAbortableException no"]
    assert "abort" not in rig.calls
    rig.answer(Answer(base_offset=9))
    assert rig.fate("b") == ["9"]
    assert rig.calls["abort"] == "done"


def test_lost_batch_of_an_aborted_transaction_is_not_retried_and_bumps_the_epoch() -> None:
    rig = rig_in(State.IN_TRANSACTION)
    rig.send("b")
    rig.call(events.AbortCalled, "abort")
    rig.answer(LOST)
    rig.sleep(5_000)
    assert rig.fate("b") == ["TransactionAbortableException possibly"]
    assert rig.calls["abort"] == "done"
    (_, bump) = [request for request in rig.requests if isinstance(request, InitProducerIdRequest)]
    assert (bump.producer_id, bump.producer_epoch) == (4711, 0)
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("c")
    assert rig.trace[-1] == "c@0/1"


@IN_EACH_VERSION
def test_fatal_error_fails_waiting_records_and_later_calls() -> None:
    rig = rig_in(State.IN_TRANSACTION, **ONE_IN_FLIGHT)
    rig.send("b")
    rig.send("c")
    rig.answer(Answer(codes.PRODUCER_FENCED))
    assert rig.fate("bc") == ["ProducerFencedException no", "ProducerFencedException no"]
    for kind in CALLS.values():
        rig.calls.clear()
        assert isinstance(rig.call(kind, "call"), ProducerFencedException)


def test_gravest_code_of_many_partitions_decides() -> None:
    found = [
        (ORDERS_0, codes.OPERATION_NOT_ATTEMPTED.number),
        (ORDERS_1, codes.TOPIC_AUTHORIZATION_FAILED.number),
        (ORDERS_0, codes.CONCURRENT_TRANSACTIONS.number),
    ]
    assert code_of_partitions(found) == (codes.TOPIC_AUTHORIZATION_FAILED, ORDERS_1)
    assert code_of_partitions(found[:1])[0] is codes.OPERATION_NOT_ATTEMPTED
    assert code_of_partitions([])[0] is codes.NONE


def _answered(effect: Any, message: Any) -> Any:
    from chaffinch.client.connections import ResponseReceived

    return ResponseReceived(address=effect.address, token=effect.token, message=message)
