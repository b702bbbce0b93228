"""Metadata requests: when to send one, and for which topics: those read, those of the group's members, or all for a pattern.

A request is sent at once for new topics or after an error, then after a wait that grows while nothing new is learnt, and when the metadata
is older than metadata.max.age.ms. Calls that wait for the partitions of a topic get them, or an error, when metadata arrives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chaffinch.client.effects import CompleteCall, FailCall
from chaffinch.consumer.core.call_errors import IN_TIME
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.missing_partitions import MissingPartitions
from chaffinch.consumer.core.topic_ids import RecreatedTopic
from chaffinch.errors import ErrorCode, KafkaException, Stored, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


@dataclass(frozen=True, slots=True)
class MetadataToken:
    """Token of a Metadata request."""


class MetadataWatch:
    """Sends one request at a time. `internal`: the brokers' internal topics."""

    def __init__(self, context: ConsumerContext) -> None:
        self.internal: frozenset[str] = frozenset()
        self._context = context
        self._age_ms_max: int = context.settings["metadata.max.age.ms"]
        self._may_create: bool = context.settings["allow.auto.create.topics"]
        self._topics: frozenset[str] = frozenset()
        self._needs_all = False
        self._is_under_way = False
        self._requested: tuple[frozenset[str], bool] = (frozenset(), False)
        self._repeats = 0
        self._not_before_ms = 0
        self._all_received_ms: int | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The needed topics."""
        return self._topics

    def use(self, topics: Iterable[str], *, all_topics: bool = False) -> None:
        """Set the needed topics; with `all_topics` all of the cluster."""
        needed = frozenset(topics)
        if not needed <= self._topics or (all_topics and not self._needs_all):
            self._repeats, self._not_before_ms = 0, 0
        if all_topics and not self._needs_all:
            self._all_received_ms = None
        self._topics, self._needs_all = needed, all_topics

    @property
    def has_all_topics(self) -> bool:
        """Whether metadata of all topics has arrived since `all_topics` was set."""
        return self._all_received_ms is not None

    @property
    def _is_incomplete(self) -> bool:
        if self._needs_all and self._all_received_ms is None:
            return True
        for state in map(self._context.cluster.topic, self._topics):
            if state is None or (not state.partitions and state.code.is_retriable):
                return True
        return False

    def _is_old(self, steady_ms: int) -> bool:
        updated_ms = self._context.cluster.updated_ms
        return bool(self._topics or self._needs_all) and updated_ms is not None and steady_ms - updated_ms >= self._age_ms_max

    def advance(self, steady_ms: int) -> None:
        """Send a request, if one is due and a broker can be reached."""
        if self._is_under_way or steady_ms < self._not_before_ms:
            return
        if not (self._context.needs_metadata or self._is_incomplete or self._is_old(steady_ms)):
            return
        address = self._context.any_address(steady_ms)
        if address is not None:
            self._context.send_to_any(address, self._request(), MetadataToken())

    def _request(self) -> MetadataRequest:
        requested = self._topics, self._needs_all
        self._repeats = self._repeats + 1 if requested == self._requested else 1
        self._requested = requested
        self._is_under_way, self._context.needs_metadata = True, False
        topics = None if self._needs_all else [MetadataRequestTopic(name=topic) for topic in sorted(self._topics)]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=self._may_create)

    def response_received(self, response: MetadataResponse, steady_ms: int) -> list[RecreatedTopic]:
        """Process the response to the request in flight; returns the topics that were deleted and created again."""
        cluster = self._context.cluster
        self._is_under_way = False
        self._context.metadata_error = None
        self._context.bootstrap.metadata_received()
        recreated_topics = self.learn(response, steady_ms)
        if self._requested[1]:
            self._all_received_ms = steady_ms
            current = {topic.name for topic in response.topics if topic.name is not None}
            for gone in [topic for topic in cluster.topics() if topic not in current]:
                cluster.forget(gone)
            for missing in self._topics - current:
                cluster.learn_missing_topic(missing, steady_ms)
        self.internal |= {topic.name for topic in response.topics if topic.is_internal and topic.name is not None}
        self._repeats = self._repeats if self._is_incomplete else 1
        self._not_before_ms = steady_ms + self._context.wait_ms(self._repeats)
        code = codes.by_number(response.error_code)
        if code is codes.REBOOTSTRAP_REQUIRED:
            self._context.bootstrap.rebootstrap()
        self._context.needs_metadata |= code.is_retriable or code is codes.REBOOTSTRAP_REQUIRED
        return recreated_topics

    def learn(self, response: MetadataResponse, steady_ms: int) -> list[RecreatedTopic]:
        """Process metadata from any request; returns the topics that were deleted and created again."""
        self._context.cluster.update(response, steady_ms)
        found = (
            self._context.ids.learn(name, self._context.topic_id(name)) for topic in response.topics if (name := topic.name) is not None
        )
        return [recreated for recreated in found if recreated is not None]

    def request_failed(self, error: KafkaException, steady_ms: int) -> None:
        """No response: another broker is tried as soon as one is out of back-off."""
        self._is_under_way = False
        self._context.needs_metadata = True
        self._context.metadata_error = error
        self._context.bootstrap.metadata_failed(steady_ms)

    def refusals(self) -> dict[str, ErrorCode]:
        """Needed topics with an error that retries cannot solve."""
        states = ((topic, self._context.cluster.topic(topic)) for topic in self._topics)
        return {
            topic: state.code
            for topic, state in states
            if state is not None and state.code is not codes.NONE and not state.code.is_retriable
        }

    def next_deadline_ms(self) -> int | None:
        """When to continue without an event. A time in the past: as soon as a broker can be reached."""
        if self._is_under_way:
            return None
        if self._context.needs_metadata or self._is_incomplete:
            return self._not_before_ms
        updated_ms = self._context.cluster.updated_ms
        if (self._topics or self._needs_all) and updated_ms is not None:
            return max(updated_ms + self._age_ms_max, self._not_before_ms)
        return None


@dataclass(slots=True, eq=False)
class TopicCall:
    """A call that waits for a topic's partitions."""

    call: Any
    topic: str
    deadline_ms: int
    limit: str = IN_TIME
    """The time limit as text."""


