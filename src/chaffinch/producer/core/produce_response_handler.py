"""Handler of Produce responses and of lost ones: a batch completes, fails, is retried, split, or sent again without its culprits.

`culprits.judge` decides what a refusal means, `in_flight` keeps the sequence numbers, and `BatchCompleter` writes outcomes. This module
applies the decision. `batches/batch.py` has the state table. A decision may need the topic's configuration (DescribeConfigs) first, or
the exception handler (KIP-1038), which the shell calls outside its lock. The batch keeps its state until then, but may expire in the
meantime. Follows Sender.java, `completeBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, RequestWritten, ResponseReceived
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
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.batch import BatchState, ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import AskHandler
from chaffinch.producer.core.exception_handler import HandlerDecision, Question
from chaffinch.producer.core.refusals import batch_responses, culprits
from chaffinch.producer.core.refusals.batch_responses import TOPIC_CONFIG_AGE_MS_MAX, UNKNOWN, BatchResponse, Situation, TopicConfig
from chaffinch.producer.core.refusals.errors import deleted_topic_error, exhausted_error, given_up_error, lost_with_topic_error
from chaffinch.producer.core.refusals.screening import Screening
from chaffinch.producer.core.transactions.manager import CONCURRENT_WAIT_MS
from chaffinch.producer.core.transactions.moves import State

UNKNOWN_TO_ALL: Final = BatchResponse(code=codes.UNKNOWN_TOPIC_OR_PARTITION, message="no broker knows the topic or partition any more")
"""Stands in for a broker's response when metadata reports that the topic of waiting batches is unknown."""


