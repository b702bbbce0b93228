"""A client whose thread cannot be started."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import threading
from chaffinch import {kind}

def fail_to_start(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = fail_to_start
try:
    {kind}(bootstrap_servers="127.0.0.1:1")
except RuntimeError as error:
    kept = error  # As an interactive session does, and with it everything that was made.
"""


@pytest.mark.parametrize("kind", ["Producer", "Consumer"])
def test_process_exit_does_not_wait_for_the_thread(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE.format(kind=kind)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
