"""A coordinator that ends a transaction and tells nobody, as Apache Kafka 4.3.1 does where its only broker dies in the midst of the end, or
is away for longer than the transaction might last: each row in Kafka exactly once all the same."""

from contextlib import contextmanager, nullcontext, suppress
from itertools import count

import pytest

from chaffinch.broker.core.transactions.participants import TransactionParticipants
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsResponse, DescribeTransactionsState
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.operations import Ask, Reply, Step, Wait
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT
from tests.spark.commit.commit_world import TOPIC, Cut, Driver, Killed, Query
from tests.spark.commit.test_protocol import OPERATIONS, assert_exactly_once, two_batches

FIRST_STEPS = two_batches()[1].commit(0).steps
FIRST_SEND, ADDS_OFFSETS, ENDS = (FIRST_STEPS.index(step) for step in (Step.PUSH, Step.ADD_OFFSETS, Step.END_TRANSACTION))


@contextmanager
def told_nobody(monkeypatch):
    """Meanwhile every end of a transaction is forgotten."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        patched.setattr(TransactionParticipants, "complete_offsets", lambda *_: None)
        yield


def forgets(monkeypatch, forgotten):
    """What ends in an operation for which `forgotten` is true is forgotten."""
    effect = Driver.effect

    def forgetting(self, operation):
        with told_nobody(monkeypatch) if forgotten(operation) else nullcontext():
            return effect(self, operation)

    monkeypatch.setattr(Driver, "effect", forgetting)


def forgets_at(monkeypatch, at):
    """What ends in the operation number `at`, counted over all runs."""
    numbers = count()
    forgets(monkeypatch, lambda _: next(numbers) == at)


def forgets_ends(monkeypatch, times):
    """The first `times` transactions that EndTxn ends."""
    left = iter(range(times))
    forgets(monkeypatch, lambda operation: _is_end(operation) and next(left, None) is not None)


def _is_end(operation):
    return isinstance(operation, Ask) and isinstance(operation.message, EndTxnRequest)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_coordinator_that_ends_a_transaction_and_tells_no_partition(at, monkeypatch):
    """As Apache Kafka's, where its only broker was away for longer than the transaction might last."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how="crash_after"))
    with told_nobody(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.run()
    assert_exactly_once(broker)


def forgets_aborts(monkeypatch, times):
    """The first `times` abort markers never come to their partitions. Those that did not, as they come."""
    write_marker, untold = TransactionParticipants.write_marker, []

    def written(self, place, is_commit, *rest):
        if is_commit or len(untold) >= times:
            write_marker(self, place, is_commit, *rest)
        else:
            untold.append(place)

    monkeypatch.setattr(TransactionParticipants, "write_marker", written)
    return untold


@pytest.mark.parametrize("times", range(2, 9))
def test_an_abort_of_what_is_left_open_that_is_forgotten_in_turn(times, monkeypatch):
    """The broker was away once more, in the midst of it."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=ADDS_OFFSETS, how="crash_after"))
    untold = forgets_aborts(monkeypatch, times)
    broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    while not query.done:
        with suppress(Refusal):
            query.run()
    query.run()
    assert len(untold) == times
    assert_exactly_once(broker)


def test_the_abort_of_an_attempt_that_is_forgotten(monkeypatch):
    broker, query = two_batches()
    untold = forgets_aborts(monkeypatch, 1)
    fault = {"api": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER", "count": 1}
    query.run(Cut(at=FIRST_SEND + 1, how="during", during=lambda: broker.core.faults.add(**fault)))
    assert untold
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["crash_after", "lose_answer"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_an_end_that_is_forgotten(at, how, monkeypatch):
    """Whatever ended in this operation; what it was cannot be told from its answer."""
    broker, query = two_batches()
    forgets_at(monkeypatch, at)
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    query.commit(1)  # What was forgotten last is found by whoever comes next.
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["crash_before", "crash_after"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_death_after_a_commit_that_is_forgotten(at, how, monkeypatch):
    """Nothing of it is noted: neither that it was answered, nor by the group that it holds the marker."""
    broker, query = two_batches()
    forgets_at(monkeypatch, ENDS)
    with pytest.raises(Killed):
        query.run(Cut(at=ENDS, how="crash_after"))
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    assert_exactly_once(broker)


def test_a_commit_that_is_forgotten_becomes_visible_with_the_next_batch(monkeypatch):
    broker, query = two_batches()
    forgets_at(monkeypatch, ENDS)
    query.run(until=1)
    assert broker.read(TOPIC) == []
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("times", [2, 5])
def test_a_commit_that_is_forgotten_again_while_it_is_finished(times, monkeypatch):
    """A coordinator that has just started does not know all leaders for a while."""
    broker, query = two_batches()
    forgets_ends(monkeypatch, times)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


def test_a_commit_that_is_forgotten_for_ever_fails_the_next_batch(monkeypatch):
    broker, query = two_batches()
    forgets_ends(monkeypatch, 1_000)
    with pytest.raises(Refusal, match="says is committed is still open in 2 partitions; this batch is not begun"):
        query.run()
    assert broker.read(TOPIC) == []


FINISHING = [at for at in range(ENDS + 2, ENDS + 12) if at - ENDS not in (6, 7)]
"""Operations of a run whose first commit was forgotten, until its second batch has introduced itself. In the two left out it is open like
any transaction, and another driver aborts it."""


@pytest.mark.parametrize("at", FINISHING)
def test_a_second_driver_while_a_forgotten_commit_is_finished(at, monkeypatch):
    broker, query = two_batches()
    other = Query(broker, query.batches, done=1, run_count=100)
    forgets_at(monkeypatch, ENDS)

    def meanwhile():
        other.state = query.state
        if other.done == 1:
            other.run()

    with suppress(Refusal):
        query.run(Cut(at=at, how="during", during=meanwhile))
    assert other.done == 2
    query.state, query.done = other.state, 1
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("error", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR"])
def test_without_the_coordinators_word_a_pending_marker_is_nobodys_to_abort(error, monkeypatch):
    broker, query = two_batches()
    broker.core.faults.add(api="DescribeTransactions", error=error, count=1_000)
    forgets_at(monkeypatch, ENDS)
    with pytest.raises(Refusal, match="UNSTABLE_OFFSET_COMMIT"):
        query.run()


def answered(asked, state):
    """Drives `last_transaction` with one state of the coordinator's for ever."""
    now_ms, operation = 0, next(asked)
    while True:
        is_wait = isinstance(operation, Wait)
        now_ms += operation.ms if is_wait else 0
        answer = None if is_wait else DescribeTransactionsResponse(transaction_states=[state])
        operation = asked.send(Reply(now_ms=now_ms, value=answer))


def test_an_end_that_never_comes_is_not_taken_for_one():
    """As long as it is ending nobody knows what partitions will be told."""
    ending = DescribeTransactionsState(transactional_id="t", transaction_state="PrepareCommit")
    with pytest.raises(Refusal, match=r"asked for 60000 ms .* PrepareCommit"):
        answered(requests.last_transaction(Step.FINISH_COMMIT, "t", 60_000), ending)
