"""The page `docs/reference/errors.md`: printed from the error tables by `chaffinch errors --markdown`."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Final

from chaffinch.errors import Group, codes, own_errors
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.handling import ADVICE
from chaffinch.errors.own_errors import OwnError


def page() -> str:
    """The text of `docs/reference/errors.md`."""
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
    """The group of the row's class; two for INVALID_TXN_STATE, whose group depends on the API (KIP-1050). Empty for NONE."""
    if row is codes.INVALID_TXN_STATE:
        return row.group_produce, row.group_transaction
    return () if row is codes.NONE else (row.group,)


def group_names(row: ErrorCode) -> str:
    return " / ".join(group.value for group in groups_of(row)) or "-"


def stored_text(row: ErrorCode) -> str:
    return row.stored.value if row.is_produce_code or row is codes.NONE else "-"


_PAGE: Final = """\
# Errors

What an error means and what to do about it. `chaffinch errors NAME` prints the same in a terminal, by name,
number or class, and lists the errors of a group:

```
chaffinch errors INVALID_COMPACTION_KEY
```

## From an error text to its remedy

| the text looks like | it comes from | where to look |
|---|---|---|
| `KAFKA[group] NAME: ...`, in Spark's message | the Spark format | [the group](#groups-kip-1050), then the name: [Spark's](#names-of-the-spark-format), or [all codes](#all-codes) |
| `Produce for orders-0, record 50: NAME (87): ...; not stored; ...` | a producer or consumer: the broker's error, or a timeout | the end of the line says what to do; [all codes](#all-codes) |
| one line without a number, from a class of `chaffinch.errors` | a client, before anything was sent | the line itself; [classes of clients](#classes-that-clients-raise-by-themselves) |
| `chaffinch: ...` on standard error, exit status 1 or 2 | a command: 1 refused or failed, 2 wrong usage | the line itself; [commands](cli.md) |
| `__connect.errors.exception.message`, `error_name` | a dead letter | [all codes](#all-codes); repair and [replay](../how-to/replay-dead-letters.md) |
| a line of the broker's log, with client, topic, code and reason | `chaffinch broker` refused a request | [all codes](#all-codes); [broker](broker.md#log) |

Every exception has its row of these tables as `exception.code`. This page is printed by `chaffinch errors --markdown`.

## Groups (KIP-1050)

The group is the exception's base class: `except errors.TransactionAbortableException` catches every error after which an abort helps.
An error in no group is a plain `ApiException`. Unknown codes keep their number and are ApplicationRecoverable.

| group | what to do |
|---|---|
{groups}

A consumer stays usable after an ApplicationRecoverable error, once the cause in its text is corrected. Only FencedInstanceIdException ends it:
another consumer uses its group.instance.id. In Spark the query takes the producer's place; see [spark-supervise.md](spark-supervise.md#tags).

## Names of the Spark format

Names after `KAFKA[group]` that are not codes of Kafka, names that only `session` and `supervise` raise, and names that a replay counts.

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
OUT_OF_ORDER_SEQUENCE_NUMBER. The numbering applies to Produce responses only.

## Old versions of Produce

The code of a refusal depends on the version of the request, because old clients support fewer codes.

| refusal | Produce 0 to 7 | Produce 8 and later, `apache` | Produce 8 and later, `kip` |
|---|---|---|---|
| a record fails validation | 42 | 87, records listed | 85, records listed |
| a record without a key on a compacted topic | 42 | 87, records listed | 45, records listed |
| a record's timestamp is out of range | 32 | 32, records listed | 32, records listed |
| min.insync.replicas above the replication factor | 40 (`kip`: 89) | 40 | 89 |

## All codes

`stored`: whether a record with this error may be in the log; "-" if Produce does not return the code. Two groups: Produce / transaction APIs.

| number | name | class | group | stored | meaning |
|---|---|---|---|---|---|
{rows}
"""
