"""Callers that wait for the partitions of a topic: told when metadata has them, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaffinch.client.effects import CompleteCall, FailCall
from chaffinch.consumer.core.absences import Absences
from chaffinch.consumer.core.call_errors import IN_TIME
from chaffinch.consumer.core.topic_watch import TopicWatch
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import KafkaException, Stored, codes, exception_for
from chaffinch.identifiers import TopicPartition


@dataclass(slots=True, eq=False)
class TopicCall:
    """A caller that waits for a topic's partitions."""

    call: Any
    topic: str
    deadline_ms: int
    limit: str = IN_TIME
    """In words."""


class TopicCalls:
    """Those of one consumer."""

    def __init__(self, wiring: Wiring, watch: TopicWatch, absences: Absences) -> None:
        self._wiring = wiring
        self._watch = watch
        self._absences = absences
        self._calls: list[TopicCall] = []

    @property
    def topics(self) -> set[str]:
        return {call.topic for call in self._calls}

    def ask(self, call: TopicCall) -> None:
        self._calls.append(call)

    def miss(self) -> None:
        """Say which topics are waited for."""
        if self._calls:
            self._wiring.missed |= {TopicPartition(topic, -1) for topic in self.topics}

    def advance(self, now_ms: int) -> None:
        """Tell whoever can be told."""
        for call in list(self._calls):
            count = self._wiring.cluster.partition_count(call.topic)
            if count is not None:
                self._calls.remove(call)
                places = [TopicPartition(call.topic, index) for index in range(count)]
                self._wiring.out.append(CompleteCall(call=call.call, result=places))
                continue
            topic = [TopicPartition(call.topic, -1)]
            absence = self._absences.error(topic, now_ms)
            if absence is not None or now_ms >= call.deadline_ms or call.topic in self._watch.refusals():
                self._calls.remove(call)
                self._absences.forget(topic)
                self._wiring.out.append(FailCall(call=call.call, error=absence or self._unknown(call.topic, call.limit)))

    def _unknown(self, topic: str, limit: str) -> KafkaException:
        state = self._wiring.cluster.topic(topic)
        if state is not None and state.code is not codes.NONE:
            return exception_for(state.code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata")
        return self._wiring.time_out(f"the partitions of topic {topic!r} were not told {limit}")

    def give_up(self, error: KafkaException) -> None:
        self._wiring.out += [FailCall(call=call.call, error=error) for call in self._calls]
        self._calls.clear()

    def deadlines_ms(self) -> list[int]:
        return [call.deadline_ms for call in self._calls]
