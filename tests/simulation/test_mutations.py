"""Each promise broken once by hand, in the core that keeps it: the simulation must notice within a few seeds.

A mutation that no seed finds would mean that the simulation does not look there. Those marked "once real" were defects of these cores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.group_offsets import GroupOffsets
from chaffinch.broker.core.transaction_coordinator import TransactionCoordinator
from chaffinch.broker.core.transaction_participants import TransactionParticipants
from chaffinch.errors import codes
from chaffinch.producer.core import culprits, delivery, in_flight
from chaffinch.producer.core.delivery import Delivery
from chaffinch.producer.core.in_flight import PartitionQueue
from chaffinch.producer.core.metadata_watch import MetadataWatch
from chaffinch.producer.core.transaction import TransactionManager
from chaffinch.simulation.nemesis import Deeds
from chaffinch.simulation.network import CALM, Faults
from chaffinch.simulation.queries import Cut, CutKind
from chaffinch.simulation.scenario import run
from chaffinch.spark import commit_protocol, push, requests
from chaffinch.spark.marker import Verdict
from chaffinch.spark.operations import Step
from chaffinch.storage import recovery
from chaffinch.storage.compaction_rules import LatestOffsets, Rules
from chaffinch.storage.files import StorageError
from chaffinch.storage.memory_files import MemoryFile
from chaffinch.storage.partition_log import PartitionLog
from chaffinch.storage.producer_sequences import ProducerSequences

Patch = pytest.MonkeyPatch

ROUGH = Faults(cut_share=0.4, lost_answer_share=0.08, slow_share=0.01, silent_share=0.05)
SLOW = Faults(latency_max_ms=20, slow_share=0.08)
KILLS = Deeds(broker_death_ms=500)
POWER = Deeds(broker_death_ms=400, power_loss_share=0.8)
NOBODY: dict[str, Any] = {"plain_count": 0, "transactional_count": 0, "version_2_count": 0, "query_count": 0}
PLAIN: dict[str, Any] = {**NOBODY, "plain_count": 2, "faults": ROUGH, "deeds": KILLS, "bad_share": 0.1}
TRANSACTIONAL: dict[str, Any] = {**PLAIN, "plain_count": 0, "transactional_count": 2}
VERSION_2: dict[str, Any] = {**NOBODY, "version_2_count": 2, "transactional_count": 1, "flush_policy": "always", "deeds": POWER}
QUERY: dict[str, Any] = {**PLAIN, "plain_count": 0, "query_count": 1, "deeds": Deeds(broker_death_ms=500, client_death_ms=100)}


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`says`: words of the violation that is expected, in any order of seeds; empty: any will do. `first`: the seed to begin with."""

    name: str
    breaks: Callable[[Patch], None]
    knobs: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    seeds: int = 20
    first: int = 0


def returns(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, lambda *_arguments, **_keywords: value)


# Broker ---------------------------------------------------------------------------------------------------------------------------------


def forgets_producers(patch: Patch) -> None:
    """Recovery reads the records and not what they say about producers: repetitions after a restart are new."""
    patch.setattr("chaffinch.storage.recovery._Recovery._note_producer", lambda *_: None)


def drops_last_batch(patch: Patch) -> None:
    """Recovery takes the last whole batch of each log for a torn end."""
    opened = PartitionLog.open.__func__  # type: ignore[attr-defined]

    def open_shorter(cls: Any, file_system: Any, directory: str, *rest: Any) -> Any:
        log = opened(cls, file_system, directory, *rest)
        if log.log_end_offset > 3:
            segment = log._segments[-1]
            last = list(segment.headers(0))[-1][0]
            log.close()
            segment.log.truncate(last)
            for name in file_system.list(directory):
                if not name.endswith(".log"):
                    file_system.remove(f"{directory}/{name}")
            log = opened(cls, file_system, directory, *rest)
        return log

    patch.setattr(PartitionLog, "open", classmethod(open_shorter))


def shifts_culprits(patch: Patch) -> None:
    """Every culprit but the last is told as the record behind it."""
    read = culprits.read_answer

    def shifted(response: Any, numbering: Any) -> Any:
        answer = read(response, numbering)
        return replace(answer, blamed=tuple(replace(entry, batch_index=entry.batch_index + 1) for entry in answer.blamed))

    patch.setattr(delivery.culprits, "read_answer", shifted)


