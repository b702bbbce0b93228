"""Transaction coordinator: which producer may write under a transactional id, and how each transaction ends (KIP-98, 360, 447, 890).

The legal transitions are tables in `moves.py`, ids and epochs are computed in `metadata.py`; this module checks identities, makes the
transitions and stores them. Clients select transaction version 1 or 2 with the version of each request.

Every change is written to the journal before it is applied in memory. A decision to commit or abort is in the journal before the first
marker, and a decision without its completion is completed at startup, so a crash in between has no visible effect.

Partitions and group offsets are accessed through `Participants`. There is no clock: each call takes the steady time, which measures
timeouts; stored times are those of the wall clock (`WallTime`).

Follows Apache Kafka's TransactionCoordinator and TransactionMetadata. One deviation: in state ONGOING, InitProducerId with an epoch that is
not the current one is refused as fenced instead of aborting another producer's transaction. (Another one is in `repeats_last_end`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from chaffinch.broker.core.timers import Timers
from chaffinch.broker.core.transactions import metadata as transaction_metadata
from chaffinch.broker.core.transactions import moves as transaction_moves
from chaffinch.broker.core.transactions.metadata import TransactionMetadata
from chaffinch.broker.core.transactions.moves import VERSION_WITH_EPOCH_BUMP, Ending, Move, Refused, TransactionState
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.wall_time import WallTime

COORDINATOR_EPOCH = 0
"""There is one coordinator per data directory, guaranteed by the directory's lock, so its epoch never has to rise."""

MARKER_RETRY_MS = 1000
"""Retry interval for transactions whose markers could not be written (full disk)."""

DUE_PER_CALL = 100
"""Transactions handled in one call of `run_due`: the broker handles requests between two calls."""

GROUPS_BYTES_MAX = 128 << 10
GROUP_BYTES = 50
"""Limit on the total bytes of the group names in one transaction, and the overhead counted for each name: about two thousand groups. Each
added group rewrites all names. (The number of partitions is limited by the existing topics.)"""

NOT_WRITTEN = codes.NOT_COORDINATOR
"""Error code if the journal cannot be written: clients look up the coordinator and retry (Kafka maps KAFKA_STORAGE_ERROR to it)."""

_KEY_PREFIX = b"transaction/"

PRODUCER_IDS_PER_BLOCK = 1000
"""Producer ids per block, one sync each; the same number as Kafka."""

_PRODUCER_IDS_KEY = b"producer.ids"


class Participants(Protocol):
    """Carries out decisions. After a crash each method may be called again for the same transaction."""

    def write_marker(
        self, topic_partition: TopicPartition, is_commit: bool, identity: ProducerIdentity, transaction_version: int, steady_ms: int
    ) -> None:
        """Append the marker; skipped for a partition that no longer exists or already has it. Raises StorageError."""

    def complete_offsets(self, group: str, producer_id: int, is_commit: bool) -> None:
        """Commit or drop the group's pending offsets of this producer. Raises StorageError."""

    def sync(self, topic_partitions: Iterable[TopicPartition], groups: Iterable[str]) -> None:
        """Sync: when this returns, these markers and offsets survive a power loss. Raises StorageError."""


class ProducerIds:
    """Allocates producer ids from 0 upwards, each once, in blocks whose end is on disk before the first id is used.

    A crash skips the rest of a block, as in Apache Kafka's ProducerIdManager. Blocks are synced whatever `flush.policy` is: otherwise a
    power loss could lose an id whose batches are in a log, and the batches of the next producer with that id would be dropped as
    duplicates.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._next = self._block_end = int(journal.items().get(_PRODUCER_IDS_KEY, b"0"))

    def allocate(self) -> int:
        """Allocate the next id. Raises StorageError if a new block cannot be stored."""
        if self._next == self._block_end:
            self._journal.put({_PRODUCER_IDS_KEY: b"%d" % (self._block_end + PRODUCER_IDS_PER_BLOCK)})
            self._journal.sync()
            self._block_end += PRODUCER_IDS_PER_BLOCK
        self._next += 1
        return self._next - 1


@dataclass(frozen=True, slots=True)
class IdentityAnswer:
    """Result of InitProducerId and EndTxn: a code and, if it is NONE, the producer's new identity. `failure`: why nothing was written."""

    code: ErrorCode
    identity: ProducerIdentity = NO_PRODUCER
    failure: StorageError | None = None


