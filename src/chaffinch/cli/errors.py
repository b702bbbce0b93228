"""`chaffinch errors`: the table of error codes, for people, for machines and, with `--markdown`, for `docs/errors.md`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from chaffinch.cli.main import EXIT_USAGE
from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.handling import ADVICE

# Without a terminal there is nobody to wrap lines for: into a pipe each row goes on one line.
PIPE_COLUMNS: Final = 400

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


# `errors -1` names a code, not an option.
@app.command(context_settings={"ignore_unknown_options": True})
def errors(
    code: Annotated[str | None, typer.Argument(help="A number (87), a name (INVALID_RECORD) or a class (InvalidRecordException).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: a list of objects.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The documentation's page.")] = False,
) -> None:
    """Explain error codes: all of them, or those that a number, a name or a class stands for."""
    if as_markdown and (as_json or code is not None):
        raise ConfigException("--markdown prints the whole page: it goes neither with --json nor with a code")
    rows = list(codes.ALL) if code is None else find(code)
    if not rows:
        print(f"chaffinch: {_unknown_text(str(code))}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE)
    if as_json:
        print(json.dumps([as_object(row) for row in rows], indent=2))
    elif as_markdown:
        print(page(), end="")
    else:
        console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
        if code is None:
            console.print(overview(rows))
        else:
            for row in rows:
                console.print(details(row), "")


def find(text: str) -> list[ErrorCode]:
    """Rows for a number under either numbering, a name, an alias, or an exception's class; case does not matter."""
    wanted = text.strip().upper()
    if _is_number(wanted):
        return [row for row in codes.ALL if int(wanted) in (row.number, row.number_kip)]
    name = codes.ALIASES.get(wanted, wanted)
    return [row for row in codes.ALL if name in (row.name, row.exception_name.upper())]


def as_object(row: ErrorCode) -> dict[str, Any]:
    """One row for machines. The key names are part of the command's surface."""
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


def overview(rows: list[ErrorCode]) -> Table:
    """All rows: number, name, class, group, stored, what to do."""
    table = Table("number", "name", "class", "group", "stored", "what to do", box=None, header_style="bold")
    for row in rows:
        table.add_row(_numbers(row), row.name, row.exception_name, _groups(row), _stored(row), ADVICE[_group(row)] or row.text)
    return table


def details(row: ErrorCode) -> Table:
    """One row, read downwards, with its text."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for title, text in [
        ("number", _numbers(row)),
        ("name", row.name),
        ("class", row.exception_name),
        ("group", _groups(row)),
        ("stored", _stored(row)),
        ("what it means", row.text),
        ("what to do", ADVICE[_group(row)]),
    ]:
        if text:
            table.add_row(title, text)
    return table


def page() -> str:
    """`docs/errors.md`: the groups, the numbers that depend on the numbering, and the table."""
    groups = [f"| {group.value} | {advice} |" for group, advice in ADVICE.items() if advice]
    travelling = [f"| {row.name} | {row.number} | {row.number_kip} |" for row in codes.ALL if row.number != row.number_kip]
    rows = [
        f"| {row.number} | {row.name} | {row.exception_name} | {_groups(row)} | {_stored(row)} | {row.text} |".replace("|  |", "| |")
        for row in codes.ALL
    ]
    return _PAGE.format(groups="\n".join(groups), travelling="\n".join(travelling), rows="\n".join(rows))


_PAGE: Final = """\
# Error codes

Printed by `chaffinch errors --markdown` from `src/chaffinch/errors/codes.py`; a test keeps the two equal.
`chaffinch errors CODE` explains one of them in a terminal, and every exception carries its row as `exception.code`.

## Groups (KIP-1050)

The group is the exception's base class, so `except errors.TransactionAbortableException` catches what an abort mends.
An error in no group is a plain `ApiException`. Numbers that nobody knows keep their number and are ApplicationRecoverable.

| group | what to do |
|---|---|
{groups}

## Numbers that depend on `error.numbering`

| error | `apache` | `kip` |
|---|---|---|
{travelling}

Under `apache` numbering INVALID_COMPACTION_KEY is the 87 of a record without a key, and INCONSISTENT_REPLICATION_FACTOR is a 40
whose message begins with that name. Under `kip` numbering 45 with records listed is INVALID_COMPACTION_KEY, and without is
OUT_OF_ORDER_SEQUENCE_NUMBER. The numbering concerns answers to Produce only.

## Old versions of Produce

What a refusal is called depends on the version of the request, because clients must know the number they get.

| refusal | Produce 0 to 7 | Produce 8 and later, `apache` | Produce 8 and later, `kip` |
|---|---|---|---|
| a record fails validation | 42 | 87, records listed | 85, records listed |
| a record without a key on a compacted topic | 42 | 87, records listed | 45, records listed |
| a record's timestamp is out of range | 32 | 32, records listed | 32, records listed |
| min.insync.replicas above the replication factor | 40 (`kip`: 89) | 40 | 89 |

## All codes

`stored`: whether a record answered so may be in the log; "-" where Produce does not answer it. Two groups: Produce / transaction APIs.

| number | name | class | group | stored | meaning |
|---|---|---|---|---|---|
{rows}
"""


def _numbers(row: ErrorCode) -> str:
    return str(row.number) if row.number == row.number_kip else f"{row.number} (kip: {row.number_kip})"


def _groups(row: ErrorCode) -> str:
    """The class's group; both columns of KIP-1050 where they differ by more than who may answer it."""
    if row is codes.INVALID_TXN_STATE:
        return f"{row.group_produce.value} / {row.group_transaction.value}"
    return "-" if row is codes.NONE else row.group.value


def _group(row: ErrorCode) -> Group:
    return row.group_produce if row is codes.INVALID_TXN_STATE else row.group


def _stored(row: ErrorCode) -> str:
    return row.stored.value if row.is_produce_code or row is codes.NONE else "-"


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _unknown_text(text: str) -> str:
    if _is_number(text):
        numbers = [row.number for row in codes.ALL]
        return f"no error has the number {text}; they run from {min(numbers)} to {max(numbers)}"
    return f"no error is called {text!r}; the nearest is {codes.nearest_names(text)[0]}"
