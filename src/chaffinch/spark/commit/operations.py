"""What the commit protocol asks its shell to do, and what it gets back. Plain data.

`protocol.py` yields one operation at a time; whoever drives it (`sink/commit_shell.py` in a Spark worker, a test, the simulation)
performs it and sends a `Reply` in. Every operation carries its `Step`, so a driver can stop, cut or kill at a step by name.
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
    """The steps of a commit, in order; the value is the name that tests and `CHAFFINCH_PAUSE_AT_STEP` use."""

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
    # Beside the order: only after a failure.
    ABORT = "abort"
    READ_MARKER_AFTER_FENCING = "read_marker_after_fencing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The broker that coordinates a group or a transactional id. `refresh`: the one known so far is not it any more."""

    kind: Literal["group", "transaction"]
    key: str
    refresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request and bring its answer: a `Message`, or `Lost`."""

    step: Step
    message: Message
    to: Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBatch:
    """Patch identity and sequence into a staged batch and send it to its leader; the answer comes by `NextResponse`. Brings None.

    `record_indices`: the records of the staged batch that are to be sent, ascending indices; None: all. `refresh`: look up the leader anew.
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
    """Wait for the answer to any batch under way: brings a `BatchResponse`, in any order among partitions; None at `until_ms`, on the clock
    of `Reply.steady_ms`, if none has come by then."""

    step: Step
    until_ms: int | None = None
    wait_info: wait_log.Wait | None = None
    """What partitions wait for that are sent to again later; for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHandler:
    """Ask the user's handler (KIP-1038) about records that the broker refused. `culprits` hold indices of the staged batch. Brings the
    frozenset of those indices that are to be left out, without a dead letter. Yielded only where the plan has a handler."""

    step: Step
    batch: StagedBatch
    culprits: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDeadLetters:
    """Make dead letters of records that the broker refused. `culprits` hold indices of the staged batch. Brings `DeadLetters`."""

    step: Step
    batch: StagedBatch
    culprits: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDeadLetters:
    """Replace a Parquet file by these rows: written under a temporary name, synced, renamed. No rows: remove it. Brings None.

    `writer_id`: the file is this writer's alone and hidden, until `NameDeadLetters`; None: it is the batch's at once.
    """

    step: Step
    rows: tuple[StagedBytes, ...]
    writer_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameDeadLetters:
    """The batch is in Kafka by this writer: make its hidden file, if it is still there, the batch's, and remove those of other writers of
    the batch. None: this writer had no letters, the batch has no file. Brings None."""

    step: Step
    writer_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """Read what the checkpoint remembers: brings a `CheckpointState`, empty where nothing is kept."""

    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """Replace what the checkpoint remembers, atomically. Brings None."""

    step: Step
    state: CheckpointState
    may_fail: bool = False
    """Then a folder that cannot be written is only told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindHangingTransactions:
    """Ask the leaders of partitions, each once, whether a producer has a transaction open there. Brings `HangingTransactions`.

    `refresh`: look up the leaders again, and send one request per partition: a response for all of them may exceed the size limit."""

    step: Step
    producer_id: int
    partitions: tuple[TopicPartition, ...]
    refresh: bool


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition: under which epoch of its producer, and of the coordinator that told of an end there last
    (-1: none has)."""

    tp: TopicPartition
    epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPartitions:
    """Look up how many partitions a topic has. Brings the number, 0 where that is not told for good, or `Lost`."""

    step: Step
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """Send WriteTxnMarkers once to the leader of each partition: the transaction of this identity is committed.

    Brings `WriteMarkersResult`."""

    step: Step
    identity: ProducerIdentity
    transactions: tuple[HangingTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Let time pass. Brings None. `wait_info`: what failed and is tried again, for the log."""

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
    """No answer. `reason` says what happened and where, in one line; `was_sent`: the request may have reached the broker."""

    reason: str
    was_sent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeaderResult:
    """What leaders said of partitions. `refused`: the code of those that never will say, or may not; `reason`: why others are still to be
    asked, and `code` its name; `unknown`: those of the others that brokers do not know."""

    refused: ErrorCode = codes.NONE
    reason: str = ""
    code: ErrorCode = codes.NETWORK_EXCEPTION
    unknown: frozenset[TopicPartition] = frozenset()

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """What several leaders said, together."""
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
    """What is left open. `answered`: partitions that need not be asked for again, those that are `refused` among them."""

    answered: frozenset[TopicPartition] = frozenset()
    hanging: frozenset[HangingTransaction] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkersResult(_LeaderResult):
    """What became of markers. `done`: where they need not be told again: they are replicated, or another writer has overtaken us;
    `denied`: where this is not ours to do, which is `refused`; `possibly_written`: those of the others that may be written all the same."""

    done: frozenset[TopicPartition] = frozenset()
    denied: frozenset[TopicPartition] = frozenset()
    possibly_written: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResponse:
    """The fate of one `SendBatch`. `lost` is set when no answer came; else `code`, and the culprits by index in what was sent."""

    send_id: int
    code: ErrorCode | None = None
    message: str = ""
    culprits: tuple[tuple[int, ErrorCode, str], ...] = ()
    lost: Lost | None = None
    byte_count: int | None = None
    """Of the batch as it was sent; None: it was sent as it was staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Dead letters made by the shell: batches for the topic, rows for the Parquet file; either may be empty."""

    batches: tuple[StagedBatch, ...] = ()
    rows: tuple[StagedBytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is sent into the generator: the operation's result and the time when it was there, in ms on a clock that never goes back."""

    steady_ms: int
    value: Any = None
    """Its type depends on the operation, as each one's docstring says."""