class TransactionCoordinator:
    """All transactional ids of the cluster. See the module docstring for the guarantees."""

    def __init__(
        self,
        journal: Journal,
        participants: Participants,
        *,
        timeout_max_ms: int,
        expiration_ms: int,
        sync_decisions: bool,
        transaction_version: int = VERSION_WITH_EPOCH_BUMP,
        wall: WallTime,
        steady_ms: int,
    ) -> None:
        """`transaction_version`: the version for aborts by the coordinator itself; clients choose their own."""
        self._journal = journal
        self._participants = participants
        self._producer_ids = ProducerIds(journal)
        self._timeout_max_ms = timeout_max_ms
        self._expiration_ms = expiration_ms
        self._sync_decisions = sync_decisions
        self._transaction_version = transaction_version
        self._wall = wall
        self._transactions: dict[str, TransactionMetadata] = {}
        self._deadlines: Timers[str] = Timers()
        for key, value in journal.items().items():
            if key.startswith(_KEY_PREFIX):
                transactional_id = key[len(_KEY_PREFIX) :].decode()
                metadata = transaction_metadata.from_bytes(transactional_id, value)
                self._transactions[transactional_id] = metadata
                # At startup both clocks agree, unless the wall clock was set back since this was written.
                self._begin_timeout(metadata, min(_begin_ms(metadata), steady_ms))

    # Queries ------------------------------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        """All transactional ids, in no particular order."""
        return iter(self._transactions.values())

    def is_current(self, transactional_id: str | None, identity: ProducerIdentity) -> bool:
        """Whether `identity` is the current one of the transactional id."""
        return self._identified(transactional_id, identity)[0] is not None

    def verify(self, transactional_id: str | None, identity: ProducerIdentity, partition: TopicPartition) -> ErrorCode:
        """Whether `partition` is in the producer's open transaction (KIP-890 part 1): NONE, or an error code.

        49: unknown id; 90: other epoch; 51: the transaction is being completed; 120: the partition was never added.
        """
        metadata, code = self._identified(transactional_id, identity)
        return code if metadata is None else _membership(metadata, partition in metadata.partitions)

    def verify_group(self, transactional_id: str | None, identity: ProducerIdentity, group: str) -> ErrorCode:
        """Like `verify`, for the offsets of a group."""
        metadata, code = self._identified(transactional_id, identity)
        return code if metadata is None else _membership(metadata, group in metadata.groups)

    # Requests -----------------------------------------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, steady_ms: int, expected: ProducerIdentity = NO_PRODUCER
    ) -> IdentityAnswer:
        """Handle InitProducerId. `expected`: the identity the producer last used (KIP-360), NO_PRODUCER for a new producer.

        An ongoing transaction is aborted under a raised epoch, and the result is CONCURRENT_TRANSACTIONS: the client retries and then
        receives its own epoch.
        """
        if transactional_id is None:
            return self._init_idempotent()
        if transactional_id == "":
            return IdentityAnswer(codes.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._timeout_max_ms:
            return IdentityAnswer(codes.INVALID_TRANSACTION_TIMEOUT)
        try:
            return self._init_transactional(transactional_id, timeout_ms, steady_ms, expected)
        except StorageError as error:
            return IdentityAnswer(NOT_WRITTEN, failure=error)

    def _init_idempotent(self) -> IdentityAnswer:
        try:
            return IdentityAnswer(codes.NONE, ProducerIdentity(self._producer_ids.allocate(), 0))
        except StorageError as error:
            return IdentityAnswer(NOT_WRITTEN, failure=error)

    def _init_transactional(self, transactional_id: str, timeout_ms: int, steady_ms: int, expected: ProducerIdentity) -> IdentityAnswer:
        metadata = self._transactions.get(transactional_id)
        if metadata is None:
            metadata = TransactionMetadata(transactional_id=transactional_id, producer_id=self._producer_ids.allocate())
        if expected != NO_PRODUCER and not transaction_metadata.is_known_producer(metadata, expected):
            return IdentityAnswer(codes.PRODUCER_FENCED)
        answer = transaction_moves.INIT_PRODUCER_ID[metadata.state]
        if isinstance(answer, Refused):
            return IdentityAnswer(answer.code)
        if answer is Move.FENCE:
            if expected not in (NO_PRODUCER, metadata.identity):
                return IdentityAnswer(codes.PRODUCER_FENCED)
            self._fence_and_abort(metadata, steady_ms)
            return IdentityAnswer(codes.CONCURRENT_TRANSACTIONS)
        renewed = transaction_metadata.renewed(metadata, expected, self._producer_ids.allocate)
        if renewed is None:
            return IdentityAnswer(codes.PRODUCER_FENCED)
        empty = replace(renewed, timeout_ms=timeout_ms, state=TransactionState.EMPTY, started_ms=-1, updated_ms=self._wall.at(steady_ms))
        return IdentityAnswer(codes.NONE, self._move(metadata, empty, steady_ms).identity)

    def add_partitions(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition], steady_ms: int
    ) -> ErrorCode:
        """Add existing partitions to the transaction, which begins if necessary (AddPartitionsToTxn, Produce from version 12 on).

        Raises StorageError: nothing was added, respond with NOT_WRITTEN.
        """
        return self._add(transactional_id, identity, frozenset(partitions), frozenset(), steady_ms)

    def add_group(self, transactional_id: str, identity: ProducerIdentity, group: str, steady_ms: int) -> ErrorCode:
        """Add a group's offsets to the transaction (AddOffsetsToTxn, TxnOffsetCommit from version 5 on). 42: it has too many groups.

        Raises StorageError, like `add_partitions`.
        """
        return self._add(transactional_id, identity, frozenset(), frozenset({group}), steady_ms)

    def _add(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        groups: frozenset[str],
        steady_ms: int,
    ) -> ErrorCode:
        if not transactional_id:
            return codes.INVALID_REQUEST
        metadata, code = self._identified(transactional_id, identity)
        if metadata is None:
            return code
        answer = transaction_moves.ADD_PARTITIONS[metadata.state]
        if isinstance(answer, Refused):
            return answer.code
        is_open = metadata.state is TransactionState.ONGOING
        if is_open and partitions <= metadata.partitions and groups <= metadata.groups:
            return codes.NONE
        if sum(GROUP_BYTES + len(group) for group in metadata.groups | groups) > GROUPS_BYTES_MAX:
            return codes.INVALID_REQUEST
        wall_ms = self._wall.at(steady_ms)
        grown = replace(
            metadata,
            state=TransactionState.ONGOING,
            partitions=metadata.partitions | partitions,
            groups=metadata.groups | groups,
            started_ms=metadata.started_ms if is_open else wall_ms,
            updated_ms=wall_ms,
        )
        self._move(metadata, grown, steady_ms)
        return codes.NONE

    def end(
        self, transactional_id: str, identity: ProducerIdentity, is_commit: bool, steady_ms: int, transaction_version: int = 1
    ) -> IdentityAnswer:
        """Commit or abort (EndTxn). NONE means that the decision is stored. In version 2 the producer continues with the returned
        identity.
        """
        if not transactional_id:
            return IdentityAnswer(codes.INVALID_REQUEST)
        metadata = self._transactions.get(transactional_id)
        is_again = (
            metadata is not None
            and transaction_version >= VERSION_WITH_EPOCH_BUMP
            and transaction_metadata.repeats_last_end(metadata, identity)
        )
        if metadata is None or not is_again:
            metadata, code = self._identified(transactional_id, identity)
            if metadata is None:
                return IdentityAnswer(code)
        table = transaction_moves.END_VERSION_2 if transaction_version >= VERSION_WITH_EPOCH_BUMP else transaction_moves.END_VERSION_1
        answer = table[metadata.state][Ending.of(is_commit=is_commit, is_again=is_again)]
        if isinstance(answer, Refused):
            return IdentityAnswer(answer.code)
        if answer is Move.ALREADY_DONE:
            return IdentityAnswer(codes.NONE, metadata.identity)
        try:
            return IdentityAnswer(codes.NONE, self._decide(metadata, is_commit, transaction_version, steady_ms))
        except StorageError as error:
            return IdentityAnswer(NOT_WRITTEN, failure=error)

    # Timeouts and startup -----------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When `run_due` has work to do, or None. May be early: a completed transaction leaves its deadline behind."""
        return self._deadlines.next_deadline_ms

    def run_due(self, steady_ms: int) -> list[str]:
        """Abort and fence transactions beyond their timeout, complete decided ones, remove unused ids; a limited number per call. Returns a
        line to log for each.
        """
        lines: list[str] = []
        while len(lines) < DUE_PER_CALL and (transactional_id := self._deadlines.due(steady_ms)) is not None:
            try:
                lines.append(self._handle_due(self._transactions[transactional_id], steady_ms))
            except StorageError as error:
                self._deadlines.schedule(transactional_id, steady_ms + MARKER_RETRY_MS)
                lines.append(f"transaction of {transactional_id!r} could not be completed and is retried in {MARKER_RETRY_MS} ms: {error}")
        return lines

    def _handle_due(self, metadata: TransactionMetadata, steady_ms: int) -> str:
        name = metadata.transactional_id
        if metadata.state is TransactionState.ONGOING:
            self._fence_and_abort(metadata, steady_ms)
            return f"transaction of {name!r} aborted: open for more than {metadata.timeout_ms} ms; its producer is fenced"
        if metadata.is_decided:
            self._complete(metadata, steady_ms)
            return f"transaction of {name!r} completed: all its markers are written"
        self._journal.put({_key(name): None})
        del self._transactions[name]
        return f"transactional id {name!r} removed: unused for {self._expiration_ms} ms"

    def complete_decided(self, steady_ms: int) -> int:
        """Complete every decided transaction; called once at startup. Returns the number of completed ones; others are retried."""
        decided = [metadata for metadata in self if metadata.is_decided]
        return sum(self._complete_or_later(metadata, steady_ms) for metadata in decided)

    def fence(self, metadata: TransactionMetadata, seen_epoch: int, partitions: frozenset[TopicPartition]) -> None:
        """Fence an id: raise its epoch above its own and `seen_epoch`, so that no producer continues with it; see `power_loss.py`. Only at
        startup.

        A decided transaction writes its markers under the raised epoch, in those of its partitions that are in `partitions`. Raises
        StorageError.
        """
        lifted = replace(transaction_metadata.above(metadata, seen_epoch), partitions=partitions)
        self._journal.put({_key(lifted.transactional_id): transaction_metadata.to_bytes(lifted)})
        self._transactions[lifted.transactional_id] = lifted

    def sync(self) -> None:
        """With `flush.policy=always`: sync everything that was added to transactions. Otherwise a no-op. Raises StorageError.

        Called before the first batch or offset of a participant is stored. If these survived a power loss but the journal did not, the
        transaction would never end, and a repeated batch would be acknowledged although its partition is no longer in the transaction.
        """
        if self._sync_decisions:
            self._journal.sync()

    # Transitions --------------------------------------------------------------------------------------------------------------------

    def _fence_and_abort(self, metadata: TransactionMetadata, steady_ms: int) -> None:
        """Abort under a raised epoch, so that the markers carry it to every partition and late batches are refused there too.

        In version 2 every abort does this; the producer learns the new epoch when it requests an abort itself.
        """
        if self._transaction_version < VERSION_WITH_EPOCH_BUMP:
            before, metadata = metadata, transaction_metadata.fenced(metadata)
            _check_move(before.state, metadata.state)
        self._decide(metadata, False, self._transaction_version, steady_ms)

    def _decide(self, metadata: TransactionMetadata, is_commit: bool, transaction_version: int, steady_ms: int) -> ProducerIdentity:
        """Store the decision, then carry it out. Returns the identity with which the producer continues."""
        decided = transaction_metadata.decided(
            metadata,
            is_commit=is_commit,
            transaction_version=transaction_version,
            wall_ms=self._wall.at(steady_ms),
            allocate=self._producer_ids.allocate,
        )
        self._move(metadata, decided, steady_ms)
        self._complete_or_later(decided, steady_ms)
        return transaction_metadata.completed(decided, self._wall.at(steady_ms)).identity

    def _complete_or_later(self, metadata: TransactionMetadata, steady_ms: int) -> bool:
        """Carry out a decision. Returns False on failure: the decision stands and is retried later."""
        try:
            self._complete(metadata, steady_ms)
        except StorageError:
            self._deadlines.schedule(metadata.transactional_id, steady_ms + MARKER_RETRY_MS)
            return False
        return True

    def _complete(self, metadata: TransactionMetadata, steady_ms: int) -> None:
        self.sync()
        is_commit = metadata.state is TransactionState.PREPARE_COMMIT
        for group in sorted(metadata.groups):
            self._participants.complete_offsets(group, metadata.producer_id, is_commit)
        for partition in sorted(metadata.partitions):
            self._participants.write_marker(partition, is_commit, metadata.identity, metadata.transaction_version, steady_ms)
        if self._sync_decisions:
            # Before the completion: if it survived a power loss but a marker did not, that marker would never be written again.
            self._participants.sync(metadata.partitions, metadata.groups)
        self._move(metadata, transaction_metadata.completed(metadata, self._wall.at(steady_ms)), steady_ms)

    def _move(self, before: TransactionMetadata, after: TransactionMetadata, steady_ms: int) -> TransactionMetadata:
        """The only method that changes a state: it checks, stores and applies the transition."""
        _check_move(before.state, after.state)
        self._journal.put({_key(after.transactional_id): transaction_metadata.to_bytes(after)})
        self._transactions[after.transactional_id] = after
        if not before.state is after.state is TransactionState.ONGOING:  # A growing transaction keeps its deadline.
            self._begin_timeout(after, steady_ms)
        return after

    def _begin_timeout(self, metadata: TransactionMetadata, begin_ms: int) -> None:
        """Start the timeout of an open transaction or the expiration of an unused id. `begin_ms` is steady time."""
        if not metadata.is_decided:  # Decided ones are completed at once, or were rescheduled after a failure.
            timeout_ms = metadata.timeout_ms if metadata.state is TransactionState.ONGOING else self._expiration_ms
            self._deadlines.schedule(metadata.transactional_id, begin_ms + timeout_ms)

    # Identities ---------------------------------------------------------------------------------------------------------------------

    def _identified(self, transactional_id: str | None, identity: ProducerIdentity) -> tuple[TransactionMetadata | None, ErrorCode]:
        metadata = self._transactions.get(transactional_id) if transactional_id else None
        if metadata is not None and metadata.is_promised(identity):
            return None, codes.CONCURRENT_TRANSACTIONS
        if metadata is None or metadata.producer_id != identity.producer_id:
            return None, codes.INVALID_PRODUCER_ID_MAPPING
        if metadata.producer_epoch != identity.epoch:
            return None, codes.PRODUCER_FENCED
        return metadata, codes.NONE


def _membership(metadata: TransactionMetadata, is_member: bool) -> ErrorCode:
    answer = transaction_moves.VERIFY_PARTITIONS[metadata.state]
    if isinstance(answer, Refused):
        return answer.code
    return codes.NONE if is_member else codes.TRANSACTION_ABORTABLE


def _begin_ms(metadata: TransactionMetadata) -> int:
    """When the timeout or expiration began, by the wall clock."""
    return metadata.started_ms if metadata.state is TransactionState.ONGOING else metadata.updated_ms


def _check_move(before: TransactionState, after: TransactionState) -> None:
    assert before in transaction_moves.LEGAL_PREDECESSORS[after], f"illegal move of a transaction: {before.name} -> {after.name}"


def _key(transactional_id: str) -> bytes:
    return _KEY_PREFIX + transactional_id.encode()
