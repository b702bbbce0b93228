"""What validation answers, and what of it travels in a Produce response (KIP-467)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Numbering
from chaffinch.errors.exceptions import Culprit


@dataclass(slots=True)
class Accepted:
    """A batch that may be stored. `batch` is what to store: the bytes that came, or others where the topic's configuration, or a header
    that named the wrong largest timestamp, made a rewrite necessary. `max_timestamp` in ms is that of `batch`.
    `records_bytes`: what its records take unpacked.

    Not frozen, only because building a frozen one takes three times as long."""

    batch: memoryview | bytearray
    max_timestamp: int
    count: int
    records_bytes: int
    is_rewritten: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A batch that is refused.

    `culprits`: every record at fault, ascending, each index once; empty for batch rules. `code`: the one code for the whole
    batch under `apache` numbering. `counts`: what to add to which counter: a record rule adds one per culprit, a batch
    rule one. `counter` and `count` are the first of these (None and 1 where nothing is counted).
    """

    code: ErrorCode
    message: str
    culprits: tuple[Culprit, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()

    @property
    def counter(self) -> str | None:
        return self.counts[0][0] if self.counts else None

    @property
    def count(self) -> int:
        return self.counts[0][1] if self.counts else 1


def code_of(culprits: Sequence[Culprit]) -> ErrorCode:
    """The one code of a batch with these culprits, as Kafka's `LogValidator.processRecordErrors` chooses it.

    INVALID_TIMESTAMP wins; otherwise the code all culprits share, else INVALID_RECORD, the more general one.
    """
    seen = {culprit.code for culprit in culprits}
    if codes.INVALID_TIMESTAMP in seen:
        return codes.INVALID_TIMESTAMP
    return seen.pop() if len(seen) == 1 else codes.INVALID_RECORD


def response_fields(rejected: Rejected, numbering: Numbering) -> tuple[int, tuple[Culprit, ...], str]:
    """(code number, culprits to list, error message) of a partition in a Produce response of version 8 or later.

    One code stands for all culprits that are listed. `apache`: all of them, under the code of `code_of`. `kip`: the first culprit's
    code, and only the culprits that have it, as KIP-467 2.b wants; the others come out when the client sends the rest again.
    """
    if numbering == "apache" or not rejected.culprits:
        return rejected.code.wire(numbering), rejected.culprits, rejected.message
    first = rejected.culprits[0].code
    return first.wire(numbering), tuple(culprit for culprit in rejected.culprits if culprit.code == first), rejected.message
