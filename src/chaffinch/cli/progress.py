"""A progress bar on stderr, where that is a terminal and stdout is not in its way; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
        task = shown.add_task(title, total=total)
        yield lambda done: shown.update(task, completed=done)
