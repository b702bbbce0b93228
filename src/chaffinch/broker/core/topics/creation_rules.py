"""Which topics may be created: names that are legal, those that belong to the broker itself, and how many partitions one request may make.

Names follow Apache Kafka's Topic.validate and Topic.hasCollision. Each partition is a directory, made at once on the event loop, on which
all other requests wait.
"""

from __future__ import annotations

import re
from typing import Final

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes

NAME_LENGTH_MAX = 249
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
CLUSTER_METADATA = "__cluster_metadata"
"""Apache Kafka's own log of topics and nodes; nobody may create a topic of this name."""

_LEGAL = re.compile(r"[A-Za-z0-9._-]+")


def fault_of(name: str) -> str | None:
    """What is wrong with a name, in words; None when it is legal."""
    if not name:
        return "a topic name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, not {len(name)}"
    if not _LEGAL.fullmatch(name):
        return f"topic name {name!r} holds more than letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Names with the same key exclude each other: Kafka's metric names do not tell '.' from '_'."""
    return name.replace(".", "_")


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
