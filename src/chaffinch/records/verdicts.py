"""What becomes of a batch that is to be stored, and what of a refusal travels in a Produce response (KIP-467)."""

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


@dataclass(frozen=True, slots=True)
class Rejected:
    """A batch that is refused, by its records or by the state of the broker: one value from the rule to the answer.

    `culprits`: every record at fault, ascending, each index once; empty for batch rules. `code`: the one code for the whole
    batch under `apache` numbering. `counts`: what to add to which counter: a record rule adds one per culprit, a batch
    rule one. `logged`: for the broker's own log, which may say more than the client receives; "" for the same.
    """

    code: ErrorCode
    message: str
    culprits: tuple[Culprit, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    logged: str = ""

    def travelling(self, numbering: Numbering) -> tuple[ErrorCode, tuple[Culprit, ...]]:
        """(the one code, the culprits to list) of a partition in a Produce response of version 8 or later.

        `apache`: all culprits, under the code of `code_of`. `kip`: the first culprit's code, and only the culprits that have it, as
        KIP-467 2.b wants; the others come out when the client sends the rest again.
        """
        if numbering == "apache" or not self.culprits:
            return self.code, self.culprits
        first = self.culprits[0].code
        return first, tuple(culprit for culprit in self.culprits if culprit.code is first)


def counted_once(counter: str | None) -> tuple[tuple[str, int], ...]:
    """The `counts` of a batch rule."""
    return () if counter is None else ((counter, 1),)


def code_of(culprits: Sequence[Culprit]) -> ErrorCode:
    """The one code of a batch with these culprits, as Kafka's `LogValidator.processRecordErrors` chooses it.

    INVALID_TIMESTAMP wins; otherwise the code all culprits share, else INVALID_RECORD, the more general one.
    """
    seen = {culprit.code for culprit in culprits}
    if codes.INVALID_TIMESTAMP in seen:
        return codes.INVALID_TIMESTAMP
    return seen.pop() if len(seen) == 1 else codes.INVALID_RECORD
