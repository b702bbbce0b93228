"""The example of a scheduled load: its retries, and a second run of the same day."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker, WriteTableResult
from chaffinch.errors import TableWriteException
from chaffinch.errors.codes import Group
from examples import scheduled_load

TOPICS = {"sales": 2, "sales-rejected": 1}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=TOPICS, config={"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    path.write_text("id,amount\n1,10\n2,-3\n3,7\n")
    return path


def printed(broker: EmbeddedBroker, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--day", "2026-11-29", str(file)]
    monkeypatch.setattr(sys, "argv", ["scheduled_load", *arguments])
    runpy.run_module("examples.scheduled_load", run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.mark.filterwarnings("ignore:'examples.scheduled_load' found in sys.modules:RuntimeWarning")
def test_second_run_of_a_day_writes_nothing(
    broker: EmbeddedBroker, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(broker, file, monkeypatch, capsys) == [
        "2026-11-29: written, 2 rows written, rejected: 1 INVALID_RECORD: amount is negative"
    ]
    assert printed(broker, file, monkeypatch, capsys) == ["2026-11-29: skipped, 0 rows written, rejected: none"]
    assert (broker.read("sales").num_rows, broker.read("sales-rejected").num_rows) == (2, 1)


def test_failed_attempt_is_retried(broker: EmbeddedBroker, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempts: list[str] = []

    def task() -> WriteTableResult:
        attempts.append("127.0.0.1:1" if not attempts else broker.bootstrap_servers)
        if len(attempts) == 1:
            raise TableWriteException("no broker reachable", error_name="REQUEST_TIMED_OUT", group=Group.RETRIABLE)
        return scheduled_load.load(attempts[-1], "2026-11-30", file)

    assert scheduled_load.with_retries(task, 3, pause_s=0).outcome == "written"
    assert capsys.readouterr().out == "attempt 1 of 3 failed: REQUEST_TIMED_OUT: no broker reachable\n"
    assert broker.read("sales").num_rows == 2


def test_wrong_configuration_is_not_retried(file: Path, broker: EmbeddedBroker) -> None:
    broker.delete_topic("sales")
    calls: list[None] = []

    def task() -> WriteTableResult:
        calls.append(None)
        return scheduled_load.load(broker.bootstrap_servers, "2026-12-01", file)

    with pytest.raises(TableWriteException, match=r"topic 'sales' \(argument topic\) does not exist"):
        scheduled_load.with_retries(task, 3, pause_s=0)
    assert len(calls) == 1
