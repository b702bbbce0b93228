"""Each guarantee of the producer broken once by hand: the simulation must find it within a few seeds.

Those marked "once real" were defects. The broker's and the sink's are in `test_mutations.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaffinch.client.cluster import ClusterState
from chaffinch.errors import Stored, TimeoutException, codes
from chaffinch.producer.core.batches import in_flight
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.metadata_watch import MetadataWatch
from chaffinch.producer.core.produce_response_handler import ProduceResponseHandler
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.core.refusals import batch_responses, culprits
from chaffinch.producer.core.refusals.batch_responses import RecordErrors
from chaffinch.producer.core.refusals.screening import Screening
from chaffinch.producer.core.transactions.manager import TransactionManager
from simulation.nemesis import FaultSchedule
from simulation.network import NetworkFaults
from tests.simulation.mutation import PLAIN, RECREATED, SLOW, TRANSACTIONAL, TRANSACTIONAL_2, Mutation, Patch, find, returns
from tests.simulation.regression_seeds import OVERTAKEN


def shifts_culprits(patch: Patch) -> None:
    """The index of every culprit is shifted to the next record."""
    read = batch_responses.read_response

    def shifted(response: Any, numbering: Any) -> Any:
        answer = read(response, numbering)
        return replace(
            answer,
            record_errors=RecordErrors(
                [index + 1 for index in answer.record_errors.indices], answer.record_errors.messages, answer.record_errors.numbers
            ),
        )

    patch.setattr(batch_responses, "read_response", shifted)


def takes_sequences_back(patch: Patch) -> None:
    """Numbers of a batch that may be stored are given to the next."""
    hold = PartitionQueue._hold
    patch.setattr(PartitionQueue, "_hold", lambda self, batch, **known: hold(self, batch, **{**known, "is_unstored": True}))


def resends_innocents(patch: Patch) -> None:
    """Innocents are sent again although an earlier attempt of their batch may be stored."""
    judge = culprits.judge
    patch.setattr(culprits, "judge", lambda answer, situation: judge(answer, replace(situation, possibly_stored=False)))


def forgets_lost_attempts(patch: Patch) -> None:
    """A lost response counts as proof that nothing was stored."""
    lost = ProduceResponseHandler._retry_without_response
    patch.setattr(
        ProduceResponseHandler,
        "_retry_without_response",
        lambda self, batch, error, steady_ms, *, was_sent: lost(self, batch, error, steady_ms, was_sent=False),
    )


def completes_twice(patch: Patch) -> None:
    complete = BatchCompleter.complete

    def twice(self: BatchCompleter, *arguments: Any) -> None:
        complete(self, *arguments)
        self._context.out.append(self._context.out[-1])

    patch.setattr(BatchCompleter, "complete", twice)


def forgets_rows(patch: Patch) -> None:
    """When culprits are removed, they fail and the innocents are dropped."""
    remove_culprits = culprits.RemoveCulprits
    carry_out = ProduceResponseHandler._carry_out

    def drops(self: ProduceResponseHandler, batch: Any, verdict: Any, steady_ms: int) -> None:
        if isinstance(verdict, remove_culprits) and not batch.is_abandoned:
            self.queue(batch.topic_partition).failed(batch)
            self._completer.release(batch.memory_bytes)
            self._completer.fail_records(batch, verdict.errors, verdict.dropped)
        else:
            carry_out(self, batch, verdict, steady_ms)

    patch.setattr(ProduceResponseHandler, "_carry_out", drops)


def innocents_go_last(patch: Patch) -> None:
    """What comes back is sent behind what waits in the accumulator, not before it."""
    next_batch = PartitionQueue.next_batch

    def new_first(self: PartitionQueue, steady_ms: int, identity: Any, take_new: Any) -> Any:
        if self.returned and not self.retries:
            waiting = take_new()
            if waiting is not None:
                self.returned.insert(0, waiting)
        return next_batch(self, steady_ms, identity, take_new)

    patch.setattr(PartitionQueue, "next_batch", new_first)


def takes_gaps_for_proof(patch: Patch) -> None:
    """A broker that expects another sequence is taken at its word, also about batches that it may have stored and forgotten."""
    gap = culprits._gap
    patch.setattr(culprits, "_gap", lambda error, situation: gap(error, replace(situation, possibly_stored=False)))


def begins_with_several(patch: Patch) -> None:
    """Several batches are in flight before the broker knows the producer."""
    patch.setattr(PartitionQueue, "_is_full", lambda self, _steady_ms: len(self.in_flight) >= self.limit)


def does_not_renumber(patch: Patch) -> None:
    """A batch refused for a gap is sent again with the refused sequence."""
    patch.setattr(PartitionQueue, "renumber", lambda self, batch, *, is_expected: self.retry(batch, 0))


def swaps_what_goes_again(patch: Patch) -> None:
    """Several batches are retried in reverse order."""
    next_batch = PartitionQueue.next_batch

    def last_first(self: PartitionQueue, *arguments: Any) -> Any:
        self.retries.reverse()
        try:
            return next_batch(self, *arguments)
        finally:
            self.retries.reverse()

    patch.setattr(PartitionQueue, "next_batch", last_first)


def swaps_what_came_back(patch: Patch) -> None:
    """Returned batches (innocents, halves, and batches refused after them) are sent again in reverse order of their return."""

    def insert_first(batches: list[Any], batch: Any, *, key: Any) -> None:
        batches.insert(0, batch)

    patch.setattr(in_flight, "insort", insert_first)


def stays_in_the_epoch(patch: Patch) -> None:
    """Numbering restarts under the same epoch, where the failed batch began, whether it is stored or not."""
    hold = PartitionQueue._hold

    def same_epoch(self: PartitionQueue, batch: Any, **_known: bool) -> None:
        hold(self, batch, is_unstored=True, is_expected=True)

    patch.setattr(PartitionQueue, "_hold", same_epoch)


def loses_a_retry(patch: Patch) -> None:
    """A batch to be retried is lost."""
    retry = PartitionQueue.retry

    def forgets(self: PartitionQueue, batch: Any, retry_at_ms: int) -> None:
        retry(self, batch, retry_at_ms)
        self.retries.remove(batch)

    patch.setattr(PartitionQueue, "retry", forgets)


def commits_failed(patch: Patch) -> None:
    """A transaction with a failed record commits."""
    patch.setattr(TransactionManager, "record_failed", lambda _self, _error: [])


def commits_without_late_records(patch: Patch) -> None:
    """Once real: a close that ended before a commit had its records failed them alone, and the rest was committed."""
    late = TimeoutException("closed", stored=Stored.NO)
    patch.setattr(BatchCompleter, "close", lambda self: self.give_up(late))


def spins(patch: Patch) -> None:
    """Once real: while every broker had to wait, the sender woke each millisecond."""
    patch.setattr(MetadataWatch, "next_deadline_ms", lambda self, steady_ms: None if self._is_in_flight else steady_ms + 1)


def forgets_late_requests(patch: Patch) -> None:
    """Once real: an EndTxn that came late ended the next transaction of the same epoch, and a commit lost what was written before."""
    patch.setattr(TransactionManager, "_has_late_requests", property(lambda _self: False, lambda _self, _value: None), raising=False)


def forgets_what_passed(patch: Patch) -> None:
    patch.setattr(PartitionQueue, "_acknowledged_position", property(lambda _self: -1, lambda _self, _value: None), raising=False)


def blames_all_for_size(patch: Patch) -> None:
    """Once real: a batch that may be stored and is then too large failed as if each of its records were."""
    refused = culprits._refused

    def as_before(answer: Any, situation: Any) -> Any:
        if answer.code is codes.MESSAGE_TOO_LARGE and not answer.record_errors:
            return culprits.FailAll(error=culprits._batch_error(answer, situation), uses_up_sequences=situation.possibly_stored)
        return refused(answer, situation)

    patch.setattr(culprits, "_refused", as_before)


def drops_what_may_be_stored(patch: Patch) -> None:
    """The handler is asked about culprits of a batch that an earlier attempt may have stored, too."""
    refused = culprits._refused
    patch.setattr(culprits, "_refused", lambda answer, situation: refused(answer, replace(situation, possibly_stored=False)))


def renumbers_in_the_epoch(patch: Patch) -> None:
    """Once real: a batch after a refused one was sent again with a lower sequence of the same epoch, and then its late attempt arrived."""
    renumber = PartitionQueue.renumber
    patch.setattr(PartitionQueue, "renumber", lambda self, batch, *, is_expected: renumber(self, batch, is_expected=True))


def ignores_where_it_was_written(patch: Patch) -> None:
    """Once real: a leader that had written a batch, and then lost the partition, was taken to have refused it."""
    read = batch_responses.read_response

    def nowhere(response: Any, numbering: Any) -> Any:
        answer = read(response, numbering)
        return answer if answer.code is codes.NONE else replace(answer, base_offset=-1)

    patch.setattr(batch_responses, "read_response", nowhere)


def sends_what_was_screened(patch: Patch) -> None:
    """Records that failed as not sent are sent."""
    without = ProducerBatch.without

    def with_trimmed_records(self: ProducerBatch, indices: Any) -> Any:
        return without(self, indices if self.has_sequence else indices[:0])

    patch.setattr(ProducerBatch, "without", with_trimmed_records)


def screens_every_topic(patch: Patch) -> None:
    """What a broker refused of one topic it is taken to refuse of all."""
    screen_of = Screening._screen_of

    def of_any_topic(self: Screening, _topic: str, handed_over_ms: Any, destination: Any, steady_ms: int) -> Any:
        for (topic, address), screen in list(self._screens.items()):
            if address == destination[0]:
                return screen_of(self, topic, handed_over_ms, (address, screen.topic_id), steady_ms)
        return None

    patch.setattr(Screening, "_screen_of", of_any_topic)


def counts_rows_with_keys(patch: Patch) -> None:
    """Beside those without a key the first row of a batch that waits is screened."""
    head = Accumulator.ready_made_head

    def with_a_null(self: Accumulator, tp: Any) -> Any:
        batch = head(self, tp)
        if batch is not None and batch.key_valid is not None:
            batch.key_valid = batch.key_valid.copy()
            batch.key_valid[0] = 0
        return batch

    patch.setattr(Accumulator, "ready_made_head", with_a_null)


def keeps_the_first_id(patch: Patch) -> None:
    """A recreated topic keeps the id of the deleted one."""
    first: dict[str, Any] = {}
    topic_id = ClusterState.topic_id

    def of_the_first(self: ClusterState, name: str) -> Any:
        found = topic_id(self, name)
        return found if found is None else first.setdefault(name, found)

    patch.setattr(ClusterState, "topic_id", of_the_first)


FIVE = {**PLAIN, "in_flight_max": 5}
BACK: dict[str, Any] = {**RECREATED, "plain_count": 1, "producer_records": 20, "bad_share": 0.0}
TABLES: dict[str, Any] = {
    **PLAIN,
    "has_tables": True,
    "plain_count": 1,
    "value_bytes_max": 400,
    "faults": NetworkFaults(latency_max_ms=20),
    "fault_schedule": FaultSchedule(),
}
PRODUCER = [
    Mutation(
        name="once real: late requests are taken for those of the next transaction",
        breaks=forgets_late_requests,
        knobs={**TRANSACTIONAL, "fault_schedule": FaultSchedule(), "faults": SLOW, "bad_share": 0.0, "producer_records": 200},
        says=("transaction",),
    ),
    Mutation(
        name="once real: sequences that others have passed while a handler ran are used again",
        breaks=forgets_what_passed,
        knobs={"transaction_version": 1},
        says=("is not there",),
        seeds=1,
        first=67765,
    ),
    Mutation(
        name="what is written opens no transaction of version 2",
        breaks=returns(TransactionManager, "mark_started", None),
        knobs=TRANSACTIONAL_2,
        says=("of its",),
    ),
    Mutation(
        name="a transaction of version 2 is committed without what failed in it",
        breaks=returns(TransactionManager, "record_failed", []),
        knobs=TRANSACTIONAL_2,
        says=("not acknowledged",),
    ),
    Mutation(
        name="once real: records are blamed for their batch's size", breaks=blames_all_for_size, knobs=PLAIN, says=("innocent",), first=7
    ),
    Mutation(
        name="sequences of a batch that may be stored are used again",
        breaks=takes_sequences_back,
        knobs=TRANSACTIONAL,
        says=("is not there",),
        first=44,
    ),
    Mutation(
        name="innocents are sent again although they may be stored",
        breaks=resends_innocents,
        knobs={**PLAIN, "validation_first_share": 0.5},
        says=("is not there", "stored 2 times", "as not stored"),
        seeds=40,
    ),
    Mutation(
        name="a handler drops what may be stored",
        breaks=drops_what_may_be_stored,
        knobs={**PLAIN, "validation_first_share": 0.5, "has_handler": True},
        says=("was dropped and is stored",),
        seeds=40,
    ),
    Mutation(
        name="once real: late attempts fit behind renumbered ones",
        breaks=renumbers_in_the_epoch,
        knobs=OVERTAKEN,
        says=("stored 2 times", "as not stored"),
        first=110,
        seeds=60,
    ),
    Mutation(
        name="once real: leaders that lost the partition have written nothing",
        breaks=ignores_where_it_was_written,
        knobs={**OVERTAKEN, "has_inline_send": False},
        says=("stored 2 times", "as not stored"),
        first=260,
        seeds=60,
    ),
    Mutation(
        name="lost attempts are forgotten",
        breaks=forgets_lost_attempts,
        knobs=PLAIN,
        says=("as not stored",),
        by="outcomes_match_the_logs",
        seeds=40,
    ),
    Mutation(
        name="culprits' indices are shifted",
        breaks=shifts_culprits,
        knobs=PLAIN,
        says=("is innocent and was blamed",),
        by="only_culprits_are_blamed",
    ),
    Mutation(
        name="outcomes are reported twice", breaks=completes_twice, knobs=PLAIN, says=("2 outcomes",), by="every_record_has_one_outcome"
    ),
    Mutation(name="innocents are forgotten", breaks=forgets_rows, knobs=PLAIN, says=("0 outcomes",)),
    Mutation(
        name="innocents are overtaken", breaks=innocents_go_last, knobs=PLAIN, says=("which was sent later",), by="order_is_preserved"
    ),
    Mutation(
        name="a gap is taken for proof that nothing is stored",
        breaks=takes_gaps_for_proof,
        knobs={**FIVE, "is_forgetful": True},
        says=("stored 2 times", "as not stored"),
        seeds=40,
    ),
    Mutation(
        name="several batches go to a broker without state",
        breaks=begins_with_several,
        knobs={**FIVE, "bad_share": 0.3, "is_forgetful": True},
        says=("which was sent later",),
        first=15,
    ),
    Mutation(name="refused sequences are used again", breaks=does_not_renumber, knobs=FIVE, says=("stuck: work is left",), first=3),
    Mutation(name="retries are reordered", breaks=swaps_what_goes_again, knobs=FIVE, raises=("may not send now",)),
    Mutation(
        name="returned batches are reordered",
        breaks=swaps_what_came_back,
        knobs={**FIVE, "faults": SLOW},
        says=("which was sent later",),
        first=8,
    ),
    Mutation(
        name="sequences are used again outside a transaction",
        breaks=stays_in_the_epoch,
        knobs=FIVE,
        says=("is not there", "stored 2 times"),
        seeds=60,
        first=2,
    ),
    Mutation(name="a transaction with a failed record commits", breaks=commits_failed, knobs=TRANSACTIONAL, says=("not acknowledged",)),
    Mutation(
        name="once real: a close in the midst of a commit has half of it committed",
        breaks=commits_without_late_records,
        knobs={
            **TRANSACTIONAL,
            "fault_schedule": FaultSchedule(),
            "faults": SLOW,
            "bad_share": 0.0,
            "producer_records": 200,
            "closes_early": True,
        },
        says=("not acknowledged", "records are visible"),
        first=13,
    ),
    Mutation(name="screened records are sent", breaks=sends_what_was_screened, knobs=TABLES, says=("2 outcomes",)),
    Mutation(name="a refusal counts for every topic", breaks=screens_every_topic, knobs=TABLES, says=("innocent",)),
    Mutation(name="rows with keys are screened", breaks=counts_rows_with_keys, knobs=TABLES, says=("innocent",)),
    Mutation(
        name="a recreated topic is never found",
        breaks=keeps_the_first_id,
        knobs=BACK,
        says=("in the end, and failed",),
        by="final_records_are_acknowledged",
        first=2,
    ),
    Mutation(name="a retry is lost", breaks=loses_a_retry, knobs=PLAIN, says=("stuck: work is left",)),
    Mutation(
        name="the sender is never woken",
        breaks=lambda patch: patch.setattr(ProducerCore, "next_deadline_ms", property(lambda _self: None)),
        knobs=PLAIN,
        says=("stuck: work is left",),
    ),
    Mutation(name="once real: the sender spins", breaks=spins, knobs=PLAIN, raises=("spins",)),
]


@pytest.mark.parametrize("mutation", PRODUCER, ids=lambda mutation: mutation.name)
def test_mutation_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    find(mutation, monkeypatch)
