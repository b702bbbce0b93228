"""Topics and partitions that somebody wants and the cluster does not have: said in the log at once, to callers after a short time.

Apache Kafka's client waits for its whole time-out, and says that time is over. Whoever creates a topic or adds partitions is sooner
done than `MISSING_MS`, and so are brokers that have to hear of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from chaffinch.client.wait_log import FIRST_LINE_MS, WaitLog
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.errors import KafkaException, Stored, UnknownTopicOrPartitionException, codes
from chaffinch.identifiers import TopicPartition, format_partitions

MISSING_MS: Final = 3_000
"""How long something has to be absent until callers that wait for it are told."""


class MissingPartitions:
    """What is absent, and since when that is known. A topic is a TopicPartition without a number, -1."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._since_ms: dict[TopicPartition, int] = {}
        self._logged: dict[TopicPartition, int] = {}
        """When the first line about it was logged."""
        self._wait_log = WaitLog()

    def _missing(self, tp: TopicPartition) -> TopicPartition | None:
        """The place, or all of its topic, if metadata says that it is not there."""
        topic = self._context.cluster.topic(tp.topic)
        if topic is not None and topic.code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            return TopicPartition(tp.topic, -1)
        return tp if topic is not None and topic.partitions and tp.partition >= topic.partition_count else None

    def update(self, leaderless: Collection[TopicPartition], steady_ms: int) -> None:
        """`leaderless`: those wanted now that have no leader; the log says it the first time, and again now and then."""
        if not (leaderless or self._since_ms or self._logged):
            return
        self._since_ms = {tp: since_ms for tp, since_ms in self._since_ms.items() if self._missing(tp) == tp}
        self._logged = {tp: first_ms for tp, first_ms in self._logged.items() if self._missing(tp) == tp}
        if not self._logged:
            self._wait_log.over()
        for tp in leaderless:
            missing = self._missing(tp)
            if missing is not None and missing not in self._since_ms:
                self._since_ms[missing] = steady_ms
            if missing is not None:
                self._log(missing, steady_ms)

    def _log(self, missing: TopicPartition, steady_ms: int) -> None:
        """The first line at once, as nothing but a change of the topic helps; then after growing pauses."""
        first_ms = self._logged.setdefault(missing, steady_ms)
        since_ms = first_ms - FIRST_LINE_MS
        if steady_ms >= self._wait_log.due_ms(missing, since_ms):
            self._wait_log.logged(missing, since_ms, steady_ms)
            lasts = "" if steady_ms == first_ms else f", for {steady_ms - first_ms} ms now"
            self._context.report(f"{self._text(missing)}{lasts}; the consumer goes on asking for it, without a limit")

    def _text(self, missing: TopicPartition) -> str:
        if missing.partition < 0:
            return f"topic {missing.topic!r} is not there: misspelt, not created yet, deleted, or hidden by a missing Describe permission"
        count = self._context.cluster.partition_count(missing.topic) or 0
        return f"topic {missing.topic!r} has {format_partitions(count)}, there is no partition {missing.partition}"

    def text(self, tp: TopicPartition) -> str | None:
        """That it is not there, and what to do; None unless metadata says so."""
        missing = self._missing(tp)
        return None if missing is None else f"{self._text(missing)}: {_advice(missing)}"

    def error(self, tps: Iterable[TopicPartition], steady_ms: int) -> KafkaException | None:
        """What to tell who waits for these, once one of them has been absent for long enough; metadata was asked for meanwhile."""
        updated_ms = self._context.cluster.updated_ms
        for tp in tps:
            missing = self._missing(tp)
            since_ms = None if missing is None else self._since_ms.get(missing)
            if missing is None or since_ms is None or updated_ms is None or steady_ms - since_ms < MISSING_MS or updated_ms <= since_ms:
                continue
            text = f"{self._text(missing)}; none has come for {steady_ms - since_ms} ms: {_advice(missing)}"
            return UnknownTopicOrPartitionException(text, topic_partition=missing, stored=Stored.NO, api="Metadata")
        return None

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Somebody was told: whoever asks anew waits anew."""
        for tp in tps:
            for missing in (tp, TopicPartition(tp.topic, -1)):
                self._since_ms.pop(missing, None)

    def clear(self) -> None:
        """Other partitions are read now."""
        self._since_ms, self._logged = {}, {}
        self._wait_log.over()

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the next of them is absent for long enough; those that are already hide no later one."""
        if not self._since_ms:
            return None
        return min((since_ms + MISSING_MS for since_ms in self._since_ms.values() if since_ms + MISSING_MS > steady_ms), default=None)


def _advice(missing: TopicPartition) -> str:
    return "create it" if missing.partition < 0 else "choose one of those, or give the topic more"
