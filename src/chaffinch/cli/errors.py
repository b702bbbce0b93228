"""`chaffinch errors`: the tables of errors, for people, for machines and, with `--markdown`, for `docs/errors.md`."""

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
from chaffinch.errors import ConfigException, codes, own_errors
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.handling import ADVICE
from chaffinch.errors.own_errors import OwnError
from chaffinch.settings import LIKENESS_MIN

# Without a terminal there is nobody to wrap lines for: into a pipe each row goes on one line.
PIPE_COLUMNS: Final = 400

# Whoever catches it catches the whole group. What is in no group has a class that catches all groups.
CLASS_OF: Final[Mapping[Group, str]] = {group: f"{group.value}Exception" for group in Group if group is not Group.NONE}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


# `errors -1` names a code, not an option.
@app.command(context_settings={"ignore_unknown_options": True})
def errors(
    code: Annotated[
        str | None, typer.Argument(help="A number (87), a name (INVALID_RECORD), a class (InvalidRecordException) or a group (Retriable).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: a list of objects.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The documentation's page.")] = False,
) -> None:
    """Explain errors: all of Kafka's codes, those of a group, or what a number, name or class stands for, Chaffinch's own too."""
    if as_markdown and (as_json or code is not None):
        raise ConfigException("--markdown prints the whole page: it goes neither with --json nor with a code")
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
    """Rows for a number under either numbering, a name, an alias, or an exception's class; case does not matter."""
    wanted = text.strip().upper()
    if _is_number(wanted):
        return [row for row in codes.ALL if int(wanted) in (row.number, row.number_kip)]
    name = codes.ALIASES.get(wanted, wanted)
    # Not every row has a class.
    return [row for row in codes.ALL if name and name in (row.name, row.exception_name.upper())]


def find_own(text: str) -> list[OwnError]:
    """The row of a name that is Chaffinch's own; case does not matter."""
    wanted = text.strip().upper()
    return [row for row in own_errors.ALL if row.name.upper() == wanted]


def rows_of_group(text: str) -> list[ErrorCode | OwnError]:
    """Kafka's codes of a group, named as in `KAFKA[group]` and in the tables, or by the class that catches it, and what is Chaffinch's own
    of it. Case does not matter, but for the group None: NONE, however else it is written, is Kafka's code 0."""
    wanted = text.strip()
    group = next((group for group in Group if wanted.upper() in (group.value.upper(), CLASS_OF.get(group, "").upper())), None)
    if group is None or (group is Group.NONE and group.value != wanted):
        return []
    rows: list[ErrorCode | OwnError] = [row for row in codes.ALL if group in groups_of(row)]
    return rows + [row for row in own_errors.ALL if row.group is group]


def as_object(row: ErrorCode | OwnError) -> dict[str, Any]:
    """One row for machines. The key names are part of the command's surface."""
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
    """These rows: number, name, class, group, stored, what to do."""
    table = Table("number", "name", "class", "group", "stored", "what to do", box=None, header_style="bold")
    for row in rows:
        if isinstance(row, OwnError):
            table.add_row("-", row.name, "-", row.group.value if row.group else "-", "-", row.advice)
            continue
        table.add_row(_numbers(row), row.name, row.exception_name, group_names(row), stored_text(row), ADVICE[_group(row)] or row.text)
    return table


def details(row: ErrorCode | OwnError) -> Table:
    """One row, read downwards, with its text."""
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
    """Which number means it where: a broker's `error.numbering` decides that, and nothing else of a row."""
    if row.number == row.number_kip:
        return str(row.number)
    return f"{row.number} with error.numbering=apache, as Apache Kafka has it; {row.number_kip} with error.numbering=kip, answering Produce"


def _group(row: ErrorCode) -> Group:
    return row.group_produce if row is codes.INVALID_TXN_STATE else row.group


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _unknown_text(text: str) -> str:
    if not text.strip():
        return "the error asked for is empty: give a number (87), a name (INVALID_RECORD) or a class (InvalidRecordException)"
    if _is_number(text):
        numbers = [row.number for row in codes.ALL]
        return f"no error has the number {text}; they run from {min(numbers)} to {max(numbers)}"
    # Neither the group None nor the code NONE: nobody looks for them, and they read as if there were no nearest one.
    ours = [row.name for row in own_errors.ALL] + [name for group, of_class in CLASS_OF.items() for name in (group.value, of_class)]
    own = {name.upper(): name for name in ours}
    theirs = [name for name in codes.nearest_names(text, 2) if name != codes.NONE.name]
    nearest = difflib.get_close_matches(text.upper(), [*theirs, *own], n=1, cutoff=LIKENESS_MIN)
    hint = f"the nearest is {own.get(nearest[0], nearest[0])}" if nearest else "without an argument the command lists them all"
    return f"no error is called {text!r}; {hint}"
