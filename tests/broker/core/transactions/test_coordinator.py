"""The transaction coordinator alone: state x request -> answer, identities, time, and a crash between decision and markers.

Transaction version 1; version 2 is in `test_version_2.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from chaffinch.broker.core.transactions import moves as transaction_moves
from chaffinch.broker.core.transactions.coordinator import DUE_PER_CALL, GROUP_BYTES, GROUPS_BYTES_MAX, MARKER_RETRY_MS
from chaffinch.broker.core.transactions.metadata import TransactionMetadata, from_bytes, to_bytes
from chaffinch.broker.core.transactions.moves import Answer, Ending, Move, TransactionState
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity
from chaffinch.storage.file_system import StorageError
from tests.broker.core.transactions.coordinator_world import EXPIRATION_MS, ORDERS, OTHER, REACHABLE, T0, TIMEOUT_MS, S, World

# state -> answer to commit, abort, add partitions, fresh InitProducerId (Kafka's TransactionCoordinator, protocol version 1)
_51, _48 = codes.CONCURRENT_TRANSACTIONS, codes.INVALID_TXN_STATE
ANSWERS: dict[TransactionState, tuple[ErrorCode, ErrorCode, ErrorCode, ErrorCode]] = {
    S.EMPTY: (_48, _48, codes.NONE, codes.NONE),
    S.ONGOING: (codes.NONE, codes.NONE, codes.NONE, _51),
    S.PREPARE_COMMIT: (_51, _48, _51, _51),
    S.PREPARE_ABORT: (_48, _51, _51, _51),
    S.COMPLETE_COMMIT: (codes.NONE, _48, codes.NONE, codes.NONE),
    S.COMPLETE_ABORT: (_48, codes.NONE, codes.NONE, codes.NONE),
}


@pytest.mark.parametrize(("state", "request_index"), list(product(REACHABLE, range(4))))
def test_every_request_in_every_state_has_its_code(state: TransactionState, request_index: int) -> None:
    world = World()
    identity = world.in_state(state)
    coordinator = world.coordinator
    requests = (
        lambda: world.end(identity, True),
        lambda: world.end(identity, False),
        lambda: coordinator.add_partitions("t", identity, [OTHER], T0),
        lambda: coordinator.init_producer_id("t", TIMEOUT_MS, T0).code,
    )
    assert requests[request_index]() is ANSWERS[state][request_index]


@pytest.mark.parametrize("request_", ["end", "add_partitions", "add_group", "verify"])
@pytest.mark.parametrize("state", REACHABLE)
def test_identities_are_checked_before_states(state: TransactionState, request_: str) -> None:
    """49 for an unknown id or another producer id, 90 for another epoch, older or newer."""
    world = World()
    identity = world.in_state(state)
    coordinator = world.coordinator

    def ask(transactional_id: str, requested: ProducerIdentity) -> ErrorCode:
        return {
            "end": lambda: world.end(requested, True, transactional_id),
            "add_partitions": lambda: coordinator.add_partitions(transactional_id, requested, [ORDERS], T0),
            "add_group": lambda: coordinator.add_group(transactional_id, requested, "g", T0),
            "verify": lambda: coordinator.verify(transactional_id, requested, ORDERS),
        }[request_]()

    before = coordinator.describe("t")
    assert ask("unknown", identity) is codes.INVALID_PRODUCER_ID_MAPPING
    assert ask("t", ProducerIdentity(identity.producer_id + 1, identity.epoch)) is codes.INVALID_PRODUCER_ID_MAPPING
    for epoch in (identity.epoch - 1, identity.epoch + 1):
        assert ask("t", ProducerIdentity(identity.producer_id, epoch)) is codes.PRODUCER_FENCED
    assert coordinator.describe("t") == before


def test_tables_have_every_stored_state() -> None:
    stored = set(TransactionState) - {S.DEAD, S.PREPARE_EPOCH_FENCE}
    for table in (
        transaction_moves.INIT_PRODUCER_ID,
        transaction_moves.ADD_PARTITIONS,
        transaction_moves.VERIFY_PARTITIONS,
        transaction_moves.END_VERSION_1,
        transaction_moves.END_VERSION_2,
    ):
        assert set(table) == stored
    assert {frozenset(row) for row in transaction_moves.END_VERSION_1.values()} == {frozenset({Ending.COMMIT, Ending.ABORT})}
    assert {frozenset(row) for row in transaction_moves.END_VERSION_2.values()} == {frozenset(Ending)}
    assert set(transaction_moves.LEGAL_PREDECESSORS) == set(TransactionState)


def test_legal_moves_are_those_that_requests_make() -> None:
    """No more of them: an illegal one is caught where it is made."""
    moves = transaction_moves
    ends = (moves.END_VERSION_1, moves.END_VERSION_2)

    def deciding(ending: Ending) -> frozenset[TransactionState]:
        return frozenset(state for table in ends for state, row in table.items() if row[ending] is Move.DECIDE)

    def asking(table: Mapping[TransactionState, Answer], move: Move) -> frozenset[TransactionState]:
        return frozenset(state for state, answer in table.items() if answer is move)

    at_rest = asking(moves.INIT_PRODUCER_ID, Move.NEW_EPOCH)
    expected = {
        S.EMPTY: at_rest,
        S.ONGOING: asking(moves.ADD_PARTITIONS, Move.ADD),
        S.PREPARE_COMMIT: deciding(Ending.COMMIT),
        S.PREPARE_ABORT: deciding(Ending.ABORT) | {S.PREPARE_EPOCH_FENCE},
        S.PREPARE_EPOCH_FENCE: asking(moves.INIT_PRODUCER_ID, Move.FENCE),
        S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
        S.COMPLETE_ABORT: {S.PREPARE_ABORT},
        S.DEAD: at_rest,
    }
    assert dict(moves.LEGAL_PREDECESSORS) == expected


@pytest.mark.parametrize("length", [100, 10_000])
def test_number_of_groups_of_a_transaction_is_limited(length: int) -> None:
    world = World()
    identity = world.coordinator.init_producer_id("t", TIMEOUT_MS, T0).identity
    fitting = GROUPS_BYTES_MAX // (GROUP_BYTES + length)
    added = [world.coordinator.add_group("t", identity, f"{number:0{length}}", T0) for number in range(fitting + 2)]
    assert added == [codes.NONE] * fitting + [codes.INVALID_REQUEST] * 2
    assert world.coordinator.add_group("t", identity, f"{0:0{length}}", T0) is codes.NONE, "it is in already"
    assert world.coordinator.end("t", identity, True, T0).code is codes.NONE
    assert world.coordinator.add_group("t", identity, f"{fitting:0{length}}", T0) is codes.NONE, "another transaction"


class TestInitProducerId:
    """KIP-98, and KIP-360 where the producer names the identity it has."""

    def test_idempotent_producers_get_unique_ids(self) -> None:
        world = World()
        identities = [world.coordinator.init_producer_id(None, TIMEOUT_MS, T0).identity for _ in range(1500)]
        world.restart()
        identities += [world.coordinator.init_producer_id(None, TIMEOUT_MS, T0).identity for _ in range(10)]
        assert len({identity.producer_id for identity in identities}) == 1510
        assert {identity.epoch for identity in identities} == {0}

    @pytest.mark.parametrize(
        ("transactional_id", "timeout_ms", "code"),
        [
            ("", TIMEOUT_MS, codes.INVALID_REQUEST),
            ("t", 0, codes.INVALID_TRANSACTION_TIMEOUT),
            ("t", -1, codes.INVALID_TRANSACTION_TIMEOUT),
            ("t", 900_001, codes.INVALID_TRANSACTION_TIMEOUT),
            ("t", 900_000, codes.NONE),
        ],
    )
    def test_invalid_arguments_are_refused(self, transactional_id: str, timeout_ms: int, code: ErrorCode) -> None:
        assert World().coordinator.init_producer_id(transactional_id, timeout_ms, T0).code is code

    def test_each_init_sets_its_own_timeout(self) -> None:
        world = World()
        world.init()
        identity = world.coordinator.init_producer_id("t", 10, T0).identity
        world.coordinator.add_partitions("t", identity, [ORDERS], T0)
        assert world.coordinator.run_due(T0 + 9) == []
        assert len(world.coordinator.run_due(T0 + 10)) == 1

    def test_expired_transactional_id_starts_with_a_new_producer_id(self) -> None:
        world = World()
        old = world.init()
        world.coordinator.run_due(T0 + EXPIRATION_MS)
        fresh = world.init(T0 + EXPIRATION_MS, old)
        assert (fresh.epoch, fresh.producer_id != old.producer_id) == (0, True)

    def test_each_init_bumps_the_epoch_and_keeps_the_id(self) -> None:
        world = World()
        first, second = world.init(), world.init()
        assert second == ProducerIdentity(first.producer_id, first.epoch + 1)

    def test_init_aborts_an_open_transaction_under_an_internal_epoch(self) -> None:
        world = World()
        identity = world.in_state(S.ONGOING)
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0).code is codes.CONCURRENT_TRANSACTIONS
        fenced = ProducerIdentity(identity.producer_id, identity.epoch + 1)
        assert world.recorder.calls == [(ORDERS, False, fenced)]
        assert world.init() == ProducerIdentity(identity.producer_id, identity.epoch + 2)
        assert world.end(identity, True) is codes.PRODUCER_FENCED

    def test_init_with_an_identity_bumps_the_epoch(self) -> None:
        """Current: bumped. The one before, when that bump's response was lost: the same response. Anything else: fenced."""
        world = World()
        first = world.init()
        second = world.init(expected=first)
        assert second.epoch == first.epoch + 1
        assert world.init(expected=first) == second
        third = world.init(expected=second)
        assert third.epoch == second.epoch + 1
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, first).code is codes.PRODUCER_FENCED

    def test_init_without_identity_forgets_the_previous_epoch(self) -> None:
        world = World()
        first = world.init()
        world.init()
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, first).code is codes.PRODUCER_FENCED

    def test_another_producer_id_is_fenced(self) -> None:
        world = World()
        identity = world.init()
        stranger = ProducerIdentity(identity.producer_id + 5, identity.epoch)
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, stranger).code is codes.PRODUCER_FENCED

    @pytest.mark.parametrize("offset", [-1, 1])
    def test_init_with_another_epoch_does_not_abort(self, offset: int) -> None:
        world = World()
        identity = world.in_state(S.ONGOING)
        stranger = ProducerIdentity(identity.producer_id, identity.epoch + offset)
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, stranger).code is codes.PRODUCER_FENCED
        assert world.state() is S.ONGOING
        assert world.end(identity, True) is codes.NONE

    def test_exhausted_epoch_rotates_the_producer_id(self) -> None:
        """At 32766 the next start gets a new id at epoch 0; who lost that answer gets it again under the old identity."""
        world = World()
        identity = world.exhausted(S.EMPTY)
        assert identity.epoch == 32766
        rotated = world.init(expected=identity)
        assert rotated.producer_id != identity.producer_id
        assert rotated.epoch == 0
        assert world.init(expected=identity) == rotated

    def test_fencing_at_the_last_epoch_uses_the_maximum(self) -> None:
        world = World()
        identity = world.exhausted(S.EMPTY)
        assert world.coordinator.add_partitions("t", identity, [ORDERS], T0) is codes.NONE
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0).code is codes.CONCURRENT_TRANSACTIONS
        assert world.recorder.calls == [(ORDERS, False, ProducerIdentity(identity.producer_id, 32767))]
        assert world.init().epoch == 0


