"""Which topic names are legal, and which belong to the broker itself. Follows Apache Kafka's Topic.validate and Topic.hasCollision."""

from __future__ import annotations

import re

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
