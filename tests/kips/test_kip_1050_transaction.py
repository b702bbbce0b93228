"""KIP-1050 and the transaction manager: every state with every event, and the two promises about commits and aborts.

The table is written out, not computed: a state or an event that is added without its row or column fails here. A cell is the state
after the event and the result of the call: `ok`, `waits`, or an error's class; a record has its own result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import Producer
from chaffinch.client.connections import RequestFailed
from chaffinch.errors import (
    ErrorCode,
    Group,
    KafkaException,
    NetworkException,
    RecordTooLargeException,
    SaslAuthenticationException,
    Stored,
    TimeoutException,
    UnsupportedCompressionTypeException,
    codes,
    exception_for,
    group_of,
)
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import MOVES, IllegalMove, Move, State
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tests.producer.core.rig import LOST, OK, Answer, Rig
from tests.producer.core.transactions.test_manager import STEPS, rig_in, run_transaction
from tools.markdown_tables import transaction_table

OFFSETS = {TopicPartition("input", 0): OffsetAndMetadata(5)}


def call(kind: type, **arguments: Any) -> Callable[[Rig], object]:
    return lambda rig: rig.call(kind, "the call", **arguments) or "waits"


def send(rig: Rig) -> object:
    """What the door of the public producer does first."""
    assert rig.core.transaction is not None
    return rig.core.transaction.refusal_of_send() or "ok"


def fail(code: ErrorCode) -> Callable[[Rig], object]:
    """A record that was on its way fails; where nothing is on its way, its failure is reported all the same."""

    def happen(rig: Rig) -> object:
        assert rig.core.transaction is not None
        rig.core.context.out += rig.core.transaction.record_failed(exception_for(code, api="Produce"))
        rig.step(events.TimePassed())
        return "ok"

    return happen


def time_is_up(rig: Rig) -> object:
    """A waiting call has waited for max.block.ms; the answer comes afterwards, if at all."""
    rig.sleep(60_001)
    caller_result = [outcome for name, outcome in rig.calls.items() if isinstance(outcome, TimeoutException)]
    return caller_result[0] if caller_result else "ok"


EVENTS: dict[str, Callable[[Rig], object]] = {
    "init": call(events.InitTransactionsCalled),
    "begin": call(events.BeginTransactionCalled),
    "send": send,
    "offsets": call(events.SendOffsetsCalled, offsets=OFFSETS, group=GroupMetadata("group")),
    "commit": call(events.CommitCalled),
    "abort": call(events.AbortCalled),
    "abortable": fail(codes.TRANSACTION_ABORTABLE),
    "configuration": fail(codes.INVALID_RECORD),
    "recoverable": fail(codes.PRODUCER_FENCED),
    "time is up": time_is_up,
}


def outcome(state: State, happen: Callable[[Rig], object]) -> str:
    rig = rig_in(state)
    try:
        caller_result = happen(rig)
    except IllegalMove:
        return "impossible"
    assert rig.core.transaction is not None
    words = (
        {"done": "ok"}.get(caller_result, caller_result)
        if isinstance(caller_result, str)
        else type(caller_result).__name__.removesuffix("Exception")
    )
    return f"{rig.core.transaction.state.name} {words}"


# `=`: the state stays. `!`: IllegalStateException, and the state stays. `never`: cannot happen, because no record is on its way.
# `ended`: the error that ended the producer. COMMITTING: EndTxn is under way, so that the commit may have happened.
# fmt: off
GRID = """
                | init  | begin                  | send                   | offsets                | commit                 | abort
UNINITIALIZED   | READY | !                      | !                      | !                      | !                      | !
INITIALIZING    | waits | !                      | !                      | !                      | !                      | !
READY           | !     | IN_TRANSACTION         | !                      | !                      | !                      | !
IN_TRANSACTION  | !     | !                      | =                      | =                      | READY                  | READY
COMMITTING      | !     | !                      | !                      | !                      | waits                  | !
ABORTABLE_ERROR | !     | !                      | = TransactionAbortable | = InvalidRecord        | = InvalidRecord        | READY
ABORTING        | !     | !                      | !                      | !                      | !                      | waits
FATAL_ERROR     | ended | ended                  | ended                  | ended                  | ended                  | ended

                | abortable       | configuration   | recoverable | time is up
