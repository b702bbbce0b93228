"""What becomes of a batch that is to be stored: what a walk over its records found, turned into a refusal, and what of that travels in a
Produce response (KIP-467)."""

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

    def response_errors(self, numbering: Numbering) -> tuple[ErrorCode, tuple[Culprit, ...]]:
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


CULPRITS_WITH_MESSAGE_MAX = 1000
"""Culprits with a message of their own, with the value seen. Every further one is listed with its index, its code and the rule's short
text: a batch can hold 150,000 culprits, and their sentences would be twenty times the batch."""

CULPRITS_MAX = 200_000
"""Culprits listed of one batch, the first ones: more than a batch of the default `max.message.bytes` can hold, plain. A kilobyte can unpack
to millions of records, and each listed one costs memory here and in the answer. The others come out when the rest is sent again; the
counters count those that are listed."""

CULPRITS_IN_SUMMARY_MAX = 3
"""Culprits that the message about the whole batch repeats, as in Kafka."""

RuleViolation: TypeAlias = tuple[int, RecordRule, int]
"""A culprit: its index, the rule it broke, and the value that broke it."""


def culprits_of(found: Sequence[RuleViolation], count: int, policy: ValidationPolicy, wall_ms: int) -> tuple[Culprit, ...]:
    """One culprit per finding, in the same order, out of `count` records."""
    infix = record_message_infix(policy.topic_partition, count)
    with_message = [
        Culprit(index, rule.code, f"record {index}{infix}{rule.text(seen, policy, wall_ms)}")
        for index, rule, seen in found[:CULPRITS_WITH_MESSAGE_MAX]
    ]
    return (*with_message, *(Culprit(index, rule.code, rule.short_text) for index, rule, _ in found[CULPRITS_WITH_MESSAGE_MAX:]))


def rejected(found: Sequence[RuleViolation], culprit_count: int, count: int, policy: ValidationPolicy, wall_ms: int) -> Rejected:
    """The refusal of a batch of `count` records of which `culprit_count` are at fault, these (at least one) the first of them.

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
