"""Cuts: faults at one step of the Spark commit protocol.

`query_driver.py` carries them out. A cut counts as made when it had its effect: there was an answer to lose, or a file to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from chaffinch.spark.commit.operations import (
    FindHangingTransactions,
    MakeDeadLetters,
    NameDeadLetters,
    Operation,
    ReadState,
    SendBatch,
    SendRequest,
    Step,
    WriteDeadLetters,
    WriteState,
)


class CutKind(Enum):
    """What goes wrong at a step of the commit protocol."""

    DRIVER_DIES_BEFORE = "the driver dies before it"
    DRIVER_DIES_AFTER = "the driver dies when it is done"
    REQUEST_LOST = "its request is lost"
    RESPONSE_LOST = "its response is lost"
    BROKER_DIES_BEFORE = "the broker dies before it"
    BROKER_DIES_DURING = "the broker dies in a disk operation of it"
    BROKER_DIES_AFTER = "the broker dies when it is done"
    BROKER_RESTARTS = "the broker dies before it and is back again"
    BROKER_AWAY = "the broker dies before it and stays down longer than the driver retries"
    BROKER_AWAY_AFTER = "the broker dies when it is done, before its answer, and stays down longer than the driver retries"
    DRIVER_STALLS = "the driver stalls beyond the transaction's time-out"
    SECOND_DRIVER = "a second driver starts"
    ZOMBIE = "the driver stalls, a second one does its work, then the first continues"
    FILE_FAILS = "the file system refuses it"
    FILE_UNSURE = "the file system does it but reports a failure"
    STAGING_LOST = "staged data cannot be read"


_REQUESTS = (SendRequest, SendBatch, FindHangingTransactions)
_FILES_CHANGED = (WriteState, WriteDeadLetters, NameDeadLetters, MakeDeadLetters)
APPLICABLE_TO: dict[CutKind, tuple[type[Operation], ...]] = {
    CutKind.REQUEST_LOST: _REQUESTS,
    CutKind.RESPONSE_LOST: _REQUESTS,
    CutKind.BROKER_AWAY_AFTER: _REQUESTS,
    CutKind.FILE_FAILS: (*_FILES_CHANGED, ReadState),
    CutKind.FILE_UNSURE: _FILES_CHANGED,
    CutKind.STAGING_LOST: (SendBatch,),
}
"""Operations that can fail in this way; the other kinds apply to any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A fault at the `occurrence`-th applicable operation of `step`, counted from 0 over all drivers of the query since the previous cut.

    `first` happens before it at the same operation: DRIVER_STALLS, ZOMBIE, SECOND_DRIVER or BROKER_RESTARTS.
    """

    kind: CutKind
    step: Step
    occurrence: int = 0
    first: CutKind | None = None

    def matches(self, operation: Operation) -> bool:
        return operation.step is self.step and isinstance(operation, APPLICABLE_TO.get(self.kind, object))