UNINITIALIZED   | never           | never           | FATAL_ERROR | =
INITIALIZING    | never           | never           | FATAL_ERROR | = Timeout
READY           | never           | never           | FATAL_ERROR | =
IN_TRANSACTION  | ABORTABLE_ERROR | ABORTABLE_ERROR | FATAL_ERROR | =
COMMITTING      | FATAL_ERROR     | FATAL_ERROR     | FATAL_ERROR | = Timeout
ABORTABLE_ERROR | =               | =               | FATAL_ERROR | =
ABORTING        | =               | =               | FATAL_ERROR | = Timeout
FATAL_ERROR     | =               | =               | =           | =
"""

MOVES_WRITTEN_OUT = """
                | INIT_CALLED  | INITIALIZED | INIT_REFUSED  | BEGIN_CALLED   | COMMIT_CALLED | ABORT_CALLED | ENDED | FAILED_ABORTABLY
UNINITIALIZED   | INITIALIZING |             |               |                |               |              |       |
INITIALIZING    | INITIALIZING | READY       | UNINITIALIZED |                |               |              |       |
READY           |              |             |               | IN_TRANSACTION |               |              |       |
IN_TRANSACTION  |              |             |               |                | COMMITTING    | ABORTING     |       | ABORTABLE_ERROR
COMMITTING      |              |             |               |                | COMMITTING    |              | READY | ABORTABLE_ERROR
ABORTABLE_ERROR |              |             |               |                |               | ABORTING     |       | ABORTABLE_ERROR
ABORTING        |              |             |               |                |               | ABORTING     | READY | ABORTING
FATAL_ERROR     |              |             |               |                |               |              |       | FATAL_ERROR
"""
# fmt: on


def cells(grid: str) -> dict[tuple[str, str], str]:
    """(row, column) -> cell, of one grid after the other."""
    found = {}
    for part in grid.strip("\n").split("\n\n"):
        head, *rows = [[cell.strip() for cell in line.split("|")] for line in part.split("\n")]
        for name, *row in rows:
            found.update({(name, column): cell for column, cell in zip(head[1:], row, strict=True)})
    return found


def written(state: str, cell: str) -> str:
    """A cell in the words of `outcome`."""
    match cell:
        case "never":
            return "impossible"
        case "!":
            return f"{state} IllegalState"
        case "waits":
            return f"{state} waits"
        case "ended":
            return f"{state} InvalidProducerEpoch"
    after, _, caller_result = cell.partition(" ")
    return f"{state if after == '=' else after} {caller_result or 'ok'}"


CELLS = cells(GRID)


def test_every_state_and_every_event_is_in_the_table() -> None:
    assert CELLS.keys() == {(state.name, name) for state in State for name in EVENTS}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_event_in_every_state(state: State, name: str) -> None:
    assert outcome(state, EVENTS[name]) == written(state.name, CELLS[state.name, name])


def test_moves_equal_the_written_table() -> None:
    expected = {pair: after for pair, after in cells(MOVES_WRITTEN_OUT).items() if after}
    expected.update({(state.name, Move.FAILED_FATALLY.name): "FATAL_ERROR" for state in State})
    assert {(state.name, move.name): after.name for (state, move), after in MOVES.items()} == expected


def test_the_printed_table_has_every_state_and_move() -> None:
    head, _, *rows = transaction_table().splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [move.value for move in Move]
    assert [row.split("|")[1].strip() for row in rows] == [state.value for state in State]
    assert sum(cell.strip() != "" for row in rows for cell in row.split("|")[2:-1]) == len(MOVES)


EVERY_CODE = [code for code in codes.ALL if code is not codes.NONE] + [codes.by_number(31_000)]


class TestAborts:
    """ "The producer.abortTransaction() method will not throw an abortable exception to avoid creating a loop."""

    @pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
    def test_abort_never_raises_an_abortable_error_for_any_code(self, step: Step) -> None:
        for code in EVERY_CODE:
            rig = run_transaction(step, *[code] * 4, commits=False)
            caller_result = rig.calls.get("end")
            assert caller_result in (None, "done") or self.is_allowed(caller_result), f"{step}, {code.name}: {caller_result!r}"

    @staticmethod
    def is_allowed(error: object) -> bool:
        """Besides errors that end the producer: a call in the wrong order, because there is no transaction after a refused init."""
        return isinstance(error, TimeoutException) or (
            isinstance(error, KafkaException) and group_of(error) is Group.APPLICATION_RECOVERABLE
        )

    @pytest.mark.parametrize("answer", [*(Answer(code) for code in EVERY_CODE), LOST], ids=lambda answer: getattr(answer, "code", answer))
    def test_abort_never_raises_an_abortable_error_for_any_fate(self, answer: Answer | str) -> None:
        rig = rig_in(State.IN_TRANSACTION)
        rig.send("b")
        rig.call(events.AbortCalled, "abort")
        rig.answer(answer)
        rig.sleep(5_000)
        assert rig.calls["abort"] == "done" or self.is_allowed(rig.calls["abort"])


