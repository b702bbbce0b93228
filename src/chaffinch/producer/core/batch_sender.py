"""Batch sender: selects the batches to send now and groups them into Produce requests. Follows Sender.java, `sendProducerData`."""

from __future__ import annotations

from collections import Counter
from functools import partial
from uuid import UUID

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.errors import TransactionAbortableException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.auxiliary_requests import IdentityManager
from chaffinch.producer.core.batches.accumulator import OpenBatch
from chaffinch.producer.core.batches.batch import Move, ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import SendRequest
from chaffinch.producer.core.refusals.screening import Screening
from chaffinch.protocol.primitives import ZERO_UUID


class BatchSender:
    """Makes Produce requests, and counts those without a response."""

    def __init__(
        self, context: ProducerContext, outstanding: Outstanding, completer: BatchCompleter, screening: Screening, identity: IdentityManager
    ) -> None:
        self._context = context
        self._transaction = context.transaction
        self._outstanding = outstanding
        self._accumulator = outstanding.accumulator
        self._completer = completer
        self._screening = screening
        self._identity = identity
        self._requests: Counter[Address] = Counter()
        self._turn = 0

    @property
    def requests_in_flight(self) -> int:
        """Number of Produce requests without a response."""
        return sum(self._requests.values())

    def request_done(self, sent: ProduceSent) -> None:
        """A request has its response, or will not get one: another one may be sent to its broker."""
        self._requests[sent.address] -= 1

    def send_ready(self, steady_ms: int, *, skip_linger: bool) -> None:
        """Send every batch that may be sent now. `skip_linger`: do not wait for `linger.ms`."""
        open_requests: dict[Address, ProduceSent] = {}
        candidates = self._outstanding.partitions()
        # Partitions take turns being first, because the requests per broker are limited; one batch each, so that they share requests.
        self._turn = (self._turn + 1) % max(1, len(candidates))
        candidates = candidates[self._turn :] + candidates[: self._turn]
        while candidates:
            candidates = [tp for tp in candidates if self._send_one(tp, steady_ms, open_requests, skip_linger=skip_linger)]
        for sent in open_requests.values():
            self._emit(sent)

    def full_head(self, steady_ms: int) -> OpenBatch | None:
        """The first full batch that can be sent now and is not encoded yet."""
        for topic_partition, full in self._accumulator.full_heads():
            if not self._identity.is_missing and self._can_send_now(topic_partition, steady_ms):
                return full
        return None

    def _can_send_now(self, topic_partition: TopicPartition, steady_ms: int) -> bool:
        """Whether a new batch of the partition may be sent now."""
        address = self._context.cluster.leader_address(topic_partition)
        if address is None or self._requests[address] >= self._context.requests_per_node_max:
            return False
        queue = self._outstanding.known_queue(topic_partition)
        is_next = queue is None or (not queue.retries and not queue.returned and queue.accepts_batch(steady_ms, self._identity.current))
        return is_next and self._context.attempts.may_try(address, steady_ms)

    def _send_one(
        self, topic_partition: TopicPartition, steady_ms: int, open_requests: dict[Address, ProduceSent], *, skip_linger: bool
    ) -> bool:
        """Send the partition's next batch if it may be sent. Returns whether there may be another one to send."""
        queue = self._outstanding.queue(topic_partition)
        if not self._may_send(queue, steady_ms, skip_linger=skip_linger):
            return False
        address = self._leader(topic_partition, steady_ms)
        if address is None:
            return False
        sent = open_requests.get(address)
        if sent is not None and not sent.accepts(topic_partition, self._next_size(queue), self._context.request_bytes_max):
            self._emit(open_requests.pop(address))
            sent = None
        if sent is None and self._requests[address] >= self._context.requests_per_node_max:
            return False
        topic_id = self._topic_id(topic_partition.topic)
        take_new = partial(self._take, topic_partition, (address, topic_id), steady_ms)
        batch = queue.next_batch(steady_ms, self._identity.current, take_new)
        if batch is None:  # All of its records were screened. The next batch may be larger, or linger, and is checked again.
            return self._accumulator.waiting_count(topic_partition) > 0
        batch.sent_ms = steady_ms
        if sent is None:
            sent = open_requests[address] = ProduceSent(address)
        sent.add(batch, topic_id)
        return bool(queue.returned) or self._accumulator.waiting_count(topic_partition) > 0

    def _take(self, topic_partition: TopicPartition, destination: tuple[Address, UUID], steady_ms: int) -> ProducerBatch | None:
        """The partition's next batch, without the records that its leader would refuse; None if no record is left."""
        accumulator = self._accumulator
        head = None if self._screening.is_empty else accumulator.ready_made_head(topic_partition)
        errors = None if head is None else self._screening.errors_of(head, destination, steady_ms)
        if head is None or errors is None:
            return accumulator.take(topic_partition)
        innocents = head.without(np.array(list(errors), np.int64))  # May raise MemoryError: then the batch stays in the accumulator.
        accumulator.take(topic_partition)
        head.move(Move.END)
        self._context.counts["records_screened"] += len(errors)
        self._completer.release(head.memory_bytes - (0 if innocents is None else innocents.memory_bytes))
        self._completer.fail_records(head, errors)
        return innocents

    def _next_size(self, queue: PartitionQueue) -> int:
        """Bytes of the batch that `next_batch` would return; an upper bound if it is not encoded yet."""
        numbered_or_back = (*queue.retries, *queue.returned)
        return numbered_or_back[0].size if numbered_or_back else self._accumulator.first_size(queue.topic_partition)

    def _may_send(self, queue: PartitionQueue, steady_ms: int, *, skip_linger: bool) -> bool:
        """Whether the partition has a batch that may be sent now, apart from the state of its leader."""
        if not (queue.retries or queue.returned):
            ready_at_ms = self._accumulator.ready_at_ms(queue.topic_partition)
            if ready_at_ms is None or (ready_at_ms > steady_ms and not skip_linger):
                return False
        if self._identity.is_missing:
            self._identity.mark_needed()
            return False
        if queue.needs_epoch(self._identity.current):
            if self._transaction is not None:
                if self._transaction.may_bump_epoch:
                    self._transaction.may_send(queue.topic_partition)
                else:
                    self._fail_used_up(queue.topic_partition)
                return False
            self._identity.bump()
            if self._identity.is_missing:
                self._identity.mark_needed()
                return False
        if queue.retries and (leader := self._context.cluster.leader_address(queue.topic_partition)) is not None:
            queue.skip_backoff((leader, self._topic_id(queue.topic_partition.topic)), steady_ms)
        if not queue.accepts_batch(steady_ms, self._identity.current):
            return False
        return self._transaction is None or self._transaction.may_send(queue.topic_partition)

    def _fail_used_up(self, topic_partition: TopicPartition) -> None:
        """The partition accepts no more batches under this epoch, which cannot change within a transaction: it must be aborted."""
        text = "the broker accepted a batch of this partition although an earlier one was not stored: the partition needs another epoch"
        self._completer.fail_transaction(TransactionAbortableException(text, topic_partition=topic_partition, api="Produce"))
        self._completer.drop_unsent()

    def _leader(self, topic_partition: TopicPartition, steady_ms: int) -> Address | None:
        address = self._context.cluster.leader_address(topic_partition)
        if address is None:
            self._context.metadata.use(topic_partition.topic, steady_ms)
            self._context.metadata.refresh()
            return None
        return address if self._context.attempts.may_try(address, steady_ms) else None

    def _topic_id(self, topic: str) -> UUID:
        return self._context.cluster.topic_id(topic) or ZERO_UUID

    def _emit(self, sent: ProduceSent) -> None:
        self._context.out.append(self.request_of(sent))

    def request_of(self, sent: ProduceSent) -> SendRequest:
        """Make the request, and count it as sent."""
        context = self._context
        if self._transaction is not None:
            self._transaction.mark_started()
        self._requests[sent.address] += 1
        context.attempts.request_sent(sent.address)
        context.counts["requests_sent"] += 1
        context.counts["batches_sent"] += len(sent.batches)
        context.counts["records_sent"] += sent.record_count
        context.counts["bytes_sent"] += sent.size
        return SendRequest(
            address=sent.address,
            message=sent.request(acks=context.acks, timeout_ms=context.request_timeout_ms, transactional_id=context.transactional_id),
            token=sent,
            timeout_ms=context.request_timeout_ms,
            version_max=sent.version_max(None if self._transaction is None else self._transaction.version),
            expects_response=context.acks != 0,
        )

    def next_deadline_ms(self, steady_ms: int, *, skip_linger: bool) -> int | None:
        """When the next wait of a batch ends without an event."""
        times: list[int] = []
        for topic_partition in self._accumulator.partitions():
            ready_at_ms = self._accumulator.ready_at_ms(topic_partition)
            if ready_at_ms is not None and not skip_linger:
                times.append(ready_at_ms)
            if (waiting := self._outstanding.known_queue(topic_partition)) is not None:
                times.append(waiting.not_before_ms)  # The backoff of a batch that has ended; the partition may have no other batch.
        for queue in self._outstanding.busy():
            times.append(queue.not_before_ms)
            times += [batch.retry_at_ms for batch in queue.retries]
        return min([time for time in times if time > steady_ms], default=None)
