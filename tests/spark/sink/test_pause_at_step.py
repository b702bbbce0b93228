"""The testing aid that stops a commit at a step."""

import os
from pathlib import Path

import pytest

from chaffinch.client.sync_client import SyncClient
from chaffinch.spark.commit.operations import FindHangingTransactions, HangingTransactions, Step, Wait
from chaffinch.spark.commit.plan import Commit, CommitResult
from chaffinch.spark.sink import commit_shell
from chaffinch.spark.sink.pause_at_step import FILE_VARIABLE, STEP_VARIABLE, pause_hook, resume_path
from tests.spark.sink.test_commit_shell import shell


@pytest.mark.parametrize(
    ("wanted", "is_due"),
    [
        ("push", True),
        ("push@3", True),
        ("push@2", False),
        ("push@33", False),
        ("push_dead_letters@3", False),
        ("read_state@1,push@3", True),
        ("read_state@3,push@1", False),
    ],
)
def test_pause_at_steps_and_batches(wanted: str, is_due: bool, tmp_path: Path) -> None:
    """The pause ends at once, and says who waited where."""
    pauses = tmp_path / "pauses"
    (tmp_path / "pauses.push@3.go").touch()
    assert resume_path(str(pauses), Step.PUSH, 3) == str(tmp_path / "pauses.push@3.go")
    pause = pause_hook({STEP_VARIABLE: wanted, FILE_VARIABLE: str(pauses)})
    assert pause is not None
    pause(Step.PUSH, 3)
    assert (pauses.read_text() if pauses.exists() else "") == (f"push@3 {os.getpid()}\n" if is_due else "")


@pytest.mark.parametrize("environment", [{}, {STEP_VARIABLE: ""}])
def test_no_pause_without_variable(environment: dict[str, str]) -> None:
    assert pause_hook(environment) is None


def test_step_pauses_after_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait has none."""
    steps: list[tuple[Step, int]] = []
    monkeypatch.setattr(commit_shell, "find_hanging_transactions", lambda *_: HangingTransactions())

    def commit() -> Commit:
        yield Wait(step=Step.FINISH_COMMIT, ms=0)
        assert steps == []
        yield FindHangingTransactions(step=Step.FINISH_COMMIT, producer_id=1, partitions=(), refresh=False)
        return CommitResult(outcome="empty")

    with SyncClient("127.0.0.1:1") as client:
        shell(client, after_step=lambda step, batch_id: steps.append((step, batch_id))).run(commit())
    assert steps == [(Step.FINISH_COMMIT, 0)]
