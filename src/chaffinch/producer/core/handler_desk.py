"""What an exception handler said about batches (KIP-1038), and those whose topic nobody knows any more while they wait.

`culprits.judge` says when to ask and what the answer means; the shell asks, outside its lock, and the answer comes as an event. What
became of a batch in between (it expired, the producer was closed) counts.
"""

from __future__ import annotations

from chaffinch.client.cluster import ClusterState
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.partition_queues import PartitionQueues
from chaffinch.producer.core.delivery import Delivery
from chaffinch.producer.core.exception_handler import HandlerSaid, Question
from chaffinch.producer.core.refusals import culprits
from chaffinch.producer.core.refusals.batch_answers import BatchAnswer
from chaffinch.producer.core.wiring import Wiring


class HandlerDesk:
    """Has verdicts carried out by the delivery."""

    def __init__(
        self, delivery: Delivery, wiring: Wiring, accumulator: Accumulator, queues: PartitionQueues, outstanding: Outstanding
    ) -> None:
        self._delivery = delivery
        self._wiring = wiring
        self._accumulator = accumulator
        self._queues = queues
        self._outstanding = outstanding
        self._may_end = wiring.retry_unknown_ms < wiring.delivery_timeout_ms
        """Whether `retry.unknown.topic.partition.ms` ends anything before `delivery.timeout.ms` does."""

    def answered(self, event: events.HandlerAnswered, now_ms: int) -> None:
        """The handler has decided."""
        answer = self._delivery.asked.pop(event.batch, None)
        queue = self._delivery.queue(event.batch.topic_partition)
        if answer is None or event.batch not in queue.batches():
            return
        if answer is not UNKNOWN_TO_ALL:
            self._delivery.judge(event.batch, answer, now_ms, event.said)
        elif event.batch not in queue.in_flight:  # Else its topic is back, and a broker will answer.
            self._judge_waiting(event.batch, now_ms, event.said)

    def metadata_heard(self, now_ms: int) -> None:
        """Batches that wait for a topic or partition nobody knows are judged as if a broker had said so to them."""
        if not self._may_end and Question.UNKNOWN_TOPIC not in self._wiring.questions:
            return
        for topic_partition in self._outstanding.partitions():
            if _is_unknown(self._wiring.cluster, topic_partition):
                queue = self._delivery.queue(topic_partition)
                while (batch := self._accumulator.take(topic_partition)) is not None:
                    queue.returned.append(batch)
                for batch in (*queue.retries, *queue.returned):
                    if batch not in self._delivery.asked:
                        self._judge_waiting(batch, now_ms, None)

    def expire(self, now_ms: int) -> None:
        """End batches that wait for a topic which nobody knows for too long, at their time and not with the next answer."""
        for batch, end_ms in self._ends():
            if end_ms <= now_ms and batch not in self._delivery.asked:
                self._judge_waiting(batch, now_ms, None)

    def next_deadline_ms(self) -> int | None:
        """When the first of them ends."""
        return min((end_ms for _, end_ms in self._ends()), default=None)

    def _ends(self) -> list[tuple[ProducerBatch, int]]:
        """Batches that will end so, and when."""
        if not self._may_end:
            return []
        waiting = [queue for queue in self._queues.busy() if queue.retries or queue.returned]
        return [
            (batch, batch.unknown_since_ms + self._wiring.retry_unknown_ms)
            for queue in waiting
            if _is_unknown(self._wiring.cluster, queue.topic_partition)
            for batch in (*queue.retries, *queue.returned)
            if batch.unknown_since_ms is not None
        ]

    def _judge_waiting(self, batch: ProducerBatch, now_ms: int, said: HandlerSaid | None) -> None:
        verdict = culprits.judge(UNKNOWN_TO_ALL, self._delivery.situation(batch, UNKNOWN_TO_ALL, now_ms, said))
        if isinstance(verdict, culprits.AskHandler):
            self._delivery.ask_handler(batch, UNKNOWN_TO_ALL, verdict)
        elif not isinstance(verdict, culprits.Resend):  # It waits already.
            self._delivery.carry_out(batch, verdict, now_ms)


UNKNOWN_TO_ALL = BatchAnswer(code=codes.UNKNOWN_TOPIC_OR_PARTITION, message="no broker knows the topic or partition any more")


def _is_unknown(cluster: ClusterState, topic_partition: TopicPartition) -> bool:
    state = cluster.topic(topic_partition.topic)
    if state is None:
        return False
    return state.code is codes.UNKNOWN_TOPIC_OR_PARTITION or 0 < state.partition_count <= topic_partition.partition
