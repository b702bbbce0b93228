"""A client whose thread cannot be started."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import threading
from chaffinch import {kind}

def cannot(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = cannot
try:
    {kind}(bootstrap_servers="127.0.0.1:1")
except RuntimeError as error:
    kept = error  # As an interactive session does, and with it everything that was made.
"""


@pytest.mark.parametrize("kind", ["Producer", "Consumer"])
def test_the_end_of_the_process_does_not_wait_for_it(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE.format(kind=kind)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
