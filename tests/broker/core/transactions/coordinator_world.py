"""A transaction coordinator with participants that only take notes, for tests of its rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from chaffinch.broker.core.transactions.coordinator import IdentityAnswer, TransactionCoordinator
from chaffinch.broker.core.transactions.metadata import EPOCH_EXHAUSTED, TransactionMetadata
from chaffinch.broker.core.transactions.moves import TransactionState
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.storage.file_system import MemoryFileSystem, StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.wall_time import WallTime

T0 = 1_000_000
TIMEOUT_MS = 60_000
EXPIRATION_MS = 7 * 86_400_000
ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
S = TransactionState


@dataclass
class Recorder:
    """Participants that record the calls they get, and fail when a test asks them to."""

    calls: list[Any] = field(default_factory=list)
    is_broken: bool = False

    def write_marker(
        self, topic_partition: TopicPartition, is_commit: bool, identity: ProducerIdentity, transaction_version: int, steady_ms: int
    ) -> None:
        self._check()
        self.calls.append((topic_partition, is_commit, identity))

    def complete_offsets(self, group: str, producer_id: int, is_commit: bool) -> None:
        self._check()
        self.calls.append((group, is_commit, producer_id))

    def sync(self, topic_partitions: Iterable[TopicPartition], groups: Iterable[str]) -> None:
        self.calls.append("synced")

    def _check(self) -> None:
        if self.is_broken:
            raise StorageError("orders-0", "append to", "no space left")


class World:
    """A coordinator on a journal that survives `restart`. All its producers use transaction version `version`."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.file_system = MemoryFileSystem()
        self.recorder = Recorder()
        self.restart()

    def restart(self, steady_ms: int = T0) -> None:
        self.wall = WallTime()
        self.journal = Journal.open(self.file_system, "journals", "transactions")
        self.coordinator = TransactionCoordinator(
            self.journal,
            self.recorder,
            timeout_max_ms=900_000,
            expiration_ms=EXPIRATION_MS,
            sync_decisions=False,
            transaction_version=self.version,
            wall=self.wall,
            steady_ms=steady_ms,
        )

    def init(self, steady_ms: int = T0, expected: ProducerIdentity | None = None) -> ProducerIdentity:
        answer = self.coordinator.init_producer_id("t", TIMEOUT_MS, steady_ms, *([] if expected is None else [expected]))
        assert answer.code is codes.NONE, answer
        return answer.identity

    def end(self, identity: ProducerIdentity, is_commit: bool, transactional_id: str = "t") -> ErrorCode:
        return self.end_answer(identity, is_commit, transactional_id).code

    def end_answer(self, identity: ProducerIdentity, is_commit: bool, transactional_id: str = "t") -> IdentityAnswer:
        return self.coordinator.end(transactional_id, identity, is_commit, T0, self.version)

    def state(self) -> TransactionState:
        return self.stored().state

    def in_state(self, state: TransactionState) -> ProducerIdentity:
        """Bring the id "t" into a state by requests, and return the identity it was given last."""
        identity = self.init()
        if state is S.EMPTY:
            return identity
        assert self.coordinator.add_partitions("t", identity, [ORDERS], T0) is codes.NONE
        if state is S.ONGOING:
            return identity
        self.recorder.is_broken = state in (S.PREPARE_COMMIT, S.PREPARE_ABORT)
        answer = self.end_answer(identity, state in (S.PREPARE_COMMIT, S.COMPLETE_COMMIT))
        assert answer.code is codes.NONE
        assert self.state() is state
        return answer.identity

    def stored(self) -> TransactionMetadata:
        metadata = self.coordinator.describe("t")
        assert metadata is not None
        return metadata

    def exhausted(self, state: TransactionState = S.ONGOING) -> ProducerIdentity:
        """Bring "t" to the last epoch that a client may have, in a state, without asking 32766 times."""
        self.in_state(state)
        metadata = replace(self.stored(), producer_epoch=EPOCH_EXHAUSTED)
        self.coordinator._transactions["t"] = metadata
        return metadata.identity


REACHABLE = (S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
