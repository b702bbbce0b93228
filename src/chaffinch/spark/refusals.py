"""What the user reads when something is wrong, and how to find it again in Spark's text (decision 43).

Nothing but text crosses Spark, so each error's text begins with a tag, `KAFKA[<group>] <NAME>: <one line>`, and `tag_in` finds
that tag in whatever Spark wraps around it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from chaffinch.errors import ApiException, ConfigException
from chaffinch.errors.codes import ErrorCode, Group

_TAG: Final = re.compile(rf"KAFKA\[({'|'.join(group.value for group in Group)})\] ([A-Za-z][A-Za-z0-9_]*): ([^\r\n]*)")
# Behind the tag's line Spark puts the rest of a traceback, its line ends written out where the text was quoted, and its own state.
_TAIL: Final = re.compile(r"(?:\\n| SQLSTATE: ).*")


class Refusal(Exception):
    """A batch that must not be written, or cannot be. `name` is Kafka's error name or one of ours; the text is one line.

    The text that reaches the user begins with the class in brackets, because nothing but text crosses Spark (decision 43).
    """

    def __init__(self, group: Group, name: str, text: str) -> None:
        super().__init__(group, name, text)
        self.group, self.name, self.text = group, name, text

    def __str__(self) -> str:
        return f"KAFKA[{self.group.value}] {self.name}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTag:
    """A refusal as it is found again in a text. `text`: one line, without the tag."""

    group: Group
    name: str
    text: str


def tag_in(text: str) -> ErrorTag | None:
    """The first tag anywhere in a text, such as that of Spark's exception; None without one."""
    found = _TAG.search(text)
    if found is None:
        return None
    return ErrorTag(group=Group(found[1]), name=found[2], text=_TAIL.sub("", found[3]).rstrip())


def invalid(error: ConfigException) -> Refusal:
    """A wrong configuration, as its text reaches the user."""
    return Refusal(Group.INVALID_CONFIGURATION, "CONFIG", str(error))


def refusal_of(error: ApiException) -> Refusal:
    """A client's exception as the error the user sees: its class, its name, and its own words."""
    return Refusal(nameable(error.group), error.name, " ".join(str(error).split()))


def refusal_for(code: ErrorCode, text: str) -> Refusal:
    return Refusal(nameable(code.group), code.name, text)


def nameable(group: Group) -> Group:
    """KIP-1050: what has no group is application-recoverable."""
    return Group.APPLICATION_RECOVERABLE if group is Group.NONE else group
