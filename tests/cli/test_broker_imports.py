"""What a broker loads before it is ready, because its start is waited for; and how soon its threads give way to one another."""

from __future__ import annotations

import os
import subprocess
import sys

NOT_LOADED = {
    "chaffinch.producer",
    "chaffinch.client",
    "numba",
    "pyarrow",
    "rich",
    "typer.rich_utils",
}
"""Nothing of it is needed to serve a first request. Each takes 10 to 400 ms."""


PRINT_LOADED = """
import gc, os, sys
def ready():
    print(*sys.modules)
    print(len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 1)
    print(sys.getswitchinterval())
    raise SystemExit
gc.freeze = ready  # The last that happens before a broker says that it is ready.
from chaffinch.cli.main import main
main()
"""


def test_broker_start_loads_no_heavy_modules() -> None:
    """Nor does it start threads: numpy's linear algebra would, one for each processor, and wait for them. The thread that loads the
    compiled loops later must not hold up requests for 5 ms at a time, as Python's threads may."""
    command = [sys.executable, "-c", PRINT_LOADED, "broker", "--listen", "127.0.0.1:0", "--topic", "orders"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS", "OMP"))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    names, threads, switch_interval_s = done.stdout.splitlines()
    loaded = set(names.split())
    assert {"chaffinch.broker.server", "numpy", "typer"} <= loaded
    assert not loaded & NOT_LOADED
    assert int(threads) == 1
    assert float(switch_interval_s) <= 0.001
