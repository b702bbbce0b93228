"""What the arguments of EmbeddedBroker and its methods may be: refused in one line that names argument, value and what is allowed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from chaffinch.broker.listeners import PORT_MAX
from chaffinch.errors import ConfigException
from chaffinch.settings import LIKENESS_MIN

BROKERS_MAX: Final = 1000


def check(**arguments: object) -> None:
    """Each argument by its name in the table. Raises ConfigException for the first that is not allowed."""
    for name, value in arguments.items():
        is_allowed, allowed = _RULES[name]
        if not is_allowed(value):
            raise ConfigException(f"{name}={value!r}: expected {allowed}")


def check_config(where: str, config: object) -> None:
    """A mapping of names to values, none of them None. Raises ConfigException."""
    if not isinstance(config, Mapping):  # Its value may be secret.
        raise ConfigException(f"{where}: expected a mapping of option names to values, not a value of type {type(config).__name__}")
    for name, value in config.items():
        if not isinstance(name, str):
            raise ConfigException(f"{where}: the name of an option is a text, not {name!r}")
        if value is None:
            raise ConfigException(f"{where}: option {name} cannot be None; leave it out for its default")


def check_users(where: str, users: object) -> None:
    """A mapping of names to passwords, all of them texts with something in them. Raises ConfigException, which shows no password."""
    if not isinstance(users, Mapping):
        raise ConfigException(f"{where}: expected a mapping of names to passwords")
    for name, password in users.items():
        if not all(isinstance(text, str) and text and "\0" not in text for text in (name, password)):
            raise ConfigException(f"{where}: name and password of user {name!r} must be texts with something in them")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like this one, if one is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=LIKENESS_MIN)), None)


def _whole(low: int, high: int) -> tuple[Callable[[object], bool], str]:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"


def _is_path(value: object) -> bool:
    return value is None or (isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b""))


_COUNT: Final = (lambda value: type(value) is int and (value == -1 or value > 0), "a whole number of at least 1, or -1 for the default")

_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "brokers": _whole(1, BROKERS_MAX),
    "port": _whole(0, PORT_MAX),
    "data_dir": (_is_path, "the path of a directory, or None to keep everything in memory"),
    "partitions": _COUNT,
    "replication": _COUNT,
    "name": (lambda value: isinstance(value, str), "a text, the name of a topic"),
    "topic": (lambda value: isinstance(value, str), "a text, the name of a topic"),
    "node_id": (lambda value: type(value) is int, "a whole number, as in nodes()"),
    "isolation": (lambda value: value in ("read_committed", "read_uncommitted"), "'read_committed' or 'read_uncommitted'"),
}
