"""docs/reference/interop.md as a text: the table of clients and scenarios with its notes, printed from one run."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from tests.interop.cells import Cell, Row
from tests.interop.scenarios import Scenario

NOTE_LINE_MAX = 140
_HEAD = """# Other clients

Printed by `make interop`, which runs every cell twice: against Apache Kafka {version} and against `chaffinch broker`, each a process
of its own with its data on disk. The same small program of each client (`tests/interop/`) does the same things on both; what it tells
and what stands in the log afterwards are compared with what `tests/interop/scenarios.py` expects. A cell says what was seen on
Chaffinch; where Apache Kafka differs, a note says so.

| scenario | what is done |
|---|---|
| uncompressed ... zstd | 100 records sent with that codec and read back; the stored batches have it |
| headers | a header with a value and one with an empty value come back |
| group | a second member joins and leaves; partitions move 4, 2 + 2, 4; every record is seen |
| group, KIP-848 | the same with `group.protocol=consumer` |
| seek, offsets | commit, resume in a new member, seek, offset of a point in time, beginning and end |
| idempotent | 100 records; the stored batches have a producer id and unbroken sequences |
| transactions | committed, aborted, committed; read_committed and read_uncommitted; offsets inside the transaction |
| admin: transactions | describe one that is open and its producer, describe and list it when it has ended |
| admin: topics | create, refuse to create twice, describe, alter the configuration, add partitions, delete records, delete |
| admin: groups | list, describe, read offsets, delete |
| culprits | five records for a compacted topic, two of them without a key: each one's error as the client has it, none stored |
"""


def page(version: str, apache_kafka: Sequence[Row], chaffinch: Sequence[Row], scenarios: Sequence[Scenario]) -> str:
    """The whole page. Rows of both brokers are of the same clients, in the same order."""
    notes: list[str] = []
    names = [row.client.name for row in chaffinch]
    lines = [_HEAD.format(version=version), _line(["", *names]), _line(["---"] * (len(names) + 1))]
    lines.append(_line(["version", *(here.version or there.version for here, there in zip(chaffinch, apache_kafka, strict=True))]))
    for scenario in scenarios:
        cells = [
            _text(here.cells[scenario.name], there.cells[scenario.name], notes) for here, there in zip(chaffinch, apache_kafka, strict=True)
        ]
        lines.append(_line([scenario.title, *cells]))
    lines += ["", *itertools.chain.from_iterable(_listed(number, note) for number, note in enumerate(notes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def _text(here: Cell, there: Cell, notes: list[str]) -> str:
    notes_by_text = here.note
    if there.verdict is not here.verdict:
        notes_by_text = f"{notes_by_text}; " if notes_by_text else ""
        notes_by_text += f"on Apache Kafka: {there.verdict.value}" + (f" ({there.note})" if there.note else "")
    if not notes_by_text:
        return here.verdict.value
    if notes_by_text not in notes:
        notes.append(notes_by_text)
    return f"{here.verdict.value} [{notes.index(notes_by_text) + 1}]"


def _listed(number: int, note: str) -> list[str]:
    """An item of a numbered list, in lines of a readable length; addresses stay whole."""
    mark = f"{number}. "
    return textwrap.wrap(mark + note, NOTE_LINE_MAX, subsequent_indent=" " * len(mark), break_long_words=False, break_on_hyphens=False)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
