"""What tasks staged in a file and is read back otherwise is never sent nor kept, and said at once; the transaction is aborted."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors.codes import Group
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.spark.commit.messages import StagedBytes
from chaffinch.spark.commit.operations import Operation, Step
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import commit_shell
from chaffinch.spark.sink.commit_shell import CommitShell
from tests.spark.query_driver import QueryDriver

ROWS = {"key": ["a", *[None] * 3000], "value": [b"x" * 1000] * 3001}
BLOCK = 4096
QUESTIONS_MAX = 100_000


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 1, "cleanup.policy": "compact"}}) as broker:
        yield broker


@pytest.fixture
def query(kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryDriver]:
    options = {"errors__tolerance": "all", "errors__dead__letter__path": str(tmp_path / "dead")}
    found = QueryDriver(monkeypatch, kafka.bootstrap_servers, tmp_path / "checkpoint", **options)
    yield found
    found.close()


def end_of_transaction(kafka: EmbeddedBroker) -> str:
    """How the query's transaction ended, as its coordinator says it; who ends one is answered before its markers are written."""
    request = DescribeTransactionsRequest(transactional_ids=["chaffinch-q"])
    with SyncClient(kafka.bootstrap_servers) as client:
        for _ in range(QUESTIONS_MAX):
            (found,) = client.coordinator_request("chaffinch-q", "transaction", request).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                return str(found.transaction_state)
    raise AssertionError(found)


def tear(query: QueryDriver, staged: StagedBytes, at: int) -> None:
    """As a power failure or a file system without checksums does it."""
    assert staged.file is not None
    (path,) = (query.checkpoint / "chaffinch" / "staging").rglob(staged.file)
    with path.open("r+b") as file:
        file.seek(staged.position + at)
        file.write(bytes(BLOCK))


@pytest.mark.parametrize("at", [0, 100_000], ids=["in their head", "in a value"])
def test_torn_dead_letter_rows_fail_batch(kafka: EmbeddedBroker, query: QueryDriver, tmp_path: Path, at: int) -> None:
    messages = query.write(ROWS)
    tear(query, messages[0].outcome.dead_rows[0], at)
    with pytest.raises(Refusal, match=r"KAFKA\[ApplicationRecoverable\] STAGING_LOST: staged file .* have checksum [0-9a-f]{8}, "):
        query.commit(messages)
    assert end_of_transaction(kafka) == "CompleteAbort"
    query.run(ROWS)
    assert pq.read_table(tmp_path / "dead").num_rows == 3000


@pytest.mark.parametrize("at", [0, 100_000], ids=["in its header", "in a record"])
def test_torn_record_batch_is_not_sent(kafka: EmbeddedBroker, query: QueryDriver, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = query.write({"key": [str(number) for number in range(3000)], "value": [b"x" * 1000] * 3000})
    tear(query, messages[0].outcome.batches[0].bytes, at)
    sent = []
    monkeypatch.setattr(commit_shell, "ProduceRequest", lambda **fields: sent.append(fields))
    with pytest.raises(Refusal, match=r"STAGING_LOST: staged file .* have checksum [0-9a-f]{8}, .*; start the query again"):
        query.commit(messages)
    assert (sent, end_of_transaction(kafka)) == ([], "CompleteAbort")


@pytest.mark.parametrize("step", [Step.PUSH, Step.WRITE_DEAD_LETTERS, Step.NOTE_ENDING])
def test_unexpected_error_aborts_transaction_with_tag(
    kafka: EmbeddedBroker, query: QueryDriver, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = CommitShell._perform

    def fails(shell: CommitShell, operation: Operation) -> object:
        if operation.step is step:
            raise pa.ArrowInvalid("Tried reading schema message,\nwas null or length 0")
        return perform(shell, operation)

    with monkeypatch.context() as patch:
        patch.setattr(CommitShell, "_perform", fails)
        text = rf"COMMIT_FAILED: {step.value}: ArrowInvalid: Tried reading schema message, was null or length 0; start the query again: it"
        with pytest.raises(Refusal, match=text) as caught:
            query.run(ROWS)
    assert caught.value.group is Group.APPLICATION_RECOVERABLE
    (traceback_of_cause,) = caught.value.__notes__
    assert "in fails\n" in traceback_of_cause
    assert "ArrowInvalid: Tried reading" in traceback_of_cause
    assert end_of_transaction(kafka) == "CompleteAbort"
    query.run(ROWS)
    assert kafka.read("orders").num_rows == 1
