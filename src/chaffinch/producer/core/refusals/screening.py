"""After a broker refused records without a key, their like that wait already fail without being sent: a batch goes once, not twice.

KIP-467 section 3.b.ii has a batch with culprits sent twice, whole and without them. A table with one culprit in a hundred has some in
every batch. So a refusal is remembered, and the next batches lose such records before they leave. Still the broker decides:

- A record is failed only by a refusal of a request that left after the record was handed over. It could have been in that very request;
  nothing that its caller can have seen to before, such as another `cleanup.policy`, came too late for the broker's word.
- By the same broker, about the same topic: the leader, by its address, and the topic's id. A topic made anew knows nothing of the old one.
- Only for what a record shows itself: that it has no key. Whether a timestamp is in range depends on the broker's clock.
- Only when the refusal named exactly the records of its batch that have no key: who is blamed wrongly, or forgotten, teaches nothing.
- Only for so long, and records that were failed so do not make it longer: meanwhile a batch goes as it is now and then, to ask again.

Such rows leave a table before they are encoded, and batches that wait already when they are taken. It is about tables, whose rows are all
handed over when the call begins. Records of `send` come one by one, and a broker that refuses some is hardly noticed beside what each call
costs. An exception handler that wants to hear of what a broker rejected hears of what it did reject: then nothing is screened. Nor is it
where no batch goes on without its culprits: in a transaction, and with acks=0.
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

# A caller of a long `send_table` may change the topic meanwhile: so old at most is the word by which a row fails. Long enough for hundreds
# of batches to go once rather than twice.
SCREEN_MS_MAX: Final = 1000
# From here on one batch goes as it is. Its answer, which usually takes milliseconds, is in before the screen ends, and not one batch
# but all that are in flight would go twice.
PROBE_AFTER_MS: Final = 500
# So often some rows are encoded as they are, for a batch that can ask to be at hand: what is encoded may wait long for its turn.
UNSCREENED_INTERVAL_MS: Final = 200


@dataclass(slots=True)
class _Screen:
    """What a leader refused of a topic. `sent_ms`: when the refused request left."""

    topic_id: UUID
    sent_ms: int
    message: str
    unscreened_ms: int
    """When rows were last encoded as they are."""
    is_probed: bool = False
    """A batch with such records went as it is since."""


class Screening:
    """Which records would be refused."""

    def __init__(self, context: ProducerContext) -> None:
        self._context = context
        self._screens: dict[tuple[str, Address], _Screen] = {}

    def refused(self, batch: ProducerBatch, answer: BatchResponse, errors: Mapping[int, ApiException]) -> None:
        """The broker refused a batch, surely not stored, for these of its records."""
        keyless = _keyless(batch)
        if not len(keyless) or batch.sent_to is None:
            return
        (address, topic_id), topic = batch.sent_to, batch.topic_partition.topic
        self._screens.pop((topic, address), None)
        # What a broker of old does not say, but its topic's configuration, is no word of the broker. And where an exception handler was
        # asked, which leaves a plain dictionary, it wants to be asked about the next ones too.
        if not answer.record_errors or not isinstance(errors, CulpritErrors):
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
        """The broker took a batch: if some of its records have no key, it takes such records."""
        if self._screens and batch.sent_to is not None and len(_keyless(batch)):
            self._screens.pop((batch.topic_partition.topic, batch.sent_to[0]), None)

    def of_rows(self, topic: str, handed_over_ms: int, steady_ms: int) -> dict[int, str]:
        """The partitions of whose rows those without a key fail now, before they are encoded, and why each."""
        state = self._context.cluster.topic(topic) if self._screens else None
        if state is None:
            return {}
        led: dict[Address, list[int]] = {}
        for partition in state.partitions:
            if (address := self._context.cluster.leader_address(TopicPartition(topic, partition))) is not None:
                led.setdefault(address, []).append(partition)
        reasons: dict[int, str] = {}
        for address, partitions in led.items():
            screen = self._screen_of(topic, handed_over_ms, (address, state.topic_id), steady_ms)
            if screen is None:
                continue
            if steady_ms - screen.unscreened_ms >= UNSCREENED_INTERVAL_MS:
                screen.unscreened_ms = steady_ms
                del partitions[steady_ms // UNSCREENED_INTERVAL_MS % len(partitions)]
            reasons.update(dict.fromkeys(partitions, _refused(screen, topic, steady_ms)))
        return reasons

    def failed(self, count: int) -> None:
        """So many rows failed for a reason of `of_rows`."""
        self._context.counts["records_failed"] += count
        self._context.counts["records_screened"] += count

    def errors_of(self, head: ProducerBatch, destination: tuple[Address, UUID], steady_ms: int) -> ScreenedErrors | None:
        """Of a partition's next batch the errors of the records that its leader would refuse; None where the batch goes as it is."""
        topic = head.topic_partition.topic
        screen = self._screen_of(topic, head.handed_over_ms, destination, steady_ms)
        keyless = _keyless(head)
        if screen is None or not len(keyless) or self._is_probe(screen, steady_ms):
            return None
        return ScreenedErrors(keyless.tolist(), head.rows, head.topic_partition, _refused(screen, topic, steady_ms))

    def _screen_of(self, topic: str, handed_over_ms: int | None, destination: tuple[Address, UUID], steady_ms: int) -> _Screen | None:
        """What the leader's last refusal says about rows that wait."""
        address, topic_id = destination
        key = topic, address
        screen = self._screens.get(key)
        if screen is None:
            return None
        if screen.topic_id != topic_id or steady_ms - screen.sent_ms >= SCREEN_MS_MAX:
            del self._screens[key]
            return None
        # Of one moment it is not known which came first.
        is_older = handed_over_ms is not None and handed_over_ms < screen.sent_ms
        return screen if is_older else None

    def _is_probe(self, screen: _Screen, steady_ms: int) -> bool:
        """Whether the next batch goes as it is, to hear what the broker says now."""
        if screen.is_probed or steady_ms - screen.sent_ms < PROBE_AFTER_MS:
            return False
        screen.is_probed = True
        return True


def _keyless(batch: ProducerBatch) -> Rows:
    return np.flatnonzero(batch.key_valid == 0) if batch.key_valid is not None else np.empty(0, np.int64)


def _refused(screen: _Screen, topic: str, steady_ms: int) -> str:
    """When, and with which words, the broker refused others."""
    return f"the broker refused such records of topic {topic!r} {steady_ms - screen.sent_ms} ms before, saying: {screen.message}"