class TestTransactions:
    def test_commit_reaches_every_partition_and_group_once(self) -> None:
        world = World()
        identity = world.init()
        world.coordinator.add_partitions("t", identity, [OTHER, ORDERS], T0)
        world.coordinator.add_group("t", identity, "h", T0)
        world.coordinator.add_group("t", identity, "g", T0)
        assert world.end(identity, True) is codes.NONE
        groups = [("g", True, identity.producer_id), ("h", True, identity.producer_id)]
        assert world.recorder.calls == [*groups, (ORDERS, True, identity), (OTHER, True, identity)]

    def test_next_transaction_starts_empty(self) -> None:
        world = World()
        identity = world.in_state(S.COMPLETE_COMMIT)
        world.recorder.calls.clear()
        world.coordinator.add_partitions("t", identity, [OTHER], T0)
        world.end(identity, False)
        assert world.recorder.calls == [(OTHER, False, identity)]

    def test_adding_a_partition_again_writes_nothing(self) -> None:
        world = World()
        identity = world.in_state(S.ONGOING)
        size = world.journal.size_bytes
        assert world.coordinator.add_partitions("t", identity, [ORDERS], T0) is codes.NONE
        assert world.journal.size_bytes == size

    def test_verify_accepts_partitions_of_the_open_transaction(self) -> None:
        """KIP-890 part 1: only partitions of the open transaction pass."""
        world = World()
        identity = world.in_state(S.ONGOING)
        assert world.coordinator.verify("t", identity, ORDERS) is codes.NONE
        assert world.coordinator.verify("t", identity, OTHER) is codes.TRANSACTION_ABORTABLE
        assert world.coordinator.verify_group("t", identity, "g") is codes.TRANSACTION_ABORTABLE
        assert world.coordinator.verify(None, identity, ORDERS) is codes.INVALID_PRODUCER_ID_MAPPING
        world.end(identity, True)
        assert world.coordinator.verify("t", identity, ORDERS) is codes.TRANSACTION_ABORTABLE

    def test_metadata_survives_a_restart(self) -> None:
        world = World()
        identity = world.in_state(S.ONGOING)
        before = world.coordinator.describe("t")
        world.restart()
        assert world.coordinator.describe("t") == before
        assert world.end(identity, True) is codes.NONE
        world.restart()
        assert world.state() is S.COMPLETE_COMMIT
        assert world.end(identity, True) is codes.NONE

    def test_metadata_round_trip(self) -> None:
        metadata = TransactionMetadata(
            transactional_id="t",
            producer_id=2**62,
            producer_epoch=5,
            last_producer_epoch=4,
            previous_producer_id=3,
            next_producer_id=2**62 + 1,
            transaction_version=2,
            state=S.PREPARE_ABORT,
            partitions=frozenset({ORDERS, OTHER}),
            groups=frozenset({"g", "h\u00e9"}),
            started_ms=1,
            updated_ms=2,
        )
        assert from_bytes("t", to_bytes(metadata)) == metadata

    def test_the_journal_of_an_earlier_version_is_read(self) -> None:
        """As written before transaction version 2 came: without the next producer id and the version."""
        written = (
            b'{"producer_id": 7, "producer_epoch": 5, "last_producer_epoch": -1, "previous_producer_id": -1, "timeout_ms": 60000, '
            b'"state": "PREPARE_COMMIT", "partitions": [["orders", 0]], "groups": ["g"], "started_ms": 1, "updated_ms": 2}'
        )
        expected = TransactionMetadata(
            transactional_id="t",
            producer_id=7,
            producer_epoch=5,
            state=S.PREPARE_COMMIT,
            partitions=frozenset({ORDERS}),
            groups=frozenset({"g"}),
            started_ms=1,
            updated_ms=2,
        )
        assert from_bytes("t", written) == expected


