"""Terminal output of all commands: escapes control characters in every text before it is printed.

No other module of `cli/` prints. Data that a command writes (`consume`, `--output`) is written unchanged, except to a terminal.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final, cast

from chaffinch.plain_text import abbreviate, plain

CELL_LENGTH_MAX: Final = 100
"""Longer texts are cut in tables; `--json` prints them in full."""
# Without a terminal lines are not wrapped: each row is one line of the pipe.
PIPE_COLUMNS: Final = 1000


def print_line(text: str = "", *, flush: bool = False) -> None:
    """Print one line to stdout."""
    print(plain(text), flush=flush)


_is_json = False
# Advice at the end of an error, in the words that the commands and the checks of options use.
_HINT: Final = re.compile(
    r"(?<=[:;] )(?:the nearest |give |options go after it|pip install |--rejected FILE |\S[^:;]* --help lists )[^;]*$"
)


def print_errors_as_json(is_wanted: bool) -> None:
    """Whether `print_error` prints JSON, from now on in this process."""
    global _is_json
    _is_json = is_wanted


def print_error(text: str, *, name: str | None = None, code: int | None = None, hint: str | None = None) -> None:
    """Print the error that ends a command to stderr: one line after the program's name, or with `--json` one JSON object on one line.

    `name` and `code` identify the error, `hint` is its advice. Only JSON shows them apart from the text.
    """
    if not _is_json:
        print_notice(text)
        return
    found = _HINT.search(text)
    error = {"error": plain(text), "name": name, "code": code, "hint": plain(hint or (found[0] if found else "")) or None}
    print(plain(json.dumps(error, ensure_ascii=False)), file=sys.stderr)


def print_notice(text: str, *, flush: bool = False) -> None:
    """Print one line to stderr, after the program's name. The command continues."""
    print(f"chaffinch: {plain(text)}", file=sys.stderr, flush=flush)


def heading(name: str) -> str:
    """An id as the start of a line, cut to the length of a table cell."""
    return abbreviate(plain(name), CELL_LENGTH_MAX)


def print_text(text: str, *, to: IO[str] | None = None) -> None:
    """Print a text of several lines; its line feeds are kept."""
    print(plain(text, keep="\n"), file=to, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON text to stdout. Control characters are escaped, which does not change the JSON value."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, indent: int = 0) -> None:
    """Print a table with aligned columns. None is a dash; elements of a tuple are cut one by one; markup is not interpreted."""
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
    """Wrap a terminal for printing records: escapes all unprintable characters but line feeds and tabs."""
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