class TopicCalls:
    """The calls of one consumer that wait for partitions."""

    def __init__(self, context: ConsumerContext, metadata_watch: MetadataWatch, missing_partitions: MissingPartitions) -> None:
        self._context = context
        self._metadata_watch = metadata_watch
        self._missing_partitions = missing_partitions
        self._calls: list[TopicCall] = []

    @property
    def topics(self) -> set[str]:
        return {call.topic for call in self._calls}

    def add(self, call: TopicCall) -> None:
        self._calls.append(call)

    def request_metadata(self) -> None:
        """Add the topics that calls wait for to `leaderless`."""
        if self._calls:
            self._context.leaderless |= {TopicPartition(topic, -1) for topic in self.topics}

    def advance(self, steady_ms: int) -> None:
        """Complete or fail the calls whose result is known."""
        for call in list(self._calls):
            count = self._context.cluster.partition_count(call.topic)
            if count is not None:
                self._calls.remove(call)
                tps = [TopicPartition(call.topic, index) for index in range(count)]
                self._context.out.append(CompleteCall(call=call.call, result=tps))
                continue
            topic = [TopicPartition(call.topic, -1)]
            missing_error = self._missing_partitions.error(topic, steady_ms)
            if missing_error is not None or steady_ms >= call.deadline_ms or call.topic in self._metadata_watch.refusals():
                self._calls.remove(call)
                self._missing_partitions.forget(topic)
                self._context.out.append(FailCall(call=call.call, error=missing_error or self._unknown(call.topic, call.limit)))

    def _unknown(self, topic: str, limit: str) -> KafkaException:
        state = self._context.cluster.topic(topic)
        if state is not None and state.code is not codes.NONE:
            return exception_for(state.code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata")
        return self._context.timeout_error(f"the partitions of topic {topic!r} were not received {limit}")

    def fail_all(self, error: KafkaException) -> None:
        self._context.out += [FailCall(call=call.call, error=error) for call in self._calls]
        self._calls.clear()

    def deadlines_ms(self) -> list[int]:
        return [call.deadline_ms for call in self._calls]
