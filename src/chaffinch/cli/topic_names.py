"""`--topic NAME` of the commands: a name that no topic can have is refused before a broker is asked.

People write `topic:partition`, as `groups reset-offsets` takes it: where a command has an option for partitions, they are told so.
"""

from __future__ import annotations

from typing import Final

import typer

from chaffinch.client.arguments import illegal_topic
from chaffinch.errors import ConfigException

PARTITION_OPTION: Final = "--partition"


def legal_topic(context: typer.Context, name: str | None) -> str | None:
    """A callback of typer for an option. ConfigException for what cannot be a topic."""
    if name is None or illegal_topic(name) is None:
        return name
    if not name.strip():
        raise ConfigException("--topic is empty")
    before, colon, after = name.rpartition(":")
    where = ""
    if colon and after.isdecimal() and illegal_topic(before) is None and _has_partitions(context):
        where = f"; the partition goes into an option of its own: --topic {before} {PARTITION_OPTION} {after}"
    raise ConfigException(f"--topic {name!r} cannot be a topic: a name has letters, digits, '.', '_' and '-', at most 249 of them{where}")


def legal_topics(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """The same for an option that may be repeated."""
    for name in names or ():
        legal_topic(context, name)
    return names


def _has_partitions(context: typer.Context) -> bool:
    return any(PARTITION_OPTION in parameter.opts for parameter in context.command.params)
