"""Topics and partitions that somebody wants and the cluster does not have: said in the log at once, to callers after a short time.

Apache Kafka's client waits for its whole time-out, and says that time is over. Whoever creates a topic or adds partitions is sooner
done than `ABSENT_MS`, and so are brokers that have to hear of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from chaffinch.client.wait_log import FIRST_LINE_MS, WaitLog
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import KafkaException, Stored, UnknownTopicOrPartitionException, codes
from chaffinch.identifiers import TopicPartition, format_partitions

ABSENT_MS: Final = 3_000
"""How long something has to be absent until callers that wait for it are told."""


class Absences:
    """What is absent, and since when that is known. A topic is a TopicPartition without a number, -1."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._since_ms: dict[TopicPartition, int] = {}
        self._logged: dict[TopicPartition, int] = {}
        """When the first line about it was logged."""
        self._wait_log = WaitLog()

    def _absent(self, place: TopicPartition) -> TopicPartition | None:
        """The place, or all of its topic, if metadata says that it is not there."""
        topic = self._wiring.cluster.topic(place.topic)
        if topic is not None and topic.code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            return TopicPartition(place.topic, -1)
        return place if topic is not None and topic.partitions and place.partition >= topic.partition_count else None

    def look(self, missed: Collection[TopicPartition], steady_ms: int) -> None:
        """`missed`: those wanted now that have no leader; the log says it the first time, and again now and then."""
        if not (missed or self._since_ms or self._logged):
            return
        self._since_ms = {place: since_ms for place, since_ms in self._since_ms.items() if self._absent(place) == place}
        self._logged = {place: first_ms for place, first_ms in self._logged.items() if self._absent(place) == place}
        if not self._logged:
            self._wait_log.over()
        for place in missed:
            absent = self._absent(place)
            if absent is not None and absent not in self._since_ms:
                self._since_ms[absent] = steady_ms
            if absent is not None:
                self._log(absent, steady_ms)

    def _log(self, absent: TopicPartition, steady_ms: int) -> None:
        """The first line at once, as nothing but a change of the topic helps; then after growing pauses."""
        first_ms = self._logged.setdefault(absent, steady_ms)
        since_ms = first_ms - FIRST_LINE_MS
        if steady_ms >= self._wait_log.due_ms(absent, since_ms):
            self._wait_log.logged(absent, since_ms, steady_ms)
            lasts = "" if steady_ms == first_ms else f", for {steady_ms - first_ms} ms now"
            self._wiring.report(f"{self._text(absent)}{lasts}; the consumer goes on asking for it, without a limit")

    def _text(self, absent: TopicPartition) -> str:
        if absent.partition < 0:
            return f"topic {absent.topic!r} is not there: misspelt, not created yet, deleted, or hidden by a missing Describe permission"
        count = self._wiring.cluster.partition_count(absent.topic) or 0
        return f"topic {absent.topic!r} has {format_partitions(count)}, there is no partition {absent.partition}"

    def text(self, place: TopicPartition) -> str | None:
        """That it is not there, and what to do; None unless metadata says so."""
        absent = self._absent(place)
        return None if absent is None else f"{self._text(absent)}: {_advice(absent)}"

    def error(self, places: Iterable[TopicPartition], steady_ms: int) -> KafkaException | None:
        """What to tell who waits for these, once one of them has been absent for long enough; metadata was asked for meanwhile."""
        updated_ms = self._wiring.cluster.updated_ms
        for place in places:
            absent = self._absent(place)
            since_ms = None if absent is None else self._since_ms.get(absent)
            if absent is None or since_ms is None or updated_ms is None or steady_ms - since_ms < ABSENT_MS or updated_ms <= since_ms:
                continue
            text = f"{self._text(absent)}; none has come for {steady_ms - since_ms} ms: {_advice(absent)}"
            return UnknownTopicOrPartitionException(text, topic_partition=absent, stored=Stored.NO, api="Metadata")
        return None

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Somebody was told: whoever asks anew waits anew."""
        for place in places:
            for absent in (place, TopicPartition(place.topic, -1)):
                self._since_ms.pop(absent, None)

    def clear(self) -> None:
        """Other partitions are read now."""
        self._since_ms, self._logged = {}, {}
        self._wait_log.over()

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the next of them is absent for long enough; those that are already hide no later one."""
        if not self._since_ms:
            return None
        return min((since_ms + ABSENT_MS for since_ms in self._since_ms.values() if since_ms + ABSENT_MS > steady_ms), default=None)


def _advice(absent: TopicPartition) -> str:
    return "create it" if absent.partition < 0 else "choose one of those, or give the topic more"
