"""Each guarantee broken once by hand in its core: the simulation must find it within a few seeds.

A mutation that no seed finds would mean that the simulation does not look there. Those marked "once real" were defects of these cores.
The producer's are in `test_producer_mutations.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.broker.core.transactions import power_loss
from chaffinch.broker.core.transactions.coordinator import TransactionCoordinator
from chaffinch.spark.commit import protocol, push, requests
from chaffinch.spark.commit.operations import Step, WriteDeadLetters
from chaffinch.spark.commit.verdict import Verdict
from chaffinch.storage import recovery
from chaffinch.storage.compaction_rules import LatestOffsets, Rules
from chaffinch.storage.files import StorageError
from chaffinch.storage.memory_files import MemoryFile
from chaffinch.storage.partition_log import PartitionLog
from chaffinch.storage.producer_sequences import ProducerSequences
from simulation.nemesis import FaultSchedule
from simulation.network import CALM, NetworkFaults
from simulation.queries.cuts import Cut, CutKind
from tests.simulation.mutation import (
    CORRUPT,
    OUT_OF_RANGE,
    PLAIN,
    POWER,
    QUERY,
    RECREATED,
    TRANSACTIONAL,
    VERSION_2,
    Mutation,
    Patch,
    find,
    returns,
)

# Broker ---------------------------------------------------------------------------------------------------------------------------------


def forgets_producers(patch: Patch) -> None:
    """Recovery reads the records and not what they say about producers: repetitions after a restart are new."""
    patch.setattr("chaffinch.storage.recovery.Recovery._note_producer", lambda *_: None)


def drops_last_batch(patch: Patch, *, only_without_power: bool = False) -> None:
    """Recovery takes the last whole batch of each log for a torn end, and does not look at what was noted of it. After a loss of power: of
    logs of which nothing else is known."""
    opened = PartitionLog.open.__func__  # type: ignore[attr-defined]

    def open_shorter(cls: Any, file_system: Any, directory: str, *rest: Any, **_expected: Any) -> Any:
        log = opened(cls, file_system, directory, *rest)
        if log.log_end_offset > 3 and (not only_without_power or (file_system.incarnation != "memory-0" and "/plain." in directory)):
            segment = log._segments[-1]
            last = list(segment.headers(0))[-1][0]
            log.close()
            file_system.open(f"{segment.stem}.log", create=False).truncate(last)
            for name in file_system.list(directory):
                if not name.endswith(".log"):
                    file_system.remove(f"{directory}/{name}")
            log = opened(cls, file_system, directory, *rest)
        return log

    patch.setattr(PartitionLog, "open", classmethod(open_shorter))


def commits_offsets_of_aborted(patch: Patch) -> None:
    complete = GroupOffsets.complete
    patch.setattr(GroupOffsets, "complete", lambda self, group, producer_id, _is_commit: complete(self, group, producer_id, True))


def answers_before_sync(patch: Patch) -> None:
    patch.setattr(BrokerCore, "sync", lambda _self: None)


def takes_everything(patch: Patch) -> None:
    """Without the check of sequences. With it, a producer gives up after a false gap: nothing is lost."""
    returns(PartitionLog, "find_duplicate", None)(patch)
    returns(PartitionLog, "check_producer", None)(patch)


def accepts_old_epochs(patch: Patch) -> None:
    """The coordinator looks at the producer id only."""
    identified = TransactionCoordinator._identified

    def any_epoch(self: TransactionCoordinator, transactional_id: str | None, identity: Any) -> Any:
        known = self._transactions.get(transactional_id or "")
        return identified(self, transactional_id, identity if known is None else identity._replace(epoch=known.producer_epoch))

    patch.setattr(TransactionCoordinator, "_identified", any_epoch)


def forgets_decisions(patch: Patch) -> None:
    """A decision found at start is not carried out."""
    patch.setattr(TransactionCoordinator, "complete_decided", lambda _self, _steady_ms: 0)


def recovered_logs_are_not_synced(patch: Patch) -> None:
    """Once real: a repetition of a batch that only a killed process had written was acknowledged."""
    opened = PartitionLog.open.__func__  # type: ignore[attr-defined]

    def open_as_synced(cls: Any, *arguments: Any, **expected: Any) -> Any:
        log = opened(cls, *arguments, **expected)
        log._has_unsynced_bytes = log._has_unsynced_names = False
        return log

    patch.setattr(PartitionLog, "open", classmethod(open_as_synced))


def parts_are_not_synced(patch: Patch) -> None:
    """What adds itself to a transaction is stored before it is certain that the coordinator remembers it. Decisions are still synced."""
    complete = TransactionCoordinator._complete

    def completes(self: TransactionCoordinator, metadata: Any, steady_ms: int) -> None:
        if self._sync_decisions:
            self._journal.sync()
        complete(self, metadata, steady_ms)

    patch.setattr(TransactionCoordinator, "sync", lambda self: None)
    patch.setattr(TransactionCoordinator, "_complete", completes)


def forgets_markers(patch: Patch) -> None:
    """Recovery reads what belongs to transactions, and not their ends."""
    note = recovery.Recovery._note_producer

    def notes(self: Any, segment: Any, position: int, view: Any) -> None:
        if not view.header.is_control:
            note(self, segment, position, view)

    patch.setattr(recovery.Recovery, "_note_producer", notes)


def reads_past_a_batch(patch: Patch) -> None:
    """Of some offsets a read begins with the batch behind theirs."""
    read = PartitionLog.read

    def reads(self: PartitionLog, offset: int, *rest: Any, **how: Any) -> Any:
        is_late = offset % 5 == 0 and offset + 1 < self.log_end_offset
        return read(self, offset + is_late, *rest, **how)

    patch.setattr(PartitionLog, "read", reads)


def unmended(breaks: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """The same, and starts do not make good what a loss of power took from the coordinator: that would hide most of it."""

    def both(patch: Patch) -> None:
        breaks(patch)
        patch.setattr(power_loss, "recover_lost", lambda *_arguments, **_keywords: ())

    return both


BROKER = [
    Mutation(
        name="sequences are not checked, duplicates not recognised",
        breaks=takes_everything,
        knobs=PLAIN,
        says=("stored 2 times", "sequence"),
    ),
    Mutation(name="recovery forgets producers", breaks=forgets_producers, knobs=PLAIN, says=("stored 2 times",)),
    Mutation(
        name="recovery drops an acknowledged batch", breaks=drops_last_batch, knobs=PLAIN, says=("is not there",), raises=(OUT_OF_RANGE,)
    ),
    Mutation(
        name="answers leave before the sync",
        breaks=answers_before_sync,
        knobs={**PLAIN, "fault_schedule": POWER, "flush_policy": "always"},
        says=("is not there",),
    ),
    Mutation(
        name="once real: what a killed broker left is not synced",
        breaks=recovered_logs_are_not_synced,
        knobs={**PLAIN, "fault_schedule": FaultSchedule(broker_death_ms=300, power_loss_share=0.5), "flush_policy": "always"},
        says=("is not there", "differs"),
        raises=(OUT_OF_RANGE, CORRUPT),
        seeds=60,
        first=40,
    ),
    Mutation(
        name="once real: a part of a transaction is not synced before its bytes",
        breaks=unmended(parts_are_not_synced),
        knobs=VERSION_2,
        first=49,
        says=("visible", "is not there"),
    ),
    Mutation(
        name="every marker is taken for one that is there",
        breaks=returns(ProducerSequences, "has_marker", True),
        knobs=VERSION_2,
        says=("stuck: a transaction is left undecided",),
    ),
    Mutation(
        name="once real: markers are not synced before the completion",
        breaks=returns(TransactionParticipants, "sync", None),
        knobs=VERSION_2,
        says=("records are visible",),
        first=15,
    ),
    Mutation(
        name="the last stable offset is ignored",
        breaks=lambda patch: patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark)),
        knobs=TRANSACTIONAL,
        says=("follower",),
    ),
    Mutation(
        name="fetches omit aborted transactions",
        breaks=returns(PartitionLog, "aborted_transactions", []),
        knobs=TRANSACTIONAL,
        says=("differs from the markers",),
        by="readers_agree",
    ),
    Mutation(
        name="recovery forgets the ends of transactions",
        breaks=forgets_markers,
        knobs={**TRANSACTIONAL, "fault_schedule": FaultSchedule()},
        says=("the last stable offset stays",),
        by="logs_are_decided",
    ),
    Mutation(
        name="a read begins with the next batch",
        breaks=reads_past_a_batch,
        knobs=PLAIN,
        says=("records and markers over",),
        by="offsets_are_dense",
    ),
    Mutation(
        name="decisions are not carried out after a crash",
        breaks=forgets_decisions,
        knobs={**TRANSACTIONAL, "fault_schedule": FaultSchedule(broker_death_ms=300, in_operation_share=1.0)},
        says=("stuck: work is left",),
        seeds=60,
    ),
    Mutation(
        name="offsets of aborted transactions are committed",
        breaks=commits_offsets_of_aborted,
        knobs=TRANSACTIONAL,
        says=("the committed offset is",),
        by="offsets_follow_transactions",
        first=6,
    ),
    Mutation(
        name="the coordinator does not fence",
        breaks=accepts_old_epochs,
        knobs={**TRANSACTIONAL, "fault_schedule": FaultSchedule(broker_death_ms=2_000, zombie_ms=300)},
        says=("records are visible",),
        by="transactions_are_atomic",
        seeds=40,
        first=10,
    ),
]

# The broker's disk ------------------------------------------------------------------------------------------------------------------------


def forgets_to_sync(*suffixes: str) -> Callable[[Patch], None]:
    """Files of these names are said to be synced, and are not."""

    def breaks(patch: Patch) -> None:
        sync = MemoryFile.sync
        patch.setattr(MemoryFile, "sync", lambda self: None if self.path.endswith(suffixes) else sync(self))

    return breaks


def rolls_without_sync(patch: Patch) -> None:
    """What was appended to the last segment in this turn is forgotten when the next begins."""
    roll = PartitionLog._roll

    def forgetful(self: PartitionLog, steady_ms: int) -> Any:
        self._has_unsynced_bytes = False
        return roll(self, steady_ms)

    patch.setattr(PartitionLog, "_roll", forgetful)


def forgets_names_of_segments(patch: Patch) -> None:
    begin = PartitionLog._new_segment

    def forgetful(self: PartitionLog, steady_ms: int) -> Any:
        segment = begin(self, steady_ms)
        self._has_unsynced_names = False
        return segment

    patch.setattr(PartitionLog, "_new_segment", forgetful)


def forgets_topics(patch: Patch) -> None:
    """What a request says of topics is not synced before its answer, as with flush.policy=os it once was not."""
    patch.setattr(BrokerCore, "_with_metadata_synced", lambda _self, _request, result, _steady_ms: result)


def leaves_swaps_undone(patch: Patch) -> None:
    """A start takes no notice of a swap that was decided."""
    patch.setattr(recovery, "complete_pending_swap", lambda *_: None)


def compacts_the_latest_too(patch: Patch) -> None:
    are_latest = LatestOffsets.are_latest
    patch.setattr(LatestOffsets, "are_latest", lambda self, records: are_latest(self, records) & (records.offsets % 7 != 0))


def throws_markers_away(patch: Patch) -> None:
    patch.setattr(Rules, "_marker", lambda _self, view, is_last: view.data if is_last else None)


def takes_what_did_not_fit(patch: Patch) -> None:
    """An append that a full disk refused is acknowledged."""

    def append(self: MemoryFile, buffers: Any) -> int:
        try:
            return appends(self, buffers)
        except StorageError:
            if not self.path.endswith(".log"):
                raise
            return self.size

    appends = MemoryFile.append
    patch.setattr(MemoryFile, "append", append)


COMPACTING: dict[str, Any] = {**TRANSACTIONAL, "plain_count": 1, "producer_records": 200, "faults": CALM}
POWER_CUTS = {
    **COMPACTING,
    "flush_policy": "always",
    "fault_schedule": FaultSchedule(broker_death_ms=300, power_loss_share=0.9, in_operation_share=0.8),
}
DISK = [
    Mutation(
        name="a start after a loss of power drops what was flushed",
        breaks=lambda patch: drops_last_batch(patch, only_without_power=True),
        knobs={**COMPACTING, "flush_policy": "os", "fault_schedule": FaultSchedule()},
        says=("was flushed, a loss of power took",),
        by="power_loss_takes_only_the_unflushed_end",
    ),
    Mutation(
        name="topics are not synced when they are made",
        breaks=forgets_topics,
        knobs={**RECREATED, "flush_policy": "os"},
        says=("topic remade was",),
        by="topics_survive_power_loss",
        seeds=40,
    ),
    Mutation(
        name="compacted files take their place without a sync",
        breaks=forgets_to_sync(".log.cleaned"),
        knobs=POWER_CUTS,
        raises=(CORRUPT,),
        seeds=60,
        first=2,
    ),
    Mutation(
        name="journals are rewritten without a sync",
        breaks=unmended(forgets_to_sync(".journal.new")),
        knobs=POWER_CUTS,
        raises=(CORRUPT,),
        first=122,
        seeds=60,
    ),
    Mutation(
        name="the state of a log is not synced", breaks=forgets_to_sync("log.state.new"), knobs=POWER_CUTS, raises=(CORRUPT,), seeds=60
    ),
    Mutation(name="segments are sealed without a sync", breaks=rolls_without_sync, knobs=POWER_CUTS, raises=(CORRUPT,), first=20, seeds=60),
    Mutation(name="names of segments are not synced", breaks=forgets_names_of_segments, knobs=POWER_CUTS, raises=(CORRUPT,), seeds=60),
    Mutation(
        name="a swap that was decided is not carried out",
        breaks=leaves_swaps_undone,
        knobs={**COMPACTING, "fault_schedule": FaultSchedule(broker_death_ms=300, in_operation_share=0.9)},
        raises=(CORRUPT,),
        seeds=60,
    ),
    Mutation(
        name="the last record of a key is compacted away", breaks=compacts_the_latest_too, knobs=COMPACTING, says=("is not there",), first=1
    ),
    Mutation(
        name="markers are compacted away at once", breaks=throws_markers_away, knobs=COMPACTING, says=("differs from the markers",), first=1
    ),
    Mutation(
        name="what did not fit on the disk is acknowledged",
        breaks=takes_what_did_not_fit,
        knobs={**COMPACTING, "fault_schedule": FaultSchedule(full_disk_ms=300)},
        says=("is not there",),
        raises=("follower: no progress",),
    ),
]

# Spark's commit protocol ------------------------------------------------------------------------------------------------------------------


def given_up_is_not_waited_for(patch: Patch) -> None:
    """Once real: answers to an attempt that was given up were taken for those of the next."""

    def does_not_wait(*_: Any) -> Any:
        yield from ()

    patch.setattr(push.Push, "_drain", does_not_wait)


def aborts_in_place_of_commit(patch: Patch) -> None:
    """Where the transaction should be committed it is aborted, and the batch is said to be written."""

    def aborts(step: Any, plan: Any, identity: Any) -> Any:
        yield from requests.abort(step, plan, 6_000, identity)
        return 0

    patch.setattr(requests, "end_transaction", aborts)


def sends_the_last_first(patch: Patch) -> None:
    send = push.Push.send
    patch.setattr(push.Push, "send", lambda self, step, batches, *rest: send(self, step, [*batches][::-1], *rest))


def forgets_dead_rows(patch: Patch) -> None:
    """What the broker found bad is in the dead letter topic, and not in the file."""
    patch.setattr(protocol._Writer, "_dead_rows", lambda self: [row for outcome in self.plan.outcomes for row in outcome.dead_rows])


def names_the_file_at_once(patch: Patch) -> None:
    """Dead letters are in place before the batch is committed: a fenced driver replaces those of the batch."""
    patch.setattr(protocol, "WriteDeadLetters", lambda step, rows, writer_id: WriteDeadLetters(step=step, rows=rows))


SPARK = [
    Mutation(name="batches change places", breaks=sends_the_last_first, knobs=QUERY, says=("has row",), by="rows_are_in_order"),
    Mutation(
        name="the file of dead letters lacks what the broker found",
        breaks=forgets_dead_rows,
        knobs={**QUERY, "bad_share": 0.3},
        says=("the dead letter file of batch",),
        by="dead_letter_files_are_complete",
    ),
    Mutation(
        name="once real: a driver that is fenced replaces the file of dead letters",
        breaks=names_the_file_at_once,
        knobs={
            **QUERY,
            "bad_share": 0.3,
            "fault_schedule": FaultSchedule(),
            "cuts": (Cut(kind=CutKind.ZOMBIE, step=Step.WRITE_DEAD_LETTERS),),
        },
        says=("the batch was written by",),
        by="dead_letter_files_are_complete",
    ),
    Mutation(
        name="the marker is not looked at",
        breaks=returns(protocol, "judge", Verdict.WRITE),
        knobs={**QUERY, "fault_schedule": FaultSchedule(), "cuts": (Cut(kind=CutKind.DRIVER_DIES_AFTER, step=Step.END_TRANSACTION),)},
        says=("row",),
    ),
    Mutation(
        name="once real: tickets of two attempts are mixed up",
        breaks=given_up_is_not_waited_for,
        knobs={
            **QUERY,
            "fault_schedule": FaultSchedule(),
            "faults": NetworkFaults(latency_max_ms=30, lost_response_share=0.1),
            "bad_share": 0.3,
        },
        says=("row",),
        raises=("KeyError",),
    ),
    Mutation(
        name="the commit is an abort",
        breaks=aborts_in_place_of_commit,
        knobs=QUERY,
        says=("is in no partition",),
        by="rows_are_written_once",
    ),
]


@pytest.mark.parametrize("mutation", [*BROKER, *DISK, *SPARK], ids=lambda mutation: mutation.name)
def test_mutation_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    find(mutation, monkeypatch)
