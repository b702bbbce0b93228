"""How many partitions one request may make: each is a directory, made at once on the event loop, on which everybody else waits."""

from __future__ import annotations

from typing import Final

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""New partitions of all topics of one CreateTopics or CreatePartitions. MAX_PARTITIONS_PER_BATCH of ReplicationControlManager in Apache
Kafka 4.3, where CreatePartitions is held to the same number by MAX_RECORDS_PER_USER_OP of QuorumController."""

AUTOMATIC_PARTITIONS_MAX: Final = 200
"""Partitions of the topics that one Metadata request creates by naming them: a fifth of a second on a disk. Our own number: Apache Kafka
has its controller create them while the broker goes on."""


def check_partitions(count: int) -> None:
    """Raises PolicyViolation (44) where one request asks for so many new partitions, of all its topics together."""
    if count > PARTITIONS_PER_REQUEST_MAX:
        reason = f"Excessively large number of partitions per request: {count} new ones, at most {PARTITIONS_PER_REQUEST_MAX}."
        raise RequestRefused(codes.POLICY_VIOLATION, reason)


def automatic_topics_max(partitions: int) -> int:
    """How many topics of so many partitions each one Metadata request creates; one at least."""
    return max(1, AUTOMATIC_PARTITIONS_MAX // partitions)
