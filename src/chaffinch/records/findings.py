"""What a walk over records found, turned into a refusal: culprits with their sentences, one message, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from chaffinch.errors.exceptions import Culprit
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.records.validation_rules import RecordRule, told_of_record
from chaffinch.records.verdicts import Rejected, code_of

CULPRITS_SPELLED_MAX = 1000
"""Culprits with a message of their own, with the value seen. Every further one is listed with its index, its code and the rule's short
text: a batch can hold 150,000 culprits, and their sentences would be twenty times the batch."""

CULPRITS_MAX = 200_000
"""Culprits listed of one batch, the first ones: more than a batch of the default `max.message.bytes` can hold, plain. A kilobyte can unpack
to millions of records, and each listed one costs memory here and in the answer. The others come out when the rest is sent again; the
counters count those that are listed."""

CULPRITS_IN_SUMMARY_MAX = 3
"""Culprits that the message about the whole batch repeats, as in Kafka."""

Finding: TypeAlias = tuple[int, RecordRule, int]
"""A culprit: its index, the rule it broke, and the value that broke it."""


def culprits_of(found: Sequence[Finding], count: int, policy: ValidationPolicy, now_ms: int) -> tuple[Culprit, ...]:
    """One culprit per finding, in the same order, out of `count` records."""
    told = told_of_record(policy.topic_partition, count)
    spelled = [
        Culprit(index, rule.code, f"record {index}{told}{rule.text(seen, policy, now_ms)}")
        for index, rule, seen in found[:CULPRITS_SPELLED_MAX]
    ]
    return (*spelled, *(Culprit(index, rule.code, rule.short) for index, rule, _ in found[CULPRITS_SPELLED_MAX:]))


def rejected(found: Sequence[Finding], culprit_count: int, count: int, policy: ValidationPolicy, now_ms: int) -> Rejected:
    """The refusal of a batch of `count` records of which `culprit_count` are at fault, these (at least one) the first of them.

    A record rule counts one per culprit.
    """
    culprits = culprits_of(found, count, policy, now_ms)
    if culprit_count == 1:
        message = culprits[0].message
    else:
        named = [f"record {index}: {rule.text(seen, policy, now_ms)}" for index, rule, seen in found[:CULPRITS_IN_SUMMARY_MAX]]
        if culprit_count > len(named):
            named.append(f"and {culprit_count - len(named)} more")
        message = f"{culprit_count} of {count} records for {policy.topic_partition} rejected: {'; '.join(named)}"
    counts = Counter(rule.counter for _, rule, _ in found if rule.counter is not None)
    return Rejected(code_of(culprits), message, culprits=culprits, counts=tuple(counts.items()))
