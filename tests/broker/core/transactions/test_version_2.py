"""Transaction version 2 (KIP-890): an epoch of its own for every transaction, repeated ends, used up epochs, the abort of nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaffinch.broker.core.transactions import metadata as transaction_epochs
from chaffinch.broker.core.transactions.coordinator import MARKER_RETRY_MS
from chaffinch.broker.core.transactions.metadata import EPOCH_MAX, TransactionMetadata
from chaffinch.broker.core.transactions.moves import Ending, TransactionState
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity
from chaffinch.storage.file_system import StorageError
from tests.broker.core.transactions.coordinator_world import ORDERS, OTHER, REACHABLE, T0, TIMEOUT_MS, S, World

OK, _47, _48, _49, _51, _90, _120 = (
    codes.NONE,
    codes.INVALID_PRODUCER_EPOCH,
    codes.INVALID_TXN_STATE,
    codes.INVALID_PRODUCER_ID_MAPPING,
    codes.CONCURRENT_TRANSACTIONS,
    codes.PRODUCER_FENCED,
    codes.TRANSACTION_ABORTABLE,
)

# state -> commit, commit again, abort, abort again; add partitions, verify, fresh InitProducerId (Kafka's TransactionCoordinator)
ANSWERS: dict[TransactionState, tuple[ErrorCode, ...]] = {
    S.EMPTY: (_48, _90, OK, _90, OK, _120, OK),
    S.ONGOING: (OK, _90, OK, _90, OK, OK, _51),
    S.PREPARE_COMMIT: (_90, _51, _90, _48, _51, _51, _51),
    S.PREPARE_ABORT: (_90, _48, _90, _51, _51, _51, _51),
    S.COMPLETE_COMMIT: (_48, OK, OK, _48, OK, _120, OK),
    S.COMPLETE_ABORT: (_48, _48, OK, OK, OK, _120, OK),
}
EVENTS = (*Ending, "add", "verify", "init")
RAISES_EPOCH = {(S.EMPTY, Ending.ABORT), (S.COMPLETE_COMMIT, Ending.ABORT), (S.COMPLETE_ABORT, Ending.ABORT)}
RAISES_EPOCH |= {(S.ONGOING, Ending.COMMIT), (S.ONGOING, Ending.ABORT)}


@pytest.mark.parametrize("event", range(len(EVENTS)), ids=lambda number: str(EVENTS[number]))
@pytest.mark.parametrize("state", REACHABLE)
def test_every_event_in_every_state_has_its_code(state: TransactionState, event: int) -> None:
    world = World(version=2)
    world.in_state(state)
    before = world.stored()
    current = before.identity
    last = ProducerIdentity(current.producer_id, current.epoch - 1)
    requested = EVENTS[event]
    if isinstance(requested, Ending):
        is_commit = requested in (Ending.COMMIT, Ending.COMMIT_AGAIN)
        answer = world.end_answer(last if requested in (Ending.COMMIT_AGAIN, Ending.ABORT_AGAIN) else current, is_commit)
        code = answer.code
        expected = ProducerIdentity(current.producer_id, current.epoch + 1) if (state, requested) in RAISES_EPOCH else current
        assert answer.identity == (expected if code is OK else ProducerIdentity(-1, -1))
    elif requested == "add":
        code = world.coordinator.add_partitions("t", current, [OTHER], T0)
    elif requested == "verify":
        code = world.coordinator.verify("t", current, ORDERS)
    else:
        code = world.coordinator.init_producer_id("t", TIMEOUT_MS, T0).code
    assert code is ANSWERS[state][event]
    if code not in (OK, _51):
        assert world.stored() == before


@pytest.mark.parametrize("state", REACHABLE)
@pytest.mark.parametrize(("id_offset", "epoch_offset", "code"), [(1, 0, _49), (1, -1, _49), (0, 1, _90), (0, -2, _90)])
def test_wrong_identity_is_refused(state: TransactionState, id_offset: int, epoch_offset: int, code: ErrorCode) -> None:
    world = World(version=2)
    world.in_state(state)
    current = world.stored().identity
    stranger = ProducerIdentity(current.producer_id + id_offset, current.epoch + epoch_offset)
    assert world.end(stranger, True) is code
    assert world.end(stranger, False) is code


class TestEpochs:
    def test_every_transaction_has_its_own_epoch(self) -> None:
        world = World(version=2)
        identity = world.init()
        for number in range(3):
            assert world.coordinator.add_partitions("t", identity, [ORDERS], T0) is OK
            identity = world.end_answer(identity, number % 2 == 0).identity
        assert identity.epoch == 3
        assert world.recorder.calls == [
            (ORDERS, number % 2 == 0, ProducerIdentity(identity.producer_id, number + 1)) for number in range(3)
        ]

    def test_repeated_end_has_the_same_response_and_writes_nothing(self) -> None:
        world = World(version=2)
        identity = world.in_state(S.ONGOING)
        answer = world.end_answer(identity, True)
        size = world.journal.size_bytes
        assert world.end_answer(identity, True) == answer
        assert (world.journal.size_bytes, len(world.recorder.calls)) == (size, 1)

    def test_end_with_pending_markers_returns_the_final_identity(self) -> None:
        world = World(version=2)
        identity = world.in_state(S.ONGOING)
        world.recorder.is_broken = True
        answer = world.end_answer(identity, True)
        assert answer.identity == ProducerIdentity(identity.producer_id, identity.epoch + 1)
        assert world.coordinator.add_partitions("t", answer.identity, [ORDERS], T0) is _51

    def test_batch_of_the_last_transaction_is_fenced(self) -> None:
        world = World(version=2)
        identity = world.in_state(S.ONGOING)
        assert world.end(identity, True) is OK
        assert world.coordinator.add_partitions("t", identity, [ORDERS], T0) is _90

    def test_empty_abort_bumps_the_epoch(self) -> None:
        world = World(version=2)
        identity = world.init()
        assert world.end_answer(identity, False).identity.epoch == identity.epoch + 1
        assert (world.recorder.calls, world.state()) == ([], S.COMPLETE_ABORT)

    def test_producer_fenced_by_version_1_is_not_taken_for_a_repetition(self) -> None:
        """The newer producer commits without a bump, so that its epoch is one above the fenced one's, as after a bump."""
        world = World(version=1)
        fenced = world.init()
        newer = world.init()
        world.coordinator.add_partitions("t", newer, [ORDERS], T0)
        assert world.end(newer, True) is OK
        world.version = 2
        assert world.end(fenced, True) is _90

    def test_version_may_change_between_transactions(self) -> None:
        world = World(version=1)
        first = world.in_state(S.COMPLETE_COMMIT)
        world.version = 2
        world.coordinator.add_partitions("t", first, [ORDERS], T0)
        second = world.end_answer(first, True).identity
        assert second.epoch == first.epoch + 1
        world.version = 1
        world.coordinator.add_partitions("t", second, [ORDERS], T0)
        assert world.end_answer(second, True).identity == second


