"""Test aid: pauses a commit at a named step, so that a test can kill the query exactly there, without relying on timing.

`CHAFFINCH_PAUSE_AT_STEP=<step>` or `<step>@<batch id>`, or several with commas (steps: `operations.Step`), and
`CHAFFINCH_PAUSE_FILE=<path>`. After the step's first operation has its result, the committing process appends the line
`<step>@<batch id> <its process id>` to the file, which may be a FIFO. It then sleeps until it or its parent is killed, or until a file
`<path>.<step>@<batch id>.go` exists.

The commit runs in a Python worker beneath the driver's JVM. So start the query in its own session (`start_new_session=True`) and kill its
process group: PySpark's workers have their own groups, but end with the JVM.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from chaffinch.spark.commit.operations import Step

STEP_VARIABLE = "CHAFFINCH_PAUSE_AT_STEP"
FILE_VARIABLE = "CHAFFINCH_PAUSE_FILE"
POLL_S = 0.1


def pause_hook(environment: Mapping[str, str]) -> Callable[[Step, int], None] | None:
    """The hook that a commit calls after each step of a batch; None if the environment requests no pause."""
    steps = set(environment.get(STEP_VARIABLE, "").split(",")) - {""}

    def pause_if_requested(step: Step, batch_id: int) -> None:
        if steps & {step.value, f"{step.value}@{batch_id}"}:
            pause(environment[FILE_VARIABLE], step, batch_id)

    return pause_if_requested if steps else None


def resume_path(path: str, step: Step, batch_id: int) -> str:
    """The file that ends a pause, next to the one that reports it."""
    return f"{path}.{step.value}@{batch_id}.go"


def pause(path: str, step: Step, batch_id: int) -> None:
    """Writes the current step to the file and waits. Exits when the parent process has ended."""
    parent = os.getppid()
    with open(path, "a") as file:
        file.write(f"{step.value}@{batch_id} {os.getpid()}\n")
    while os.getppid() == parent:
        if os.path.exists(resume_path(path, step, batch_id)):
            return
        time.sleep(POLL_S)  # A test kills this process here; it gets no signal when its parent ends.
    os._exit(1)
