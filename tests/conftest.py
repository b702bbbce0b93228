"""Settings of all tests. Hypothesis looks at no clock: how long an example takes, or to think of it, is luck, on a machine that does other
things too.

A shell has what runs in its background ignore Ctrl-C, and so would all that the tests start and interrupt.

Each Spark of the tests lives for seconds or minutes: optimising its Java thoroughly takes half of its processor time and never pays.

`pytest --quick` leaves out what takes long: the folders of LONG, tests marked `spark` or `long`, those that start a process, and most
examples of hypothesis.
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
LONG = frozenset(
    {
        "broker",
        "cli",
        "client",
        "consumer",
        "examples",
        "fuzz",
        "interop",
        "kips",
        "producer",
        "simulation",
        "soak",
        "spark",
        "storage",
        "test_documents.py",
        "upgrades",
    }
)
"""Of tests/: sockets, disks, processes, Spark, many worlds."""

QUICK = ("broker/core", "producer/core", "consumer/core", "spark/commit")
"""Within LONG."""

STARTS = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})
"""Events of Python's audit: a process is about to be started."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes long: Spark, sockets, processes, most examples")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        settings.load_profile("quick")
        sys.addaudithook(skip_where_a_process_starts)


def skip_where_a_process_starts(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        pytest.skip("starts a process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    path = collection_path.relative_to(TESTS)
    if not config.getoption("quick") or path.parts[:1] not in {(name,) for name in LONG}:
        return None
    return not any(path.is_relative_to(quick) or Path(quick).is_relative_to(path) for quick in QUICK)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        long = {item for item in items if item.get_closest_marker("spark") or item.get_closest_marker("long")}
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("quick"):
        folders = f"{', '.join(sorted(LONG))} (of these run: {', '.join(QUICK)})"
        terminalreporter.write_line(f"left out: {folders}; tests marked as long; tests that start a process; most examples of hypothesis")