class TestExhaustedEpochs:
    @pytest.mark.parametrize("commit", [True, False])
    def test_end_at_the_last_epoch_returns_a_new_producer_id(self, commit: bool) -> None:
        world = World(version=2)
        identity = world.exhausted()
        answer = world.end_answer(identity, commit)
        assert answer.identity.producer_id != identity.producer_id
        assert answer.identity.epoch == 0
        assert world.recorder.calls == [(ORDERS, commit, ProducerIdentity(identity.producer_id, EPOCH_MAX))]
        assert world.end_answer(identity, commit) == answer
        assert world.end(identity, not commit) is _48
        assert world.coordinator.add_partitions("t", answer.identity, [ORDERS], T0) is OK
        assert world.end(identity, commit) is _90

    def test_new_producer_id_is_kept_and_the_old_one_unknown(self) -> None:
        """Epochs begin at 0 again: those of the old id must not pass for those of the new one."""
        world = World(version=2)
        old = world.exhausted()
        rotated = world.end_answer(old, True).identity
        first = ProducerIdentity(old.producer_id, rotated.epoch)
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, first).code is _90
        assert world.coordinator.add_partitions("t", rotated, [ORDERS], T0) is OK
        following = world.end_answer(rotated, True).identity
        assert following == ProducerIdentity(rotated.producer_id, 1)
        assert world.end(first, True) is _49

    def test_end_of_version_1_does_not_rotate_the_id(self) -> None:
        world = World(version=2)
        rotated = world.end_answer(world.exhausted(), True).identity
        world.version = 1
        assert world.coordinator.add_partitions("t", rotated, [ORDERS], T0) is OK
        assert world.end(rotated, True) is OK
        following = world.init()
        world.coordinator.add_partitions("t", following, [ORDERS], T0)
        assert world.end_answer(following, True).identity == following == ProducerIdentity(rotated.producer_id, 1)

    def test_init_at_the_last_epoch_fences_the_old_producer(self) -> None:
        world = World(version=2)
        old = world.exhausted(S.COMPLETE_COMMIT)
        assert world.init().producer_id != old.producer_id
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, old).code is _90

    def test_restart_between_decision_and_markers_keeps_the_returned_id(self) -> None:
        world = World(version=2)
        identity = world.exhausted()
        world.recorder.is_broken = True
        promised = world.end_answer(identity, True).identity
        assert world.end(identity, True) is _51
        world.recorder.is_broken = False
        world.restart()
        assert world.coordinator.complete_decided(T0) == 1
        assert world.end_answer(identity, True).identity == promised == world.stored().identity

    @pytest.mark.parametrize("commit", [True, False])
    def test_new_id_is_retriable_while_markers_are_pending(self, commit: bool) -> None:
        """Any other code would end the producer, though its transaction is decided and it did nothing wrong."""
        world = World(version=2)
        world.recorder.is_broken = True
        promised = world.end_answer(world.exhausted(), commit).identity
        stranger = ProducerIdentity(promised.producer_id, 1)

        def answers(identity: ProducerIdentity) -> list[ErrorCode]:
            coordinator = world.coordinator
            return [
                coordinator.add_partitions("t", identity, [ORDERS], T0),
                coordinator.add_group("t", identity, "readers", T0),
                coordinator.verify("t", identity, ORDERS),
                world.end(identity, True),
                coordinator.init_producer_id("t", TIMEOUT_MS, T0, identity).code,
            ]

        assert answers(promised) == [_51] * 5
        assert answers(stranger) == [_49] * 4 + [_90]
        assert not world.coordinator.is_current("t", promised)
        world.recorder.is_broken = False
        world.coordinator.run_due(T0 + MARKER_RETRY_MS)
        assert answers(promised)[:3] == [OK] * 3

    def test_empty_abort_at_the_last_epoch_rotates_the_id(self) -> None:
        world = World(version=2)
        identity = world.exhausted(S.COMPLETE_COMMIT)
        answer = world.end_answer(identity, False)
        assert answer.identity.epoch == 0
        assert answer.identity.producer_id != identity.producer_id

    def test_fencing_stays_within_the_largest_epoch(self) -> None:
        world = World(version=2)
        identity = world.exhausted()
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0).code is _51
        assert world.recorder.calls == [(ORDERS, False, ProducerIdentity(identity.producer_id, EPOCH_MAX))]
        fresh = world.init()
        assert (fresh.epoch, fresh.producer_id != identity.producer_id) == (1, True)


