"""The command line in this process: a `Shell` runs commands against one cluster and gives back what they printed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chaffinch.cli.main import main


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Standard(io.TextIOWrapper):
    """A stdin or stdout with bytes below."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8", write_through=True)

    def data(self) -> bytes:
        self.flush()
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue()


class Shell:
    """Commands against one cluster. `name(...)` makes names that no other check uses; `folder` is for files."""

    def __init__(self, bootstrap_servers: str, folder: Path, tag: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder
        self._tag = tag

    def name(self, text: str) -> str:
        return f"{self._tag}-{text}"

    def file(self, name: str, data: bytes | str) -> str:
        path = self.folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a command of this cluster."""
        status, out, err = run_bytes([*arguments, "--bootstrap-server", self.bootstrap_servers], stdin)
        return Ended(status, out.decode(errors="backslashreplace"), err)

    def ok(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a command that must succeed and has nothing to complain about."""
        ended = self(*arguments, stdin=stdin)
        assert (ended.status, ended.err) == (0, ""), (arguments, ended)
        return ended

    def refused(self, *arguments: str, says: str, status: int = 1, stdin: bytes = b"") -> None:
        """Run a command that must be refused in one line that says `says`."""
        ended = self(*arguments, stdin=stdin)
        assert ended.status == status, (arguments, ended)
        (line,) = ended.err.splitlines()
        if "--json" in arguments:
            line = f"chaffinch: {json.loads(line)['error']}"
        assert line.startswith("chaffinch: "), line
        assert says in line, line


def run_bytes(arguments: list[str], stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Status, stdout and stderr of one command in this process."""
    out, err = Standard(), Standard()
    with _standard(Standard(stdin), out, err):
        try:
            main(arguments)
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int | None)
    return status or 0, out.data(), err.data().decode()


@contextlib.contextmanager
def _standard(stdin: Standard, out: Standard, err: Standard) -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = stdin, out, err
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
