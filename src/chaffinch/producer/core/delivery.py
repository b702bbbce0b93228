"""What becomes of a batch when its answer comes, or none does.

`culprits.judge` decides what an answer means and `in_flight` keeps the numbers; here their decisions are carried out. Follows Sender.java,
`completeBatch`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered, Failed, Written
from chaffinch.errors import (
    ErrorCode,
    KafkaException,
    NetworkException,
    Stored,
    TimeoutException,
    TransactionAbortableException,
    UnsupportedVersionException,
    codes,
)
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.partition_queues import PartitionQueues
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.effects import AskHandler
from chaffinch.producer.core.endings import Endings
from chaffinch.producer.core.exception_handler import HandlerSaid
from chaffinch.producer.core.refusals import batch_answers, culprits
from chaffinch.producer.core.refusals.batch_answers import BatchAnswer, Situation
from chaffinch.producer.core.refusals.late_errors import exhausted, former_topic_error, given_up, lost_with_topic
from chaffinch.producer.core.refusals.screening import Screening
from chaffinch.producer.core.refusals.topic_facts import FACTS_AGE_MS_MAX, UNKNOWN, TopicFacts
from chaffinch.producer.core.transactions.manager import CONCURRENT_WAIT_MS, TransactionManager
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.wiring import Wiring


class Delivery:
    """Takes answers in, and ends batches or has them go again."""

    def __init__(
        self,
        wiring: Wiring,
        queues: PartitionQueues,
        endings: Endings,
        outstanding: Outstanding,
        transaction: TransactionManager | None,
        screening: Screening,
    ) -> None:
        self.facts: dict[str, TopicFacts] = {}
        self.facts_wanted: dict[str, None] = {}
        """Topics whose configuration decides about batches in `_judging`."""
        self.asked: dict[ProducerBatch, BatchAnswer] = {}
        """Batches about which an exception handler is asked at the moment, and the answers that they got."""
        self.came_back: dict[TopicPartition, None] = {}
        """Partitions of which a batch has its answer, or none, whose topic was created again since it was sent."""
        self._wiring = wiring
        self._queues = queues
        self._endings = endings
        self._outstanding = outstanding
        self._transaction = transaction
        self._screening = screening
        self._judging: list[tuple[ProducerBatch, BatchAnswer]] = []

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's numbered batches."""
        return self._queues.of(topic_partition)

    def answered(self, event: Answered, now_ms: int) -> None:
        """A broker answered a Produce request."""
        sent: ProduceSent = event.token
        cluster = self._wiring.cluster
        for node in event.message.node_endpoints:
            cluster.learn_node(node.node_id, Address(node.host, node.port))
        for batch, part in sent.answers(event.message):
            if part is not None and part.current_leader is not None:
                cluster.learn_leader(batch.topic_partition, part.current_leader.leader_id, part.current_leader.leader_epoch)
            if part is None:
                error = NetworkException(
                    f"{sent.address} left this partition out of its answer", topic_partition=batch.topic_partition, stored=Stored.POSSIBLY
                )
                self._lost(batch, error, now_ms, was_sent=True)
            else:
                self.judge(batch, batch_answers.read_answer(part, event.numbering), now_ms)

    def written(self, event: Written, now_ms: int) -> None:
        """A request without an answer (acks=0) is out: that is all anybody will ever know."""
        sent: ProduceSent = event.token
        for batch in sent.batches.values():
            self._written(batch, NO_OFFSET, -1, now_ms)

    def failed(self, event: Failed, now_ms: int) -> None:
        """A Produce request got no answer."""
        sent: ProduceSent = event.token
        for batch in sent.batches.values():
            if event.is_unsupported or event.error is not None:  # No use to try again.
                cause = event.error or UnsupportedVersionException(event.reason)
                batch.possibly_stored |= event.was_sent
                self._endings.end(batch, given_up(batch, cause, is_awaited=False), is_unstored=not batch.possibly_stored)
                continue
            error_class = TimeoutException if event.is_timeout else NetworkException
            stored = Stored.POSSIBLY if event.was_sent or batch.possibly_stored else Stored.NO
            reason = event.reason + sent.too_large_for_most() if event.was_sent and not event.is_timeout else event.reason
            error = error_class(f"{event.address}: {reason}", topic_partition=batch.topic_partition, stored=stored, api="Produce")
            self._lost(batch, error, now_ms, was_sent=event.was_sent)

    def _lost(self, batch: ProducerBatch, error: KafkaException, now_ms: int, *, was_sent: bool) -> None:
        """The outcome of an attempt is unknown, or it never left: go again under the old number, while there is time."""
        self._wiring.metadata.refresh()
        if batch.is_elsewhere:
            self.came_back[batch.topic_partition] = None
        may_retry = self._may_retry(batch, now_ms, counts=was_sent)
        batch.possibly_stored |= was_sent
        batch.attempts += was_sent
        batch.last_error = error
        if batch.is_done:
            self.queue(batch.topic_partition).failed(batch, is_unstored=not batch.possibly_stored)
        elif batch.is_elsewhere and batch.possibly_stored:
            self.fail_of_former_topic(batch)
        elif may_retry:
            self._again(batch, now_ms)
        else:
            told = exhausted(error, batch.attempts, self._wiring.retries)
            self._endings.end(batch, self._endings.in_words(told), is_unstored=not batch.possibly_stored)

    def facts_heard(self, topic: str, facts: TopicFacts, now_ms: int) -> None:
        """The topic's configuration has come, or will not: judge what waited for it."""
        self.facts[topic] = facts
        self.facts_wanted.pop(topic, None)
        waiting = [entry for entry in self._judging if entry[0].topic_partition.topic == topic]
        self._judging = [entry for entry in self._judging if entry[0].topic_partition.topic != topic]
        for batch, answer in waiting:
            self.judge(batch, answer, now_ms)

    def judge(self, batch: ProducerBatch, answer: BatchAnswer, now_ms: int, said: HandlerSaid | None = None) -> None:
        """Decide about a batch, or ask who can tell more. `said`: by an exception handler."""
        if answer.is_written:
            base_offset = answer.base_offset if answer.code is codes.NONE else NO_OFFSET
            self._written(batch, base_offset, answer.log_append_time_ms, now_ms)
            return
        verdict = culprits.judge(answer, self.situation(batch, answer, now_ms, said))
        if isinstance(verdict, culprits.AskHandler) and not batch.is_done:
            self.ask_handler(batch, answer, verdict)
        elif isinstance(verdict, culprits.AskForFacts):
            self._judging.append((batch, answer))
            self.facts_wanted[batch.topic_partition.topic] = None
        elif isinstance(verdict, culprits.FailAll) and answer.code.is_retriable:
            told = exhausted(verdict.error, batch.attempts + 1, self._wiring.retries)
            self.carry_out(batch, replace(verdict, error=told), now_ms)
        else:
            if isinstance(verdict, culprits.Separate):
                self._screening.refused(batch, answer, verdict.errors)
            self.carry_out(batch, verdict, now_ms)

    def ask_handler(self, batch: ProducerBatch, answer: BatchAnswer, verdict: culprits.AskHandler) -> None:
        """The exception handler decides about a batch that got this answer; the batch stays where it is meanwhile."""
        self.asked[batch] = answer
        self._endings.out.append(AskHandler(batch=batch, question=verdict.question, errors=verdict.errors))

    def situation(self, batch: ProducerBatch, answer: BatchAnswer, now_ms: int, said: HandlerSaid | None) -> Situation:
        """What is known about a batch for the judgement of an answer."""
        if answer.code is codes.UNKNOWN_TOPIC_OR_PARTITION and batch.unknown_since_ms is None:
            batch.unknown_since_ms = now_ms
        unknown_ms = 0 if batch.unknown_since_ms is None else now_ms - batch.unknown_since_ms
        facts = self.facts.get(batch.topic_partition.topic, UNKNOWN)
        return Situation(
            topic_partition=batch.topic_partition,
            count=batch.count,
            keys_of=batch.keys_of,
            possibly_stored=batch.possibly_stored,
            in_transaction=self._transaction is not None,
            is_idempotent=self._wiring.is_idempotent,
            front=self.queue(batch.topic_partition).front_of(batch),
            may_retry=self._may_retry(batch, now_ms, counts=not self._is_early(answer.code)),
            rounds=batch.rounds,
            facts=UNKNOWN if now_ms - facts.heard_ms > FACTS_AGE_MS_MAX else facts,
            last_error=batch.last_error,
            questions=self._wiring.questions,
            said=said,
            is_unknown_too_long=unknown_ms >= self._wiring.retry_unknown_ms,
        )

    def _is_early(self, code: ErrorCode) -> bool:
        """Whether nothing is wrong but that the transaction before is still being completed."""
        return self._transaction is not None and self._transaction.is_early(code)

    def _may_retry(self, batch: ProducerBatch, now_ms: int, *, counts: bool = True) -> bool:
        """After one more attempt; one that never left, or came too early, is none of `retries`."""
        is_open = self._transaction is None or self._transaction.state not in (State.ABORTING, State.FATAL_ERROR)
        is_in_time = now_ms < batch.created_ms + self._wiring.delivery_timeout_ms
        return is_open and is_in_time and batch.attempts + counts <= self._wiring.retries

    # What becomes of a batch.

    def _written(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int, now_ms: int) -> None:
        """The broker has a batch; its records are told so, unless they were told already that time was up."""
        if batch.is_elsewhere:
            self.came_back[batch.topic_partition] = None
        self.queue(batch.topic_partition).acknowledged(batch, now_ms)
        if batch.is_done:
            return
        self._screening.written(batch)
        if self._transaction is not None:
            self._transaction.has_written()
        self._endings.complete(batch, base_offset, log_append_time_ms)

    def carry_out(self, batch: ProducerBatch, verdict: culprits.Verdict, now_ms: int) -> None:
        """Do with a batch that is not written what was decided."""
        queue = self.queue(batch.topic_partition)
        if batch.is_elsewhere:
            self.came_back[batch.topic_partition] = None
        if batch.is_done:
            # Its records were told that time was up; only the numbers matter now.
            queue.failed(batch, is_unstored=culprits.is_unstored(verdict, batch.possibly_stored))
            return
        match verdict:
            case culprits.Resend():
                self._resend(batch, verdict, now_ms)
            case culprits.Renumber():
                batch.attempts += 1
                batch.last_error = verdict.error
                batch.goes_again(now_ms)
                # An earlier attempt without an answer may come late, and fit once others have the numbers before it: but for a new epoch.
                queue.renumber(batch, is_expected=not (verdict.waits or batch.possibly_stored))
                if verdict.waits:
                    queue.not_before_ms = now_ms + self._wiring.wait_ms(batch.attempts)
            case culprits.Split():
                self._wiring.counts["batches_split"] += 1
                self._replace(batch, batch.halves())
            case culprits.Separate():
                self._separate(batch, verdict, now_ms)
            case culprits.FailAll():
                # Of a transaction that is to be aborted nobody is told once the producer is at its end.
                error = self._endings.in_words(verdict.error) if isinstance(verdict.error, TransactionAbortableException) else verdict.error
                self._endings.end(batch, error, verdict.errors, is_unstored=not verdict.uses_up_numbers, dropped=verdict.dropped)

    def _resend(self, batch: ProducerBatch, verdict: culprits.Resend, now_ms: int) -> None:
        batch.possibly_stored |= verdict.possibly_stored
        batch.last_error = verdict.error
        if batch.is_elsewhere and batch.possibly_stored:
            self.fail_of_former_topic(batch)
            return
        if batch.is_elsewhere and self._transaction is not None and self._transaction.has_sent_to(batch.topic_partition.topic):
            self._endings.end(batch, lost_with_topic(batch), is_unstored=True)
            return
        is_early = self._is_early(verdict.error.code)
        batch.attempts += not is_early
        if verdict.refreshes_metadata:
            self._wiring.metadata.refresh()
        self._again(batch, now_ms, waits=verdict.waits, is_early=is_early)

    def fail_of_former_topic(self, batch: ProducerBatch) -> None:
        """The batch may be stored in a topic that was deleted since: it must not be sent to the next topic of the name."""
        self._endings.end(batch, self._endings.in_words(former_topic_error(batch)), is_unstored=False)

    def _again(self, batch: ProducerBatch, now_ms: int, *, waits: bool = True, is_early: bool = False) -> None:
        batch.goes_again(now_ms)
        self._wiring.counts["batches_resent"] += 1
        self._wiring.counts["records_resent"] += batch.count
        wait_ms = self._wiring.wait_ms(max(1, batch.attempts)) if waits else 0
        self.queue(batch.topic_partition).retry(batch, now_ms + (min(CONCURRENT_WAIT_MS, wait_ms) if is_early else wait_ms))

    def _separate(self, batch: ProducerBatch, verdict: culprits.Separate, now_ms: int) -> None:
        """The culprits fail, or are dropped; the innocents go again at once as a new batch, which counts as no attempt (decision 12)."""
        self._wiring.counts["batches_separated"] += 1
        count = len(verdict.errors) + len(verdict.dropped)
        innocents = batch.without(np.fromiter(chain(verdict.errors, verdict.dropped), np.int64, count))
        children = [] if innocents is None else innocents.halves() if verdict.halves else [innocents]
        for child in children:
            child.rounds = batch.rounds + 1
        self._replace(batch, children)
        if verdict.waits and children:
            self.queue(batch.topic_partition).not_before_ms = now_ms + self._wiring.wait_ms(batch.attempts + 1)
        self._endings.tell_culprits(batch, verdict.errors, verdict.dropped)
        if self._transaction is not None and self._outstanding.first_position(batch.topic_partition) is None:
            self._transaction.forget(batch.topic_partition)

    def _replace(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """A batch that is surely not stored goes on as others, under its own numbers."""
        self.queue(batch.topic_partition).replace(batch, children)
        self._endings.release(batch.memory_bytes - sum(child.memory_bytes for child in children))
