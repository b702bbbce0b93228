"""Progress bar and status line on stderr, shown only if stderr is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chaffinch.plain_text import plain


@contextmanager
def progress(title: str, total: int | None, *, is_bytes: bool = False, is_wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a progress bar. Yields a function to call with the amount done so far. `total` is None if it is unknown."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich import progress as bars
    from rich.console import Console

    amount = bars.DownloadColumn() if is_bytes else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), amount, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(plain(title), total=total)
        yield lambda done: shown.update(task, completed=done)


@contextmanager
def status_line(what: str) -> Iterator[Callable[[str], None]]:
    """Show a status line with the elapsed time, for work without a measurable amount; it is removed at the end.

    Yields a function to call with the next status. The line stays on the current terminal of stderr, even if stderr is redirected later.
    """
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn("{task.description}", markup=False), bars.TimeElapsedColumn())
    with (
        open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace") as terminal,
        bars.Progress(*columns, console=Console(file=terminal), transient=True, redirect_stdout=False, redirect_stderr=False) as shown,
    ):
        task = shown.add_task(plain(what), total=None)
        yield lambda what: shown.update(task, description=plain(what), refresh=True)
