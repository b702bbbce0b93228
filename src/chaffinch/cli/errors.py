"""`chaffinch errors`: explains error codes as a table, as JSON, or as the page `docs/reference/errors.md` (`--markdown`)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from chaffinch.cli.display import print_error, print_json, print_text
from chaffinch.cli.errors_page import group_names, groups_of, page, stored_text
from chaffinch.cli.main import EXIT_USAGE
from chaffinch.cli.usage import StrictApp
from chaffinch.errors import ConfigException, codes, own_errors
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.handling import ADVICE
from chaffinch.errors.own_errors import OwnError
from chaffinch.settings import LIKENESS_MIN

# Without a terminal lines are not wrapped: each row is one line of the pipe.
PIPE_COLUMNS: Final = 400

# The base class of a group's exceptions. Group.NONE has none.
CLASS_OF: Final[Mapping[Group, str]] = {group: f"{group.value}Exception" for group in Group if group is not Group.NONE}

app: typer.Typer = StrictApp()


# In `errors -1` the argument is a code, not an option.
@app.command(context_settings={"ignore_unknown_options": True})
def errors(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="A number (87), a name (INVALID_RECORD), a class (InvalidRecordException) or a group (Retriable)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of objects.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/reference/errors.md.")] = False,
) -> None:
    """Explain errors of Kafka and Chaffinch: all codes, those of a group, or one by its number, name or class."""
    if as_markdown and (as_json or code is not None):
        raise ConfigException("--markdown prints the whole page: give neither --json nor a code with it")
    group_rows: Sequence[ErrorCode | OwnError] = codes.ALL if code is None else rows_of_group(code)
    rows: Sequence[ErrorCode | OwnError] = group_rows or find(str(code)) or find_own(str(code))
    if not rows:
        print_error(_unknown_text(str(code)))
        raise typer.Exit(EXIT_USAGE)
    if as_json:
        print_json([as_object(row) for row in rows])
    elif as_markdown:
        print_text(page().removesuffix("\n"))
    else:
        console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
        if group_rows:
            console.print(overview(group_rows))
        else:
            for row in rows:
                console.print(details(row), "")


def find(text: str) -> list[ErrorCode]:
    """Rows with this number in either numbering, this name, alias, or exception class; case does not matter."""
    wanted = text.strip().upper()
    if _is_number(wanted):
        return [row for row in codes.ALL if int(wanted) in (row.number, row.number_kip)]
    name = codes.ALIASES.get(wanted, wanted)
    # Not every row has a class.
    return [row for row in codes.ALL if name and name in (row.name, row.exception_name.upper())]


def find_own(text: str) -> list[OwnError]:
    """Rows of Chaffinch's own errors with this name; case does not matter."""
    wanted = text.strip().upper()
    return [row for row in own_errors.ALL if row.name.upper() == wanted]


def rows_of_group(text: str) -> list[ErrorCode | OwnError]:
    """Kafka's codes and Chaffinch's own errors of a group, given by its name, as in `KAFKA[group]`, or by its base class.

    Case does not matter, except for the group None: any other spelling of it means Kafka's code 0.
    """
    wanted = text.strip()
    group = next((group for group in Group if wanted.upper() in (group.value.upper(), CLASS_OF.get(group, "").upper())), None)
    if group is None or (group is Group.NONE and group.value != wanted):
        return []
    rows: list[ErrorCode | OwnError] = [row for row in codes.ALL if group in groups_of(row)]
    return rows + [row for row in own_errors.ALL if row.group is group]


def as_object(row: ErrorCode | OwnError) -> dict[str, Any]:
    """One row as a JSON object. Programs rely on the field names."""
    if isinstance(row, OwnError):
        return {"number": None, "name": row.name, "group": row.group and row.group.value, "text": row.text, "advice": row.advice}
    return {
        "number": row.number,
        "number_kip": row.number_kip,
        "name": row.name,
        "class": row.exception_name,
        "group": _group(row).value,
        "group_produce": row.group_produce.value,
        "group_transaction": row.group_transaction.value,
        "retriable": row.is_retriable,
        "refreshes_metadata": row.refreshes_metadata,
        "stored": row.stored.value,
        "text": row.text,
        "advice": ADVICE[_group(row)],
    }


def overview(rows: Iterable[ErrorCode | OwnError]) -> Table:
    """A table with the number, name, class, group, stored and advice of these rows."""
    table = Table("number", "name", "class", "group", "stored", "what to do", box=None, header_style="bold")
    for row in rows:
        if isinstance(row, OwnError):
            table.add_row("-", row.name, "-", row.group.value if row.group else "-", "-", row.advice)
            continue
        table.add_row(_numbers(row), row.name, row.exception_name, group_names(row), stored_text(row), ADVICE[_group(row)] or row.text)
    return table


def details(row: ErrorCode | OwnError) -> Table:
    """All fields of one row, one per line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for title, text in _lines_of_own(row) if isinstance(row, OwnError) else _lines_of(row):
        if text:
            table.add_row(title, text)
    return table


def _lines_of(row: ErrorCode) -> list[tuple[str, str]]:
    return [
        ("number", _describe_numbers(row)),
        ("name", row.name),
        ("class", row.exception_name),
        ("group", group_names(row)),
        ("stored", stored_text(row)),
        ("what it means", row.text),
        ("what to do", ADVICE[_group(row)]),
    ]


def _lines_of_own(row: OwnError) -> list[tuple[str, str]]:
    return [("name", row.name), ("group", row.group.value if row.group else ""), ("what it means", row.text), ("what to do", row.advice)]


def _numbers(row: ErrorCode) -> str:
    return str(row.number) if row.number == row.number_kip else f"{row.number} (kip: {row.number_kip})"


def _describe_numbers(row: ErrorCode) -> str:
    """The number of the error in each numbering. A broker's `error.numbering` changes only the number."""
    if row.number == row.number_kip:
        return str(row.number)
    return f"{row.number} with error.numbering=apache, as in Apache Kafka; {row.number_kip} with error.numbering=kip, in Produce responses"


def _group(row: ErrorCode) -> Group:
    return row.group_produce if row is codes.INVALID_TXN_STATE else row.group


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _unknown_text(text: str) -> str:
    if not text.strip():
        return "the name of the error is empty: give a number (87), a name (INVALID_RECORD) or a class (InvalidRecordException)"
    if _is_number(text):
        numbers = [row.number for row in codes.ALL]
        return f"no error has the number {text}; they run from {min(numbers)} to {max(numbers)}"
    # Without the group None and the code NONE, which would read as "no similar name".
    ours = [row.name for row in own_errors.ALL] + [name for group, of_class in CLASS_OF.items() for name in (group.value, of_class)]
    own = {name.upper(): name for name in ours}
    theirs = [name for name in codes.nearest_names(text, 2) if name != codes.NONE.name]
    nearest = difflib.get_close_matches(text.upper(), [*theirs, *own], n=1, cutoff=LIKENESS_MIN)
    hint = f"the nearest is {own.get(nearest[0], nearest[0])}" if nearest else "without an argument the command lists them all"
    return f"no error is called {text!r}; {hint}"
