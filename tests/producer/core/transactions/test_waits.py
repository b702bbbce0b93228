"""How long a transaction waits before it asks again, and who waits for it."""

from __future__ import annotations

import pytest

from chaffinch.errors import IllegalStateException, KafkaException, TimeoutException, codes
from chaffinch.producer.core import events
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.producer.core.rig import Rig
from tests.producer.core.transactions.test_manager import IN_EACH_VERSION, STEPS, rig_in, run_whole


@pytest.mark.parametrize("step", [step for step in STEPS if step is not Step.FIND_COORDINATOR], ids=lambda step: step.name)
def test_waits_grow_though_the_coordinator_is_found_each_time(step: Step) -> None:
    """From 100 ms to a second: 20 seconds of 100 ms would take all hundred answers."""
    rig = run_whole(step, *[codes.NOT_COORDINATOR] * 100)
    asked = [request for request in rig.requests if isinstance(request, STEPS[step])]
    assert 5 <= len(asked) <= 30


def test_a_close_does_not_wait_for_a_start() -> None:
    """It leaves nothing open, and who began it may be interrupted long since: the time of the call was waited for, a minute."""
    rig = Rig(options={"transactional.id": "t"})
    rig.hold.add(InitProducerIdRequest)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 60_000)
    assert rig.calls == {"close": "done"}
    for effect in rig.core.give_up(IllegalStateException("closed")):
        rig._note(effect)
    assert isinstance(rig.calls["init"], KafkaException)


def test_a_close_waits_for_an_end() -> None:
    rig = rig_in(State.COMMITTING)
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 60_000)
    assert "close" not in rig.calls
    rig.release()
    assert (rig.calls["first commit"], rig.calls["close"]) == ("done", "done")


AGAIN = {State.INITIALIZING: events.InitTransactionsCalled, State.COMMITTING: events.CommitCalled, State.ABORTING: events.AbortCalled}


@IN_EACH_VERSION
@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    ("state", "kind"), [(State.INITIALIZING, "init"), (State.COMMITTING, "first commit"), (State.ABORTING, "first abort")]
)
def test_a_call_that_times_out_goes_on_and_can_be_made_again(state: State, kind: str, is_over: bool) -> None:
    """Decision 30: a commit that may have happened is never aborted, only asked about again; it may be over before that."""
    rig = rig_in(state)
    rig.sleep(60_001)
    assert isinstance(rig.calls[kind], TimeoutException)
    assert rig.core.transaction is not None
    assert rig.core.transaction.state is state
    if is_over:
        rig.release()
    assert rig.call(AGAIN[state], "again") == ("done" if is_over else None)
    if not is_over:
        rig.release()
    assert rig.calls["again"] == "done"
    assert isinstance(rig.call(AGAIN[state], "a third time"), IllegalStateException)


def test_a_call_that_is_refused_in_between_changes_nothing() -> None:
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
