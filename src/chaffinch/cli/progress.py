"""A progress bar on stderr, where that is a terminal and stdout is not in its way, or what is being done; nothing anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chaffinch.plain_text import plain


@contextmanager
def progress(title: str, total: int | None, *, is_bytes: bool = False, is_wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """A function that takes how much is done so far. `total` None: unknown."""
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
    """For what has no measure: a line that says what is being done, and since when, and is gone at the end. A function that takes what is
    done next. It goes to the terminal that stderr is now, also when that is led elsewhere meanwhile."""
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