class TestCommits:
    """A commit never succeeds with a failed record in it (decision 16)."""

    @pytest.mark.parametrize("culprits", [(), (0,)], ids=["none named", "one named"])
    @pytest.mark.parametrize("when", ["before", "while"])
    def test_commit_fails_exactly_if_a_record_failed(self, when: str, culprits: tuple[int, ...]) -> None:
        for code in EVERY_CODE:
            rig = rig_in(State.IN_TRANSACTION)
            rig.send("b")
            if when == "while":
                rig.call(events.CommitCalled, "commit")
            for _ in range(3):
                if rig.open:
                    rig.answer(Answer(code, culprits))
                    rig.sleep(2_000)
            if rig.open:
                rig.answer(OK)
            if when == "before":
                rig.call(events.CommitCalled, "commit")
            (fate,) = rig.fate("b")
            is_failed = isinstance(rig.fates["b"], KafkaException)
            assert is_failed is isinstance(rig.calls["commit"], KafkaException), f"{code.name}: {fate}, {rig.calls['commit']!r}"

    def test_record_failed_at_send_fails_the_commit(self) -> None:
        rig = rig_in(State.IN_TRANSACTION)
        rig.core.records_rejected(1, RecordTooLargeException("too large"))
        assert isinstance(rig.call(events.CommitCalled, "commit"), RecordTooLargeException)

    def test_record_failed_at_send_fails_a_waiting_commit(self) -> None:
        rig = rig_in(State.IN_TRANSACTION)
        rig.send("b")
        rig.call(events.CommitCalled, "commit")
        rig.step(events.RecordsRejected(count=1, error=RecordTooLargeException("too large"), transaction_number=1))
        assert isinstance(rig.calls["commit"], RecordTooLargeException)

    def test_record_failed_in_an_earlier_transaction_fails_no_other(self) -> None:
        rig = rig_in(State.IN_TRANSACTION)
        rig.call(events.CommitCalled, "first commit")
        rig.call(events.BeginTransactionCalled, "begin again")
        rig.step(events.RecordsRejected(count=1, error=RecordTooLargeException("too large"), transaction_number=1))
        assert rig.call(events.CommitCalled, "commit") == "done"

    def test_record_failed_at_send_after_end_txn_keeps_the_commit(self) -> None:
        rig = rig_in(State.COMMITTING)
        rig.step(events.RecordsRejected(count=1, error=RecordTooLargeException("too large"), transaction_number=1))
        rig.release()
        assert rig.calls["first commit"] == "done"

    def test_expired_record_fails_the_commit(self) -> None:
        rig = rig_in(State.IN_TRANSACTION)
        rig.send("b")
        rig.call(events.CommitCalled, "commit")
        rig.sleep(130_000)
        assert group_of(rig.error("b")) is Group.TRANSACTION_ABORTABLE
        assert isinstance(rig.calls["commit"], KafkaException)


