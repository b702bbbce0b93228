"""Reset policy: where a partition without a committed offset starts. New partitions use auto.offset.reset.new.partitions (KIP-1327).

The policy also decides after a topic was deleted and created again: no position of the deleted topic is valid in the new one.

With `latest`, records written to a new partition before the consumer finds it are never read. KIP-1327 adds the option for the protocol of
KIP-848, where the coordinator knows which partitions are new. This client compares with the first metadata that it received.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.metadata_watch import MetadataWatch
from chaffinch.consumer.core.options import EARLIEST, LATEST, NEW_PARTITIONS, NONE, OFFSET_RESET, ResetStrategy, new_partitions_strategy
from chaffinch.consumer.core.topic_ids import RecreatedTopic
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID


class _FirstSeen(NamedTuple):
    """A topic in the first metadata of this consumer. Partitions added later are new."""

    topic_id: UUID
    partition_count: int


class ResetPolicy:
    """The policy of one consumer. In a topic that appears after the first metadata, or is created again, all partitions are new."""

    def __init__(self, context: ConsumerContext, metadata_watch: MetadataWatch) -> None:
        self._new = new_partitions_strategy(context.settings)
        self._context = context
        self._metadata_watch = metadata_watch
        self._first_seen: dict[str, _FirstSeen] = {}
        self._has_all = False
        """Whether metadata of all topics was received before."""

    def learn(self) -> None:
        """Metadata was received."""
        if self._new is None:
            return
        for topic in {*self._context.cluster.topics(), *self._metadata_watch.topics}:
            self._learn(topic)
        self._has_all |= self._metadata_watch.has_all_topics

    def _learn(self, topic: str) -> None:
        state, known = self._context.cluster.topic(topic), self._first_seen.get(topic)
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
        """Whether it is known which partitions of the topic are new."""
        return self._new is None or topic in self._first_seen

    def strategy_for(self, tp: TopicPartition) -> ResetStrategy:
        return self._context.reset_strategy if self._new is None or not self._is_new(tp) else self._new

    def describe(self, tp: TopicPartition) -> str:
        """The option that applies, and its value."""
        strategy = self.strategy_for(tp)
        name = OFFSET_RESET if strategy is self._context.reset_strategy else NEW_PARTITIONS
        return f"{name} says ({strategy.name})"

    def _is_new(self, tp: TopicPartition) -> bool:
        known = self._first_seen.get(tp.topic)
        return known is not None and tp.partition >= known.partition_count


_CONSEQUENCES: Final = {
    NONE: ": seek",
    LATEST: f": records that are written before that are not read ({NEW_PARTITIONS}={EARLIEST.name} reads them)",
}


class RecreatedTopics:
    """Handles topics of assigned partitions that were deleted and created again.

    A partition's position, fetched records, paused state and lag are dropped; reading starts where auto.offset.reset says.
    """

    def __init__(self, context: ConsumerContext, fetcher: Fetcher, resets: ResetPolicy) -> None:
        self._context = context
        self._fetcher = fetcher
        self._resets = resets

    def handle(self, recreated_topics: Iterable[RecreatedTopic]) -> None:
        """Metadata reports these topics. Called before the metadata is used otherwise."""
        resumed = self.drop_outdated()
        for recreated in recreated_topics:
            self._context.report(self._log_text(recreated, resumed))

    def drop_outdated(self) -> set[TopicPartition]:
        """Drop the state of partitions whose topic id has changed; returns those that were paused.

        A partition without a topic id gets the current one.
        """
        ids, resumed = self._context.ids, set()
        for tp, state in self._context.subscriptions.assigned.items():
            if ids.is_outdated(tp.topic, state.topic_id):
                resumed |= {tp} if state.is_paused else set()
                self._fetcher.drop(tp)
                state.start_new_topic(ids.current(tp.topic), self._resets.strategy_for(tp))
            elif state.topic_id == ZERO_UUID:
                state.topic_id = ids.current(tp.topic)
        return resumed

    def _log_text(self, recreated: RecreatedTopic, resumed: Collection[TopicPartition]) -> str:
        tp = TopicPartition(recreated.topic, 0)
        is_assigned = any(each.topic == recreated.topic for each in self._context.subscriptions.assigned)
        starts = "reading starts again" if is_assigned else "once a partition is assigned, reading starts"
        text = f"{recreated}; positions in the deleted topic are dropped, {starts} where {self._resets.describe(tp)}"
        text += _CONSEQUENCES.get(self._resets.strategy_for(tp), "")
        paused = sorted(tp for tp in resumed if tp.topic == recreated.topic)
        return text + (f"; {names_of(paused)} {'is' if len(paused) == 1 else 'are'} not paused any more" if paused else "")
