"""What is read without typer is what typer reads, and all else is left to typer."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer

from chaffinch.cli import main as cli
from chaffinch.cli import plain_options
from chaffinch.cli.broker import broker


def read_by_typer(given: list[str]) -> dict[str, Any]:
    """What typer calls `broker` with."""
    seen: dict[str, Any] = {}

    @functools.wraps(broker)
    def command(**values: Any) -> None:
        seen.update(values)

    cli._app_of(command, "")(args=given, prog_name="chaffinch broker", standalone_mode=False)
    return seen


PLAIN = [
    "",
    "--listen :0",
    "--listen=127.0.0.1:0 --data-dir=/d --brokers 3",
    "--topic a --topic=b:2,cleanup.policy=compact --config x=1 --config=y=2",
    "--metrics :1 --control :2 --control-from-anywhere --advertise h:1",
    "--data-dir=",
    "--topic=",
    "--config a=b=c",
    "--listen=-",
]


@pytest.mark.parametrize("line", PLAIN)
def test_plain_lines_are_read_as_typer_reads_them(line: str) -> None:
    found = plain_options.read(broker, line.split())
    assert found is not None
    defaults = {name: parameter.default for name, parameter in inspect.signature(broker).parameters.items()}
    assert defaults | found == {name: value if value != [] else None for name, value in read_by_typer(line.split()).items()}


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--nowhere",
        "--liste :0",
        "word",
        "--",
        "--listen",
        "--listen --help",
        "--listen :0 --listen :1",
        "--brokers x",
        "--brokers 0",
        "--brokers 1000000",
        "--brokers 99999999999999999999",
        "--brokers ٣",
        "--brokers= 1",
        "--brokers=",
        "--control-from-anywhere=yes",
        "--control-from-anywhere --control-from-anywhere",
        "-l :0",
    ],
)
def test_all_else_is_left_to_typer(line: str) -> None:
    assert plain_options.read(broker, line.split(" ")) is None


def test_only_options_of_known_kinds_without_further_powers_are_read() -> None:
    def command(
        needed: Annotated[str, typer.Option("--needed")],
        plain: Annotated[int, typer.Option("--plain")] = 0,
        from_environment: Annotated[str, typer.Option("--from-environment", envvar="X")] = "",
        called: Annotated[str, typer.Option("--called", callback=str)] = "",
        two_names: Annotated[str, typer.Option("--two-names", "-t")] = "",
        either: Annotated[bool, typer.Option("--either/--or")] = False,
        real: Annotated[float, typer.Option("--real")] = 0.0,
        unnamed: Annotated[str, typer.Option()] = "",
    ) -> None:
        pass

    command.__annotations__ = inspect.get_annotations(command, globals=globals(), eval_str=True)
    assert plain_options.read(command, ["--plain", "1"]) is None, "typer says what is missing"
    assert plain_options.read(command, ["--needed", "a", "--plain", "1"]) == {"needed": "a", "plain": 1}
    for name in ("--from-environment", "--called", "--two-names", "--either", "--real", "--unnamed"):
        assert plain_options.read(command, ["--needed", "a", name, "1"]) is None, name
        assert plain_options.read(command, ["--needed", "a", name]) is None, name


NOT_LOADED = {
    "chaffinch.producer",
    "chaffinch.client",
    "crc32c",
    "email",
    "numba",
    "pyarrow",
    "pydantic",
    "rich",
    "typer.rich_utils",
}
"""Nothing of it is needed to serve a first request. Each takes 10 to 400 ms."""


AT_THE_END_OF_ITS_START = """
import gc, os, sys
def ready():
    print(*sys.modules)
    print(len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 1)
    raise SystemExit
gc.freeze = ready  # The last that happens before a broker says that it is ready.
from chaffinch.cli.main import main
main()
"""


def test_what_a_broker_does_not_load_to_start() -> None:
    """Nor does it start threads: numpy's linear algebra would, one for each processor, and wait for them."""
    command = [sys.executable, "-c", AT_THE_END_OF_ITS_START, "broker", "--listen", "127.0.0.1:0", "--topic", "orders"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS", "OMP"))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    names, threads = done.stdout.splitlines()
    loaded = set(names.split())
    assert {"chaffinch.broker.server", "numpy", "typer"} <= loaded
    assert not loaded & NOT_LOADED
    assert int(threads) == 1
