"""Topic discovery of the source: partitions of the configured topics, and their start and end offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from chaffinch import plain_text
from chaffinch.client.arguments import illegal_topic_reason
from chaffinch.errors import ConfigException, TimeoutException, UnknownTopicOrPartitionException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition, pluralize
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.settings import shown_value
from chaffinch.spark import topic_ids
from chaffinch.spark.refusals import Refusal, refusal_for
from chaffinch.spark.source.reports import SourceWaits
from chaffinch.spark.target import UNKNOWN_TOPIC_PAUSE_MS, UNKNOWN_TOPIC_TIMEOUT_MS

if TYPE_CHECKING:
    from chaffinch.admin.offsets import Isolation
    from chaffinch.client.sync_client import SyncClient, Target
    from chaffinch.spark.source.options import SourceOptions
    from chaffinch.spark.source.topic_offsets import OffsetChoice
    from chaffinch.spark.topic_ids import TopicIds

_log = plain_text.logger(__name__)

_RETRIES_MAX: Final = UNKNOWN_TOPIC_TIMEOUT_MS // UNKNOWN_TOPIC_PAUSE_MS
# With NONE the response has the topic without partitions.
_NO_SUCH_TOPIC: Final = (codes.NONE, codes.UNKNOWN_TOPIC_OR_PARTITION, codes.INVALID_TOPIC_EXCEPTION)

OPEN_TRANSACTION_WAIT_MS: Final = 50
OPEN_TRANSACTIONS: Final = "the end of open transactions"


class _Topic(NamedTuple):
    """Metadata of one topic."""

    partition_count: int
    topic_id: UUID


_NO_TOPIC: Final = _Topic(0, ZERO_UUID)
_TopicQuery: TypeAlias = "Callable[[Target, int], dict[str, _Topic]]"
"""Requests topic metadata from one broker or any, with a timeout in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPartitions:
    """The partitions to read, and one line for each configured topic or partition that does not exist."""

    partitions: tuple[TopicPartition, ...]
    absent: tuple[str, ...]


