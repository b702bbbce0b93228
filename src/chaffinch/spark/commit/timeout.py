"""Transaction timeout of a batch: `transaction.timeout.ms` (decision 39). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot

if TYPE_CHECKING:
    from chaffinch.spark.commit.plan import CommitPlan

TRANSACTION_TIMEOUT_MIN_MS: Final = 60_000
PUSH_RESERVE: Final = 4
"""The timeout is this many times the duration expected from the measured push rate."""
BATCH_MS: Final = 0.3
"""Time per batch in addition to that for its bytes (docs/explanation/scale.md): thousands of tasks stage hundreds of thousands of small
batches."""
_OPTION: Final = "kafka.transaction.timeout.ms"


def transaction_timeout_ms(plan: CommitPlan) -> int:
    """The user's option, or the time that the staged batches need. Raises Refusal if the batch does not fit."""
    given_ms, max_ms = plan.transaction_timeout_ms, plan.target.transaction_timeout_max_ms
    batch_count = len(plan.batches()) + len(plan.dead_batches())
    expected_ms = int(1000 * plan.byte_count / max(plan.push_bytes_per_s, 1.0) + BATCH_MS * batch_count)
    allowed_ms = max_ms if given_ms is None else given_ms
    if expected_ms > allowed_ms:
        limit = "transaction.max.timeout.ms of the broker" if given_ms is None else _OPTION
        raise _refusal(
            f"pushing {plan.byte_count} bytes in {batch_count} record batches takes about {expected_ms} ms at "
            f"{plan.push_bytes_per_s:.0f} bytes/s and {BATCH_MS} ms a batch; the transaction may last {allowed_ms} ms "
            f"({limit}): make the micro-batches smaller, or raise the limit"
        )
    return min(max(TRANSACTION_TIMEOUT_MIN_MS, PUSH_RESERVE * expected_ms), max_ms) if given_ms is None else given_ms


def check_timeout(given_ms: int | None, target: TargetSnapshot) -> None:
    """Refuses a timeout above the broker's limit, if the broker has reported it."""
    broker_max_ms = target.reported_timeout_max_ms
    if given_ms is not None and broker_max_ms is not None and given_ms > broker_max_ms:
        raise timeout_refused(given_ms, target, is_given=True)


def timeout_refused(requested_ms: int, target: TargetSnapshot, *, is_given: bool) -> Refusal:
    """Refusal for a transaction timeout above the broker's limit. `is_given`: it is the user's option."""
    broker_max_ms = target.reported_timeout_max_ms
    maximum = "" if broker_max_ms is None else f" of {broker_max_ms}"
    if is_given:
        advice = f"set {_OPTION} to at most {broker_max_ms}" if broker_max_ms is not None else f"set {_OPTION} to a smaller value"
        return _refusal(
            f"{_OPTION}={requested_ms} is more than the broker's transaction.max.timeout.ms{maximum}: {advice}, leave it out, "
            "or raise the broker's limit"
        )
    return _refusal(
        f"a transaction of {requested_ms} ms, as this batch needs, is more than the broker's transaction.max.timeout.ms{maximum} allows: "
        f"raise that limit, or set {_OPTION} to at most that"
    )


def _refusal(text: str) -> Refusal:
    return Refusal(Group.INVALID_CONFIGURATION, codes.INVALID_TRANSACTION_TIMEOUT.name, text)
