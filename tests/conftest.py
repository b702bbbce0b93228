"""pytest configuration of all tests: hypothesis profiles, signals, Spark's JVM options, and `--quick`.

- Hypothesis has no deadlines: on a machine that is busy with other work the duration of an example is random.
- A shell starts background jobs with SIGINT ignored, and every process that the tests start and interrupt would inherit that.
- A Spark JVM of the tests lives for seconds or minutes: its optimising compiler takes half of the processor time and never pays off.

`pytest --quick` leaves out the folders of SLOW, tests marked `spark` or `long`, tests that start a process, and most examples of
hypothesis.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

settings.register_profile("chaffinch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chaffinch")
settings.register_profile("quick", settings.get_profile("chaffinch"), max_examples=5)

TESTS = Path(__file__).parent
SLOW = frozenset(
    {
        "async_clients",
        "broker",
        "cli",
        "client",
        "consumer",
        "examples",
        "fuzz",
        "interop",
        "kips",
        "producer",
        "serialization",
        "simulation",
        "soak",
        "spark",
        "storage",
        "table_writes",
        "testing",
        "test_documents.py",
        "upgrades",
    }
)
"""Folders and files of tests/ that need sockets, disks, processes, Spark or many simulated worlds."""

FAST_WITHIN_SLOW = ("broker/core", "producer/core", "consumer/core", "spark/commit")
"""Folders within SLOW that `--quick` runs all the same."""

PROCESS_START_EVENTS = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})
"""Python audit events raised before a process is started."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out slow tests: Spark, sockets, processes, most examples")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        settings.load_profile("quick")
        sys.addaudithook(skip_test_that_starts_a_process)


def skip_test_that_starts_a_process(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in PROCESS_START_EVENTS:
        pytest.skip("starts a process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    path = collection_path.relative_to(TESTS)
    if not config.getoption("quick") or path.parts[:1] not in {(name,) for name in SLOW}:
        return None
    return not any(path.is_relative_to(quick) or Path(quick).is_relative_to(path) for quick in FAST_WITHIN_SLOW)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        long = {item for item in items if item.get_closest_marker("spark") or item.get_closest_marker("long")}
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("quick"):
        folders = f"{', '.join(sorted(SLOW))} (of these run: {', '.join(FAST_WITHIN_SLOW)})"
        terminalreporter.write_line(f"left out: {folders}; tests marked as long; tests that start a process; most examples of hypothesis")
