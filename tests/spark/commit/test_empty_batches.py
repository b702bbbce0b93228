"""Batches without rows: what a commit does with them, and what they use up."""

from chaffinch.spark.commit.operations import Step
from tests.spark.commit.commit_world import DEAD, TOPIC, Broker, Query, counted, outcome


def test_empty_batch_opens_no_transaction_and_is_remembered() -> None:
    broker = Broker()
    query = Query(broker, [(outcome({}),), (outcome({0: [(b"k", b"v")]}),)])
    driver = query.commit(0)
    assert driver.result.outcome == "empty"
    assert driver.steps == [Step.READ_STATE, Step.READ_MARKER, Step.FINISH_COMMIT, Step.NOTE_DONE]
    query.done = 1
    query.run()
    assert counted(broker.read(TOPIC)) == {b"v": 1}


def test_empty_batch_removes_dead_letters_of_failed_attempt() -> None:
    query = Query(Broker(), [(outcome({}),)])
    driver = query.commit(0, writes_dead_letter_file=True)
    assert driver.steps == [Step.READ_STATE, Step.READ_MARKER, Step.FINISH_COMMIT, Step.WRITE_DEAD_LETTERS, Step.NOTE_DONE]


def test_empty_batch_without_checkpoint_commits_a_marker() -> None:
    broker = Broker()
    query = Query(broker, [(outcome({}),), (outcome({0: [(b"k", b"v")]}),)], has_checkpoint=False)
    assert Step.COMMIT_MARKER in query.commit(0).steps
    query.commit(1)
    assert counted(broker.read(TOPIC)) == {b"v": 1}


def test_empty_batch_does_not_use_the_token() -> None:
    """As where the options are tried with a frame without rows first: the rows that come under the token later are written."""
    broker = Broker()
    query = Query(broker, [(outcome({}),), (outcome({0: [(b"k", b"v")]}),)], has_checkpoint=False)
    driver = query.commit(0, is_stream=False)
    assert (driver.result.outcome, driver.steps) == ("empty", [Step.READ_MARKER, Step.FINISH_COMMIT])
    assert query.commit(1, is_stream=False).result.outcome == "written"
    assert query.commit(0, is_stream=False).result.outcome == "skipped"
    assert counted(broker.read(TOPIC)) == {b"v": 1}


def test_empty_batch_of_replay_commits_its_notes() -> None:
    """Where no letter can be replayed from its topic they are done with all the same."""
    broker = Broker()
    query = Query(broker, [(outcome({}),)], has_checkpoint=False)
    (notes,) = outcome({0: [(None, b"note")]}, topic=DEAD).batches
    assert query.commit(0, is_stream=False, notes=(notes,)).result.outcome == "written"
    assert counted(broker.read(DEAD)) == {b"note": 1}
