"""Screening: after a broker has refused records without a key, waiting records of tables without a key fail without being sent.

KIP-467 section 3.b.ii sends a batch with culprits twice, whole and without them. A table with one culprit in a hundred has some in every
batch. So a refusal is remembered, and the next batches lose such records before they are sent. The broker still decides:

- A record fails only because of a refused request that was sent after the record was handed over: it could have been part of that request.
  So a change that the caller made earlier, such as a new `cleanup.policy`, was already visible to the broker.
- The refusal must come from the same leader (by address) for the same topic (by id). A recreated topic starts without one.
- The cause must be visible in the record: it has no key. Whether a timestamp is in range depends on the broker's clock.
- The refusal must have named exactly the records of its batch that have no key.
- A refusal is valid for SCREEN_MS_MAX, and screened records do not extend that. In the meantime one batch is sent unchanged, as a probe.

Rows are removed from a table before they are encoded, and from waiting batches when they are taken. Screening is for tables, whose rows are
all handed over when the call begins. Records of `send` come one by one, and the cost of each call exceeds that of a second attempt.

Nothing is screened if an exception handler decides about rejected records, in transactions, and with acks=0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.errors import ApiException, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.batch import ProducerBatch, Rows
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.refusals.batch_responses import BatchResponse
from chaffinch.producer.core.refusals.record_errors import CulpritErrors, ScreenedErrors

# The maximum age of a refusal by which a row fails, since the topic may be changed during a long `send_table`. Long enough for hundreds of
# batches to be sent once rather than twice.
SCREEN_MS_MAX: Final = 1000
# After this time one batch is sent unchanged, as a probe. Its response, usually within milliseconds, arrives before the refusal expires;
# otherwise all batches in flight would be sent twice, not only one.
PROBE_AFTER_MS: Final = 500
# At this interval the rows of one partition are encoded unchanged, so that a batch is available as a probe: encoded batches may wait long.
UNSCREENED_INTERVAL_MS: Final = 200


@dataclass(slots=True)
class _Screen:
    """A leader's refusal of records without a key. `sent_ms`: when the refused request was sent."""

    topic_id: UUID
    sent_ms: int
    message: str
    unscreened_ms: int
    """When rows were last encoded unchanged."""
    is_probed: bool = False
    """Since then a batch with such records has been sent unchanged."""


class Screening:
    """Remembers refusals, and finds records that would be refused."""

    def __init__(self, context: ProducerContext) -> None:
        self._context = context
        self._screens: dict[tuple[str, Address], _Screen] = {}

    def refused(self, batch: ProducerBatch, response: BatchResponse, errors: Mapping[int, ApiException]) -> None:
        """The broker refused a batch, certainly not stored, for these of its records."""
        keyless = _keyless(batch)
        if not len(keyless) or batch.sent_to is None:
            return
        (address, topic_id), topic = batch.sent_to, batch.topic_partition.topic
        self._screens.pop((topic, address), None)
        # Culprits that were derived from the topic's configuration (older brokers) do not count. Nor does a decision of an exception
        # handler (a plain dict), which must decide about the next records, too.
        if not response.record_errors or not isinstance(errors, CulpritErrors):
            return
        if np.array_equal(errors.refused_with(codes.INVALID_COMPACTION_KEY), keyless):
            self._screens[topic, address] = _Screen(
                topic_id, batch.sent_ms, errors.message_of(int(keyless[0])), unscreened_ms=batch.sent_ms
            )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered."""
        return not self._screens

    def written(self, batch: ProducerBatch) -> None:
        """The broker has stored a batch. If some of its records have no key, it accepts such records, and the refusal is forgotten."""
        if self._screens and batch.sent_to is not None and len(_keyless(batch)):
            self._screens.pop((batch.topic_partition.topic, batch.sent_to[0]), None)

    def of_rows(self, topic: str, handed_over_ms: int, steady_ms: int) -> dict[int, str]:
        """The partitions whose rows without a key fail now, before they are encoded, and the cause for each partition."""
        state = self._context.cluster.topic(topic) if self._screens else None
        if state is None:
            return {}
        by_leader: dict[Address, list[int]] = {}
        for partition in state.partitions:
            if (address := self._context.cluster.leader_address(TopicPartition(topic, partition))) is not None:
                by_leader.setdefault(address, []).append(partition)
        reasons: dict[int, str] = {}
        for address, partitions in by_leader.items():
            screen = self._screen_of(topic, handed_over_ms, (address, state.topic_id), steady_ms)
            if screen is None:
                continue
            if steady_ms - screen.unscreened_ms >= UNSCREENED_INTERVAL_MS:
                screen.unscreened_ms = steady_ms
                del partitions[steady_ms // UNSCREENED_INTERVAL_MS % len(partitions)]
            reasons.update(dict.fromkeys(partitions, _refused(screen, topic, steady_ms)))
        return reasons

    def failed(self, count: int) -> None:
        """Count `count` rows that failed because of `of_rows`."""
        self._context.counts["records_failed"] += count
        self._context.counts["records_screened"] += count

    def errors_of(self, head: ProducerBatch, destination: tuple[Address, UUID], steady_ms: int) -> ScreenedErrors | None:
        """The errors of the records of a partition's next batch that its leader would refuse; None if the batch is sent unchanged."""
        topic = head.topic_partition.topic
        screen = self._screen_of(topic, head.handed_over_ms, destination, steady_ms)
        keyless = _keyless(head)
        if screen is None or not len(keyless) or self._is_probe(screen, steady_ms):
            return None
        return ScreenedErrors(keyless.tolist(), head.rows, head.topic_partition, _refused(screen, topic, steady_ms))

    def _screen_of(self, topic: str, handed_over_ms: int | None, destination: tuple[Address, UUID], steady_ms: int) -> _Screen | None:
        """The leader's last refusal, if it applies to rows that were handed over at `handed_over_ms`."""
        address, topic_id = destination
        key = topic, address
        screen = self._screens.get(key)
        if screen is None:
            return None
        if screen.topic_id != topic_id or steady_ms - screen.sent_ms >= SCREEN_MS_MAX:
            del self._screens[key]
            return None
        # Within one millisecond the order is unknown.
        is_older = handed_over_ms is not None and handed_over_ms < screen.sent_ms
        return screen if is_older else None

    def _is_probe(self, screen: _Screen, steady_ms: int) -> bool:
        """Whether the next batch is sent unchanged, as a probe."""
        if screen.is_probed or steady_ms - screen.sent_ms < PROBE_AFTER_MS:
            return False
        screen.is_probed = True
        return True


def _keyless(batch: ProducerBatch) -> Rows:
    return np.flatnonzero(batch.key_valid == 0) if batch.key_valid is not None else np.empty(0, np.int64)


def _refused(screen: _Screen, topic: str, steady_ms: int) -> str:
    """Text: when the broker refused other such records, and its message."""
    return f"the broker refused such records of topic {topic!r} {steady_ms - screen.sent_ms} ms earlier: {screen.message}"
