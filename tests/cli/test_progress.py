"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from chaffinch.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_wanted", "is_shown"), [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)]
)
@pytest.mark.parametrize("total", [None, 10])
def test_where_it_is_shown(
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