class TestTimeouts:
    def test_an_open_transaction_is_aborted_and_its_producer_fenced(self) -> None:
        world = World()
        identity = world.in_state(S.ONGOING)
        assert world.coordinator.next_deadline_ms == T0 + TIMEOUT_MS
        assert world.coordinator.run_due(T0 + TIMEOUT_MS - 1) == []
        (line,) = world.coordinator.run_due(T0 + TIMEOUT_MS)
        assert "'t'" in line
        assert str(TIMEOUT_MS) in line
        assert world.recorder.calls == [(ORDERS, False, ProducerIdentity(identity.producer_id, identity.epoch + 1))]
        assert world.end(identity, True) is codes.PRODUCER_FENCED
        assert world.coordinator.add_partitions("t", identity, [ORDERS], T0) is codes.PRODUCER_FENCED

    def test_epoch_of_a_fence_is_not_returned(self) -> None:
        world = World()
        first = world.init()
        second = world.init(expected=first)
        world.coordinator.add_partitions("t", second, [ORDERS], T0 + 5)
        assert len(world.coordinator.run_due(T0 + 5 + TIMEOUT_MS)) == 1
        for late in (first, second):
            assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, late).code is codes.PRODUCER_FENCED
        metadata = world.coordinator.describe("t")
        assert metadata is not None
        assert metadata.started_ms == T0 + 5, "when it began, and not when it was aborted"

    def test_timeout_counts_from_the_first_partition(self) -> None:
        world = World()
        identity = world.in_state(S.COMPLETE_COMMIT)
        late = T0 + TIMEOUT_MS - 1
        world.coordinator.add_partitions("t", identity, [ORDERS], late)
        assert world.coordinator.run_due(T0 + TIMEOUT_MS) == []
        world.coordinator.add_partitions("t", identity, [OTHER], late + TIMEOUT_MS - 1)
        assert len(world.coordinator.run_due(late + TIMEOUT_MS)) == 1

    def test_due_transactions_are_aborted_in_slices(self) -> None:
        world = World()
        for number in range(DUE_PER_CALL + 1):
            name = f"t{number}"
            identity = world.coordinator.init_producer_id(name, TIMEOUT_MS, T0).identity
            world.coordinator.add_partitions(name, identity, [ORDERS], T0)
        due_ms = T0 + TIMEOUT_MS
        assert len(world.coordinator.run_due(due_ms)) == DUE_PER_CALL
        assert world.coordinator.next_deadline_ms == due_ms, "the rest at once, after what clients want"
        assert len(world.coordinator.run_due(due_ms)) == 1
        assert world.coordinator.run_due(due_ms) == []

    def test_end_of_a_transaction_moves_the_deadline(self) -> None:
        world = World()
        identity = world.in_state(S.ONGOING)
        world.end(identity, True)
        assert world.coordinator.run_due(T0 + TIMEOUT_MS) == []
        assert world.coordinator.next_deadline_ms == T0 + EXPIRATION_MS

    def test_unused_transactional_id_expires(self) -> None:
        world = World()
        identity = world.in_state(S.COMPLETE_COMMIT)
        world.coordinator.run_due(T0 + TIMEOUT_MS)
        assert world.coordinator.run_due(T0 + EXPIRATION_MS - 1) == []
        assert len(world.coordinator.run_due(T0 + EXPIRATION_MS)) == 1
        assert world.end(identity, True) is codes.INVALID_PRODUCER_ID_MAPPING
        world.restart()
        assert world.coordinator.describe("t") is None

    def test_deadlines_survive_a_restart(self) -> None:
        world = World()
        world.in_state(S.ONGOING)
        world.restart()
        assert world.coordinator.next_deadline_ms == T0 + TIMEOUT_MS


