"""Validation of `--topic NAME`: an illegal topic name is refused before a request is sent.

Users write `topic:partition`, as `groups reset-offsets` accepts it. If the command has an option for partitions, the error names it.
"""

from __future__ import annotations

from typing import Final

import typer

from chaffinch.client.arguments import INT32_MAX, illegal_topic_reason
from chaffinch.errors import ConfigException

PARTITION_OPTION: Final = "--partition"
_DIGITS_MAX: Final = len(str(INT32_MAX))


def legal_topic(context: typer.Context, parameter: typer.CallbackParam, name: str | None) -> str | None:
    """A typer callback: raises ConfigException, with the option's name, for an illegal topic name."""
    if name is None or (reason := illegal_topic_reason(name)) is None:
        return name
    option = max(parameter.opts, key=len)
    if not name.strip():
        raise ConfigException(f"{option} is empty")
    before, _, after = name.rpartition(":")
    where = ""
    if _is_partition(after) and illegal_topic_reason(before) is None and _has_partitions(context):
        where = f"; give the partition in its own option: {option} {before} {PARTITION_OPTION} {after}"
    raise ConfigException(f"{option} {name!r} cannot be a topic: {reason}{where}")


def legal_topics(context: typer.Context, parameter: typer.CallbackParam, names: list[str] | None) -> list[str] | None:
    """Like `legal_topic`, for an option that may be repeated."""
    for name in names or ():
        legal_topic(context, parameter, name)
    return names


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= INT32_MAX


def _has_partitions(context: typer.Context) -> bool:
    return any(PARTITION_OPTION in parameter.opts for parameter in context.command.params)
