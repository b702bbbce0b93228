"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

import pytest

from chaffinch.cli.progress import progress, status_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_wanted", "is_shown"), [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)]
)
@pytest.mark.parametrize("total", [None, 10])
def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, is_wanted: bool, is_shown: bool, total: int | None
) -> None:
    stream.seek(0)
    stream.truncate()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("[orders] to t", total, is_wanted=is_wanted) as show:
        show(3)
        show(10)
    assert ("[orders] to t" in stream.getvalue(), "10/" in stream.getvalue()) == (is_shown, is_shown)


def _read(screen: io.RawIOBase) -> str:
    """The next bytes of a terminal; empty after its last writer has closed it, which Linux reports as an error."""
    with suppress(OSError):
        return (screen.read(100_000) or b"").decode(errors="replace")
    return ""


def test_status_line_survives_redirected_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in its way: what others print to stderr goes where that leads."""
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    elsewhere = io.StringIO()
    with open(master, "rb", buffering=0) as screen, open(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with status_line("starting Spark") as now:
            terminal.close()
            monkeypatch.setattr(sys, "stderr", elsewhere)
            print("a warning", file=sys.stderr)
            now("replaying [all] letters")
        seen = "".join(iter(lambda: _read(screen), ""))
    assert "starting Spark" in seen
    assert "replaying [all] letters" in seen
    assert elsewhere.getvalue() == "a warning\n"


def test_status_line_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with status_line("starting Spark") as now:
        now("replaying")
    assert log.getvalue() == ""
