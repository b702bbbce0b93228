"""Two answers side by side: where they differ, leaving out what no two brokers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaffinch.protocol.schema import Message
from tests.interop.differential.peer import Closed

IGNORED = frozenset(
    {
        "throttle_time_ms",
        "cluster_id",
        "host",
        "port",
        "rack",
        "node_id",
        "broker_id",
        "controller_id",
        "leader_epoch",
        "log_append_time_ms",
        "heartbeat_interval_ms",
        "size",
        "offset_lag",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "timestamp",
        "transaction_start_time_ms",
        "last_timestamp",
        "generation_id",
        "member_epoch",
        "group_epoch",
        "assignment_epoch",
        "client_host",
    }
)
"""Fields that depend on the machine, the moment or the node's number."""

BY_PRESENCE = frozenset(
    {
        "topic_id",
        "member_id",
        "leader",
        "producer_id",
        "leader_id",
        "session_id",
        "error_message",
        "records",
        "client_id",
        "member_metadata",
        "member_assignment",
        "coordinator_id",
        "batch_index_error_message",
    }
)
"""Fields of which only counts whether they say something: ids are given at random, and messages are each broker's own words."""

BY_LENGTH = frozenset({"replica_nodes", "isr_nodes", "offline_replicas", "brokers", "node_endpoints"})

SORTED_BY = {"name", "topic", "partition_index", "partition", "key", "group_id", "api_key", "transactional_id"}

Difference = tuple[str, Any, Any]


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[Difference]:
    """(path, Apache Kafka's value, ours) for each place where two answers differ."""
    if isinstance(theirs, Closed) or isinstance(ours, Closed):
        if type(theirs) is not type(ours):
            yield path or "answer", theirs, ours
    elif isinstance(theirs, Message) and isinstance(ours, Message):
        for field in type(theirs).FIELDS:
            if field.name not in IGNORED:
                yield from _field(field.name, getattr(theirs, field.name), getattr(ours, field.name), f"{path}.{field.name}".lstrip("."))
    elif isinstance(theirs, list) and isinstance(ours, list):
        yield from _lists(theirs, ours, path)
    elif theirs != ours:
        yield path, theirs, ours


def _field(name: str, theirs: Any, ours: Any, path: str) -> Iterator[Difference]:
    if name in BY_PRESENCE:
        if _says_something(theirs) != _says_something(ours):
            yield path, theirs, ours
    elif name in BY_LENGTH:
        if len(theirs or ()) != len(ours or ()):
            yield path, theirs, ours
    else:
        yield from differences(theirs, ours, path)


def _says_something(value: Any) -> bool:
    if isinstance(value, list):  # Records as buffers.
        return any(len(part) for part in value)
    if isinstance(value, int):
        return value >= 0
    return value is not None and bool(getattr(value, "int", len(value) if hasattr(value, "__len__") else True))


def _lists(theirs: list[Any], ours: list[Any], path: str) -> Iterator[Difference]:
    their_parts, our_parts = _by_key(theirs), _by_key(ours)
    for key in their_parts.keys() | our_parts.keys():
        place = f"{path}[{key}]"
        if key not in our_parts:
            yield place, their_parts[key], "nothing"
        elif key not in their_parts:
            yield place, "nothing", our_parts[key]
        else:
            yield from differences(their_parts[key], our_parts[key], place)


def _weight(part: Message) -> str:
    """What puts parts in order that have no name: what they say beside what no two brokers have in common."""
    return repr([getattr(part, field.name) for field in type(part).FIELDS if field.name not in IGNORED | BY_PRESENCE])


def _by_key(parts: list[Any]) -> dict[Any, Any]:
    """Parts by what names them, so that the order of a list does not count where nothing says it does."""
    result: dict[Any, Any] = {}
    for index, part in enumerate(sorted(parts, key=_weight) if all(isinstance(part, Message) for part in parts) else parts):
        names = [getattr(part, field.name) for field in type(part).FIELDS if field.name in SORTED_BY] if isinstance(part, Message) else []
        key = next((name for name in names if isinstance(name, str | int)), index)
        result[key if key not in result else f"{key}#{index}"] = part
    return result
