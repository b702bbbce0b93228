"""RequestWaitLog: transactional requests, or InitProducerId, that fail for minutes are logged at growing intervals, with the cause."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.wait_log import FIRST_LINE_MS, FIRST_PAUSE_MS
from chaffinch.errors import codes
from chaffinch.identifiers import OffsetAndMetadata
from chaffinch.producer.core import events
from chaffinch.producer.core.wait_logs import SILENT_AFTER_MS
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, PORT, Rig

LOADING = codes.COORDINATOR_LOAD_IN_PROGRESS
LOADING_TEXT = f"COORDINATOR_LOAD_IN_PROGRESS ({LOADING.text.rstrip('.')})"
INIT_LOADING = InitProducerIdResponse(error_code=LOADING.number)
END_LOADING = EndTxnResponse(error_code=LOADING.number)
ADD_LOADING = AddOffsetsToTxnResponse(error_code=LOADING.number)
EVERY_MS = 100
OPTIONS = {"retry.backoff.ms": EVERY_MS, "retry.backoff.max.ms": EVERY_MS, "delivery.timeout.ms": 120_000}


def transactional() -> Rig:
    return Rig(options={"transactional.id": "t", **OPTIONS})


def in_transaction() -> Rig:
    rig = transactional()
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    return rig


def always_respond(rig: Rig, request: type, answer: Any) -> None:
    """Every request of this class gets this response."""
    rig.scripted[request] = [answer] * 10_000


def wait(rig: Rig, ms: int) -> None:
    """Advance the clock, with a round of the core at each deadline."""
    until_ms = rig.steady_ms + ms
    while (deadline_ms := rig.core.next_deadline_ms) is not None and deadline_ms <= until_ms:
        rig.steady_ms = deadline_ms
        rig.step(events.TimePassed())
    rig.steady_ms = until_ms
    rig.step(events.TimePassed())


def test_init_refused_repeatedly_is_logged_with_cause_and_limit() -> None:
    rig = transactional()
    always_respond(rig, InitProducerIdRequest, INIT_LOADING)
    rig.call(events.InitTransactionsCalled, "init")
    wait(rig, FIRST_LINE_MS - 1)
    assert rig.reports == []
    wait(rig, 1)
    assert rig.reports == [
        f"InitProducerId of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: {LOADING_TEXT}; "
        "init_transactions waits, retrying for up to 57500 ms more (max.block.ms)"
    ]
    assert "init" not in rig.calls


def test_init_without_response_is_logged() -> None:
    rig = transactional()
    rig.hold.add(InitProducerIdRequest)
    rig.call(events.InitTransactionsCalled, "init")
    wait(rig, FIRST_LINE_MS)
    assert rig.reports == [
        "InitProducerId of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: no response yet; "
        "init_transactions waits, retrying for up to 57500 ms more (max.block.ms)"
    ]


def test_unavailable_coordinator_is_logged_with_cause() -> None:
    rig = transactional()
    always_respond(
        rig, FindCoordinatorRequest, FindCoordinatorResponse(error_code=codes.COORDINATOR_NOT_AVAILABLE.number, error_message="x\ny")
    )
    rig.call(events.InitTransactionsCalled, "init")
    wait(rig, FIRST_LINE_MS)
    (line,) = rig.reports
    assert line.startswith("FindCoordinator of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: COORDINATOR_NOT_AVAILABLE (x y); init_")


def test_coordinator_that_keeps_moving_is_logged_with_its_address() -> None:
    rig = transactional()
    always_respond(rig, InitProducerIdRequest, InitProducerIdResponse(error_code=codes.NOT_COORDINATOR.number))
    rig.call(events.InitTransactionsCalled, "init")
    wait(rig, FIRST_LINE_MS)
    (line,) = rig.reports
    assert line.startswith("InitProducerId of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: NOT_COORDINATOR (")


def test_cause_is_dropped_when_the_coordinator_is_found() -> None:
    rig = transactional()
    rig.scripted[FindCoordinatorRequest] = [FindCoordinatorResponse(error_code=codes.COORDINATOR_NOT_AVAILABLE.number)]
    rig.hold.add(InitProducerIdRequest)
    rig.call(events.InitTransactionsCalled, "init")
    wait(rig, FIRST_LINE_MS)
    (line,) = rig.reports
    assert line.startswith("InitProducerId of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: no response yet; ")


@pytest.mark.parametrize(("kind", "call"), [(events.CommitCalled, "commit_transaction"), (events.AbortCalled, "abort_transaction")])
def test_refused_end_of_transaction_is_logged(kind: type, call: str) -> None:
    rig = in_transaction()
    rig.send("a")
    rig.answer(OK)
    always_respond(rig, EndTxnRequest, END_LOADING)
    rig.call(kind, "end")
    wait(rig, FIRST_LINE_MS)
    assert rig.reports == [
        f"EndTxn of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: {LOADING_TEXT}; "
        f"{call} waits, retrying for up to 57500 ms more (max.block.ms)"
    ]


def test_abort_within_close_logs_the_limit_of_close() -> None:
    rig = in_transaction()
    rig.send("a")
    rig.answer(OK)
    always_respond(rig, EndTxnRequest, END_LOADING)
    rig.call(events.AbortCalled, "close", deadline_ms=rig.steady_ms + 10_000, closes_within="close's timeout")
    wait(rig, FIRST_LINE_MS)
    (line,) = rig.reports
    assert line.endswith("; close waits, retrying for up to 7500 ms more (close's timeout)")


@pytest.mark.parametrize(
    ("request_type", "answer", "what"),
    [
        (
            AddOffsetsToTxnRequest,
            AddOffsetsToTxnResponse(error_code=LOADING.number),
            f"AddOffsetsToTxn of transactional.id 't': {LOADING_TEXT}",
        ),
        (TxnOffsetCommitRequest, LOST, f"TxnOffsetCommit of group 'g': NETWORK_EXCEPTION (127.0.0.1:9092: {LOST})"),
    ],
)
def test_refused_offsets_are_logged(request_type: type, answer: Any, what: str) -> None:
    rig = in_transaction()
    always_respond(rig, request_type, answer)
    rig.call(events.SendOffsetsCalled, "offsets", offsets={ORDERS_0: OffsetAndMetadata(1)}, group=GroupMetadata("g"))
    wait(rig, FIRST_LINE_MS)
    request, why = what.split(": ", 1)
    assert rig.reports == [
        f"{request} at 127.0.0.1:9092, for 2500 ms: {why}; "
        "send_offsets_to_transaction waits, retrying for up to 57500 ms more (max.block.ms)"
    ]


def test_partitions_not_added_log_the_waiting_records() -> None:
    rig = in_transaction()
    always_respond(rig, AddPartitionsToTxnRequest, NOT_SENT)
    rig.send("ab")
    wait(rig, FIRST_LINE_MS)
    assert rig.reports == [
        "AddPartitionsToTxn of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: "
        f"NETWORK_EXCEPTION (127.0.0.1:9092: {NOT_SENT}); 2 records without an outcome, retrying for up to 117500 ms more "
        "(delivery.timeout.ms)"
    ]


def test_waiter_with_the_nearest_limit_is_named() -> None:
    rig = in_transaction()
    always_respond(rig, AddPartitionsToTxnRequest, NOT_SENT)
    rig.send("ab")
    rig.call(events.CommitCalled, "commit")
    wait(rig, FIRST_LINE_MS)
    (line,) = rig.reports
    assert line.endswith("; commit_transaction waits, retrying for up to 57500 ms more (max.block.ms)")


def test_refused_producer_id_is_logged_without_transactions() -> None:
    rig = Rig(options=OPTIONS)
    always_respond(rig, InitProducerIdRequest, INIT_LOADING)
    rig.send("ab")
    wait(rig, FIRST_LINE_MS)
    assert rig.reports == [
        f"InitProducerId at 127.0.0.1:9092, for 2500 ms: {LOADING_TEXT}; "
        "2 records without an outcome, retrying for up to 117500 ms more (delivery.timeout.ms)"
    ]


def test_close_with_a_nearer_limit_than_records_is_named() -> None:
    rig = Rig(options=OPTIONS)
    rig.hold.add(InitProducerIdRequest)
    rig.send("a")
    rig.step(events.CloseCalled(call="close", deadline_ms=rig.steady_ms + 5_000))
    wait(rig, FIRST_LINE_MS)
    assert rig.reports == [
        "InitProducerId at 127.0.0.1:9092, for 2500 ms: no response yet; close waits, retrying for up to 2500 ms more (close's timeout)"
    ]


def test_repeated_log_lines_are_rare_and_stop_at_the_deadline() -> None:
    rig = transactional()
    always_respond(rig, InitProducerIdRequest, INIT_LOADING)
    rig.call(events.InitTransactionsCalled, "init")
    wait(rig, FIRST_LINE_MS + FIRST_PAUSE_MS - 1)
    assert len(rig.reports) == 1
    wait(rig, 1)
    assert len(rig.reports) == 2
    wait(rig, 200_000)
    assert len(rig.reports) == 3, "the call failed after max.block.ms, and no other call waits since"


def test_time_counts_from_the_call() -> None:
    """The call is made again after its time-out: its wait counts from then, though initialization has gone on in between."""
    rig = transactional()
    always_respond(rig, InitProducerIdRequest, INIT_LOADING)
    rig.call(events.InitTransactionsCalled, "init", deadline_ms=rig.steady_ms + 1_000)
    wait(rig, 100_000)
    rig.call(events.InitTransactionsCalled, "retry")
    wait(rig, FIRST_LINE_MS - 1)
    assert rig.reports == []
    wait(rig, 1)
    assert ", for 2500 ms: " in rig.reports[0]


def test_linger_does_not_count_as_waiting() -> None:
    rig = Rig(options={**OPTIONS, "linger.ms": 10_000})
    rig.hold.add(InitProducerIdRequest)
    rig.append("a")
    rig.step(events.TimePassed())
    wait(rig, 10_000 + FIRST_LINE_MS - 1)
    assert rig.reports == []
    wait(rig, 1)
    assert ", for 2500 ms: " in rig.reports[0]


def test_expired_records_are_not_logged_as_waiting() -> None:
    rig = Rig(options={**OPTIONS, "delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000})
    always_respond(rig, InitProducerIdRequest, INIT_LOADING)
    for value in "abcd":
        rig.send(value)
        wait(rig, 2_500)
    assert rig.reports == []


def test_short_waits_are_not_logged() -> None:
    rig = transactional()
    for step in range(3):
        rig.scripted[InitProducerIdRequest] = [INIT_LOADING] * 20
        rig.scripted[EndTxnRequest] = [END_LOADING] * 20
        if not step:
            rig.call(events.InitTransactionsCalled, "init")
        wait(rig, 2_500)
        rig.call(events.BeginTransactionCalled, f"begin {step}")
        rig.send("abc"[step])
        rig.answer(OK)
        rig.call(events.CommitCalled, f"commit {step}")
        wait(rig, 2_500)
    assert set(rig.calls.values()) == {"done"}
    assert rig.reports == []


def test_outage_is_logged_once_for_records() -> None:
    """The line about the outage is complete: no broker can be reached, this many records wait, for this long."""
    rig = Rig(options={**OPTIONS, "request.timeout.ms": 1_000})
    rig.hold.add(MetadataRequest)
    always_respond(rig, InitProducerIdRequest, NOT_SENT)
    rig.send("a")
    for _ in range(6):
        rig.disconnect()
        wait(rig, 1_000)
    (line,) = rig.reports
    assert line.startswith("no broker reachable at 127.0.0.1:9092")


def answer_held_find_coordinator(rig: Rig, port: int) -> None:
    """Complete the held FindCoordinator request with this address."""
    find = rig.held.pop(0)
    found = FindCoordinatorResponse(node_id=port - PORT + 1, host="127.0.0.1", port=port)
    rig.step(ResponseReceived(address=find.address, token=find.token, message=found))


def moved_coordinator() -> Rig:
    """The broker at 9092 is no longer the coordinator, and 200 ms later FindCoordinator was sent."""
    rig = Rig(nodes=2, options={"transactional.id": "t", **OPTIONS})
    rig.scripted[InitProducerIdRequest] = [InitProducerIdResponse(error_code=codes.NOT_COORDINATOR.number)]
    rig.hold.add(FindCoordinatorRequest)
    rig.call(events.InitTransactionsCalled, "init")
    answer_held_find_coordinator(rig, 9092)
    wait(rig, 2 * EVERY_MS)
    return rig


def test_silent_new_coordinator_is_named() -> None:
    rig = moved_coordinator()
    rig.hold.add(InitProducerIdRequest)
    answer_held_find_coordinator(rig, 9093)
    wait(rig, FIRST_LINE_MS - 2 * EVERY_MS)
    (line,) = rig.reports
    assert line.startswith(
        "InitProducerId of transactional.id 't' at 127.0.0.1:9093, for 2500 ms: no response yet; init_transactions waits"
    )


def test_broker_that_does_not_name_the_new_coordinator_is_named() -> None:
    rig = moved_coordinator()
    wait(rig, FIRST_LINE_MS - 2 * EVERY_MS)
    (line,) = rig.reports
    assert line.startswith(
        "FindCoordinator of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: no response yet; init_transactions waits"
    )


def test_request_sent_just_now_is_not_logged_as_unanswered() -> None:
    rig = moved_coordinator()
    rig.hold.add(InitProducerIdRequest)
    wait(rig, FIRST_LINE_MS - 2 * EVERY_MS - 1)
    answer_held_find_coordinator(rig, 9093)
    wait(rig, 1)
    (line,) = rig.reports
    assert line.startswith("InitProducerId of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: NOT_COORDINATOR (")


def test_earlier_response_is_not_the_cause_while_a_request_is_throttled() -> None:
    """The coordinator's broker throttles the client for 10 s: EndTxn is not sent before."""
    rig = in_transaction()
    rig.throttle_time_ms = 10_000
    rig.send("a")
    rig.answer(OK)
    rig.hold.add(EndTxnRequest)
    rig.call(events.CommitCalled, "commit")
    wait(rig, 10_000 - 1)
    assert rig.held == []
    assert rig.reports == []
    wait(rig, 1)
    assert len(rig.held) == 1
    wait(rig, SILENT_AFTER_MS)
    (line,) = rig.reports
    assert line.startswith("EndTxn of transactional.id 't' at 127.0.0.1:9092, for 11000 ms: no response yet; commit_transaction waits")


