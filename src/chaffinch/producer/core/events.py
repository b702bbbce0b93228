"""Events: inputs from the producer's shell to its core, for `ProducerCore.handle`.

Network events are those of `client/connections.py`, passed on unchanged. Records are not events: they are appended to the accumulator, and
TimePassed follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.client.connections import Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.exception_handler import HandlerDecision
from chaffinch.producer.records import GroupMetadata


@dataclass(frozen=True, slots=True)
class TimePassed:
    """No other event: sent after records were appended, and when `ProducerCore.next_deadline_ms` is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequested:
    """A caller waits for the metadata of a topic. `is_stale`: the known metadata is not enough (the partition is beyond its count)."""

    topic: str
    is_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushCalled:
    """Send all records without lingering; `call` completes when all records appended so far have their outcome."""

    call: Any  # Owned by the shell, here and below: it comes back in CompleteCall or FailCall.


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseCalled:
    """No more records follow. `call` completes when all records have their outcome; those without one at `deadline_ms` fail."""

    call: Any
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRejected:
    """`count` records failed with `error` before they were in any batch. `transaction_number`: the transaction that they were sent in."""

    count: int
    error: KafkaException
    transaction_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDecided:
    """The exception handler's decision about the records of an AskHandler."""

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
    """Name of the limit of the wait if the producer is being closed; None: max.block.ms, and the call may be repeated."""
    only_if_open: bool = False
    """Succeed if there is nothing to abort: an interrupted caller may have requested a commit before."""


TransactionCall: TypeAlias = InitTransactionsCalled | BeginTransactionCalled | SendOffsetsCalled | CommitCalled | AbortCalled
NetworkEvent: TypeAlias = ResponseReceived | RequestFailed | RequestWritten | Connected | Disconnected
Event: TypeAlias = (
    TimePassed | TopicRequested | FlushCalled | CloseCalled | RecordsRejected | HandlerDecided | TransactionCall | NetworkEvent
)
