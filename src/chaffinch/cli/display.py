"""All that commands print passes here: no text from the network reaches a terminal as it came.

Nothing else in `cli/` prints. What a command writes as data (`consume`, `--output`) is exact, except on a terminal.
"""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final, cast

from chaffinch.plain_text import abbreviate, plain

CELL_LENGTH_MAX: Final = 100
"""A longer text in a table is cut; `--json` has all of it."""
# Without a terminal there is nobody to wrap lines for: into a pipe each row goes on one line.
PIPE_COLUMNS: Final = 1000


def print_line(text: str = "", *, flush: bool = False) -> None:
    """One line on stdout."""
    print(plain(text), flush=flush)


def print_error(text: str, *, flush: bool = False) -> None:
    """One line on stderr."""
    print(f"chaffinch: {plain(text)}", file=sys.stderr, flush=flush)


def heading(name: str) -> str:
    """An id before what is said about it: no longer than in a table."""
    return abbreviate(plain(name), CELL_LENGTH_MAX)


def print_text(text: str, *, to: IO[str] | None = None) -> None:
    """Text of our own that has several lines."""
    print(plain(text, keep="\n"), file=to, flush=True)


def print_json(value: Any) -> None:
    """One JSON text on stdout. What a terminal could take for a command is escaped, which means the same in JSON."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, indent: int = 0) -> None:
    """Rows under their titles, columns aligned; None is a dash, of a tuple each part is cut by itself. Nothing is taken for markup."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(Padding(table, (0, 0, 0, indent)))
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _cell(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return " ".join(map(_cell, value))
    return abbreviate(plain(str(value)), CELL_LENGTH_MAX)


def terminal_text(terminal: IO[bytes]) -> IO[bytes]:
    """Where records go that are shown on a terminal: all but line feeds and tabs that cannot be printed is escaped."""
    return cast("IO[bytes]", _TerminalText(terminal))


class _TerminalText(io.RawIOBase):
    def __init__(self, terminal: IO[bytes]) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._terminal.write(plain(self._decoder.decode(bytes(data)), keep="\n\t").encode())
        return len(data)

    def flush(self) -> None:
        if not self.closed:
            self._terminal.flush()
