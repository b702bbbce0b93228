"""What the parts of the core share: settings, the cluster, what is subscribed to, errors for the caller, requests, and counters."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, Final
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Dice
from chaffinch.client.known_cluster import KnownCluster
from chaffinch.consumer.core.effects import Disconnect, Effect, Report, SendRequest, WakeCaller
from chaffinch.consumer.core.positions import Subscriptions
from chaffinch.consumer.core.topic_ids import TopicIds
from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition
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
"""The connection of fetches, which wait for records."""
LANE_GROUP: Final = 2
"""The connection to the coordinator, where JoinGroup waits for other members. Everything else goes over lane 0."""
LANE_LEAVE: Final = 3
"""The connection for a LeaveGroup whose first attempt has no response."""
LANES: Final = 4


class Wiring(KnownCluster):
    """Built once per consumer. `subscriptions`, `errors`, `counts` and `out` live, too."""

    def __init__(self, settings: Settings, dice: Dice) -> None:
        super().__init__(settings, dice, limit_ms=settings["default.api.timeout.ms"])
        self.settings = settings
        self.request_timeout_ms: int = settings["request.timeout.ms"]
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.out: list[Effect] = []
        self.subscriptions: Final = Subscriptions()
        self.errors: deque[KafkaException] = deque()
        """What the caller's next polls raise, one each."""
        self.ids = TopicIds()

    @property
    def is_cut_off(self) -> bool:
        """Whether none of the brokers could be reached when that was tried last."""
        return all(map(self.attempts.failures, self.known_addresses))

    def node_address(self, node_id: int, now_ms: int, lane: int = 0) -> Address | None:
        """Where a node is reached; None if that is not known, or has to wait after a failure."""
        address = self.cluster.address_of(node_id)
        if address is None:
            return None
        address = address._replace(lane=lane)
        return address if self.attempts.may_try(address, now_ms) else None

    def leader_epoch(self, place: TopicPartition) -> int:
        """The epoch of the partition's leader, -1 if it is not known."""
        state = self.cluster.partition(place)
        return -1 if state is None else state.leader_epoch

    def topic_id(self, topic: str) -> UUID:
        """Zero where it is not known."""
        return self.cluster.topic_id(topic) or ZERO_UUID

    def is_present(self, topic: str, topic_id: UUID) -> bool:
        """Whether the topic of this id has the name now. Otherwise an answer about it comes late: it was deleted and created again."""
        present = self.topic_id(topic)
        return present == topic_id or ZERO_UUID in (present, topic_id)

    def ask_any(self, address: Address, message: Any, token: Any) -> None:
        """Send what any broker can answer to one that `any_address` has given."""
        self.send(address, message, token, timeout_ms=self.bootstrap.patience_ms(address, self.attempts))

    def send(self, address: Address, message: Any, token: Any, *, timeout_ms: int | None = None, version_max: int | None = None) -> None:
        self.attempts.asks(address)
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

    def fail(self, error: KafkaException) -> None:
        """The caller's next poll raises it, once."""
        if error not in self.errors:
            self.errors.append(error)
        self.wake()

    def wake(self) -> None:
        self.out.append(WakeCaller())

    def report(self, text: str) -> None:
        self.out.append(Report(text))
