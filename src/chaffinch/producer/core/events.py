"""What happens to a producer: the words in which its shell tells the core. Given to `ProducerCore.handle`, one at a time.

What the network reports comes in the words of `client/connections.py` and is passed on as it is. Records do not come as events: they
go into the accumulator, and the core is told afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.client.connections import Answered, Connected, Disconnected, Failed, Written
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.exception_handler import HandlerDecision
from chaffinch.producer.records import GroupMetadata


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else; also said after records were appended, and when `ProducerCore.next_deadline_ms` is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequested:
    """Somebody waits for the metadata of a topic. `is_stale`: what is known of it is not enough (a partition beyond its count)."""

    topic: str
    is_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushCalled:
    """Send what there is without lingering; `call` completes when everything appended so far has its outcome."""

    call: Any  # The shell's own, here and below: it comes back in CompleteCall or FailCall.


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseCalled:
    """No more records come. `call` completes when all have their outcome; what has none at `deadline_ms` fails."""

    call: Any
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRejected:
    """So many records failed before they were in any batch, with `error` as their callers were told. `transaction_number`: the number of
    the transaction
    in which they were handed over."""

    count: int
    error: KafkaException
    transaction_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDecided:
    """What an exception handler said to AskHandler."""

    batch: ProducerBatch
    decision: HandlerDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTransactionsCalled:
    call: Any
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionCalled:
    call: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOffsetsCalled:
    call: Any
    deadline_ms: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCalled:
    call: Any
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCalled:
    call: Any
    deadline_ms: int
    closes_within: str | None = None
    """What limits the wait where the producer is being closed; None: max.block.ms does, and the call may be made again."""
    only_if_open: bool = False
    """Not a mistake if there is nothing to abort: a commit may have come before it, whose caller was interrupted."""


TransactionCall: TypeAlias = InitTransactionsCalled | BeginTransactionCalled | SendOffsetsCalled | CommitCalled | AbortCalled
NetworkEvent: TypeAlias = Answered | Failed | Written | Connected | Disconnected
Event: TypeAlias = (
    TimePassed | TopicRequested | FlushCalled | CloseCalled | RecordsRejected | HandlerDecided | TransactionCall | NetworkEvent
)
