"""Names of options that only one side of the format takes, for the other side to refuse them in words: both are often given one mapping.

Sink and source do not import each other, so the names that are not Kafka's are listed here; a test compares them with both tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaffinch.client.hints import OF_CONSUMERS, OF_PRODUCERS

OF_SINK: Final = (
    "deliveryGuarantee", "stagingLocation", "errors.tolerance", "errors.tolerance.max", "errors.dead.letter.queue.topic.name",
    "errors.dead.letter.path", "idempotencyToken", "onMissingMarker", "markerTopic",
    *(f"kafka.{name}" for name in sorted(OF_PRODUCERS)),
)  # fmt: skip
OF_SOURCE: Final = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs", *(f"kafka.{name}" for name in sorted(OF_CONSUMERS)),
)  # fmt: skip


def hints(names: Iterable[str], side: str, known: Iterable[str]) -> dict[str, str]:
    """The advice for each of these names that is not `known` here. `side`: where it belongs."""
    here = "source" if side == "sink" else "sink"
    return dict.fromkeys(set(names) - set(known), f"it is an option of the {side}; leave it out of the {here}'s")
