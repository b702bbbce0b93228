"""Where a partition without a committed offset begins: auto.offset.reset, or auto.offset.reset.new.partitions for one that is new.
So does one whose topic was deleted and created again: nothing of the earlier topic holds in the new one.

With `latest`, records that are written to a new partition before the consumer finds it are never read. KIP-1327 adds the option for the
protocol of KIP-848, where the coordinator knows which partitions are new. This client compares with the metadata that it saw first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.options import EARLIEST, LATEST, NEW_PARTITIONS, NONE, OFFSET_RESET, ResetStrategy, new_partitions_strategy
from chaffinch.consumer.core.topic_ids import Renewal
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


_CONSEQUENCES: Final = {
    NONE: ": seek",
    LATEST: f": records that are written before that are not read ({NEW_PARTITIONS}={EARLIEST.name} reads them)",
}


class Renewals:
    """Topics of one consumer's assigned partitions that were deleted and created again.

    A partition's position, what was fetched, its paused state and its lag are dropped; reading starts where auto.offset.reset says.
    """

    def __init__(self, wiring: Wiring, fetcher: Fetcher, resets: ResetPolicy) -> None:
        self._wiring = wiring
        self._fetcher = fetcher
        self._resets = resets

    def take(self, renewals: Iterable[Renewal]) -> None:
        """Metadata reports these; before anything else is done with it."""
        resumed = self.drop_past()
        for renewal in renewals:
            self._wiring.report(self._in_words(renewal, resumed))

    def drop_past(self) -> set[TopicPartition]:
        """Drop the state of partitions whose topic is another one now; returns those that were paused.

        A partition whose topic was not known yet is one of the topic that is there now.
        """
        ids, resumed = self._wiring.ids, set()
        for place, state in self._wiring.subscriptions.assigned.items():
            if ids.is_past(place.topic, state.topic_id):
                resumed |= {place} if state.is_paused else set()
                self._fetcher.drop(place)
                state.renew(ids.present(place.topic), self._resets.of(place))
            elif state.topic_id == ZERO_UUID:
                state.topic_id = ids.present(place.topic)
        return resumed

    def _in_words(self, renewal: Renewal, resumed: Collection[TopicPartition]) -> str:
        place = TopicPartition(renewal.topic, 0)
        is_assigned = any(each.topic == renewal.topic for each in self._wiring.subscriptions.assigned)
        starts = "reading starts again" if is_assigned else "once a partition is assigned, reading starts"
        text = f"{renewal}; positions in the deleted topic are dropped, {starts} where {self._resets.in_words(place)}"
        text += _CONSEQUENCES.get(self._resets.of(place), "")
        paused = sorted(place for place in resumed if place.topic == renewal.topic)
        return text + (f"; {names_of(paused)} {'is' if len(paused) == 1 else 'are'} not paused any more" if paused else "")
