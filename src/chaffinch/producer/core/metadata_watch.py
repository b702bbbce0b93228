"""Metadata refresh: which topics to request, and when. At once for a new topic, after an error, and at `metadata.max.age.ms`."""

from __future__ import annotations

from chaffinch.client.backoff import Backoff, Rng
from chaffinch.client.bootstrap import Bootstrap
from chaffinch.client.cluster import ClusterState
from chaffinch.errors import KafkaException, codes
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


class MetadataWatch:
    """The topics in use, and whether to request their metadata now. One request is in flight at a time."""

    def __init__(
        self, cluster: ClusterState, bootstrap: Bootstrap, *, age_ms_max: int, idle_ms_max: int, backoff: Backoff, rng: Rng
    ) -> None:
        self.cluster = cluster
        self._bootstrap = bootstrap
        self.last_error: KafkaException | None = None
        """Why the last request got no response; None after a response."""
        self._age_ms_max = age_ms_max
        self._idle_ms_max = idle_ms_max
        self._backoff = backoff
        self._rng = rng
        self._used_ms: dict[str, int] = {}
        self._complete_in_version = -1
        """The version of the cluster metadata that contained all topics in use."""
        self._is_refresh_requested = False
        self._is_in_flight = False
        self._requested_topics: frozenset[str] = frozenset()
        self._repeats = 0
        self._not_before_ms = 0

    def use(self, topic: str, steady_ms: int) -> None:
        """Record that records are sent to this topic."""
        is_new = topic not in self._used_ms
        self._used_ms[topic] = steady_ms
        if is_new:
            self._complete_in_version = -1
            self._repeats = 0
            self._not_before_ms = steady_ms

    def refresh(self) -> None:
        """Request metadata again after the backoff, because it is wrong or incomplete."""
        self._is_refresh_requested = True

    @property
    def _is_incomplete(self) -> bool:
        if self._complete_in_version == self.cluster.version:
            return False
        for topic in self._used_ms:
            state = self.cluster.topic(topic)
            if state is None or (not state.partitions and state.code.is_retriable):
                return True
        self._complete_in_version = self.cluster.version
        return False

    def is_due(self, steady_ms: int) -> bool:
        """Whether to send a request now."""
        if self._is_in_flight or steady_ms < self._not_before_ms:
            return False
        return self._is_refresh_requested or self._is_incomplete or self._is_old(steady_ms)

    def _is_old(self, steady_ms: int) -> bool:
        updated_ms = self.cluster.updated_ms
        return bool(self._used_ms) and updated_ms is not None and steady_ms - updated_ms >= self._age_ms_max

    def request(self, steady_ms: int) -> MetadataRequest:
        """The request; it is in flight from now on."""
        for topic in [name for name, used_ms in self._used_ms.items() if steady_ms - used_ms > self._idle_ms_max]:
            del self._used_ms[topic]
            self.cluster.forget(topic)
        requested = frozenset(self._used_ms)
        self._repeats = self._repeats + 1 if requested == self._requested_topics else 1
        self._requested_topics = requested
        self._is_in_flight, self._is_refresh_requested = True, False
        return MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in sorted(requested)], allow_auto_topic_creation=True)

    def response_received(self, response: MetadataResponse, steady_ms: int) -> None:
        """Handle the response. The same request is repeated only after a backoff, which grows while the topics stay the same."""
        self._is_in_flight = False
        self.last_error = None
        self._bootstrap.metadata_received()
        self.cluster.update(response, steady_ms)
        is_settled = not self._is_incomplete
        self._repeats = 1 if is_settled else self._repeats
        self._not_before_ms = steady_ms + self._backoff.wait_ms(self._repeats, self._rng)
        code = codes.by_number(response.error_code)
        if code is codes.REBOOTSTRAP_REQUIRED:
            self._bootstrap.rebootstrap()
        self._is_refresh_requested |= code.is_retriable or code is codes.REBOOTSTRAP_REQUIRED

    def request_failed(self, error: KafkaException, steady_ms: int) -> None:
        """No response: the request goes to another broker as soon as one may be tried."""
        self._is_in_flight = False
        self._is_refresh_requested = True
        self.last_error = error
        self._bootstrap.metadata_failed(steady_ms)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When to check again without an event. A past time: as soon as a broker is available."""
        if self._is_in_flight:
            return None
        if self._is_refresh_requested or self._is_incomplete:
            return self._not_before_ms
        updated_ms = self.cluster.updated_ms
        return updated_ms + self._age_ms_max if self._used_ms and updated_ms is not None else None
