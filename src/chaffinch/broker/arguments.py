"""Argument validation of EmbeddedBroker and `chaffinch broker`, and topic arguments. Errors are one line with argument, value and allowed
values. The broker core validates topic options: `core/topics/topic_options.py`.

Topics are written as `NAME[:PARTITIONS[:REPLICATION]][,option=value...]` on the command line, and as a mapping in Python.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from chaffinch.broker.core.options import BROKER_OPTIONS
from chaffinch.broker.core.topics.registry import PARTITIONS_MAX, Topic
from chaffinch.broker.core.topics.topic_options import TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME
from chaffinch.broker.listeners import PORT_MAX
from chaffinch.errors import ConfigException
from chaffinch.settings import LIKENESS_MIN

BROKERS_MAX: Final = 1000


def check(**arguments: object) -> None:
    """Check arguments by name, with the rules below. Raises ConfigException for the first invalid one."""
    for name, value in arguments.items():
        is_allowed, allowed = _RULES[name]
        if not is_allowed(value):
            raise ConfigException(f"{name}={value!r}: expected {allowed}")


def check_option_mapping(where: str, config: object) -> None:
    """Check a mapping of option names to values, none of them None. Raises ConfigException."""
    if not isinstance(config, Mapping):  # The value itself may be secret.
        raise ConfigException(f"{where}: expected a mapping of option names to values, not a value of type {type(config).__name__}")
    for name, value in config.items():
        if not isinstance(name, str):
            raise ConfigException(f"{where}: option names must be strings, not {name!r}")
        if value is None:
            raise ConfigException(f"{where}: option {name} cannot be None; leave it out for its default")


ARGUMENTS: Final = ("topics", "data_dir", "brokers", "config", "port", "users")
"""Arguments of EmbeddedBroker that are not broker options."""


def checked_config(config: object, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Broker options of EmbeddedBroker, from its argument `config` and its keywords. Raises ConfigException.

    The broker itself rejects unknown names and values; here only a misspelled argument is rejected, which would otherwise be reported as an
    unknown option.
    """
    check_option_mapping("config", config)
    check_option_mapping("keyword arguments", keywords)
    for name in keywords:
        if BROKER_OPTIONS.name_of(name) == name and (meant := nearest(name, ARGUMENTS)) is not None:
            raise ConfigException(f"unknown argument {name!r}: the nearest is {meant!r}")
    given: dict[str, Any] = dict(config)  # type: ignore[call-overload]  # Checked above.
    if both := sorted(given.keys() & keywords.keys()):
        raise ConfigException(f"option {both[0]} is given twice: in config and as a keyword")
    return {**given, **keywords}


def check_users(where: str, users: object) -> None:
    """Check a mapping of user names to passwords, all of them non-empty strings. Raises ConfigException, which shows no password."""
    if not isinstance(users, Mapping):
        raise ConfigException(f"{where}: expected a mapping of names to passwords")
    for name, password in users.items():
        if not all(isinstance(text, str) and text and "\0" not in text for text in (name, password)):
            raise ConfigException(f"{where}: name and password of user {name!r} must be non-empty strings")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if any is similar enough."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=LIKENESS_MIN)), None)


def _whole(low: int, high: int) -> tuple[Callable[[object], bool], str]:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"


def _is_path(value: object) -> bool:
    return value is None or (isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b""))


ADVANCE_SECONDS_MAX: Final = 10 * 365 * 86_400
"""The broker processes every deadline on the way: a year takes it about a second."""


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


_COUNT: Final = (lambda value: type(value) is int and (value == -1 or value > 0), "a whole number of at least 1, or -1 for the default")

_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "brokers": _whole(1, BROKERS_MAX),
    "port": _whole(0, PORT_MAX),
    "data_dir": (_is_path, "the path of a directory, or None to keep everything in memory"),
    "partitions": _COUNT,
    "replication": _COUNT,
    "name": (lambda value: isinstance(value, str), "a string, the name of a topic"),
    "topic": (lambda value: isinstance(value, str), "a string, the name of a topic"),
    "node_id": (lambda value: type(value) is int, "a whole number, as in nodes()"),
    "partition": (lambda value: value is None or (type(value) is int and value >= 0), "the number of a partition, or None for all"),
    "key": (lambda value: value is None or isinstance(value, bytes | str), "bytes, a string, or None for all keys"),
    "from_offset": (lambda value: type(value) is int and value >= 0, "a whole number of at least 0"),
    "count": (lambda value: type(value) is int and value >= 0, "a whole number of at least 0"),
    "timeout": (_is_seconds, "a number of seconds, at least 0"),
    "seconds": (
        lambda value: _is_seconds(value) and value <= ADVANCE_SECONDS_MAX,
        f"a number of seconds from 0 to {ADVANCE_SECONDS_MAX} (ten years); the clock has not moved",
    ),
    "isolation": (lambda value: value in ("read_committed", "read_uncommitted"), "'read_committed' or 'read_uncommitted'"),
}


