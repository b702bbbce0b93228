"""What becomes of positions when a topic is deleted and created again: nothing of the earlier topic holds in the new one.

A partition's position, what was fetched, its paused state and its lag are dropped; reading starts where auto.offset.reset says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.options import EARLIEST, LATEST, NEW_PARTITIONS, NONE
from chaffinch.consumer.core.reset_policy import ResetPolicy
from chaffinch.consumer.core.topic_ids import Renewal
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID

_CONSEQUENCES: Final = {
    NONE: ": seek",
    LATEST: f": records that are written before that are not read ({NEW_PARTITIONS}={EARLIEST.name} reads them)",
}


class Renewals:
    """Those of one consumer's assigned partitions."""

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
