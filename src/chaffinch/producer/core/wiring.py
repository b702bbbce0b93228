"""What the parts of the core share: the settings in the form they need, what is known of the cluster, and the counters."""

from __future__ import annotations

from collections import Counter
from typing import Final

from chaffinch.client.addresses import Address, Attempts
from chaffinch.client.backoff import Dice
from chaffinch.client.bootstrap import Bootstrap
from chaffinch.client.cluster import ClusterState
from chaffinch.client.options import reconnect_backoff, retry_backoff
from chaffinch.producer.core.exception_handler import Question
from chaffinch.producer.core.metadata_watch import MetadataWatch
from chaffinch.producer.core.options import ACKS, delivery_timeout_ms, is_idempotent
from chaffinch.settings import Settings

COUNTERS: Final = (
    "records_written",
    "records_failed",
    "records_dropped",
    "records_screened",
    "records_sent",
    "records_resent",
    "batches_sent",
    "batches_written",
    "batches_resent",
    "batches_split",
    "batches_separated",
    "bytes_sent",
    "requests_sent",
    "epoch_bumps",
)


class Wiring:
    """Built once per producer. Fixed but for `cluster`, `attempts`, `metadata` and `counts`, which live."""

    def __init__(self, settings: Settings, dice: Dice, questions: frozenset[Question] = frozenset()) -> None:
        self.dice = dice
        self.questions = questions
        """What there is an exception handler for."""
        self.acks = ACKS[settings["acks"]]
        self.is_idempotent = is_idempotent(settings)
        self.transactional_id: str | None = settings["transactional.id"]
        self.transaction_timeout_ms: int = settings["transaction.timeout.ms"]
        self.block_ms: int = settings["max.block.ms"]
        self.retries: int = settings["retries"]
        self.retry_unknown_ms: int = settings["retry.unknown.topic.partition.ms"]
        self.delivery_timeout_ms: int = delivery_timeout_ms(settings)
        self.request_timeout_ms: int = settings["request.timeout.ms"]
        self.request_bytes_max: int = settings["max.request.size"]
        self.requests_per_node_max: int = settings["max.in.flight.requests.per.connection"]
        self.retry_backoff = retry_backoff(settings)
        self.cluster = ClusterState()
        self.bootstrap = Bootstrap(settings, self.cluster, limit_ms=self.block_ms)
        self.attempts = Attempts(reconnect_backoff(settings), dice)
        self.metadata = MetadataWatch(
            self.cluster,
            self.bootstrap,
            age_ms_max=settings["metadata.max.age.ms"],
            idle_ms_max=settings["metadata.max.idle.ms"],
            backoff=self.retry_backoff,
            dice=dice,
        )
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    def wait_ms(self, failures: int) -> int:
        """How long to wait before something is tried again after so many failures."""
        return self.retry_backoff.wait_ms(failures, self.dice)

    @property
    def known_addresses(self) -> list[Address]:
        """The cluster's brokers, and where it was first looked for."""
        return self.bootstrap.candidates()

    def any_address(self, now_ms: int) -> Address | None:
        """A broker to ask; None while all have to wait after a failure."""
        return self.attempts.pick(self.known_addresses, now_ms)
