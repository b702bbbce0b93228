"""Missing topics and partitions: logged at once, reported to callers after `MISSING_MS`.

Apache Kafka's client waits for its whole timeout, and then reports only the timeout. A topic that is being created, and metadata that
brokers still propagate, appear within `MISSING_MS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from chaffinch.client.wait_log import FIRST_LINE_MS, WaitLog
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.errors import KafkaException, Stored, UnknownTopicOrPartitionException, codes
from chaffinch.identifiers import TopicPartition, format_partitions

MISSING_MS: Final = 3_000
"""How long a topic or partition must be missing before calls that need it fail."""


class MissingPartitions:
    """The missing topics and partitions, with the time they were first missed. A topic is a TopicPartition with the partition -1."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._since_ms: dict[TopicPartition, int] = {}
        self._logged: dict[TopicPartition, int] = {}
        """When the first line about it was logged."""
        self._wait_log = WaitLog()

    def _missing(self, tp: TopicPartition) -> TopicPartition | None:
        """The partition, or its whole topic, if metadata says that it does not exist."""
        topic = self._context.cluster.topic(tp.topic)
        if topic is not None and topic.code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            return TopicPartition(tp.topic, -1)
        return tp if topic is not None and topic.partitions and tp.partition >= topic.partition_count else None

    def update(self, leaderless: Collection[TopicPartition], steady_ms: int) -> None:
        """`leaderless`: needed partitions that have no leader. Logs the missing ones the first time, then with growing pauses."""
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
        """Log the first line at once, since only a change of the topic helps; then with growing pauses."""
        first_ms = self._logged.setdefault(missing, steady_ms)
        since_ms = first_ms - FIRST_LINE_MS
        if steady_ms >= self._wait_log.due_ms(missing, since_ms):
            self._wait_log.logged(missing, since_ms, steady_ms)
            lasts = "" if steady_ms == first_ms else f", for {steady_ms - first_ms} ms now"
            self._context.report(f"{self._text(missing)}{lasts}; the consumer keeps requesting it, without a limit")

    def _text(self, missing: TopicPartition) -> str:
        if missing.partition < 0:
            return f"topic {missing.topic!r} does not exist: misspelt, not created yet, deleted, or hidden by a missing Describe permission"
        count = self._context.cluster.partition_count(missing.topic) or 0
        return f"topic {missing.topic!r} has {format_partitions(count)}, there is no partition {missing.partition}"

    def text(self, tp: TopicPartition) -> str | None:
        """Text: the partition is missing, and what to do about it; None unless metadata says so."""
        missing = self._missing(tp)
        return None if missing is None else f"{self._text(missing)}: {_advice(missing)}"

    def error(self, tps: Iterable[TopicPartition], steady_ms: int) -> KafkaException | None:
        """The error for a call that needs these partitions, once one has been missing for `MISSING_MS` and metadata was updated in that
        time.
        """
        updated_ms = self._context.cluster.updated_ms
        for tp in tps:
            missing = self._missing(tp)
            since_ms = None if missing is None else self._since_ms.get(missing)
            if missing is None or since_ms is None or updated_ms is None or steady_ms - since_ms < MISSING_MS or updated_ms <= since_ms:
                continue
            text = f"{self._text(missing)}; missing for {steady_ms - since_ms} ms: {_advice(missing)}"
            return UnknownTopicOrPartitionException(text, topic_partition=missing, stored=Stored.NO, api="Metadata")
        return None

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """The error was raised: later calls wait for the full time again."""
        for tp in tps:
            for missing in (tp, TopicPartition(tp.topic, -1)):
                self._since_ms.pop(missing, None)

    def clear(self) -> None:
        """Other partitions are read from now on."""
        self._since_ms, self._logged = {}, {}
        self._wait_log.over()

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the next one has been missing for `MISSING_MS`; earlier ones do not hide a later deadline."""
        if not self._since_ms:
            return None
        return min((since_ms + MISSING_MS for since_ms in self._since_ms.values() if since_ms + MISSING_MS > steady_ms), default=None)


def _advice(missing: TopicPartition) -> str:
    return "create it" if missing.partition < 0 else "use an existing partition, or add partitions"
