"""A testing aid: stop a commit at a named step, so that a test can kill the query exactly there, never by timing.

`CHAFFINCH_PAUSE_AT_STEP=<step>` or `<step>@<batch id>` (steps: `operations.Step`), `CHAFFINCH_PAUSE_FILE=<path>`: when the
step's first effect is done and answered, the committing process appends the line `<step>@<batch id>` to the file (a FIFO
will do) and sleeps until it is killed, or its parent is. The commit runs in a Python worker beneath the driver's JVM, so
start the query in a session of its own (`start_new_session=True`) and kill its process group: PySpark's workers have groups
of their own, but end with the JVM.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from chaffinch.spark.operations import Step

STEP_VARIABLE = "CHAFFINCH_PAUSE_AT_STEP"
FILE_VARIABLE = "CHAFFINCH_PAUSE_FILE"
POLL_S = 0.1


def pause_is_due(step: Step, batch_id: int, environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for a pause after this step of this batch."""
    wanted = (os.environ if environment is None else environment).get(STEP_VARIABLE, "")
    name, _, batch = wanted.partition("@")
    return name == step.value and batch in ("", str(batch_id))


def pause(step: Step, batch_id: int) -> None:
    """Says where it stands, and never returns: it ends with the process that started it, whatever that left behind."""
    parent = os.getppid()
    with open(os.environ[FILE_VARIABLE], "a") as file:
        file.write(f"{step.value}@{batch_id}\n")
    while os.getppid() == parent:
        time.sleep(POLL_S)  # It is there to be killed; of its parent's end nobody tells it.
    os._exit(1)
