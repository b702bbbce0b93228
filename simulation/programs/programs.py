"""Programs of users, written as a user would: generators that yield blocking calls and receive their outcomes.

`plain_program` sends and closes. `transactional_program` follows KIP-1050's TransactionalClientDemo: it aborts on abortable and
configuration errors, restarts on application-recoverable ones, and repeats calls that timed out. The ledger records the outcomes the user
got.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from chaffinch.errors import KafkaException, TimeoutException, group_of
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.exception_handler import RetriableResponse
from simulation.records import Record

GROUP_PARTITION: Final = TopicPartition("plain", 0)
"""Partition for which transactional producers commit consumer offsets: the offset is the number of the transaction."""
POLL_MS: Final = 50


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let time pass; returns None."""

    ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """`Producer.send` for one record after the other, or `send_table`. Returns None; the outcomes go to the ledger."""

    burst: Burst
    transaction: Transaction | None = None


class Verb(Enum):
    """Blocking calls of the producer. Each returns the exception it raised, or None."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    FLUSH = "flush"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Call:
    """One blocking call. `offset`: for send_offsets_to_transaction."""

    verb: Verb
    offset: int = -1


class Restart(Exception):
    """The program needs a new producer in place of this one."""


@dataclass(frozen=True, slots=True)
class Poll:
    """`poll()`; returns a list of portions, or the exception it raised."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`commit()` of the records read; returns None or the exception it raised. `waits` False: returns None immediately."""

    waits: bool = True


@dataclass(frozen=True, slots=True)
class SeekToCommitted:
    """Seek to the committed offsets of all assigned partitions; returns None or the exception of `committed()`, at the latest after the
    timeout."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Leave:
    """`close()`; returns None."""


ConsumerStep: TypeAlias = Poll | Commit | SeekToCommitted | Leave
"""Steps of a consumer."""
ProgramStep: TypeAlias = Sleep | Send | Call | ConsumerStep
Program: TypeAlias = Generator[ProgramStep, Any, None]


class Fate(Enum):
    """What the user knows about a transaction."""

    OPEN = "open"
    COMMITTING = "committing"
    """Commit was called but did not return: it may have happened."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of one producer. `has_offsets`: an offset, equal to its number, was accepted into it."""

    number: int
    fate: Fate = Fate.OPEN
    records: list[int] = field(default_factory=list)
    has_offsets: bool = False


@dataclass(slots=True, kw_only=True)
class SentRecord:
    """The outcomes of one record as reported to the producer's user; there should be exactly one."""

    record: Record
    sender: str
    """Name of the producer's incarnation."""
    serial: int
    """Position among all records of the incarnation."""
    offsets: list[int] = field(default_factory=list)
    errors: list[KafkaException] = field(default_factory=list)
    drops: int = 0
    """How often the record was dropped on the exception handler's decision."""
    handler_response: RetriableResponse | None = None
    """The handler's last decision while the topic was unknown."""
    sent_ms: int = 0
    ended_ms: int | None = None
    """When it had an outcome, or its producer was gone."""
    transaction: Transaction | None = None
    is_orphan: bool = False
    """The producer was killed before it could report an outcome."""
    was_interrupted: bool = False
    """Its caller was interrupted in the write: it may be stored."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Everything one producer's user knows, over all its incarnations."""

    name: str
    sent: dict[int, SentRecord] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    calls_failed: list[str] = field(default_factory=list)
    delivery_timeout_ms: int = 0
    """The producer's delivery.timeout.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A piece of work and the pause after it. `as_table`: runs of records of one partition become ready-made batches."""

    records: tuple[Record, ...]
    as_table: bool
    pause_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTransaction:
    bursts: tuple[Burst, ...]
    commits: bool
    sends_offsets: bool


def plain_program(bursts: Iterator[Burst], last: Callable[[], Burst | None]) -> Program:
    """Send everything, flush now and then, close. `last` returns the final burst, or None while it is too early for it."""
    for burst in bursts:
        yield Send(burst)
        yield Sleep(burst.pause_ms)
        if burst.pause_ms % 7 == 0:
            yield Call(Verb.FLUSH)
    while (burst_or_none := last()) is None:
        yield Sleep(POLL_MS)
    yield Send(burst_or_none)
    yield Call(Verb.CLOSE)


def transactional_program(ledger: Ledger, planned: Iterator[PlannedTransaction]) -> Program:
    """Run every planned transaction once; aborted ones are not repeated. Raises Restart."""
    yield from call_until_done(ledger, Verb.INIT)
    for plan in planned:
        transaction = Transaction(len(ledger.transactions))
        ledger.transactions.append(transaction)
        error = yield from in_transaction(ledger, transaction, plan)
        if error is None and plan.commits:
            transaction.fate = Fate.COMMITTING
            error = yield from call_with_retry(ledger, Call(Verb.COMMIT))
            if error is None:
                transaction.fate = Fate.COMMITTED
                continue
        yield from call_until_done(ledger, Verb.ABORT)
        transaction.fate = Fate.ABORTED
    yield Call(Verb.CLOSE)


def in_transaction(
    ledger: Ledger, transaction: Transaction, plan: PlannedTransaction
) -> Generator[ProgramStep, Any, KafkaException | None]:
    """Run a transaction from begin to just before its end."""
    error = yield from call_with_retry(ledger, Call(Verb.BEGIN))
    if error is not None:
        raise Restart from error
    for burst in plan.bursts:
        transaction.records += [record.number for record in burst.records]
        yield Send(burst, transaction)
        yield Sleep(burst.pause_ms)
    if plan.sends_offsets:
        error = yield from call_with_retry(ledger, Call(Verb.OFFSETS, transaction.number))
        transaction.has_offsets = error is None
        return error
    return None


def call_with_retry(ledger: Ledger, call: Call) -> Generator[ProgramStep, Any, KafkaException | None]:
    """Make one call, and repeat it while it times out. Returns the error that requires an abort, or None. Raises Restart."""
    while True:
        error: KafkaException | None = yield call
        if error is None:
            return None
        ledger.calls_failed.append(f"{call.verb.value}: {type(error).__name__}: {error}")
        if isinstance(error, TimeoutException) and call.verb in (Verb.INIT, Verb.COMMIT, Verb.ABORT):
            continue
        if group_of(error) in (Group.TRANSACTION_ABORTABLE, Group.INVALID_CONFIGURATION) and call.verb is not Verb.INIT:
            return error
        raise Restart from error


def call_until_done(ledger: Ledger, verb: Verb) -> Generator[ProgramStep, Any, None]:
    error = yield from call_with_retry(ledger, Call(verb))
    if error is not None:
        raise Restart from error


def group_of_producer(name: str) -> str:
    """The consumer group for which a transactional producer commits offsets."""
    return f"group-of-{name}"
