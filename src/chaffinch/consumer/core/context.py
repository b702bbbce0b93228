"""ConsumerContext: state shared by the parts of the core: parsed settings, cluster metadata, subscriptions, counters and effects."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Rng
from chaffinch.client.effects import CompleteCall, Disconnect, FailCall, Report, SendRequest
from chaffinch.client.known_cluster import KnownCluster
from chaffinch.consumer.core.options import ResetStrategy, reset_strategy
from chaffinch.consumer.core.positions import Subscriptions
from chaffinch.consumer.core.topic_ids import TopicIds
from chaffinch.errors import KafkaException, Stored, TimeoutException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import ISOLATION_LEVELS
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.settings import Settings

COUNTERS: Final = (
    "records_consumed",
    "bytes_consumed",
    "fetches_sent",
    "fetches_answered",
    "commits_sent",
    "commits_failed",
    "heartbeats_sent",
    "rebalances",
    "assignments_lost",
    "offset_resets",
)

LANE_FETCH: Final = 1
"""Connection for fetches, which wait for records."""
LANE_GROUP: Final = 2
"""Connection to the coordinator, where JoinGroup waits for other members. All other requests use lane 0."""
LANE_LEAVE: Final = 3
"""Connection for a LeaveGroup whose first attempt got no response."""
LANES: Final = 4


@dataclass(frozen=True, slots=True)
class WakeCaller:
    """There is news for a caller that waits in `poll`."""


Effect: TypeAlias = SendRequest | Disconnect | CompleteCall | FailCall | WakeCaller | Report
"""Effects of the core for the shell, in order."""


class Cause(NamedTuple):
    """A cause that the consumer waits for. `key`: log lines with the same key are rate-limited together."""

    key: tuple[str, ...]
    what: str
    why: str
    tps: frozenset[TopicPartition] = frozenset()
    """The partitions that wait for it."""
    is_of_group: bool = False
    is_of_all: bool = False
    """Nothing can continue without it."""
    since_ms: int = 0
    """When it began; 0: when it was first seen."""
    until_ms: int | None = None
    limit: str = ""


class ConsumerContext(KnownCluster):
    """Created once per consumer. `counts`, `out`, `ids` and `subscriptions` change over its life."""

    def __init__(self, settings: Settings, rng: Rng) -> None:
        super().__init__(settings, rng, limit_ms=settings["default.api.timeout.ms"])
        self.settings = settings
        self.request_timeout_ms: int = settings["request.timeout.ms"]
        self.reset_strategy: ResetStrategy = reset_strategy(settings)
        self.isolation_level: int = ISOLATION_LEVELS[settings["isolation.level"]]
        self.group_id: str = settings["group.id"] or ""
        self.instance_id: str | None = settings["group.instance.id"]
        self.subscriptions = Subscriptions()
        self.ids = TopicIds()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.out: list[Effect] = []
        self.errors: deque[KafkaException] = deque()
        """Errors for the caller's next polls, one each."""
        self.needs_metadata = False
        self.leaderless: set[TopicPartition] = set()
        """Needed partitions without a known leader, collected since the last round."""
        self.metadata_error: KafkaException | None = None
        """Why the last Metadata request got no response; None after a response."""
        self.coordinator_error: KafkaException | None = None
        """The same for FindCoordinator."""
        self.causes: list[Cause] = []
        """Causes of waits, as of the last round."""

    @property
    def is_unreachable(self) -> bool:
        """Whether the last attempt to reach each broker failed."""
        return all(map(self.attempts.failures, self.known_addresses))

    def node_address(self, node_id: int, steady_ms: int, lane: int = 0) -> Address | None:
        """The address of a node; None if it is not known, or in back-off after a failure."""
        address = self.cluster.address_of(node_id)
        if address is None:
            return None
        address = address._replace(lane=lane)
        return address if self.attempts.may_try(address, steady_ms) else None

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The epoch of the partition's leader; -1 if it is not known."""
        state = self.cluster.partition(tp)
        return -1 if state is None else state.leader_epoch

    def topic_id(self, topic: str) -> UUID:
        """The topic's id; zero if it is not known."""
        return self.cluster.topic_id(topic) or ZERO_UUID

    def is_current(self, topic: str, topic_id: UUID) -> bool:
        """Whether this id still has the topic name. If not, a response about it is outdated: the topic was deleted and created again."""
        current = self.topic_id(topic)
        return current == topic_id or ZERO_UUID in (current, topic_id)

    def send_to_any(self, address: Address, message: Any, token: Any) -> None:
        """Send a request that any broker can process to an address from `any_address`."""
        self.send(address, message, token, timeout_ms=self.bootstrap.response_timeout_ms(address, self.attempts))

    def send(self, address: Address, message: Any, token: Any, *, timeout_ms: int | None = None, version_max: int | None = None) -> None:
        self.attempts.request_sent(address)
        self.out.append(
            SendRequest(
                address=address,
                message=message,
                token=token,
                timeout_ms=self.request_timeout_ms if timeout_ms is None else timeout_ms,
                version_max=version_max,
            )
        )

    def disconnect(self, address: Address, reason: str) -> None:
        self.out.append(Disconnect(address, reason))

    def refresh(self) -> None:
        """Cluster metadata is wrong or incomplete: request it, after the wait between requests."""
        self.needs_metadata = True

    def need_leader(self, tp: TopicPartition) -> None:
        """The partition has no known leader: request metadata."""
        self.needs_metadata = True
        self.leaderless.add(tp)

    def fail(self, error: KafkaException) -> None:
        """Raise this error once, in the caller's next poll."""
        if error not in self.errors:
            self.errors.append(error)
        self.wake_caller()

    def wait_text(self, tps: Collection[TopicPartition], *, uses_group: bool) -> str:
        """What these partitions, or the group, wait for now, as part of an error message; empty if nothing is known."""
        for cause in self.causes:
            if cause.is_of_all or (cause.is_of_group and uses_group) or not cause.tps.isdisjoint(tps):
                return f"waiting for {cause.what}: {cause.why}"
        return ""

    def timeout_error(
        self,
        text: str,
        last_error: KafkaException | None = None,
        *,
        tps: Collection[TopicPartition] = (),
        uses_group: bool = True,
        api: str | None = None,
        stored: Stored = Stored.NO,
    ) -> KafkaException:
        """The error of a call that timed out, with the known cause.

        `tps`: the partitions of the call. `last_error`: the last error response to its request.
        """
        cause = last_error or self.metadata_error or self.coordinator_error
        if self.cluster.updated_ms is None or self.is_unreachable:
            text = f"{text}: {self.attempts.describe(self.known_addresses)}"
        else:
            waits = self.wait_text(tps, uses_group=uses_group)
            if cause is not None and (last_error is not None or not waits):
                text = f"{text}; the last error was {cause.name}: {cause.message}"
            text += f"; {waits}" if waits else ""
        error = TimeoutException(text, stored=stored, api=api)
        error.__cause__ = cause
        return error

    def wake_caller(self) -> None:
        self.out.append(WakeCaller())

    def report(self, text: str) -> None:
        self.out.append(Report(text))
