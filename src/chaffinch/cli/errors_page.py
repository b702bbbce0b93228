"""The page `docs/errors.md`, as `chaffinch errors --markdown` prints it from the tables of errors."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Final

from chaffinch.errors import Group, codes, own_errors
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.handling import ADVICE
from chaffinch.errors.own_errors import OwnError


def page() -> str:
    """`docs/errors.md`: from a text to what to do, the groups, the own names, the numbers that depend on the numbering, all codes."""
    groups = [f"| {group.value} | {advice} |" for group, advice in ADVICE.items() if advice]
    numbered = [f"| {row.name} | {row.number} | {row.number_kip} |" for row in codes.ALL if row.number != row.number_kip]
    rows = [
        f"| {row.number} | {row.name} | {row.exception_name} | {group_names(row)} | {stored_text(row)} | {row.text} |".replace(
            "|  |", "| |"
        )
        for row in codes.ALL
    ]
    own = {
        name: "\n".join(map(_own_line, rows)) for name, rows in (("clients", own_errors.CLIENT_ERRORS), ("spark", own_errors.SPARK_ERRORS))
    }
    return _PAGE.format(groups="\n".join(groups), numbered="\n".join(numbered), rows="\n".join(rows), **own)


def _own_line(row: OwnError) -> str:
    return f"| {row.name} | {row.group.value if row.group else '-'} | {row.text} | {row.advice} |"


def groups_of(row: ErrorCode) -> tuple[Group, ...]:
    """The class's group; both columns of KIP-1050 where they differ by more than who may answer it. None of what is no error."""
    if row is codes.INVALID_TXN_STATE:
        return row.group_produce, row.group_transaction
    return () if row is codes.NONE else (row.group,)


def group_names(row: ErrorCode) -> str:
    return " / ".join(group.value for group in groups_of(row)) or "-"


def stored_text(row: ErrorCode) -> str:
    return row.stored.value if row.is_produce_code or row is codes.NONE else "-"


_PAGE: Final = """\
# Errors

Printed by `chaffinch errors --markdown` from `src/chaffinch/errors/codes.py` and `own_errors.py`; a test keeps them equal.
`chaffinch errors NAME` explains one in a terminal, by its name, number or class, and lists those of a group, or of its class. Every
exception carries its row as `exception.code`.

## From a text to what to do

| the text looks like | it comes from | where to look |
|---|---|---|
| `KAFKA[group] NAME: ...`, somewhere in Spark's message | the Spark format | the group, just below; then the name: among those of Spark, else among all codes |
| `Produce for orders-0, record 50: NAME (87): ...; not stored; ...` | a producer or consumer: what the broker said, or a time-out | the end of the line says what to do; the name is among all codes |
| one line without a number, from a class of `chaffinch.errors` | a client, before anything was sent | the line itself; the class is among those of clients |
| `chaffinch: ...` on standard error, exit status 1 or 2 | a command: 1 was refused, 2 was called wrongly | the line itself; [cli.md](cli.md) |
| `__connect.errors.exception.message`, `error_name` | a dead letter | the name is among all codes; repair and [replay](spark-pipeline.md#replaying-dead-letters) |
| a line of the broker's log, with client, topic, code and reason | `chaffinch broker` refused something | the name is among all codes; [broker.md](broker.md) |

## Groups (KIP-1050)

The group is the exception's base class, so `except errors.TransactionAbortableException` catches what an abort mends.
An error in no group is a plain `ApiException`. Numbers that nobody knows keep their number and are ApplicationRecoverable.

| group | what to do |
|---|---|
{groups}

A consumer stays usable after an ApplicationRecoverable error, once what the text names is corrected; only FencedInstanceIdException ends it: another
one has its name. In Spark the query takes the producer's place: what each group asks for there is in [spark-pipeline.md](spark-pipeline.md#errors).

## Names of the Spark format

What stands behind `KAFKA[group]` and is no code of Kafka's; what only `session` and `supervise` raise; what a replay counts.

| name | group | what it means | what to do |
|---|---|---|---|
{spark}

## Classes that clients raise by themselves

| class | group | what it means | what to do |
|---|---|---|---|
{clients}

## Numbers that depend on `error.numbering`

| error | `apache` | `kip` |
|---|---|---|
{numbered}

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