NotServed = SaslAuthenticationException | UnsupportedCompressionTypeException


class TestInvalidConfiguration:
    """ "The application should be stopped": not restarted for ever, as what is application-recoverable has it."""

    ERRORS = pytest.mark.parametrize(
        "error", [SaslAuthenticationException("wrong password"), UnsupportedCompressionTypeException("too new")], ids=repr
    )

    @staticmethod
    def refuse(rig: Rig, error: NotServed) -> None:
        """The request that is held is not served."""
        sent = rig.held.pop()
        rig.hold.clear()
        rig.step(RequestFailed(address=sent.address, token=sent.token, reason="", was_sent=False, error=error))

    @ERRORS
    def test_unsupported_request_fails_the_commit(self, error: NotServed) -> None:
        rig = rig_in(State.READY)
        rig.hold.add(STEPS[Step.ADD_PARTITIONS])
        rig.call(events.BeginTransactionCalled, "begin")
        rig.send("b")
        self.refuse(rig, error)
        assert type(rig.call(events.CommitCalled, "commit")) is type(error)
        assert rig.error("b").__cause__ is error
        rig.scripted[EndTxnRequest] = [EndTxnResponse(error_code=codes.INVALID_TXN_STATE.number)]
        assert rig.call(events.AbortCalled, "abort") == "done"
        rig.call(events.BeginTransactionCalled, "begin again")
        rig.send("c")
        rig.answer(OK)
        assert rig.call(events.CommitCalled, "second commit") == "done", "the producer stays usable"

    @ERRORS
    def test_unsent_end_txn_fails_the_commit(self, error: NotServed) -> None:
        rig = rig_in(State.COMMITTING)
        self.refuse(rig, error)
        assert type(rig.calls["first commit"]) is type(error)
        assert rig.calls["first commit"].stored is Stored.NO
        assert rig.call(events.AbortCalled, "abort") == "done"

    @ERRORS
    def test_unsupported_abort_is_application_recoverable(self, error: NotServed) -> None:
        rig = rig_in(State.ABORTING)
        self.refuse(rig, error)
        assert group_of(rig.calls["first abort"]) is Group.APPLICATION_RECOVERABLE

    @ERRORS
    def test_failed_request_before_an_abort_is_ignored(self, error: NotServed) -> None:
        rig = rig_in(State.IN_TRANSACTION)
        rig.hold.add(STEPS[Step.ADD_OFFSETS])
        rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GroupMetadata("group"))
        rig.call(events.AbortCalled, "abort")
        self.refuse(rig, error)
        assert rig.calls["abort"] == "done"

    @ERRORS
    def test_unsupported_init_fails_and_can_be_repeated(self, error: NotServed) -> None:
        rig = rig_in(State.INITIALIZING)
        self.refuse(rig, error)
        assert type(rig.calls["init"]) is type(error)
        assert rig.call(events.InitTransactionsCalled, "init again") == "done"


def test_waiting_without_a_broker_names_its_address() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", transactional_id="t", max_block_ms=100) as producer:
        for _ in range(100):  # A busy machine may take all that time to be refused.
            with pytest.raises(TimeoutException) as raised:
                producer.init_transactions()
            if raised.value.__cause__ is not None:
                break
    assert "no broker reachable at 127.0.0.1:1 (refused)" in str(raised.value)
    assert isinstance(raised.value.__cause__, NetworkException)
    assert raised.value.__cause__.message == "127.0.0.1:1: refused"
