"""Topic creation rules: legal and reserved names, and the number of partitions that one request may create.

Names follow Apache Kafka's Topic.validate and Topic.hasCollision. Each partition is a directory that is created synchronously on the event
loop, while all other requests wait.
"""

from __future__ import annotations

import re
from typing import Final

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes

NAME_LENGTH_MAX = 249
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
CLUSTER_METADATA = "__cluster_metadata"
"""Apache Kafka's metadata log; no topic of this name may be created."""

_LEGAL = re.compile(r"[A-Za-z0-9._-]+")


def fault_of(name: str) -> str | None:
    """The reason why a topic name is invalid; None if it is valid."""
    if not name:
        return "a topic name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, not {len(name)}"
    if not _LEGAL.fullmatch(name):
        return f"topic name {name!r} has characters other than letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Two names with the same key cannot coexist: Kafka's metric names do not distinguish '.' from '_'."""
    return name.replace(".", "_")


PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Limit of new partitions in all topics of one CreateTopics or CreatePartitions request. MAX_PARTITIONS_PER_BATCH of
ReplicationControlManager in Apache Kafka 4.3; CreatePartitions is limited there to the same number by MAX_RECORDS_PER_USER_OP of
QuorumController."""

AUTOMATIC_PARTITIONS_MAX: Final = 200
"""Limit of partitions in the topics that one Metadata request creates automatically: a fifth of a second on a disk. This number is
Chaffinch's own: in Apache Kafka the controller creates them while the broker continues."""


def check_partitions(count: int) -> None:
    """Raises PolicyViolation (44) if one request creates more new partitions than allowed, in all its topics together."""
    if count > PARTITIONS_PER_REQUEST_MAX:
        reason = f"Excessively large number of partitions per request: {count} new ones, at most {PARTITIONS_PER_REQUEST_MAX}."
        raise RequestRefused(codes.POLICY_VIOLATION, reason)


def automatic_topics_max(partitions: int) -> int:
    """Number of topics with this many partitions that one Metadata request creates; at least one."""
    return max(1, AUTOMATIC_PARTITIONS_MAX // partitions)
