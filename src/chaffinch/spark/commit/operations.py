"""Operations of the commit protocol, and their results. Plain data.

`protocol.py` yields one operation at a time. Its driver (`sink/commit_shell.py` in a Spark worker, a test, the simulation) performs it and
answers with a `Reply`. Every operation has a `Step`, so that a driver can pause, fail or die at a named step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from chaffinch.client import wait_log
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.schema import Message
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.messages import Rejection, StagedBatch, StagedBytes


class Step(Enum):
    """The steps of a commit, in order. The value is the name that tests and `CHAFFINCH_PAUSE_AT_STEP` use."""

    READ_STATE = "read_state"
    READ_MARKER = "read_marker"
    FINISH_COMMIT = "finish_commit"
    FIX_TRANSACTIONAL_ID = "fix_transactional_id"
    INIT_PRODUCER = "init_producer"
    READ_MARKER_AGAIN = "read_marker_again"
    FIND_HANGING_TRANSACTIONS = "find_remains"
    ADD_PARTITIONS = "add_partitions"
    PUSH = "push"
    PUSH_DEAD_LETTERS = "push_dead_letters"
    WRITE_DEAD_LETTERS = "write_dead_letters"
    ADD_OFFSETS = "add_offsets"
    COMMIT_MARKER = "commit_marker"
    NOTE_ENDING = "note_ending"
    END_TRANSACTION = "end_transaction"
    NAME_DEAD_LETTERS = "name_dead_letters"
    NOTE_DONE = "note_done"
    # Only after a failure.
    ABORT = "abort"
    READ_MARKER_AFTER_FENCING = "read_marker_after_fencing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The coordinator of a group or a transactional id. `refresh`: the cached one is out of date."""

    kind: Literal["group", "transaction"]
    key: str
    refresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request. Returns its response: a `Message`, or `Lost`."""

    step: Step
    message: Message
    to: Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBatch:
    """Set identity and sequence in a staged batch and send it to its leader. Returns None; the response comes from `NextResponse`.

    `record_indices`: the records of the staged batch to send, in ascending order; None: all. `refresh`: look up the leader again.
    """

    step: Step
    send_id: int
    batch: StagedBatch
    record_indices: tuple[int, ...] | None
    identity: ProducerIdentity
    base_sequence: int
    refresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NextResponse:
    """Wait for the response to any batch in flight. Returns a `BatchResponse`, in any order among partitions.

    Returns None if none arrives before `until_ms`, on the clock of `Reply.steady_ms`.
    """

    step: Step
    until_ms: int | None = None
    wait_info: wait_log.Wait | None = None
    """Why partitions wait before a retry; for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHandler:
    """Call the user's handler (KIP-1038) for records that the broker refused. `culprits` have indices of the staged batch.

    Returns a frozenset of the indices to drop without a dead letter. Only yielded if the plan has a handler.
    """

    step: Step
    batch: StagedBatch
    culprits: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDeadLetters:
    """Make dead letters of records that the broker refused. `culprits` have indices of the staged batch. Returns `DeadLetters`."""

    step: Step
    batch: StagedBatch
    culprits: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDeadLetters:
    """Replace a Parquet file with these rows: write a temporary file, sync and rename it. Without rows, remove the file. Returns None.

    With `writer_id` the file is hidden and belongs to this writer until `NameDeadLetters`; otherwise it is the batch's file immediately.
    """

    step: Step
    rows: tuple[StagedBytes, ...]
    writer_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameDeadLetters:
    """Give the hidden file of a writer the batch's name, if it still exists, and remove the hidden files of the batch's other writers.

    `writer_id`: the writer that committed the batch; None: it had no dead letters, so the batch has no file. Returns None.
    """

    step: Step
    writer_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """Read the state from the checkpoint. Returns a `CheckpointState`, empty if there is none."""

    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """Replace the state in the checkpoint, atomically. Returns None."""

    step: Step
    state: CheckpointState
    may_fail: bool = False
    """If True, a failed write is only logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindHangingTransactions:
    """Send DescribeProducers once to the leaders of partitions, for open transactions of a producer. Returns `HangingTransactions`.

    `refresh`: look up the leaders again, and send one request per partition: a response for all of them may exceed the size limit.
    """

    step: Step
    producer_id: int
    partitions: tuple[TopicPartition, ...]
    refresh: bool


class HangingTransaction(NamedTuple):
    """An open transaction of a producer in a partition. `epoch`: the producer's. `coordinator_epoch`: that of the last end marker there,
    -1 if there is none.
    """

    tp: TopicPartition
    epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPartitions:
    """Look up the number of partitions of a topic. Returns the number, 0 if it will remain unknown, or `Lost`."""

    step: Step
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """Send WriteTxnMarkers once to the leader of each partition: the transaction of this identity is committed.

    Returns `WriteMarkersResult`.
    """

    step: Step
    identity: ProducerIdentity
    transactions: tuple[HangingTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait for `ms`. Returns None. `wait_info`: what failed and is retried, for the log."""

    step: Step
    ms: int
    wait_info: wait_log.Wait | None = None


