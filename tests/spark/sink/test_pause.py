"""The testing aid that stops a commit at a step."""

import os
from pathlib import Path

import pytest

from chaffinch.spark.commit.operations import Step
from chaffinch.spark.sink.pause import FILE_VARIABLE, STEP_VARIABLE, go_path, pauses_asked_for


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
def test_which_steps_of_which_batches_pause(wanted: str, is_due: bool, tmp_path: Path) -> None:
    """The pause ends at once, and says who waited where."""
    told = tmp_path / "told"
    (tmp_path / "told.push@3.go").touch()
    assert go_path(str(told), Step.PUSH, 3) == str(tmp_path / "told.push@3.go")
    pause = pauses_asked_for({STEP_VARIABLE: wanted, FILE_VARIABLE: str(told)})
    assert pause is not None
    pause(Step.PUSH, 3)
    assert (told.read_text() if told.exists() else "") == (f"push@3 {os.getpid()}\n" if is_due else "")


@pytest.mark.parametrize("environment", [{}, {STEP_VARIABLE: ""}])
def test_nothing_pauses_where_nobody_has_asked_for_it(environment: dict[str, str]) -> None:
    assert pauses_asked_for(environment) is None
