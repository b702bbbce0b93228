"""Tables of `docs/explanation/kips/467.md`: the broker's record validation rules, and its error responses by Produce version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from chaffinch.broker.core.handlers import produce
from chaffinch.errors import codes
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.produce import ProduceResponse
from chaffinch.records import validation_rules


def record_rules() -> str:
    """Every validation rule: name, formats, scope, error code and counter."""
    rows = []
    for rule in validation_rules.ALL_RULES:
        formats = ", ".join(map(str, rule.formats))
        cells = (rule.name, formats, rule.applies_to.value, rule.code.name, rule.counter or "-")
        rows.append(f"| {' | '.join(cells)} |")
    head = "| rule | formats | of these | code | counter |"
    return "\n".join([head, "|---|---|---|---|---|", *rows]) + "\n"


_EVENTS = (
    ("a record without key on a compacted topic", codes.INVALID_COMPACTION_KEY, True),
    ("another rule that a record broke", codes.INVALID_RECORD, True),
    ("a timestamp out of range, or of type LogAppendTime", codes.INVALID_TIMESTAMP, True),
    ("a rule that a batch broke", codes.INVALID_RECORD, False),
    ("a wrong checksum, bytes that cannot be sliced", codes.CORRUPT_MESSAGE, False),
    ("a batch beyond max.message.bytes", codes.MESSAGE_TOO_LARGE, False),
    ("min.insync.replicas above the replication factor", codes.INCONSISTENT_REPLICATION_FACTOR, False),
    ("too few replicas in sync", codes.NOT_ENOUGH_REPLICAS, False),
    ("a producer where message.format.version is below 0.11", codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, False),
    ("a sequence that does not follow", codes.OUT_OF_ORDER_SEQUENCE_NUMBER, False),
    ("an epoch that is fenced", codes.INVALID_PRODUCER_EPOCH, False),
)
"""(error of a batch, its code, whether the response lists records)."""


def responses_by_version() -> list[list[str]]:
    """Per error and range of Produce versions: both numbers, whether culprits and a text are sent, and the number with each culprit."""
    rows: list[list[str]] = []
    for event, code, has_culprits in _EVENTS:
        answers = [(version, _response(code, has_culprits, version)) for version in APIS[0].served]
        rows += [[event, versions, *cells] for versions, cells in _ranges(answers)]
    return rows


def _response(code: codes.ErrorCode, has_culprits: bool, version: int) -> tuple[str, ...]:
    numbers = [str(produce.number_for(code, version, numbering)) for numbering in ("apache", "kip")]
    names_culprits = has_culprits and version >= produce.VERSION_WITH_CULPRITS
    has_tag = names_culprits and version >= ProduceResponse.FLEXIBLE_SINCE
    text = "yes" if version >= produce.VERSION_WITH_CULPRITS else ""
    return (*numbers, "yes" if names_culprits else "", text, str(code.number_kip) if has_tag else "")


def _ranges(answers: Iterable[tuple[int, tuple[str, ...]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Neighbouring versions with the same cells, as "first to last"."""
    for cells, group in groupby(answers, lambda answer: answer[1]):
        found = [version for version, _ in group]
        yield (f"{found[0]} to {found[-1]}" if len(found) > 1 else str(found[0])), cells


def produce_responses() -> str:
    head = "| what is wrong | Produce versions | `apache` | `kip` | `record_errors` | `error_message` | tag 1467 |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in responses_by_version())]) + "\n"
