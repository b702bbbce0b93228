"""Topics as people write them: on the command line, `NAME[:PARTITIONS[:REPLICATION]][,option=value...]`, and in Python, a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chaffinch.errors import ConfigException

Topics: TypeAlias = Mapping[str, Mapping[str, Any] | int | None] | Iterable[str]
"""`{"orders": {"partitions": 3, "replication": 1, "cleanup.policy": "compact"}}`, `{"orders": 3}` or `["orders"]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicArgument:
    """A topic to create; -1 leaves a number to the broker's defaults."""

    name: str
    partitions: int = -1
    replication: int = -1
    config: dict[str, str] = field(default_factory=dict)


def parse_text(text: str) -> TopicArgument:
    """One `--topic` argument. Raises ConfigException, naming the argument and what is expected."""
    head, *options = text.split(",")
    name, *numbers = head.split(":")
    if not name or len(numbers) > 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise ConfigException(f"topic {text!r}: expected NAME[:PARTITIONS[:REPLICATION]][,option=value...], numbers of at least 1")
    config: dict[str, str] = {}
    last = ""
    for option in options:
        key, separator, value = option.partition("=")
        if separator:
            last = key.strip()
            config[last] = value.strip()
        elif last:  # cleanup.policy=compact,delete: a value with commas of its own.
            config[last] += f",{option.strip()}"
        else:
            raise ConfigException(f"topic {text!r}: {option!r} is not option=value")
    partitions, replication = ([int(number) for number in numbers] + [-1, -1])[:2]
    return TopicArgument(name=name, partitions=partitions, replication=replication, config=config)


def parse_python(topics: Topics | None) -> list[TopicArgument]:
    """The `topics=` argument of EmbeddedBroker."""
    if topics is None:
        return []
    if not isinstance(topics, Mapping):
        return [TopicArgument(name=name) for name in topics]
    return [_from_mapping(name, described) for name, described in topics.items()]


def _from_mapping(name: str, described: Mapping[str, Any] | int | None) -> TopicArgument:
    if described is None:
        return TopicArgument(name=name)
    if isinstance(described, int):
        return TopicArgument(name=name, partitions=described)
    config = {key: config_text(value) for key, value in described.items() if key not in ("partitions", "replication")}
    return TopicArgument(name=name, partitions=described.get("partitions", -1), replication=described.get("replication", -1), config=config)


def config_text(value: Any) -> str:
    """An option's value as the wire has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
