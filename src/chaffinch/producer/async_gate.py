"""Admission control of an AsyncProducer: the waits of `SendGate` as coroutines. A cancelled wait leaves nothing behind."""

from __future__ import annotations

from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.async_sender import AsyncSender
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.handler_calls import HandlerCalls, Stop
from chaffinch.producer.send_gate import RecordOf, SendGate, StillWaiting
from chaffinch.runtime.clock import Clock
from chaffinch.settings import Settings


class AsyncGate(SendGate):
    """Admission control for the coroutine `send`."""

    def __init__(self, settings: Settings, core: ProducerCore, sender: AsyncSender, clock: Clock, handler: HandlerCalls) -> None:
        super().__init__(settings, core, sender, clock, handler)
        self._changes = sender.changed
        self._yield_to_loop = sender.yield_to_loop

    async def topic_known(
        self, topic: str, partition: int | None, record_of: RecordOf | None, started_ms: int | None = None, call: str = "send"
    ) -> Stop | None:
        """Wait until the topic, and the partition, are known: `wait_for_topic` as a coroutine."""
        begun = self._begin_wait(topic, partition, record_of, started_ms, call)
        if isinstance(begun, KafkaException):
            return begun
        while True:
            steps = self._metadata_steps(begun)
            while True:
                try:
                    wait_ms = next(steps)
                except StopIteration as done:
                    found: KafkaException | StillWaiting | None = done.value
                    break
                await self._changes.wait(wait_ms / 1000)
            begun.checked_version = self.core.context.cluster.version
            result = self._waited(begun, found, record_of)
            if not isinstance(result, StillWaiting):
                return result

    async def memory_free(
        self, size: int, started_ms: int | None = None, call: str = "send", tp: TopicPartition | None = None
    ) -> Stop | None:
        """Wait until `size` bytes of buffer memory are free: `wait_for_memory` as a coroutine.

        The caller takes the memory before it awaits again.
        """
        started_ms = self.clock.steady_ms() if started_ms is None else started_ms
        accumulator = self.core.accumulator
        claim, is_unused = accumulator.claim(size), True
        try:
            if self.core.memory_wait_began():
                self.wakeup()
            while not accumulator.is_granted(claim):
                waited_ms = self.clock.steady_ms() - started_ms
                if waited_ms >= self._block_ms:
                    return self.core.wait_causes.memory_timeout(size, waited_ms, tp, self.core.wait_causes.cause())
                await self._changes.wait((self._block_ms - waited_ms) / 1000)
                if (refusal := self.refusal(call)) is not None:
                    return refusal
            is_unused = False
        finally:
            self._end_memory_wait(claim, is_unused=is_unused)
        return None

    async def hand_over(self, batch: ProducerBatch) -> Stop | None:
        """Hand a batch of a table over to the accumulator once there is memory for it, and after the loop has served other tasks."""
        await self._yield_to_loop()
        stop: Stop | None = self.refusal("send_table")
        if stop is None and not self.core.accumulator.has_memory_for(len(batch.data)):
            stop = await self.memory_free(len(batch.data), call="send_table", tp=batch.topic_partition)
        if stop is not None or self.core.append_batch(batch, self.clock.steady_ms()):
            self.wakeup()
        return stop
