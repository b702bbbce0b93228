"""Programs that consume, transform and produce: each record read becomes one record written, in the same transaction as its offset.

The pattern of KIP-447 and of KIP-1050's TransactionalClientDemo: a group of read_committed consumers, each with a producer that has its own
transactional id; `send_offsets_to_transaction` with the group's metadata; and after an abort a seek to the committed offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from chaffinch.consumer.core.fetcher import Portion
from chaffinch.errors import KafkaException
from chaffinch.errors.codes import FENCED_INSTANCE_ID
from chaffinch.identifiers import GroupMetadata, OffsetAndMetadata, TopicPartition
from simulation.consumers.groups import POLL_INTERVAL_MS, SLOW_SHARE, Group
from simulation.consumers.history import CommitAttempt
from simulation.programs.producers import ProducerProcess, ProducerUser
from simulation.programs.programs import (
    Burst,
    Call,
    Fate,
    Leave,
    Ledger,
    PlannedTransaction,
    Poll,
    Program,
    Restart,
    SeekToCommitted,
    Sleep,
    Transaction,
    Verb,
    call_until_done,
    call_with_retry,
    in_transaction,
)
from simulation.records import Record, number_of

MakeRecord: TypeAlias = Callable[[int], Record]
"""Makes the record to write for the record with that number."""
OPTIONS: Mapping[str, Any] = {"enable.auto.commit": False, "max.poll.records": 12}


class Transformer(ProducerUser):
    """One instance of the program. `made_from`: number of a written record -> number of the record it was made from."""

    def __init__(
        self,
        group: Group,
        name: str,
        options: Mapping[str, Any],
        make_record: MakeRecord,
        *,
        abort_share: float,
        seek_timeout_ms: int,
        is_static: bool,
    ) -> None:
        """`abort_share`: share of transactions it aborts without an error. `seek_timeout_ms`: time limit of `committed()`. `is_static`: it
        has a group.instance.id."""
        super().__init__(group.world, group.network, group.broker.addresses, name, options, iter(()), process=TransformerProcess)
        self.group = group
        self.abort_share = abort_share
        self.seek_timeout_ms = seek_timeout_ms
        self.consumer_options = {**OPTIONS, "group.instance.id": name} if is_static else OPTIONS
        self.make_record = make_record
        self.made_from: dict[int, int] = {}
        self.commits: dict[int, list[CommitAttempt]] = {}
        """Commit attempts by number of the transaction."""

    def program(self) -> Program:
        return transform_program(self)


class TransformerProcess(ProducerProcess):
    """A producer and a consumer in the same process."""

    def __init__(self, user: Transformer, actor: str, program: Program) -> None:
        super().__init__(user, actor, program)
        self._group = user.group
        self._shell = user.group.shell(actor, user.consumer_options, self.resume, commits_on_revoke=False)
        self._commits = user.commits

    def _begin(self, step: Any) -> None:
        if isinstance(step, Poll | SeekToCommitted | Leave):
            self._shell.begin(step)
        else:
            super()._begin(step)

    def _offsets(self, call: Call) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """The offsets of the records read, and the member's current metadata."""
        offsets, self._commits[call.offset] = self._shell.offsets_to_commit()
        return offsets, self._shell.core.group_metadata()

    def _close(self) -> None:
        super()._close()
        self._shell.close()
        self._group.shells.remove(self._shell)


def transform_program(user: Transformer) -> Program:
    """The program of a transformer. Raises Restart."""
    ledger, rng = user.ledger, user.world.new_rng()
    yield from call_until_done(ledger, Verb.INIT)
    while not user.group.is_over:
        got = yield Poll(rng.choice((50, 300)))
        if isinstance(got, KafkaException):
            ledger.calls_failed.append(f"poll: {got!r}")
            user.world.count(f"polls failed: {type(got).__name__}")
            if got.code is FENCED_INSTANCE_ID:
                raise Restart from got
            continue
        yield Sleep(POLL_INTERVAL_MS + 500 if rng.random() < SLOW_SHARE else rng.choice((1, 20)))
        if got and not (yield from _write(user, ledger, got)):
            yield from _seek_to_committed(user)
    yield Leave()
    yield Call(Verb.CLOSE)


def _write(user: Transformer, ledger: Ledger, got: list[Portion]) -> Generator[Any, Any, bool]:
    """Returns whether the transaction is committed."""
    read = [number_of(portion.columns.value(row)) for portion in got for row in range(len(portion.columns))]
    records = [user.make_record(number) for number in read]
    user.made_from.update(zip((record.number for record in records), read, strict=True))
    transaction = Transaction(len(ledger.transactions))
    ledger.transactions.append(transaction)
    burst = Burst(records=tuple(records), as_table=False, pause_ms=0)
    error = yield from in_transaction(ledger, transaction, PlannedTransaction(bursts=(burst,), commits=True, sends_offsets=True))
    if error is None and not user.world.chance(user.abort_share):
        if user.world.chance(
            SLOW_SHARE
        ):  # The group rebalances in the meantime; the next reader has to wait for the outcome of these offsets.
            yield Sleep(POLL_INTERVAL_MS + 500)
        transaction.fate = Fate.COMMITTING
        error = yield from call_with_retry(ledger, Call(Verb.COMMIT))
        if error is None:
            transaction.fate = Fate.COMMITTED
            for commit in user.commits.get(transaction.number, ()):
                commit.ended = user.group.history.next_moment()
            return True
    yield from call_until_done(ledger, Verb.ABORT)
    transaction.fate = Fate.ABORTED
    for commit in user.commits.get(transaction.number, ()):
        commit.is_refused = True
    return False


def _seek_to_committed(user: Transformer) -> Generator[Any, Any, None]:
    """Read again from the committed offsets; restart if they cannot be read."""
    error = yield SeekToCommitted(user.seek_timeout_ms)
    user.world.count(
        "transformers that sought to committed offsets" if error is None else "transformers that could not learn committed offsets"
    )
    if error is not None:
        user.ledger.calls_failed.append(f"committed: {error!r}")
        raise Restart from error