def test_cause_of_failed_partitions_is_not_the_cause_of_an_abort() -> None:
    rig = in_transaction()
    always_respond(rig, AddPartitionsToTxnRequest, NOT_SENT)
    rig.send("a")
    wait(rig, 1_000)
    rig.hold.add(EndTxnRequest)
    rig.call(events.AbortCalled, "abort")
    wait(rig, FIRST_LINE_MS)
    (line,) = rig.reports
    assert line.startswith("EndTxn of transactional.id 't' at 127.0.0.1:9092, for 2500 ms: no response yet; abort_transaction waits")


def test_late_failure_of_a_request_before_an_abort_is_ignored() -> None:
    """AddPartitionsToTxn is in flight when abort is called; its failure starts a long backoff for the next request."""
    rig = Rig(options={"transactional.id": "t", "retry.backoff.ms": 10_000, "retry.backoff.max.ms": 10_000})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.hold.add(AddPartitionsToTxnRequest)
    rig.send("a")
    rig.call(events.AbortCalled, "abort")
    held = rig.held.pop()
    rig.step(RequestFailed(address=held.address, token=held.token, reason=NOT_SENT, was_sent=False))
    wait(rig, 2 * FIRST_LINE_MS)
    assert rig.reports == []
    assert "abort" not in rig.calls