Topics: TypeAlias = Mapping[str, Mapping[str, Any] | int | None] | Iterable[str]
"""`{"orders": {"partitions": 3, "replication": 1, "cleanup.policy": "compact"}}`, `{"orders": 3}` or `["orders"]`."""

_NUMBER: Final = re.compile("0*[1-9][0-9]{0,8}")

NUMBERS: Final = ("partitions", "replication")
"""Keys of a topic's mapping that are not topic options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicArgument:
    """A topic to create; -1 uses the broker's default."""

    name: str
    partitions: int = -1
    replication: int = -1
    config: dict[str, str] = field(default_factory=dict)

    def differences(self, topic: Topic) -> list[str]:
        """Differences between an existing topic and this argument, as texts."""
        replication = len(topic.partitions[0].replicas.assigned)
        numbers = (("partitions", self.partitions, len(topic.partitions)), ("replication", self.replication, replication))
        found = [f"{name} {have}, not {requested}" for name, requested, have in numbers if requested not in (-1, have)]
        for name, value in self.config.items():
            if topic.overrides.get(name) != value:
                found.append(f"{name}={topic.overrides.get(name, 'its default')}, not {value}")
        return found


def parse_text(text: str) -> TopicArgument:
    """Parse one `--topic` argument. Raises ConfigException, naming the argument and the expected form."""
    head, *options = text.split(",")
    name, *numbers = head.split(":")
    wrong = [number for number in numbers if not _NUMBER.fullmatch(number)]
    if not name or len(numbers) > 2 or wrong:
        form = f"expected NAME[:PARTITIONS[:REPLICATION]][,option=value...], up to {PARTITIONS_MAX} partitions"
        if wrong and len(numbers) <= 2:
            part = "PARTITIONS" if wrong[0] == numbers[0] else "REPLICATION"
            form = f"{part} is {wrong[0]!r}: it must be a whole number from 1; {form}"
        raise ConfigException(f"topic {text!r}: {form}")
    config: dict[str, str] = {}
    last = ""
    for option in options:
        key, separator, value = option.partition("=")
        if separator:
            last = key.strip()
            config[last] = value.strip()
        elif last:  # For example cleanup.policy=compact,delete: a value that contains commas.
            config[last] += f",{option.strip()}"
        else:
            raise ConfigException(f"topic {text!r}: {option!r} is not option=value")
    partitions, replication = ([int(number) for number in numbers] + [-1, -1])[:2]
    try:
        return TopicArgument(name=name, partitions=partitions, replication=replication, config=config_texts(config))
    except ConfigException as error:
        raise ConfigException(f"topic {text!r}: {error.message}") from None


def parse_python(topics: Topics | None) -> list[TopicArgument]:
    """Parse the `topics=` argument of EmbeddedBroker. Raises ConfigException, naming the topic and what is expected."""
    if topics is None:
        return []
    if isinstance(topics, str | bytes | bytearray | memoryview) or not isinstance(topics, Iterable):
        raise ConfigException(
            f"topics={topics!r}: expected a list of names, as in topics=['orders'], or a mapping of names to partition counts or options"
        )
    described = topics if isinstance(topics, Mapping) else dict.fromkeys(topics)
    return [_described(name, what) for name, what in described.items()]


def _described(name: object, what: object) -> TopicArgument:
    if not isinstance(name, str):
        raise ConfigException(f"topics: topic names must be strings, not {name!r}")
    fields = {} if what is None else what if isinstance(what, Mapping) else {"partitions": what}
    try:
        check_option_mapping("its description", fields)
        return _from_mapping(name, fields)
    except ConfigException as error:
        raise ConfigException(f"topic {name!r}: {error}") from None


def _from_mapping(name: str, fields: Mapping[str, Any]) -> TopicArgument:
    numbers = {field: fields[field] for field in NUMBERS if field in fields}
    check(**numbers)
    config = {field: value for field, value in fields.items() if field not in NUMBERS}
    for option in config:
        near = nearest(option, (*NUMBERS, *TOPIC_OPTIONS_BY_NAME))
        if near in NUMBERS:
            raise ConfigException(f"unknown option {option!r}: the nearest known one is {near!r}")
    return TopicArgument(name=name, config=config_texts(config), **numbers)


def config_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Convert options to the strings of the wire format. Names may be written with underscores. Raises ConfigException."""
    texts: dict[str, str] = {}
    for spelled, value in config.items():
        name = TOPIC_OPTIONS.name_of(spelled)
        if name in texts:
            raise ConfigException(f"option {name} is given twice, once as {spelled!r}: give it once")
        texts[name] = config_text(value)
    return texts


def config_text(value: Any) -> str:
    """Convert an option value to the string of the wire format."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def check_replication(factor: int, nodes: int) -> None:
    """Raises ConfigException if the default replication factor exceeds the number of nodes: no topic could be created with it."""
    if factor > nodes:
        declared = "1 node is declared" if nodes == 1 else f"{nodes} nodes are declared"
        raise ConfigException(
            f"default.replication.factor={factor}, but only {declared} (--brokers): "
            "no topic could be created without an explicit replication factor"
        )
