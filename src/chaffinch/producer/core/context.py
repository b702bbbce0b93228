"""ProducerContext: state shared by the parts of the core: parsed settings, cluster metadata, the transaction, counters and effects."""

from __future__ import annotations

from collections import Counter
from typing import Final

from chaffinch.client.backoff import Rng
from chaffinch.client.known_cluster import KnownCluster
from chaffinch.producer.core.effects import Effect
from chaffinch.producer.core.exception_handler import Question
from chaffinch.producer.core.metadata_watch import MetadataWatch
from chaffinch.producer.core.options import ACKS, delivery_timeout_ms, is_idempotent
from chaffinch.producer.core.transactions.manager import TransactionManager
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


class ProducerContext(KnownCluster):
    """Created once per producer. `metadata`, `transaction`, `counts` and `out` change over its life."""

    def __init__(self, settings: Settings, rng: Rng, questions: frozenset[Question] = frozenset()) -> None:
        super().__init__(settings, rng, limit_ms=settings["max.block.ms"])
        self.questions = questions
        """The cases that the exception handler decides."""
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
        self.metadata = MetadataWatch(
            self.cluster,
            self.bootstrap,
            age_ms_max=settings["metadata.max.age.ms"],
            idle_ms_max=settings["metadata.max.idle.ms"],
            backoff=self.retry_backoff,
            rng=rng,
        )
        self.transaction = (
            None if self.transactional_id is None else TransactionManager(self.transactional_id, self.transaction_timeout_ms, self.block_ms)
        )
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.out: list[Effect] = []
        """Effects for the shell, in order."""