def test_log_line_without_waiters_is_not_used_up() -> None:
    """During an outage that was logged, records get no further line; a commit called then is logged at once."""
    rig = in_transaction()
    rig.hold.add(MetadataRequest)
    always_respond(rig, FindCoordinatorRequest, NOT_SENT)
    always_respond(rig, AddPartitionsToTxnRequest, NOT_SENT)
    rig.send("a")
    for _ in range(3):
        rig.disconnect()
        wait(rig, 1_100)
    (outage,) = rig.reports
    assert outage.startswith("no broker reachable at 127.0.0.1:9092")
    rig.call(events.CommitCalled, "commit")
    line = rig.reports[-1]
    assert line.startswith("FindCoordinator of transactional.id 't' at 127.0.0.1:9092, for 3300 ms: NETWORK_EXCEPTION (")
    assert line.endswith("; commit_transaction waits, retrying for up to 60000 ms more (max.block.ms)")


def test_aborts_without_requests_keep_the_backoff() -> None:
    """The backoff of a request grows until a broker accepts it, whatever is begun and aborted in between."""
    rig = Rig(options={"transactional.id": "t", "retry.backoff.ms": 100, "retry.backoff.max.ms": 10_000})
    rig.call(events.InitTransactionsCalled, "init")
    assert rig.core.transaction is not None
    rig.core.transaction.coordinators.forget("t", "transaction")
    always_respond(rig, FindCoordinatorRequest, FindCoordinatorResponse(error_code=codes.COORDINATOR_NOT_AVAILABLE.number))
    rig.requests.clear()
    for value in "abcde":
        rig.call(events.BeginTransactionCalled, f"begin {value}")
        rig.send(value)
        wait(rig, 3_000)
        assert rig.call(events.AbortCalled, f"abort {value}") == "done"
    assert sum(isinstance(request, FindCoordinatorRequest) for request in rig.requests) <= 8
