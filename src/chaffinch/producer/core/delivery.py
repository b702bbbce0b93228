"""From the accumulator to the outcome: which batches are sent now, and what becomes of them when the answer, or none, comes.

`culprits.judge` decides what an answer means and `in_flight` keeps the numbers; here their decisions are carried out, and each batch's
records are told their outcome exactly once. Follows Sender.java.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered, Failed, Written
from chaffinch.errors import (
    KafkaException,
    NetworkException,
    Stored,
    TimeoutException,
    TransactionAbortableException,
    UnsupportedVersionException,
    codes,
)
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.producer.core import culprits
from chaffinch.producer.core.accumulator import Accumulator
from chaffinch.producer.core.batches import ProducerBatch
from chaffinch.producer.core.culprits import BatchAnswer, Situation
from chaffinch.producer.core.effects import CompleteBatch, Effect, FailRecords, SendRequest, WakeCallers
from chaffinch.producer.core.errors_again import again, as_abortable
from chaffinch.producer.core.exception_handler import HandlerSaid
from chaffinch.producer.core.handler_desk import HandlerDesk
from chaffinch.producer.core.identity import IdentityKeeper
from chaffinch.producer.core.in_flight import PartitionQueue
from chaffinch.producer.core.late_errors import dropped_with_transaction, expired, given_up
from chaffinch.producer.core.partition_queues import PartitionQueues
from chaffinch.producer.core.produce_requests import TRANSACTIONAL_VERSION_MAX, ProduceSent
from chaffinch.producer.core.topic_facts import FACTS_AGE_MS_MAX, UNKNOWN, TopicFacts
from chaffinch.producer.core.transaction import TransactionManager
from chaffinch.producer.core.transaction_moves import State
from chaffinch.producer.core.wiring import Wiring


class Delivery:
    """Everything under way. Methods append the effects they want to `out`."""

    def __init__(
        self,
        wiring: Wiring,
        accumulator: Accumulator,
        identity: IdentityKeeper,
        transaction: TransactionManager | None,
    ) -> None:
        self.out: list[Effect] = []
        self.facts: dict[str, TopicFacts] = {}
        self.facts_wanted: dict[str, None] = {}
        """Topics whose configuration decides about batches in `_judging`."""
        self._wiring = wiring
        self._accumulator = accumulator
        self._identity = identity
        self._transaction = transaction
        self.queues = PartitionQueues(wiring)
        self._requests: Counter[Address] = Counter()
        self._judging: list[tuple[ProducerBatch, BatchAnswer]] = []
        self._turn = 0
        self.desk = HandlerDesk(self, wiring, accumulator)

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's numbered batches."""
        return self.queues.of(topic_partition)

    def partitions(self) -> list[TopicPartition]:
        """Partitions with records that have no outcome."""
        return list(dict.fromkeys([*self._accumulator.partitions(), *self.queues.busy()]))

    @property
    def is_idle(self) -> bool:
        """Whether every record has its outcome."""
        return self._accumulator.is_empty and not self.queues.busy()

    @property
    def needs_epoch(self) -> bool:
        """Whether sequences of some partition are used up for nothing: a transactional producer needs its next epoch."""
        return self.queues.need_epoch(self._identity.current)

    def position_outstanding(self, topic_partition: TopicPartition) -> int | None:
        """The lowest position of a record without an outcome; None when the partition has none."""
        queue = self.queues.get(topic_partition)
        positions = [] if queue is None else [batch.position for batch in queue.batches() if not batch.is_done]
        waiting = self._accumulator.first_position(topic_partition)
        return min([*positions, *([] if waiting is None else [waiting])], default=None)

    @property
    def requests_in_flight(self) -> int:
        """Produce requests without an answer."""
        return sum(self._requests.values())

    # Sending.

    def send_ready(self, now_ms: int, *, hurries: bool) -> None:
        """Send every batch that may go now. `hurries`: nothing lingers."""
        open_requests: dict[Address, ProduceSent] = {}
        candidates = self.partitions()
        # Partitions take turns at the front, because the requests per broker are limited; one batch each, so that they share requests.
        self._turn = (self._turn + 1) % max(1, len(candidates))
        candidates = candidates[self._turn :] + candidates[: self._turn]
        while candidates:
            candidates = [tp for tp in candidates if self._send_one(tp, now_ms, open_requests, hurries=hurries)]
        for sent in open_requests.values():
            self._emit(sent)

    def _send_one(self, topic_partition: TopicPartition, now_ms: int, open_requests: dict[Address, ProduceSent], *, hurries: bool) -> bool:
        queue = self.queue(topic_partition)
        if not self._may_send(queue, now_ms, hurries=hurries):
            return False
        address = self._leader(topic_partition, now_ms)
        if address is None:
            return False
        sent = open_requests.get(address)
        if sent is not None and not sent.takes(topic_partition, self._next_size(queue), self._wiring.request_bytes_max):
            self._emit(open_requests.pop(address))
            sent = None
        if sent is None and self._requests[address] >= self._wiring.requests_per_node_max:
            return False
        batch = queue.next_batch(now_ms, self._identity.current, lambda: self._accumulator.take(topic_partition))
        if batch is None:
            return False
        if sent is None:
            sent = open_requests[address] = ProduceSent(address)
        sent.add(batch)
        batch.sent_to = address
        return True

    def _next_size(self, queue: PartitionQueue) -> int:
        """Bytes of the batch that `next_batch` would give; an upper bound for one that is not encoded yet."""
        numbered_or_back = (*queue.retries, *queue.returned)
        return numbered_or_back[0].size if numbered_or_back else self._accumulator.first_size(queue.topic_partition)

    def _may_send(self, queue: PartitionQueue, now_ms: int, *, hurries: bool) -> bool:
        """Whether the partition has a batch that may go now, but for its leader."""
        if not (queue.retries or queue.returned):
            ready_at_ms = self._accumulator.ready_at_ms(queue.topic_partition)
            if ready_at_ms is None or (ready_at_ms > now_ms and not hurries):
                return False
        if self._identity.is_missing:
            self._identity.want()
            return False
        if queue.needs_epoch(self._identity.current):
            if self._transaction is not None:
                self._fail_used_up(queue.topic_partition)
                return False
            self._identity.bump()
            if self._identity.is_missing:
                self._identity.want()
                return False
        if queue.retries and (leader := self._wiring.cluster.leader_address(queue.topic_partition)) is not None:
            queue.hurry(leader, now_ms)
        if not queue.wants_batch(now_ms, self._identity.current):
            return False
        return self._transaction is None or self._transaction.may_send(queue.topic_partition)

    def _fail_used_up(self, topic_partition: TopicPartition) -> None:
        """The partition takes nothing more under this epoch, and within a transaction there is no other: it has to be aborted."""
        assert self._transaction is not None
        text = "the broker took a batch of this partition although one before it was not stored: the partition needs another epoch"
        self.out += self._transaction.record_failed(TransactionAbortableException(text, topic_partition=topic_partition, api="Produce"))
        self.drop_unsent()

    def _leader(self, topic_partition: TopicPartition, now_ms: int) -> Address | None:
        address = self._wiring.cluster.leader_address(topic_partition)
        if address is None:
            self._wiring.metadata.use(topic_partition.topic, now_ms)
            self._wiring.metadata.refresh()
            return None
        return address if self._wiring.attempts.may_try(address, now_ms) else None

    def _emit(self, sent: ProduceSent) -> None:
        wiring = self._wiring
        self._requests[sent.address] += 1
        wiring.counts["requests_sent"] += 1
        wiring.counts["batches_sent"] += len(sent.batches)
        wiring.counts["records_sent"] += sum(batch.count for batch in sent.batches.values())
        wiring.counts["bytes_sent"] += sent.size
        self.out.append(
            SendRequest(
                address=sent.address,
                message=sent.request(acks=wiring.acks, timeout_ms=wiring.request_timeout_ms, transactional_id=wiring.transactional_id),
                token=sent,
                timeout_ms=wiring.request_timeout_ms,
                version_max=None if wiring.transactional_id is None else TRANSACTIONAL_VERSION_MAX,
                expects_answer=wiring.acks != 0,
            )
        )

    # Answers.

    def answered(self, event: Answered, now_ms: int) -> None:
        """A broker answered a Produce request."""
        sent: ProduceSent = event.token
        self._requests[sent.address] -= 1
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
                self.judge(batch, culprits.read_answer(part, event.numbering), now_ms)

    def written(self, event: Written, now_ms: int) -> None:
        """A request without an answer (acks=0) is out: that is all anybody will ever know."""
        sent: ProduceSent = event.token
        self._requests[sent.address] -= 1
        for batch in sent.batches.values():
            self.carry_out(batch, culprits.Written(base_offset=NO_OFFSET, log_append_time_ms=-1), now_ms)

    def failed(self, event: Failed, now_ms: int) -> None:
        """A Produce request got no answer."""
        sent: ProduceSent = event.token
        self._requests[sent.address] -= 1
        for batch in sent.batches.values():
            if event.is_unsupported or event.error is not None:  # No use to try again.
                cause = event.error or UnsupportedVersionException(event.reason)
                batch.possibly_stored |= event.was_sent
                self._end(batch, given_up(batch, cause, is_awaited=False), {}, is_unstored=not batch.possibly_stored)
                continue
            error_class = TimeoutException if event.is_timeout else NetworkException
            stored = Stored.POSSIBLY if event.was_sent or batch.possibly_stored else Stored.NO
            error = error_class(f"{event.address}: {event.reason}", topic_partition=batch.topic_partition, stored=stored, api="Produce")
            self._lost(batch, error, now_ms, was_sent=event.was_sent)

    def _lost(self, batch: ProducerBatch, error: KafkaException, now_ms: int, *, was_sent: bool) -> None:
        """The outcome of an attempt is unknown, or it never left: go again under the old number, while there is time."""
        self._wiring.metadata.refresh()
        batch.possibly_stored |= was_sent
        batch.attempts += was_sent
        batch.last_error = error
        if batch.is_done:
            self.queue(batch.topic_partition).failed(batch, is_unstored=not batch.possibly_stored)
        elif self._may_retry(batch, now_ms):
            self._again(batch, now_ms)
        else:
            self._end(batch, self._in_words(error), {}, is_unstored=not batch.possibly_stored)

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
        verdict = culprits.judge(answer, self.situation(batch, answer, now_ms, said))
        if isinstance(verdict, culprits.AskHandler) and not batch.is_done:
            self.desk.ask(batch, answer, verdict)
        elif isinstance(verdict, culprits.AskForFacts):
            self._judging.append((batch, answer))
            self.facts_wanted[batch.topic_partition.topic] = None
        else:
            self.carry_out(batch, verdict, now_ms)

    def situation(self, batch: ProducerBatch, answer: BatchAnswer, now_ms: int, said: HandlerSaid | None) -> Situation:
        """What is known about a batch for the judgement of an answer."""
        if answer.code is codes.UNKNOWN_TOPIC_OR_PARTITION and batch.unknown_since_ms is None:
            batch.unknown_since_ms = now_ms
        unknown_ms = 0 if batch.unknown_since_ms is None else now_ms - batch.unknown_since_ms
        facts = self.facts.get(batch.topic_partition.topic, UNKNOWN)
        decoded: list[Any] = []

        def key_of(index: int) -> bytes | None:
            if not decoded:
                decoded.append(batch.decode())
            key: bytes | None = decoded[0].key(index)
            return key

        return Situation(
            topic_partition=batch.topic_partition,
            count=batch.count,
            key_of=key_of,
            possibly_stored=batch.possibly_stored,
            in_transaction=self._transaction is not None,
            is_idempotent=self._wiring.is_idempotent,
            front=self.queue(batch.topic_partition).front_of(batch),
            may_retry=self._may_retry(batch, now_ms),
            rounds=batch.rounds,
            facts=UNKNOWN if now_ms - facts.heard_ms > FACTS_AGE_MS_MAX else facts,
            last_error=batch.last_error,
            questions=self._wiring.questions,
            said=said,
            is_unknown_too_long=unknown_ms >= self._wiring.retry_unknown_ms,
        )

    def _may_retry(self, batch: ProducerBatch, now_ms: int) -> bool:
        is_open = self._transaction is None or self._transaction.state not in (State.ABORTING, State.FATAL_ERROR)
        return is_open and batch.attempts < self._wiring.retries and now_ms < batch.created_ms + self._wiring.delivery_timeout_ms

    # What becomes of a batch.

    def carry_out(self, batch: ProducerBatch, verdict: culprits.Verdict, now_ms: int) -> None:
        """Do with a batch what was decided."""
        queue = self.queue(batch.topic_partition)
        if batch.is_done:
            # Its records were told that time was up; only the numbers matter now.
            if isinstance(verdict, culprits.Written):
                queue.acknowledged(batch, now_ms)
            else:
                queue.failed(batch, is_unstored=culprits.is_unstored(verdict, batch.possibly_stored))
            return
        match verdict:
            case culprits.Written():
                queue.acknowledged(batch, now_ms)
                self._complete(batch, verdict)
            case culprits.Resend():
                batch.possibly_stored |= verdict.possibly_stored
                batch.attempts += 1
                batch.last_error = verdict.error
                if verdict.refreshes_metadata:
                    self._wiring.metadata.refresh()
                self._again(batch, now_ms, waits=verdict.waits)
            case culprits.Renumber():
                batch.attempts += 1
                batch.last_error = verdict.error
                queue.renumber(batch)
                if verdict.waits:
                    queue.not_before_ms = now_ms + self._wiring.wait_ms(batch.attempts)
            case culprits.Split():
                self._wiring.counts["batches_split"] += 1
                self._replace(batch, batch.halves())
            case culprits.Separate():
                self._separate(batch, verdict, now_ms)
            case culprits.FailAll():
                self._end(batch, verdict.error, verdict.errors, is_unstored=not verdict.uses_up_numbers, dropped=verdict.dropped)

    def _again(self, batch: ProducerBatch, now_ms: int, *, waits: bool = True) -> None:
        self._wiring.counts["batches_resent"] += 1
        self._wiring.counts["records_resent"] += batch.count
        wait_ms = self._wiring.wait_ms(max(1, batch.attempts)) if waits else 0
        self.queue(batch.topic_partition).retry(batch, now_ms + wait_ms)

    def _separate(self, batch: ProducerBatch, verdict: culprits.Separate, now_ms: int) -> None:
        """The culprits fail, or are dropped; the innocents go again at once as a new batch, which counts as no attempt (decision 12)."""
        self._wiring.counts["batches_separated"] += 1
        self._wiring.counts["records_failed"] += len(verdict.errors)
        self._wiring.counts["records_dropped"] += len(verdict.dropped)
        innocents = batch.without([*verdict.errors, *verdict.dropped])
        children = [] if innocents is None else innocents.halves() if verdict.halves else [innocents]
        for child in children:
            child.rounds = batch.rounds + 1
        self._replace(batch, children)
        if verdict.waits and children:
            self.queue(batch.topic_partition).not_before_ms = now_ms + self._wiring.wait_ms(batch.attempts + 1)
        self.out.append(FailRecords(batch=batch, error=None, errors=verdict.errors, dropped=verdict.dropped))
        if self._transaction is not None and self.position_outstanding(batch.topic_partition) is None:
            self._transaction.forget(batch.topic_partition)

    def _replace(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """A batch that is surely not stored goes on as others; in a transaction its numbers are taken back."""
        self.queue(batch.topic_partition).failed(batch, is_unstored=True, instead=children)
        self._release(batch.memory_bytes - sum(child.memory_bytes for child in children))

    def _complete(self, batch: ProducerBatch, verdict: culprits.Written) -> None:
        self._wiring.counts["batches_written"] += 1
        self._wiring.counts["records_written"] += batch.count
        self._release(batch.memory_bytes)
        self.out.append(CompleteBatch(batch=batch, base_offset=verdict.base_offset, log_append_time_ms=verdict.log_append_time_ms))

    def _end(
        self,
        batch: ProducerBatch,
        error: KafkaException,
        errors: Any,
        *,
        is_unstored: bool,
        is_under_way: bool = True,
        dropped: frozenset[int] = frozenset(),
    ) -> None:
        """Every record of the batch fails. In a transaction that is the transaction's business too."""
        if is_under_way:
            self.queue(batch.topic_partition).failed(batch, is_unstored=is_unstored)
        self._tell(batch, error, errors, dropped)
        if self._transaction is not None:
            self.out += self._transaction.record_failed(errors[min(errors)] if errors else error)

    def _tell(self, batch: ProducerBatch, error: KafkaException, errors: Any, dropped: frozenset[int] = frozenset()) -> None:
        self._wiring.counts["records_failed"] += batch.count - len(dropped)
        self._wiring.counts["records_dropped"] += len(dropped)
        self._release(batch.memory_bytes)
        batch.memory_bytes = 0
        self.out.append(FailRecords(batch=batch, error=error, errors=errors, dropped=dropped))

    def _release(self, memory_bytes: int) -> None:
        self._accumulator.release(memory_bytes)
        self.out.append(WakeCallers())

    def _in_words(self, error: KafkaException) -> KafkaException:
        """In a transaction what is retriable or late is told as abortable (decision 30), or as what has ended the producer."""
        if self._transaction is None:
            return error
        if self._transaction.state is not State.FATAL_ERROR or self._transaction.error is None:
            return as_abortable(error)
        fatal = again(self._transaction.error)
        fatal.topic_partition, fatal.stored = error.topic_partition, error.stored
        return fatal

    # Time, and giving up.

    def expire(self, now_ms: int) -> None:
        """Fail every batch whose delivery timeout is over. One whose answer is awaited keeps its numbers until the answer comes."""
        too_old_ms = now_ms - self._wiring.delivery_timeout_ms
        oldest_ms = self._accumulator.oldest_ms()
        if oldest_ms is not None and oldest_ms <= too_old_ms:
            for batch in self._accumulator.take_expired(too_old_ms):
                self._end(batch, self._expired(batch, is_awaited=False), {}, is_unstored=True, is_under_way=False)
        for queue in self.queues.all():
            if not queue.is_idle:
                self._expire_queue(queue, too_old_ms)

    def _expire_queue(self, queue: PartitionQueue, too_old_ms: int) -> None:
        for batch in [b for b in queue.in_flight if b.created_ms <= too_old_ms and not b.is_done]:
            self._abandon(batch, self._expired(batch, is_awaited=True))
        for batch in [b for b in (*queue.retries, *queue.returned) if b.created_ms <= too_old_ms]:
            self._end(batch, self._expired(batch, is_awaited=False), {}, is_unstored=not batch.possibly_stored)

    def _abandon(self, batch: ProducerBatch, error: KafkaException) -> None:
        """Tell the records of a batch whose answer is still awaited; the batch stays in flight, for its numbers."""
        batch.is_done = True
        self._tell(batch, error, {})
        if self._transaction is not None:
            self.out += self._transaction.record_failed(error)

    def _expired(self, batch: ProducerBatch, *, is_awaited: bool) -> KafkaException:
        cause = batch.last_error or self.reason_for_waiting()
        return self._in_words(expired(batch, self._wiring.delivery_timeout_ms, cause, is_awaited=is_awaited))

    def reason_for_waiting(self) -> KafkaException | None:
        """Why nothing has been sent lately, as far as anybody knows."""
        return self._wiring.metadata.last_error or self._identity.last_error or (self._transaction and self._transaction.last_error) or None

    def drop_unsent(self) -> None:
        """The transaction has failed or is being aborted: what is not under way fails with it."""
        transaction = self._transaction
        assert transaction is not None, "only a transaction's records fail together"
        gives_up = transaction.state in (State.ABORTING, State.FATAL_ERROR)
        for topic_partition in self._accumulator.partitions():
            while (batch := self._accumulator.take(topic_partition)) is not None:
                self._tell(batch, self._dropped(batch), {})
        for queue in self.queues.all():
            if gives_up:
                dropped = queue.drop_waiting()
            else:
                dropped, queue.returned = queue.returned, []
            for batch in dropped:
                self._tell(batch, self._dropped(batch), {})

    def _dropped(self, batch: ProducerBatch) -> KafkaException:
        assert self._transaction is not None
        return dropped_with_transaction(batch, self._transaction.error, is_final=self._transaction.state is State.FATAL_ERROR)

    def give_up(self, error: KafkaException) -> None:
        """Fail everything that has no outcome: the producer is being closed, or nothing can be written any more."""
        for topic_partition in self._accumulator.partitions():
            while (batch := self._accumulator.take(topic_partition)) is not None:
                self._tell(batch, given_up(batch, error, is_awaited=False), {})
        for queue in self.queues.all():
            for batch in queue.drop_waiting():
                self._tell(batch, given_up(batch, error, is_awaited=False), {})
            for batch in [b for b in queue.in_flight if not b.is_done]:
                batch.is_done = True
                self._tell(batch, given_up(batch, error, is_awaited=True), {})

    def next_deadline_ms(self, now_ms: int, *, hurries: bool) -> int | None:
        """When something has to be looked at again without an event."""
        times: list[int] = []
        for topic_partition in self._accumulator.partitions():
            ready_at_ms = self._accumulator.ready_at_ms(topic_partition)
            if ready_at_ms is not None and not hurries:
                times.append(ready_at_ms)
            if (waiting := self.queues.get(topic_partition)) is not None:
                times.append(waiting.not_before_ms)  # Of a batch that is over: the partition may have nothing else under way.
        oldest_ms = self._accumulator.oldest_ms()
        oldest = [] if oldest_ms is None else [oldest_ms]
        for queue in self.queues.all():
            if not queue.is_idle:
                times.append(queue.not_before_ms)
                times += [batch.retry_at_ms for batch in queue.retries]
                oldest += [batch.created_ms for batch in queue.batches() if not batch.is_done]
        if oldest:
            times.append(min(oldest) + self._wiring.delivery_timeout_ms)
            times += [self._wiring.attempts.retry_at_ms(address, now_ms) for address in self._wiring.cluster.nodes.values()]
        return min((time for time in times if time > now_ms), default=None)