class ProduceResponseHandler:
    """Applies Produce responses to batches."""

    def __init__(self, context: ProducerContext, outstanding: Outstanding, completer: BatchCompleter, screening: Screening) -> None:
        self._context = context
        self._transaction = context.transaction
        self._outstanding = outstanding
        self._completer = completer
        self._screening = screening
        self._topic_configs: dict[str, TopicConfig] = {}
        self._undecided: dict[ProducerBatch, tuple[BatchResponse, culprits.NeedTopicConfig | culprits.AskHandler]] = {}
        """Batches whose decision waits for a topic's configuration or the exception handler, with their responses."""
        self._settled_partitions: dict[TopicPartition, None] = {}
        """Partitions with a batch that got its response, or will get none, and whose topic was created again after it was sent."""
        self._may_end_unknown = context.retry_unknown_ms < context.delivery_timeout_ms
        """Whether `retry.unknown.topic.partition.ms` can end a batch before `delivery.timeout.ms` does."""

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's send queue."""
        return self._outstanding.queue(topic_partition)

    # Outcomes of Produce requests.

    def response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        """A broker has responded to a Produce request."""
        sent: ProduceSent = event.token
        cluster = self._context.cluster
        for node in event.message.node_endpoints:
            cluster.learn_node(node.node_id, Address(node.host, node.port))
        for batch, part in sent.parts_of(event.message):
            if part is not None and part.current_leader is not None:
                cluster.learn_leader(batch.topic_partition, part.current_leader.leader_id, part.current_leader.leader_epoch)
            if part is None:
                error = NetworkException(
                    f"{sent.address} left this partition out of its response", topic_partition=batch.topic_partition, stored=Stored.POSSIBLY
                )
                self._retry_without_response(batch, error, steady_ms, was_sent=True)
            else:
                self._judge(batch, batch_responses.read_response(part, event.numbering), steady_ms)

    def request_written(self, event: RequestWritten, steady_ms: int) -> None:
        """A request that gets no response (acks=0) has been written: its batches count as written."""
        sent: ProduceSent = event.token
        for batch in sent.batches.values():
            self._batch_written(batch, NO_OFFSET, -1, steady_ms)

    def request_failed(self, event: RequestFailed, steady_ms: int) -> None:
        """A Produce request got no response: retry its batches, or fail those for which a retry would fail in the same way."""
        sent: ProduceSent = event.token
        for batch in sent.batches.values():
            if event.is_unsupported or event.error is not None:  # A retry would fail in the same way.
                cause = event.error or UnsupportedVersionException(event.reason)
                batch.possibly_stored |= event.was_sent
                self._completer.end(batch, given_up_error(batch, cause, is_awaited=False), is_unstored=not batch.possibly_stored)
                continue
            error_class = TimeoutException if event.is_timeout else NetworkException
            stored = Stored.POSSIBLY if event.was_sent or batch.possibly_stored else Stored.NO
            reason = event.reason + sent.too_large_for_most() if event.was_sent and not event.is_timeout else event.reason
            error = error_class(f"{event.address}: {reason}", topic_partition=batch.topic_partition, stored=stored, api="Produce")
            self._retry_without_response(batch, error, steady_ms, was_sent=event.was_sent)

    def _retry_without_response(self, batch: ProducerBatch, error: KafkaException, steady_ms: int, *, was_sent: bool) -> None:
        """Retry a batch whose request got no response, or was never sent, under its sequence numbers, while attempts and time are left."""
        self._context.metadata.refresh()
        self._note_topic_recreated(batch)
        may_retry = self._may_retry(batch, steady_ms, counts=was_sent)
        batch.possibly_stored |= was_sent
        batch.attempts += was_sent
        batch.last_error = error
        if batch.is_abandoned:
            self.queue(batch.topic_partition).failed(batch, is_unstored=not batch.possibly_stored)
        elif batch.is_topic_recreated and batch.possibly_stored:
            self.fail_of_deleted_topic(batch)
        elif may_retry:
            self._schedule_retry(batch, steady_ms)
        else:
            last = exhausted_error(error, batch.attempts, self._context.retries)
            self._completer.end(batch, self._completer.as_record_error(last), is_unstored=not batch.possibly_stored)

    # Decisions, and the information that they need.

    def _judge(self, batch: ProducerBatch, response: BatchResponse, steady_ms: int, decision: HandlerDecision | None = None) -> None:
        """Decide about a batch, or request the information that is needed. `decision`: that of the exception handler, if it was called."""
        if response.is_written:
            base_offset = response.base_offset if response.code is codes.NONE else NO_OFFSET
            self._batch_written(batch, base_offset, response.log_append_time_ms, steady_ms)
            return
        verdict = culprits.judge(response, self._situation_of(batch, response, steady_ms, decision))
        if isinstance(verdict, culprits.NeedTopicConfig) or (isinstance(verdict, culprits.AskHandler) and not batch.is_abandoned):
            self._defer(batch, response, verdict)
        elif isinstance(verdict, culprits.FailAll) and response.code.is_retriable:
            last = exhausted_error(verdict.error, batch.attempts + 1, self._context.retries)
            self._carry_out(batch, replace(verdict, error=last), steady_ms)
        else:
            if isinstance(verdict, culprits.RemoveCulprits):
                self._screening.refused(batch, response, verdict.errors)
            self._carry_out(batch, verdict, steady_ms)

    def _judge_waiting(self, batch: ProducerBatch, steady_ms: int, decision: HandlerDecision | None) -> None:
        """Decide about a batch that waits to be sent again, and whose topic no broker knows any more."""
        verdict = culprits.judge(UNKNOWN_TO_ALL, self._situation_of(batch, UNKNOWN_TO_ALL, steady_ms, decision))
        if isinstance(verdict, culprits.AskHandler):
            self._defer(batch, UNKNOWN_TO_ALL, verdict)
        elif not isinstance(verdict, culprits.Resend):  # It waits already.
            self._carry_out(batch, verdict, steady_ms)

    def _defer(self, batch: ProducerBatch, response: BatchResponse, verdict: culprits.NeedTopicConfig | culprits.AskHandler) -> None:
        self._undecided[batch] = response, verdict
        if isinstance(verdict, culprits.AskHandler):
            self._context.out.append(AskHandler(batch=batch, question=verdict.question, errors=verdict.errors))

    @property
    def needed_topic_configs(self) -> list[str]:
        """Topics whose configuration is needed to decide about batches."""
        if not self._undecided:
            return []
        waiting = [
            batch.topic_partition.topic for batch, (_, verdict) in self._undecided.items() if isinstance(verdict, culprits.NeedTopicConfig)
        ]
        return list(dict.fromkeys(waiting))

    def topic_config_received(self, topic: str, topic_config: TopicConfig, steady_ms: int) -> None:
        """The topic's configuration has arrived, or cannot be read: decide about the batches that waited for it."""
        self._topic_configs[topic] = topic_config
        for batch, (response, verdict) in list(self._undecided.items()):
            if isinstance(verdict, culprits.NeedTopicConfig) and batch.topic_partition.topic == topic:
                del self._undecided[batch]
                self._judge(batch, response, steady_ms)

    def forget_topic_config(self, topic: str) -> None:
        """Forget the configuration of a topic that was created again."""
        self._topic_configs.pop(topic, None)

    def handler_decided(self, event: events.HandlerDecided, steady_ms: int) -> None:
        """Apply the exception handler's decision, unless the batch has ended or moved on in the meantime."""
        batch = event.batch
        response, verdict = self._undecided.get(batch, (UNKNOWN_TO_ALL, None))
        if not isinstance(verdict, culprits.AskHandler):
            return
        del self._undecided[batch]
        if response is not UNKNOWN_TO_ALL and batch.state in (BatchState.IN_FLIGHT, BatchState.ABANDONED):
            self._judge(batch, response, steady_ms, event.decision)
        elif response is UNKNOWN_TO_ALL and batch.state in (BatchState.RETRYING, BatchState.RETURNED):  # Else a broker will respond.
            self._judge_waiting(batch, steady_ms, event.decision)

    def _situation_of(self, batch: ProducerBatch, response: BatchResponse, steady_ms: int, decision: HandlerDecision | None) -> Situation:
        """The facts about a batch that decide what a response means."""
        if response.code is codes.UNKNOWN_TOPIC_OR_PARTITION and batch.unknown_since_ms is None:
            batch.unknown_since_ms = steady_ms
        unknown_ms = 0 if batch.unknown_since_ms is None else steady_ms - batch.unknown_since_ms
        topic_config = self._topic_configs.get(batch.topic_partition.topic, UNKNOWN)
        return Situation(
            topic_partition=batch.topic_partition,
            count=batch.count,
            keys_of=batch.keys_of,
            possibly_stored=batch.possibly_stored,
            in_transaction=self._transaction is not None,
            is_idempotent=self._context.is_idempotent,
            predecessors=self.queue(batch.topic_partition).predecessor_state(batch),
            may_retry=self._may_retry(batch, steady_ms, counts=not self._is_previous_completing(response.code)),
            removals=batch.removals,
            topic_config=UNKNOWN if steady_ms - topic_config.received_ms > TOPIC_CONFIG_AGE_MS_MAX else topic_config,
            last_error=batch.last_error,
            questions=self._context.questions,
            decision=decision,
            is_unknown_too_long=unknown_ms >= self._context.retry_unknown_ms,
        )

    def _is_previous_completing(self, code: ErrorCode) -> bool:
        """Whether the only cause is that the previous transaction is still being completed."""
        return self._transaction is not None and self._transaction.is_previous_completing(code)

    def _may_retry(self, batch: ProducerBatch, steady_ms: int, *, counts: bool = True) -> bool:
        """Whether another attempt is allowed. `counts`: whether the last one counts against `retries`; one that was never sent does not."""
        is_open = self._transaction is None or self._transaction.state not in (State.ABORTING, State.FATAL_ERROR)
        is_in_time = steady_ms < batch.created_ms + self._context.delivery_timeout_ms
        return is_open and is_in_time and batch.attempts + counts <= self._context.retries

    # Waiting batches whose topic no broker knows any more.

    def metadata_received(self, steady_ms: int) -> None:
        """Decide about batches whose topic or partition is unknown as if a broker had refused them for that."""
        if not self._may_end_unknown and Question.UNKNOWN_TOPIC not in self._context.questions:
            return
        for topic_partition in self._outstanding.partitions():
            if self._is_unknown(topic_partition):
                queue = self.queue(topic_partition)
                while (batch := self._outstanding.accumulator.take(topic_partition)) is not None:
                    queue.add(batch)
                for batch in (*queue.retries, *queue.returned):
                    if batch not in self._undecided:
                        self._judge_waiting(batch, steady_ms, None)

    def end_unknown(self, steady_ms: int) -> None:
        """End batches whose topic has been unknown for `retry.unknown.topic.partition.ms`, without waiting for another response."""
        for batch, end_ms in list(self._unknown_ends()):
            if end_ms <= steady_ms and batch not in self._undecided:
                self._judge_waiting(batch, steady_ms, None)

    def next_deadline_ms(self) -> int | None:
        """When the next batch ends because its topic is unknown."""
        return min((end_ms for _, end_ms in self._unknown_ends()), default=None)

    def _unknown_ends(self) -> Iterator[tuple[ProducerBatch, int]]:
        """The batches that will end because their topic is unknown, and when."""
        for queue in self._outstanding.busy() if self._may_end_unknown else ():
            for batch in (*queue.retries, *queue.returned):
                if batch.unknown_since_ms is not None and self._is_unknown(queue.topic_partition):
                    yield batch, batch.unknown_since_ms + self._context.retry_unknown_ms

    def _is_unknown(self, topic_partition: TopicPartition) -> bool:
        state = self._context.cluster.topic(topic_partition.topic)
        if state is None:
            return False
        return state.code is codes.UNKNOWN_TOPIC_OR_PARTITION or 0 < state.partition_count <= topic_partition.partition

    # Outcomes of a batch.

    def _batch_written(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int, steady_ms: int) -> None:
        """The broker has stored a batch: complete its records, unless they have expired already."""
        self._note_topic_recreated(batch)
        was_abandoned = batch.is_abandoned
        self.queue(batch.topic_partition).acknowledged(batch, steady_ms)
        if was_abandoned:
            return
        self._screening.written(batch)
        if self._transaction is not None:
            self._transaction.mark_known()
        self._completer.complete(batch, base_offset, log_append_time_ms)

    def _carry_out(self, batch: ProducerBatch, verdict: culprits.Verdict, steady_ms: int) -> None:
        """Apply the decision about a batch that was not written."""
        self._note_topic_recreated(batch)
        if batch.is_abandoned:  # Only its sequence numbers matter.
            is_unstored = culprits.is_unstored(verdict, batch.possibly_stored)
            self.queue(batch.topic_partition).failed(batch, is_unstored=is_unstored)
            return
        match verdict:
            case culprits.Resend():
                self._resend(batch, verdict, steady_ms)
            case culprits.Renumber():
                self._renumber(batch, verdict, steady_ms)
            case culprits.Split():
                self._context.counts["batches_split"] += 1
                self._replace(batch, batch.halves())
            case culprits.RemoveCulprits():
                self._remove_culprits(batch, verdict, steady_ms)
            case culprits.FailAll():
                # Once the producer is unusable, records do not ask for an abort.
                is_abortable = isinstance(verdict.error, TransactionAbortableException)
                error = self._completer.as_record_error(verdict.error) if is_abortable else verdict.error
                self._completer.end(batch, error, verdict.errors, verdict.dropped, is_unstored=not verdict.uses_up_sequences)

    def _resend(self, batch: ProducerBatch, verdict: culprits.Resend, steady_ms: int) -> None:
        batch.possibly_stored |= verdict.possibly_stored
        batch.last_error = verdict.error
        if batch.is_topic_recreated and batch.possibly_stored:
            self.fail_of_deleted_topic(batch)
            return
        if batch.is_topic_recreated and self._transaction is not None and self._transaction.has_sent_to(batch.topic_partition.topic):
            self._completer.end(batch, lost_with_topic_error(batch), is_unstored=True)
            return
        is_previous_completing = self._is_previous_completing(verdict.error.code)
        batch.attempts += not is_previous_completing
        if verdict.refreshes_metadata:
            self._context.metadata.refresh()
        self._schedule_retry(batch, steady_ms, waits=verdict.waits, is_previous_completing=is_previous_completing)

    def _schedule_retry(self, batch: ProducerBatch, steady_ms: int, *, waits: bool = True, is_previous_completing: bool = False) -> None:
        batch.mark_retried(steady_ms)
        self._context.counts["batches_resent"] += 1
        self._context.counts["records_resent"] += batch.count
        wait_ms = self._context.wait_ms(max(1, batch.attempts)) if waits else 0
        self.queue(batch.topic_partition).retry(
            batch, steady_ms + (min(CONCURRENT_WAIT_MS, wait_ms) if is_previous_completing else wait_ms)
        )

    def _renumber(self, batch: ProducerBatch, verdict: culprits.Renumber, steady_ms: int) -> None:
        queue = self.queue(batch.topic_partition)
        batch.attempts += 1
        batch.last_error = verdict.error
        batch.mark_retried(steady_ms)
        # An earlier attempt without a response may arrive late, and would be accepted once its predecessors are stored, unless the epoch
        # is new.
        queue.renumber(batch, is_expected=not (verdict.waits or batch.possibly_stored))
        if verdict.waits:
            queue.not_before_ms = steady_ms + self._context.wait_ms(batch.attempts)

    def _remove_culprits(self, batch: ProducerBatch, verdict: culprits.RemoveCulprits, steady_ms: int) -> None:
        """Fail or drop the culprits, and send the innocents again at once as a new batch, which counts as no attempt (decision 12)."""
        self._context.counts["batches_separated"] += 1
        count = len(verdict.errors) + len(verdict.dropped)
        innocents = batch.without(np.fromiter(chain(verdict.errors, verdict.dropped), np.int64, count))
        children = [] if innocents is None else innocents.halves() if verdict.halves else [innocents]
        for child in children:
            child.removals = batch.removals + 1
        self._replace(batch, children)
        if verdict.waits and children:
            self.queue(batch.topic_partition).not_before_ms = steady_ms + self._context.wait_ms(batch.attempts + 1)
        self._completer.fail_records(batch, verdict.errors, verdict.dropped)
        if self._transaction is not None and self._outstanding.first_position(batch.topic_partition) is None:
            self._transaction.forget(batch.topic_partition)

    def _replace(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """Replace a batch that is certainly not stored with its parts. They reuse its sequence numbers."""
        self.queue(batch.topic_partition).replace(batch, children)
        self._completer.release(batch.memory_bytes - sum(child.memory_bytes for child in children))

    # Topics that were deleted and created again.

    def fail_of_deleted_topic(self, batch: ProducerBatch) -> None:
        """Fail a batch that may be stored in a topic that has since been deleted: it must not be sent to the new topic of that name."""
        self._completer.end(batch, self._completer.as_record_error(deleted_topic_error(batch)), is_unstored=False)

    def _note_topic_recreated(self, batch: ProducerBatch) -> None:
        if batch.is_topic_recreated:
            self._settled_partitions[batch.topic_partition] = None

    def take_settled_partitions(self) -> dict[TopicPartition, None]:
        """Partitions with a batch that got its response, or will get none, since the last call, after its topic was created again."""
        settled_partitions, self._settled_partitions = self._settled_partitions, {}
        return settled_partitions
