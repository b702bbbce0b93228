"""What the users of producers do, written as they would write it: generators that yield what blocks a caller and get its outcome back.

`plain_program` sends and closes. `transactional_program` follows KIP-1050's TransactionalClientDemo: abort on what is abortable or wrongly
configured, restart on what is recoverable by the application, call again what has timed out. The ledger notes what the user was told.
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
"""Where transactional producers commit consumer offsets for: the offset is the transaction's number."""
POLL_MS: Final = 50


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let time pass; brings None."""

    ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """`Producer.send`, one record after the other, or `send_table`: brings None, the outcomes are told to the ledger."""

    burst: Burst
    transaction: Transaction | None = None


class Verb(Enum):
    """The producer's blocking calls; each brings the exception it raised, or None."""

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
    """The program wants a new producer in place of this one."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Brings a list of portions, or the exception that `poll` raised."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`commit()` of what was read; brings None or what it raised. `waits` False: without waiting, and None at once."""

    waits: bool = True


@dataclass(frozen=True, slots=True)
class SeekToCommitted:
    """Seek to what is committed, in every assigned partition; brings None or what `committed()` raised, after that time at the latest."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Leave:
    """`close()`; brings None."""


ConsumerStep: TypeAlias = Poll | Commit | SeekToCommitted | Leave
"""Of a consumer."""
ProgramStep: TypeAlias = Sleep | Send | Call | ConsumerStep
Program: TypeAlias = Generator[ProgramStep, Any, None]


class Fate(Enum):
    """What the user knows of a transaction."""

    OPEN = "open"
    COMMITTING = "committing"
    """Commit was called and gave no answer: it may have happened."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of one producer. `has_offsets`: an offset, its number, was accepted into it."""

    number: int
    fate: Fate = Fate.OPEN
    records: list[int] = field(default_factory=list)
    has_offsets: bool = False


@dataclass(slots=True, kw_only=True)
class SentRecord:
    """What the user of a producer was told about one record: each outcome, which should be one."""

    record: Record
    sender: str
    """The producer's incarnation."""
    serial: int
    """Place among all records of the incarnation."""
    offsets: list[int] = field(default_factory=list)
    errors: list[KafkaException] = field(default_factory=list)
    drops: int = 0
    """How often an exception handler's wish to drop it was fulfilled."""
    handler_response: RetriableResponse | None = None
    """What the handler said last while nobody knew the topic."""
    sent_ms: int = 0
    ended_ms: int | None = None
    """When it had an outcome, or its producer was gone."""
    transaction: Transaction | None = None
    is_orphan: bool = False
    """The producer was killed before it could tell."""
    was_interrupted: bool = False
    """Its caller was interrupted in the write: it may be stored."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """All that one producer's user knows, over its incarnations."""

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
    """Send everything, flush now and then, close. `last`: what is sent in the end, None as long as it is not time for it."""
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
    """Every transaction of the plan, each once; what is aborted is not written again. Raises Restart."""
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
    """From begin to just before the end."""
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
    """One call, made again while it times out; the error that asks for an abort, or None. Raises Restart."""
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