def commits_offsets_of_aborted(patch: Patch) -> None:
    complete = GroupOffsets.complete
    patch.setattr(GroupOffsets, "complete", lambda self, group, producer_id, _is_commit: complete(self, group, producer_id, True))


def answers_before_sync(patch: Patch) -> None:
    patch.setattr(BrokerCore, "sync", lambda _self: None)


def takes_everything(patch: Patch) -> None:
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
    patch.setattr(TransactionCoordinator, "complete_decided", lambda _self, _now_ms: 0)


def recovered_logs_are_not_synced(patch: Patch) -> None:
    """Once real: a repetition of a batch that only a killed process had written was acknowledged."""
    opened = PartitionLog.open.__func__  # type: ignore[attr-defined]

    def open_as_synced(cls: Any, *arguments: Any) -> Any:
        log = opened(cls, *arguments)
        log._has_unsynced_bytes = log._has_unsynced_names = False
        return log

    patch.setattr(PartitionLog, "open", classmethod(open_as_synced))


def parts_are_not_synced(patch: Patch) -> None:
    """What adds itself to a transaction is stored before it is certain that the coordinator remembers it. Decisions are still synced."""
    complete = TransactionCoordinator._complete

    def completes(self: TransactionCoordinator, metadata: Any, now_ms: int) -> None:
        if self._sync_decisions:
            self._journal.sync()
        complete(self, metadata, now_ms)

    patch.setattr(TransactionCoordinator, "sync", lambda self: None)
    patch.setattr(TransactionCoordinator, "_complete", completes)


