"""A testing aid: stop a commit at a named step, so that a test can kill the query exactly there, never by timing.

`CHAFFINCH_PAUSE_AT_STEP=<step>` or `<step>@<batch id>`, or several with commas (steps: `operations.Step`),
`CHAFFINCH_PAUSE_FILE=<path>`: when the step's first effect is done and answered, the committing process appends the line
`<step>@<batch id> <its process id>` to the file (a FIFO will do) and sleeps until it is killed, or its parent is, or a file
`<path>.<step>@<batch id>.go` is there. The commit runs in a Python worker beneath the driver's JVM, so
start the query in a session of its own (`start_new_session=True`) and kill its process group: PySpark's workers have groups
of their own, but end with the JVM.
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
    """What a commit calls after each step of a batch; None where the environment asks for no pause."""
    steps = set(environment.get(STEP_VARIABLE, "").split(",")) - {""}

    def pause_if_requested(step: Step, batch_id: int) -> None:
        if steps & {step.value, f"{step.value}@{batch_id}"}:
            pause(environment[FILE_VARIABLE], step, batch_id)

    return pause_if_requested if steps else None


def resume_path(path: str, step: Step, batch_id: int) -> str:
    """The file that ends a pause, beside the one that tells of it."""
    return f"{path}.{step.value}@{batch_id}.go"


def pause(path: str, step: Step, batch_id: int) -> None:
    """Writes where the commit stands into the file, and waits; it ends with the process that started it, whatever that left behind."""
    parent = os.getppid()
    with open(path, "a") as file:
        file.write(f"{step.value}@{batch_id} {os.getpid()}\n")
    while os.getppid() == parent:
        if os.path.exists(resume_path(path, step, batch_id)):
            return
        time.sleep(POLL_S)  # A test kills this process here; the end of its parent gives no signal.
    os._exit(1)
