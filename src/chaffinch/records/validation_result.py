"""Result of batch validation: accepted, or rejected with culprits and the errors for a Produce response (KIP-467)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Numbering
from chaffinch.errors.exceptions import Culprit
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.records.validation_rules import RecordRule, record_message_infix


@dataclass(slots=True)
class Accepted:
    """A batch that may be stored.

    `batch` is what to store: the received bytes, or rewritten ones if the topic's configuration or a wrong largest timestamp required it.
    `max_timestamp` in ms is that of `batch`. `records_bytes`: decompressed size of its records. Not frozen, because creating a frozen
    instance takes three times as long.
    """

    batch: memoryview | bytearray
    max_timestamp: int
    count: int
    records_bytes: int
    is_rewritten: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """A batch that is refused because of its records or the state of the broker, from the rule to the response.

    `culprits`: every record at fault, ascending, each index once; empty for batch rules. `code`: the one code for the whole batch under
    `apache` numbering. `counts`: increments by counter: a record rule adds one per culprit, a batch rule one. `logged`: message for the
    broker's own log, which may contain more than the client receives; "" for the same.
    """

    code: ErrorCode
    message: str
    culprits: tuple[Culprit, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    logged: str = ""

    def response_errors(self, numbering: Numbering) -> tuple[ErrorCode, tuple[Culprit, ...]]:
        """(batch code, culprits to list) of a partition in a Produce response of version 8 or later.

        `apache`: all culprits, under the code of `code_of`. `kip`: the first culprit's code, and only the culprits with that code, as
        KIP-467 2.b requires; the others are reported when the client sends the rest again.
        """
        if numbering == "apache" or not self.culprits:
            return self.code, self.culprits
        first = self.culprits[0].code
        return first, tuple(culprit for culprit in self.culprits if culprit.code is first)


def counted_once(counter: str | None) -> tuple[tuple[str, int], ...]:
    """The `counts` of a batch rule."""
    return () if counter is None else ((counter, 1),)


def code_of(culprits: Sequence[Culprit]) -> ErrorCode:
    """The code of a batch with these culprits, as Kafka's `LogValidator.processRecordErrors` chooses it.

    INVALID_TIMESTAMP takes precedence; otherwise the code that all culprits share, or the general INVALID_RECORD.
    """
    seen = {culprit.code for culprit in culprits}
    if codes.INVALID_TIMESTAMP in seen:
        return codes.INVALID_TIMESTAMP
    return seen.pop() if len(seen) == 1 else codes.INVALID_RECORD


CULPRITS_WITH_MESSAGE_MAX = 1000
"""Culprits with a full message, including the value seen. Each further one is listed with its index, its code and the rule's short text:
a batch can hold 150,000 culprits, and full messages would be twenty times the size of the batch."""

CULPRITS_MAX = 200_000
"""Culprits listed of one batch, the first ones: more than an uncompressed batch of the default `max.message.bytes` can hold. A kilobyte
can decompress to millions of records, and each listed one costs memory here and in the response. The others are reported when the rest is
sent again; the counters count those that are listed."""

CULPRITS_IN_SUMMARY_MAX = 3
"""Culprits repeated in the message about the whole batch, as in Kafka."""

RuleViolation: TypeAlias = tuple[int, RecordRule, int]
"""A culprit: its index, the rule it broke, and the value seen."""


def culprits_of(found: Sequence[RuleViolation], count: int, policy: ValidationPolicy, wall_ms: int) -> tuple[Culprit, ...]:
    """One culprit per violation, in the same order, out of `count` records."""
    infix = record_message_infix(policy.topic_partition, count)
    with_message = [
        Culprit(index, rule.code, f"record {index}{infix}{rule.text(seen, policy, wall_ms)}")
        for index, rule, seen in found[:CULPRITS_WITH_MESSAGE_MAX]
    ]
    return (*with_message, *(Culprit(index, rule.code, rule.short_text) for index, rule, _ in found[CULPRITS_WITH_MESSAGE_MAX:]))


def rejected(found: Sequence[RuleViolation], culprit_count: int, count: int, policy: ValidationPolicy, wall_ms: int) -> Rejected:
    """The rejection of a batch of `count` records with `culprit_count` culprits; `found` (at least one) are the first of them.

    A record rule counts one per culprit.
    """
    culprits = culprits_of(found, count, policy, wall_ms)
    if culprit_count == 1:
        message = culprits[0].message
    else:
        named = [f"record {index}: {rule.text(seen, policy, wall_ms)}" for index, rule, seen in found[:CULPRITS_IN_SUMMARY_MAX]]
        if culprit_count > len(named):
            named.append(f"and {culprit_count - len(named)} more")
        message = f"{culprit_count} of {count} records for {policy.topic_partition} rejected: {'; '.join(named)}"
    counts = Counter(rule.counter for _, rule, _ in found if rule.counter is not None)
    return Rejected(code_of(culprits), message, culprits=culprits, counts=tuple(counts.items()))
