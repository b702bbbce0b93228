"""The testing aid that stops a commit at a step."""

import os

import pytest

from chaffinch.spark.commit.operations import Step
from chaffinch.spark.sink.pause import FILE_VARIABLE, STEP_VARIABLE, go_path, pause, pause_is_due


@pytest.mark.parametrize(
    ("wanted", "is_due"),
    [
        ("", False),
        ("push", True),
        ("push@3", True),
        ("push@2", False),
        ("push@33", False),
        ("push_dead_letters@3", False),
        ("read_state@1,push@3", True),
        ("read_state@3,push@1", False),
    ],
)
def test_which_steps_of_which_batches_pause(wanted, is_due):
    assert pause_is_due(Step.PUSH, 3, {STEP_VARIABLE: wanted}) is is_due


def test_a_pause_says_who_waits_where_and_ends_when_it_may(tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setenv(FILE_VARIABLE, str(told))
    (tmp_path / "told.push@3.go").touch()
    assert go_path(str(told), Step.PUSH, 3) == str(tmp_path / "told.push@3.go")
    pause(Step.PUSH, 3)
    assert told.read_text() == f"push@3 {os.getpid()}\n"
