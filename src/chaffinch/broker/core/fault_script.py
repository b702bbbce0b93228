"""Faults on purpose, for tests: answer with an error, cut the connection before or after the work, answer late.

A rule applies to one API and, where given, one topic and partition, and is used up after `count` requests. Rules are asked in the order
in which they were added; the first that matches a request decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol import apis


class FaultAction(Enum):
    ERROR = "error"
    """Do nothing, answer with the error: for the partition where the rule names one, else for all."""
    DROP_BEFORE = "drop_before"
    """Close the connection without looking at the request."""
    DROP_AFTER = "drop_after"
    """Do the work, then close the connection instead of answering."""
    DELAY = "delay"
    """Do the work, answer `delay_ms` later."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One rule. `topic` None means any, `partition` None means any; `remaining` requests are still to be hit."""

    api: str
    topic: str | None
    partition: int | None
    action: FaultAction
    error: ErrorCode
    delay_ms: int
    remaining: int

    def covers(self, topic: str | None, partition: int | None) -> bool:
        """Whether the rule is meant for this topic and partition; what the request does not name matches only open rules."""
        return (self.topic is None or self.topic == topic) and (self.partition is None or self.partition == partition)


class FaultScript:
    """The rules. Without any, one comparison per request."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def add(
        self,
        *,
        api: str = "Produce",
        topic: str | None = None,
        partition: int | None = None,
        action: str = "error",
        error: str = "NOT_LEADER_OR_FOLLOWER",
        count: int = 1,
        delay_ms: int = 0,
    ) -> None:
        """Add a rule. Names are Kafka's. Raises ConfigException for an unknown API, action or error, or a count below 1."""
        names = sorted(known.name for known in apis.APIS.values())
        if api not in names:
            raise ConfigException(f"fault for unknown API {api!r}: known are {', '.join(names)}")
        if action not in {known.value for known in FaultAction}:
            raise ConfigException(f"unknown fault {action!r}: known are {', '.join(known.value for known in FaultAction)}")
        if count < 1 or delay_ms < 0:
            raise ConfigException(f"a fault needs count >= 1 and delay_ms >= 0, not {count} and {delay_ms}")
        try:
            code = codes.by_name(error)
        except KeyError as unknown:
            raise ConfigException(f"fault with unknown error {error!r}: {unknown.args[0]}") from None
        fault = Fault(api=api, topic=topic, partition=partition, action=FaultAction(action), error=code, delay_ms=delay_ms, remaining=count)
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def take(self, api: str, message: Any) -> Fault | None:
        """The fault that hits this request, used up by one; None for none."""
        for fault in self._faults:
            if fault.api == api and any(fault.covers(topic, partition) for topic, partition in named_partitions(message)):
                fault.remaining -= 1
                if fault.remaining == 0:
                    self._faults.remove(fault)
                return fault
        return None


def named_partitions(message: Any) -> Iterable[tuple[str | None, int | None]]:
    """(topic, partition) pairs that a request names, after (None, None) for the request itself.

    Works on the names that Kafka's messages share: `topics` with `name` or `topic`, `partitions` with `index`, `partition` or numbers.
    """
    yield None, None
    for topic in getattr(message, "topics", None) or getattr(message, "topic_names", None) or ():
        name = topic if isinstance(topic, str) else getattr(topic, "name", None) or getattr(topic, "topic", None)
        yield name, None
        for partition in getattr(topic, "partitions", None) or ():
            yield name, partition_index(partition)


def partition_index(partition: Any) -> int:
    """A partition's number, whichever of Kafka's names it has in this message."""
    for name in ("index", "partition_index", "partition"):
        number = getattr(partition, name, None)
        if number is not None:
            return int(number)
    return int(partition)
