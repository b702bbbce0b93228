"""Backoff and time-outs of transactional calls."""

from __future__ import annotations

import pytest

from chaffinch.errors import IllegalStateException, KafkaException, TimeoutException, codes
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.producer.core.rig import Rig
from tests.producer.core.transactions.test_manager import IN_EACH_VERSION, STEPS, rig_in, run_transaction


@pytest.mark.parametrize("step", [step for step in STEPS if step is not Step.FIND_COORDINATOR], ids=lambda step: step.name)
def test_backoff_grows_though_the_coordinator_is_found_each_time(step: Step) -> None:
    """From 100 ms to 1 s: 20 s with a constant backoff of 100 ms would use up all 100 responses."""
    rig = run_transaction(step, *[codes.NOT_COORDINATOR] * 100)
    requests = [request for request in rig.requests if isinstance(request, STEPS[step])]
    assert 5 <= len(requests) <= 30


def test_close_does_not_wait_for_init() -> None:
    """An unfinished init leaves nothing open, and its caller may be gone: close used to wait for the full limit of the call, a minute."""
    rig = Rig(options={"transactional.id": "t"})
    rig.hold.add(InitProducerIdRequest)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 60_000)
    assert rig.calls == {"close": "done"}
    for effect in rig.core.give_up(IllegalStateException("closed")):
        rig._apply(effect)
    assert isinstance(rig.calls["init"], KafkaException)


def test_close_waits_for_a_commit() -> None:
    rig = rig_in(State.COMMITTING)
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 60_000)
    assert "close" not in rig.calls
    rig.release()
    assert (rig.calls["first commit"], rig.calls["close"]) == ("done", "done")


REPEATED_CALLS = {
    State.INITIALIZING: events.InitTransactionsCalled,
    State.COMMITTING: events.CommitCalled,
    State.ABORTING: events.AbortCalled,
}


@IN_EACH_VERSION
@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    ("state", "kind"), [(State.INITIALIZING, "init"), (State.COMMITTING, "first commit"), (State.ABORTING, "first abort")]
)
def test_timed_out_call_goes_on_and_can_be_repeated(state: State, kind: str, is_over: bool) -> None:
    """Decision 30: a commit that may have happened is never aborted, only requested again; it may have ended by then."""
    rig = rig_in(state)
    rig.sleep(60_001)
    assert isinstance(rig.calls[kind], TimeoutException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state
    if is_over:
        rig.release()
    assert rig.call(REPEATED_CALLS[state], "again") == ("done" if is_over else None)
    if not is_over:
        rig.release()
    assert rig.calls["again"] == "done"
    assert isinstance(rig.call(REPEATED_CALLS[state], "a third time"), IllegalStateException)


def test_refused_call_in_between_has_no_effect() -> None:
    rig = rig_in(State.COMMITTING)
    rig.sleep(60_001)
    assert isinstance(rig.call(events.AbortCalled, "abort"), IllegalStateException)
    rig.release()
    assert isinstance(rig.call(events.AbortCalled, "abort once more"), IllegalStateException)
    assert rig.call(events.CommitCalled, "again") == "done"


def test_finished_commit_does_not_complete_another_call() -> None:
    rig = rig_in(State.COMMITTING)
    rig.sleep(60_001)
    rig.release()
    rig.call(events.BeginTransactionCalled, "begin the next")
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert isinstance(rig.call(events.CommitCalled, "commit"), IllegalStateException)