class TestFencing:
    def test_timed_out_producer_aborts_and_continues(self) -> None:
        """As measured on Kafka 4.3.1: its abort passes for a repetition of the coordinator's; a commit finds the transaction aborted."""
        world = World(version=2)
        identity = world.in_state(S.ONGOING)
        assert len(world.coordinator.run_due(T0 + TIMEOUT_MS)) == 1
        raised = ProducerIdentity(identity.producer_id, identity.epoch + 1)
        assert world.recorder.calls == [(ORDERS, False, raised)]
        assert world.coordinator.add_partitions("t", identity, [ORDERS], T0) is _90
        assert world.end(identity, True) is _48
        assert world.end_answer(identity, False).identity == raised
        assert world.coordinator.add_partitions("t", raised, [ORDERS], T0) is OK

    def test_init_fences_the_old_producer_for_good(self) -> None:
        world = World(version=2)
        identity = world.in_state(S.ONGOING)
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0).code is _51
        newer = world.init()
        assert newer.epoch == identity.epoch + 2
        for commit in (True, False):
            assert world.end(identity, commit) is _90
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, identity).code is _90

    def test_init_with_the_current_or_previous_identity_bumps_the_epoch(self) -> None:
        """KIP-360 after an end in version 2: current or, where that response was lost, the one before."""
        world = World(version=2)
        old = world.in_state(S.ONGOING)
        current = world.end_answer(old, False).identity
        assert world.init(expected=old) == current
        bumped = world.init(expected=current)
        assert bumped.epoch == current.epoch + 1
        assert world.coordinator.init_producer_id("t", TIMEOUT_MS, T0, old).code is _90


class TestJournal:
    @pytest.mark.parametrize("state", REACHABLE)
    def test_stored_state_survives_a_restart(self, state: TransactionState) -> None:
        world = World(version=2)
        world.in_state(state)
        before = world.stored()
        world.restart()
        assert world.stored() == before

    def test_end_that_cannot_be_written_is_refused(self) -> None:
        world = World(version=2)
        identity = world.in_state(S.ONGOING)

        def full(operation: str, path: str, size: int) -> None:
            if operation == "append":
                raise StorageError(path, "append to", "no space left")

        world.file_system.hook = full
        assert world.end_answer(identity, True).code is codes.NOT_COORDINATOR
        world.file_system.hook = None
        assert (world.state(), world.stored().identity) == (S.ONGOING, identity)
        assert world.end(identity, True) is OK


def test_only_decisions_of_version_2_are_repeatable() -> None:
    metadata = TransactionMetadata(transactional_id="t", producer_id=1, producer_epoch=5, last_producer_epoch=4, transaction_version=1)
    assert not transaction_epochs.repeats_last_end(metadata, ProducerIdentity(1, 4))
    assert transaction_epochs.repeats_last_end(replace(metadata, transaction_version=2), ProducerIdentity(1, 4))