Operation: TypeAlias = (
    SendRequest
    | SendBatch
    | NextResponse
    | CallHandler
    | MakeDeadLetters
    | WriteDeadLetters
    | NameDeadLetters
    | ReadState
    | WriteState
    | FindHangingTransactions
    | CountPartitions
    | WriteMarkers
    | Wait
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No response. `reason`: what happened and where, on one line; `was_sent`: the request may have reached the broker."""

    reason: str
    was_sent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeaderResult:
    """Results of partition leaders.

    `refused`: the error of leaders that do not support the request, or refuse it. `reason` and `code`: why the request must be repeated for
    other partitions. `unknown`: those of these partitions that brokers do not know.
    """

    refused: ErrorCode = codes.NONE
    reason: str = ""
    code: ErrorCode = codes.NETWORK_EXCEPTION
    unknown: frozenset[TopicPartition] = frozenset()

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The combined result of several leaders."""
        failed = [part for part in parts if part.reason]
        names = [found.name for found in fields(cls) if found.name not in ("refused", "reason", "code")]
        return cls(
            refused=next((part.refused for part in parts if part.refused is not codes.NONE), codes.NONE),
            reason="; ".join(dict.fromkeys(part.reason for part in failed)),
            code=failed[0].code if failed else codes.NETWORK_EXCEPTION,
            **{name: frozenset().union(*(getattr(part, name) for part in parts)) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransactions(_LeaderResult):
    """Open transactions. `answered`: partitions that need no further request, including `refused` ones."""

    answered: frozenset[TopicPartition] = frozenset()
    hanging: frozenset[HangingTransaction] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkersResult(_LeaderResult):
    """Result of writing markers, by partition. `done`: replicated, or another writer was faster. `denied`: not allowed, for the reason
    `refused`. `possibly_written`: other partitions whose marker may nevertheless have been written.
    """

    done: frozenset[TopicPartition] = frozenset()
    denied: frozenset[TopicPartition] = frozenset()
    possibly_written: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResponse:
    """The result of one `SendBatch`. Without a response, `lost` is set; otherwise `code`, and the culprits by index in the sent batch."""

    send_id: int
    code: ErrorCode | None = None
    message: str = ""
    culprits: tuple[tuple[int, ErrorCode, str], ...] = ()
    lost: Lost | None = None
    byte_count: int | None = None
    """Bytes of the sent batch; None: it was sent as staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Dead letters from the shell: batches for the topic, rows for the Parquet file; either may be empty."""

    batches: tuple[StagedBatch, ...] = ()
    rows: tuple[StagedBytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Sent to the generator: the operation's result, and its time in ms on a monotonic clock."""

    steady_ms: int
    value: Any = None
    """Its type depends on the operation; see the docstring of each."""
