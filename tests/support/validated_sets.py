"""Validation of message sets of formats 0 and 1 by every rule, in the order of the broker."""

from __future__ import annotations

from chaffinch.records.old_formats.message_set import MessageSet
from chaffinch.records.old_formats.validation import check_set, convert
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.records.validation_result import Accepted, Rejected


def validate_set(message_set: MessageSet, policy: ValidationPolicy, wall_ms: int) -> Accepted | Rejected:
    """`Accepted.batch` is the batch of format 2 to store."""
    return check_set(message_set, policy) or convert(message_set, policy, wall_ms)