class TestCrashBetweenDecisionAndMarkers:
    @pytest.mark.parametrize(("prepared", "completed"), [(S.PREPARE_COMMIT, S.COMPLETE_COMMIT), (S.PREPARE_ABORT, S.COMPLETE_ABORT)])
    def test_decision_is_completed_at_the_next_start(self, prepared: TransactionState, completed: TransactionState) -> None:
        world = World()
        identity = world.in_state(prepared)
        assert world.recorder.calls == []
        world.recorder.is_broken = False
        world.restart()
        assert world.state() is prepared
        assert world.coordinator.complete_decided(T0) == 1
        assert world.recorder.calls == [(ORDERS, prepared is S.PREPARE_COMMIT, identity)]
        assert world.state() is completed
        assert world.coordinator.complete_decided(T0) == 0

    def test_markers_are_retried_on_a_full_disk(self) -> None:
        world = World()
        identity = world.in_state(S.PREPARE_COMMIT)
        assert world.coordinator.next_deadline_ms == T0 + MARKER_RETRY_MS
        assert "is retried in" in world.coordinator.run_due(T0 + MARKER_RETRY_MS)[0]
        world.recorder.is_broken = False
        world.coordinator.run_due(T0 + 2 * MARKER_RETRY_MS)
        assert world.recorder.calls == [(ORDERS, True, identity)]
        assert world.state() is S.COMPLETE_COMMIT

    def test_decision_that_cannot_be_written_is_refused(self) -> None:
        """The answer sends the client to look for its coordinator again; it may still abort."""
        world = World()
        identity = world.in_state(S.ONGOING)

        def full(operation: str, path: str, size: int) -> None:
            if operation == "append":
                raise StorageError(path, "append to", "no space left")

        world.file_system.hook = full
        assert world.end(identity, True) is codes.NOT_COORDINATOR
        assert world.coordinator.init_producer_id("new", TIMEOUT_MS, T0).code is codes.NOT_COORDINATOR
        world.file_system.hook = None
        assert world.state() is S.ONGOING
        assert world.recorder.calls == []
        assert world.end(identity, False) is codes.NONE