BROKER = [
    Mutation(name="duplicates are not recognised", breaks=returns(PartitionLog, "find_duplicate", None), knobs=PLAIN),
    Mutation(
        name="sequences are not checked, duplicates not recognised",
        breaks=takes_everything,
        knobs=PLAIN,
        says=("stored 2 times", "sequence"),
    ),
    Mutation(name="recovery forgets producers", breaks=forgets_producers, knobs=PLAIN),
    Mutation(name="recovery drops an acknowledged batch", breaks=drops_last_batch, knobs=PLAIN),
    Mutation(name="answers leave before the sync", breaks=answers_before_sync, knobs={**PLAIN, "deeds": POWER, "flush_policy": "always"}),
    Mutation(
        name="once real: what a killed broker left is not synced",
        breaks=recovered_logs_are_not_synced,
        knobs={**PLAIN, "deeds": Deeds(broker_death_ms=300, power_loss_share=0.5), "flush_policy": "always"},
        says=("is not there", "differs", "raised"),
        seeds=60,
    ),
    Mutation(
        name="once real: a part of a transaction is not synced before its bytes",
        breaks=parts_are_not_synced,
        knobs=VERSION_2,
        says=("undecided", "visible", "is not there"),
    ),
    Mutation(name="every marker is taken for one that is there", breaks=returns(ProducerSequences, "has_marker", True), knobs=VERSION_2),
    Mutation(
        name="once real: markers are not synced before the completion",
        breaks=returns(TransactionParticipants, "sync", None),
        knobs=VERSION_2,
    ),
    Mutation(
        name="the last stable offset is ignored",
        breaks=lambda patch: patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark)),
        knobs=TRANSACTIONAL,
        says=("follower",),
    ),
    Mutation(
        name="fetches do not tell of aborted transactions",
        breaks=returns(PartitionLog, "aborted_transactions", []),
        knobs=TRANSACTIONAL,
        says=("differs from the markers",),
    ),
    Mutation(
        name="decisions are not carried out after a crash",
        breaks=forgets_decisions,
        knobs={**TRANSACTIONAL, "deeds": Deeds(broker_death_ms=300, in_operation_share=1.0)},
        seeds=60,
    ),
    Mutation(name="offsets of aborted transactions are committed", breaks=commits_offsets_of_aborted, knobs=TRANSACTIONAL),
    Mutation(
        name="the coordinator does not fence",
        breaks=accepts_old_epochs,
        knobs={**TRANSACTIONAL, "deeds": Deeds(broker_death_ms=2_000, zombie_ms=300)},
        seeds=40,
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

    def forgetful(self: PartitionLog, now_ms: int) -> Any:
        self._has_unsynced_bytes = False
        return roll(self, now_ms)

    patch.setattr(PartitionLog, "_roll", forgetful)


def forgets_names_of_segments(patch: Patch) -> None:
    begin = PartitionLog._new_segment

    def forgetful(self: PartitionLog, now_ms: int) -> Any:
        segment = begin(self, now_ms)
        self._has_unsynced_names = False
        return segment

    patch.setattr(PartitionLog, "_new_segment", forgetful)


def leaves_swaps_undone(patch: Patch) -> None:
    """A start takes no notice of a swap that was decided."""
    patch.setattr(recovery, "settle", lambda *_: None)


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
POWER_CUTS = {**COMPACTING, "flush_policy": "always", "deeds": Deeds(broker_death_ms=300, power_loss_share=0.9, in_operation_share=0.8)}
DISK = [
    Mutation(name="compacted files take their place without a sync", breaks=forgets_to_sync(".log.cleaned"), knobs=POWER_CUTS, seeds=60),
    Mutation(name="journals are written anew without a sync", breaks=forgets_to_sync(".journal.new"), knobs=POWER_CUTS, first=4, seeds=60),
    Mutation(name="the state of a log is not synced", breaks=forgets_to_sync("log.state.new"), knobs=POWER_CUTS, seeds=60),
    Mutation(name="segments are sealed without a sync", breaks=rolls_without_sync, knobs=POWER_CUTS, first=20, seeds=60),
    Mutation(name="names of segments are not synced", breaks=forgets_names_of_segments, knobs=POWER_CUTS, seeds=60),
    Mutation(
        name="a swap that was decided is not carried out",
        breaks=leaves_swaps_undone,
        knobs={**COMPACTING, "deeds": Deeds(broker_death_ms=300, in_operation_share=0.9)},
        seeds=60,
    ),
    Mutation(name="the last record of a key is compacted away", breaks=compacts_the_latest_too, knobs=COMPACTING, says=("is not there",)),
    Mutation(name="markers are compacted away at once", breaks=throws_markers_away, knobs=COMPACTING),
    Mutation(
        name="what did not fit on the disk is acknowledged",
        breaks=takes_what_did_not_fit,
        knobs={**COMPACTING, "deeds": Deeds(full_disk_ms=300)},
    ),
]

# Producer -------------------------------------------------------------------------------------------------------------------------------


def takes_sequences_back(patch: Patch) -> None:
    """Numbers of a batch that may be stored are given to the next."""
    hold = PartitionQueue._hold
    patch.setattr(PartitionQueue, "_hold", lambda self, batch, *, is_unstored: hold(self, batch, is_unstored=True))


def resends_innocents(patch: Patch) -> None:
    """Innocents go again although an earlier attempt of their batch may be stored."""
    judge = culprits.judge
    patch.setattr(delivery.culprits, "judge", lambda answer, situation: judge(answer, replace(situation, possibly_stored=False)))


def forgets_lost_attempts(patch: Patch) -> None:
    """A lost answer counts as proof that nothing was stored."""
    lost = Delivery._lost
    patch.setattr(Delivery, "_lost", lambda self, batch, error, now_ms, *, was_sent: lost(self, batch, error, now_ms, was_sent=False))


def completes_twice(patch: Patch) -> None:
    complete = Delivery._complete

    def twice(self: Delivery, batch: Any, verdict: Any) -> None:
        complete(self, batch, verdict)
        self.out.append(self.out[-1])

    patch.setattr(Delivery, "_complete", twice)


def forgets_rows(patch: Patch) -> None:
    """Of a separated batch the culprits are told their outcome, and the innocents are dropped."""
    separate = culprits.Separate
    carry_out = Delivery.carry_out

    def drops(self: Delivery, batch: Any, verdict: Any, now_ms: int) -> None:
        if isinstance(verdict, separate) and not batch.is_done:
            self.queue(batch.topic_partition).failed(batch)
            self._release(batch.memory_bytes)
            self.out.append(delivery.FailRecords(batch=batch, error=None, errors=verdict.errors))
        else:
            carry_out(self, batch, verdict, now_ms)

    patch.setattr(Delivery, "carry_out", drops)


def innocents_go_last(patch: Patch) -> None:
    """What comes back is sent behind what waits in the accumulator, not before it."""
    next_batch = PartitionQueue.next_batch

    def new_first(self: PartitionQueue, now_ms: int, identity: Any, take_new: Any) -> Any:
        if self.returned and not self.retries:
            waiting = take_new()
            if waiting is not None:
                self.returned.insert(0, waiting)
        return next_batch(self, now_ms, identity, take_new)

    patch.setattr(PartitionQueue, "next_batch", new_first)


def takes_gaps_for_proof(patch: Patch) -> None:
    """A broker that expects another sequence is taken at its word, also about batches that it may have stored and forgotten."""
    gap = culprits._gap
    patch.setattr(culprits, "_gap", lambda error, situation: gap(error, replace(situation, possibly_stored=False)))


def begins_with_several(patch: Patch) -> None:
    """Several batches are in flight before the broker knows the producer."""
    patch.setattr(PartitionQueue, "_is_full", lambda self, _now_ms: len(self.in_flight) >= self._limit)


def does_not_renumber(patch: Patch) -> None:
    """What was refused for a gap goes again under the number that was refused."""
    patch.setattr(PartitionQueue, "renumber", lambda self, batch: self.retry(batch, 0))


def swaps_what_goes_again(patch: Patch) -> None:
    """Of several batches that go again the last is the first."""
    next_batch = PartitionQueue.next_batch

    def last_first(self: PartitionQueue, *arguments: Any) -> Any:
        self.retries.reverse()
        try:
            return next_batch(self, *arguments)
        finally:
            self.retries.reverse()

    patch.setattr(PartitionQueue, "next_batch", last_first)


def swaps_what_came_back(patch: Patch) -> None:
    """Innocents, halves and what was refused behind them go again in the order in which they came back, the last one first."""

    def insert_first(batches: list[Any], batch: Any, *, key: Any) -> None:
        batches.insert(0, batch)

    patch.setattr(in_flight, "insort", insert_first)


def stays_in_the_epoch(patch: Patch) -> None:
    """Numbering restarts under the same epoch, where the failed batch began, whether it is stored or not."""
    hold = PartitionQueue._hold

    def same_epoch(self: PartitionQueue, batch: Any, *, is_unstored: bool) -> None:
        self._is_transactional = True
        hold(self, batch, is_unstored=True)

    patch.setattr(PartitionQueue, "_hold", same_epoch)


def commits_failed(patch: Patch) -> None:
    """A transaction with a failed record commits."""
    patch.setattr(TransactionManager, "record_failed", lambda _self, _error: [])


def spins(patch: Patch) -> None:
    """Once real: while every broker had to wait, the sender woke each millisecond."""
    patch.setattr(MetadataWatch, "next_deadline_ms", lambda self, now_ms: None if self._is_under_way else now_ms + 1)


def forgets_late_requests(patch: Patch) -> None:
    """Once real: an EndTxn that came late ended the next transaction of the same epoch, and a commit lost what was written before."""
    patch.setattr(TransactionManager, "_has_late_requests", property(lambda _self: False, lambda _self, _value: None), raising=False)


def blames_all_for_size(patch: Patch) -> None:
    """Once real: a batch that may be stored and is then too large failed as if each of its records were."""
    refused = culprits._refused

    def as_before(answer: Any, error: Any, situation: Any) -> Any:
        if answer.code is codes.MESSAGE_TOO_LARGE and not answer.blamed:
            return culprits.FailAll(error=error, is_stored_unknown=situation.possibly_stored)
        return refused(answer, error, situation)

    patch.setattr(culprits, "_refused", as_before)


PRODUCER = [
    Mutation(
        name="once real: late requests are taken for those of the next transaction",
        breaks=forgets_late_requests,
        knobs={**TRANSACTIONAL, "deeds": Deeds(), "faults": SLOW, "bad_share": 0.0, "producer_records": 200},
        says=("transaction",),
        seeds=60,
    ),
    Mutation(name="once real: records are blamed for their batch's size", breaks=blames_all_for_size, knobs=PLAIN, says=("innocent",)),
    Mutation(name="sequences of a batch that may be stored are used again", breaks=takes_sequences_back, knobs=TRANSACTIONAL, seeds=60),
    Mutation(
        name="innocents are sent again although they may be stored",
        breaks=resends_innocents,
        knobs={**PLAIN, "validation_first_share": 0.5},
        says=("is not there", "stored 2 times", "as not stored"),
        seeds=40,
    ),
    Mutation(name="lost attempts are forgotten", breaks=forgets_lost_attempts, knobs=PLAIN, seeds=40),
    Mutation(name="culprits' indices are shifted", breaks=shifts_culprits, knobs=PLAIN),
    Mutation(name="outcomes are told twice", breaks=completes_twice, knobs=PLAIN, says=("2 outcomes",)),
    Mutation(name="innocents are forgotten", breaks=forgets_rows, knobs=PLAIN),
    Mutation(name="innocents are overtaken", breaks=innocents_go_last, knobs=PLAIN, says=("which was sent later",)),
    Mutation(
        name="a gap is taken for proof that nothing is stored",
        breaks=takes_gaps_for_proof,
        knobs={**PLAIN, "is_forgetful": True},
        says=("stored 2 times", "as not stored"),
        seeds=40,
    ),
    Mutation(name="several batches go to a broker without state", breaks=begins_with_several, knobs=PLAIN, says=("which was sent later",)),
    Mutation(name="numbers of no use are used again", breaks=does_not_renumber, knobs=PLAIN),
    Mutation(name="what goes again is swapped", breaks=swaps_what_goes_again, knobs=PLAIN),
    Mutation(name="what came back is swapped", breaks=swaps_what_came_back, knobs=PLAIN, says=("which was sent later",)),
    Mutation(name="numbers are used again outside a transaction", breaks=stays_in_the_epoch, knobs=PLAIN, seeds=60),
    Mutation(name="a transaction with a failed record commits", breaks=commits_failed, knobs=TRANSACTIONAL, says=("not acknowledged",)),
    Mutation(name="once real: the sender spins", breaks=spins, knobs=PLAIN, says=("spins",)),
]

# Spark's commit protocol ------------------------------------------------------------------------------------------------------------------


def tickets_begin_anew(patch: Patch) -> None:
    """Once real: answers to an attempt that was given up were taken for those of the next."""
    made = push.Push.__init__

    class Everything(dict[int, Any]):
        def __contains__(self, _ticket: object) -> bool:
            return True

    def made_anew(self: push.Push, identity: Any, _tickets: Any, *rest: Any) -> None:
        made(self, identity, count(1), *rest)
        self._under_way = Everything()

    def does_not_wait(*_: Any) -> Any:
        yield from ()

    patch.setattr(push.Push, "__init__", made_anew)
    patch.setattr(push.Push, "_drain", does_not_wait)


def aborts_in_place_of_commit(patch: Patch) -> None:
    """Where the transaction should be committed it is aborted, and the batch is said to be written."""

    def aborts(step: Any, transactional_id: str, identity: Any, *_rest: Any) -> Any:
        yield from requests.abort(step, transactional_id, 6_000, identity)
        return 0

    patch.setattr(requests, "end_transaction", aborts)


SPARK = [
    Mutation(
        name="the marker is not looked at",
        breaks=returns(commit_protocol, "_judge", Verdict.WRITE),
        knobs={**QUERY, "deeds": Deeds(), "cuts": (Cut(kind=CutKind.DRIVER_DIES_AFTER, step=Step.END_TRANSACTION),)},
        says=("row",),
    ),
    Mutation(
        name="once real: tickets of two attempts are mixed up",
        breaks=tickets_begin_anew,
        knobs={**QUERY, "deeds": Deeds(), "faults": Faults(latency_max_ms=30, lost_answer_share=0.1), "bad_share": 0.3},
        says=("raised: KeyError", "row"),
    ),
    Mutation(name="the commit is an abort", breaks=aborts_in_place_of_commit, knobs=QUERY),
]


@pytest.mark.parametrize("mutation", [*BROKER, *DISK, *PRODUCER, *SPARK], ids=lambda mutation: mutation.name)
def test_a_broken_promise_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    """Some seed fails, with the violation that the mutation calls for."""
    mutation.breaks(monkeypatch)
    seen: list[str] = []
    for seed in range(mutation.first, mutation.first + mutation.seeds):
        violations = run(seed, **mutation.knobs).violations
        seen += violations[:2]
        if any(not mutation.says or any(words in violation for words in mutation.says) for violation in violations):
            return
    pytest.fail(f"{mutation.seeds} seeds, found only: {seen[:5]}")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
