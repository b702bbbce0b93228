"""Where a partition without a committed offset begins: auto.offset.reset, or auto.offset.reset.new.partitions for one that is new.

With `latest`, records that are written to a new partition before the consumer finds it are never read. KIP-1327 adds the option for the
protocol of KIP-848, where the coordinator knows which partitions are new. This client compares with the metadata that it saw first.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from chaffinch.consumer.core.options import NEW_PARTITIONS, OFFSET_RESET, ResetStrategy, new_partitions_strategy
from chaffinch.consumer.core.topic_watch import TopicWatch
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID


class _FirstSeen(NamedTuple):
    """A topic when this consumer first heard of it. Partitions that come later are new."""

    topic_id: UUID
    partition_count: int


class ResetPolicy:
    """Of one consumer. A topic that comes after the consumer has looked for it is new altogether, as is one created again."""

    def __init__(self, wiring: Wiring, watch: TopicWatch) -> None:
        self._new = new_partitions_strategy(wiring.settings)
        self._wiring = wiring
        self._watch = watch
        self._first_seen: dict[str, _FirstSeen] = {}
        self._has_all = False
        """Whether all topics of the cluster were seen before."""

    def learn(self) -> None:
        """Metadata has come."""
        if self._new is None:
            return
        for topic in {*self._wiring.cluster.topics(), *self._watch.topics}:
            self._learn(topic)
        self._has_all |= self._watch.has_heard_all

    def _learn(self, topic: str) -> None:
        state, known = self._wiring.cluster.topic(topic), self._first_seen.get(topic)
        if state is None or state.code not in (codes.NONE, codes.UNKNOWN_TOPIC_OR_PARTITION):
            return
        if known is None:
            count = 0 if self._has_all else state.partition_count
        elif ZERO_UUID in (state.topic_id, known.topic_id) or state.topic_id == known.topic_id:
            count = known.partition_count
        else:
            count = 0
        topic_id = known.topic_id if known is not None and state.topic_id == ZERO_UUID else state.topic_id
        self._first_seen[topic] = _FirstSeen(topic_id, count)

    def is_known(self, topic: str) -> bool:
        """Whether it can be told which partitions of the topic are new."""
        return self._new is None or topic in self._first_seen

    def of(self, place: TopicPartition) -> ResetStrategy:
        return self._wiring.reset_strategy if self._new is None or not self._is_new(place) else self._new

    def in_words(self, place: TopicPartition) -> str:
        """The option that decides, and its value."""
        strategy = self.of(place)
        name = OFFSET_RESET if strategy is self._wiring.reset_strategy else NEW_PARTITIONS
        return f"{name} says, {strategy.name}"

    def _is_new(self, place: TopicPartition) -> bool:
        known = self._first_seen.get(place.topic)
        return known is not None and place.partition >= known.partition_count