class TopicDiscovery:
    """Metadata and offset requests for the topics of one query. All methods raise ApiException after a timeout."""

    def __init__(self, client: SyncClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._partition_counts: dict[str, int] = {}
        """Topic -> partition count as last settled. A topic that was missing after the wait is not waited for again."""
        self.ids: dict[str, UUID] = {}
        """Topic ids as last settled. Brokers before 2.8 have none."""

    def partitions(self) -> FoundPartitions:
        """The current partitions."""
        options = self._options
        if options.pattern is not None:
            counts = self._settle(self._matching(re.compile(options.pattern)), None)
            existing = (TopicPartition(name, number) for name, count in sorted(counts.items()) for number in range(count))
            return FoundPartitions(partitions=tuple(existing), absent=())
        names = list(options.topics or dict.fromkeys(tp.topic for tp in options.assignment))
        counts = self._counts(names)
        cause = "subscribe" if options.topics else "assign"
        brokers = ", ".join(map(str, self._client.cluster.nodes.values()))
        absent = [f"topic {name!r} (option {cause}) does not exist on {brokers}" for name in names if not counts[name]]
        if options.topics:
            every = (TopicPartition(name, number) for name in sorted(set(names)) for number in range(counts[name]))
            return FoundPartitions(partitions=tuple(every), absent=tuple(absent))
        for tp in options.assignment:
            if 0 < counts[tp.topic] <= tp.partition:
                absent.append(
                    f"partition {tp.partition} of topic {tp.topic!r} (option assign) does not exist: the topic has "
                    f"{pluralize(counts[tp.topic], 'partition')}"
                )
        existing = (tp for tp in options.assignment if tp.partition < counts[tp.topic])
        return FoundPartitions(partitions=tuple(existing), absent=tuple(absent))

    def partitions_at_start(self) -> tuple[TopicPartition, ...]:
        """The current partitions. Raises Refusal unless all that the options name exist. A pattern without a match is only logged."""
        self._refuse_illegal()
        found = self.partitions()
        if not found.partitions and self._options.pattern is not None:
            text = "no topic on %s has a name that option subscribePattern=%r matches as a whole: there is nothing to read now"
            _log.warning(text, ",".join(self._options.client.bootstrap_servers), self._options.pattern)
        if found.absent:
            text = f"{found.absent[0]}; create it, or correct the option"
            raise Refusal(Group.INVALID_CONFIGURATION, codes.UNKNOWN_TOPIC_OR_PARTITION.name, text)
        return found.partitions

    def _refuse_illegal(self) -> None:
        """Refuse illegal topic names, which brokers only report as unknown."""
        options = self._options
        option = "subscribe" if options.topics else "assign"
        for name in (*options.topics, *(tp.topic for tp in options.assignment)):
            if (reason := illegal_topic_reason(name)) is not None:
                text = f"topic {shown_value(name)} (option {option}) is not a legal name: {reason}; correct the option"
                raise Refusal(Group.INVALID_CONFIGURATION, codes.INVALID_TOPIC_EXCEPTION.name, text)

    def existing(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that exist; all of them have existed."""
        self.expect(partitions)
        counts = self._counts(sorted({tp.topic for tp in partitions})) if partitions else {}
        return {tp for tp in partitions if tp.partition < counts[tp.topic]}

    def expect(self, partitions: Collection[TopicPartition], ids: TopicIds | None = None) -> None:
        """Set partitions and topic ids of a checkpoint: a broker that reports others may have stale metadata."""
        for topic, number in partitions:
            self._partition_counts[topic] = max(self._partition_counts.get(topic, 0), number + 1)
        self.ids.update(ids or {})

    def _matching(self, pattern: re.Pattern[str]) -> _TopicQuery:
        from chaffinch.admin.topics import list_topics

        def query(node: Target, timeout_ms: int) -> dict[str, _Topic]:
            topics = list_topics(self._client, node=node, timeout_ms=timeout_ms)
            matching = (topic for topic in topics if not topic.is_internal and pattern.fullmatch(topic.name))
            return {topic.name: _Topic(len(topic.partitions), topic.topic_id) for topic in matching}

        return query

    def _counts(self, names: list[str]) -> dict[str, int]:
        """Topic -> partition count; 0 if the topic does not exist after retries.

        Raises Refusal for a topic whose state is unknown, because its records must not count as lost.
        """

        def query(node: Target, timeout_ms: int) -> dict[str, _Topic]:
            cluster = self._client.refresh_metadata(names, node=node, timeout_ms=timeout_ms)
            return {name: _Topic(cluster.partition_count(name) or 0, cluster.topic_id(name) or ZERO_UUID) for name in names}

        counts = self._settle(query, names)
        for name in sorted(name for name in names if not counts[name]):
            state = self._client.cluster.topic(name)
            if state is not None and state.code not in _NO_SUCH_TOPIC:
                raise refusal_for(state.code, f"topic {name!r}: {state.code.text}")
        return counts

    def _settle(self, query: _TopicQuery, names: Collection[str] | None) -> dict[str, int]:
        """The partition counts of `names` (None: of all known topics). Fewer partitions than before, or another id, are verified.

        A new topic or partition may not have reached every broker yet, so one broker after another is queried, for a limited time.
        """
        found = query("any", self._options.timeout_ms)
        for attempt in range(1, _RETRIES_MAX + 1):
            if not any(self._may_be_stale(name, found.get(name, _NO_TOPIC)) for name in (names or self._partition_counts)):
                break
            self._client.pause(UNKNOWN_TOPIC_PAUSE_MS)  # Brokers send no notification of changed metadata.
            nodes = sorted(self._client.cluster.nodes)
            with suppress(TimeoutException):  # One broker may be unavailable; the others may have the topic.
                found = query(nodes[attempt % len(nodes)] if nodes else "any", min(self._options.timeout_ms, UNKNOWN_TOPIC_TIMEOUT_MS))
        settled = {name: found.get(name, _NO_TOPIC) for name in (names or self._partition_counts)} | found
        counts = {name: topic.partition_count for name, topic in settled.items()}
        self._partition_counts.update(counts)
        self.ids.update({name: topic.topic_id for name, topic in settled.items() if topic.topic_id != ZERO_UUID})
        return counts

    def _may_be_stale(self, name: str, found: _Topic) -> bool:
        """Whether a broker may have stale metadata: fewer partitions than before, or another id."""
        is_other = bool(found.partition_count and topic_ids.created_again(self.ids, {name: found.topic_id}))
        return is_other or found.partition_count < self._partition_counts.get(name, 1)

    # Start and end offsets.

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first existing offset of each partition."""
        return self._list(dict.fromkeys(partitions, OFFSET_EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each partition; with `read_committed` the last stable offset."""
        return self._list(dict.fromkeys(partitions, OFFSET_LATEST))

    def written(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each partition, including records of open transactions."""
        return self._list(dict.fromkeys(partitions, OFFSET_LATEST), "read_uncommitted")

    def wait_until_readable(self, ends: Mapping[TopicPartition, int]) -> None:
        """Wait until no transaction is open below these offsets, so that all records can be read.

        Raises Refusal after `kafka.default.api.timeout.ms`.
        """
        deadline, waits = self._client.deadline(self._options.timeout_ms, OPEN_TRANSACTIONS), SourceWaits()
        while open_in := [tp for tp, offset in self.latest(ends).items() if offset < ends[tp]]:
            waits.log(deadline, f"{open_in[0]} has an open transaction before offset {ends[open_in[0]]}")
            if deadline.is_over:
                text = f"{open_in[0]} has had an open transaction for {self._options.timeout_ms} ms, and later records cannot be read"
                raise Refusal(Group.APPLICATION_RECOVERABLE, codes.REQUEST_TIMED_OUT.name, f"{text}; start again when it has ended")
            self._client.pause(OPEN_TRANSACTION_WAIT_MS)  # Brokers send no notification when a transaction ends.

    def starting_at_earliest(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Partitions that start at the earliest offset: records that are removed before they are read are not a loss."""
        choice = self._options.starting
        return {tp for tp, position in choice.of(partitions).items() if position == OFFSET_EARLIEST and not choice.is_time}

    def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Start offsets of the options. Raises ConfigException if there is no record of the starting time or later; records after an
        open transaction count.
        """
        found = self._offsets(self._options.starting, partitions, "read_uncommitted")
        if (late := sorted(tp for tp, offset in found.items() if offset < 0)) and not self._options.starts_with_latest:
            choice = self._options.starting
            raise ConfigException(
                f"{choice.option}: {late[0]} has no record of {choice.of(partitions)[late[0]]} (ms since 1970) or later; choose an earlier "
                "time, or startingOffsetsByTimestampStrategy=latest to start with the latest offset"
            )
        return found | self.latest(late)

    def starts_found(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Like `starts`, for the partitions that the options cover and that have a record of their time or later."""
        choice = self._options.starting
        found = self._offsets(choice, choice.covered(partitions), "read_uncommitted")
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets of the options; the latest offset if there is no record of the ending time or later."""
        found = self._offsets(self._options.ending, partitions)
        return found | self.latest([tp for tp in found if found[tp] < 0])

    def _offsets(
        self, choice: OffsetChoice, partitions: Collection[TopicPartition], time_isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        """Offsets of the options; -1 for a time without a record."""
        wanted = choice.of(partitions)
        if choice.is_time:
            return self._list(wanted, time_isolation)
        return wanted | self._list({tp: position for tp, position in wanted.items() if position < 0})

    def _list(self, times: Mapping[TopicPartition, int], isolation: Isolation | None = None) -> dict[TopicPartition, int]:
        from chaffinch.admin.offsets import list_offsets

        level = cast("Isolation", isolation or self._options.isolation_level)
        for retries_left in reversed(range(_RETRIES_MAX + 1)):
            try:
                return list_offsets(self._client, times, isolation=level, timeout_ms=self._options.timeout_ms) if times else {}
            except UnknownTopicOrPartitionException:
                # A leader may get a new partition later than the broker with the metadata; or the topic was deleted.
                if not retries_left:
                    raise
            self._client.pause(UNKNOWN_TOPIC_PAUSE_MS)
        raise AssertionError("the last attempt returns or raises")
