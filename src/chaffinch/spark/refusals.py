"""What the user reads when something is wrong, and how to find it again in Spark's text (decision 43).

Nothing but text crosses Spark, so each error's text begins with a tag, `KAFKA[<group>] <NAME>: <one line>`, and `tag_in` finds
that tag in whatever Spark wraps around it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from chaffinch.errors import ApiException, ConfigException, KafkaException
from chaffinch.errors.codes import ErrorCode, Group

_TAG: Final = re.compile(rf"KAFKA\[({'|'.join(group.value for group in Group)})\] ([A-Za-z][A-Za-z0-9_]*): ([^\r\n]*)")
TEXT_CHARACTERS_MAX: Final = 1000
"""A broker's message may be 32 KiB long."""
# Behind the tag's line Spark puts the rest of a traceback, its line ends written out where the text was quoted, and its own state.
_TAIL: Final = re.compile(r"(?:\\n| SQLSTATE: ).*")


# What a person does about an error of Kafka's that says nothing of it by itself.
ADVICE: Final = {
    Group.RETRIABLE: "start the query again",
    Group.REFRESH_RETRIABLE: "start the query again",
    Group.TRANSACTION_ABORTABLE: "start the query again",
    Group.APPLICATION_RECOVERABLE: "start the query again",
    Group.INVALID_CONFIGURATION: "correct the data, the options or the topic, a restart alone fails again",
}


class Refusal(Exception):
    """A batch that must not be written, or cannot be. `name` is Kafka's error name or one of ours; the text is one line.

    The text that reaches the user begins with the class in brackets, because nothing but text crosses Spark (decision 43).
    """

    def __init__(self, group: Group, name: str, text: str) -> None:
        self.group, self.name, self.text = group, name, " ".join(text.split())
        super().__init__(group, name, self.text)

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


def refusal_of(error: KafkaException) -> Refusal:
    """A client's exception as the error the user sees: its class, its name, where and why, and what to do about a query."""
    if not isinstance(error, ApiException):
        return advised(nameable(error.group), type(error).__name__, str(error))
    what = f"{error.api} " if error.api else ""
    what += f"for {error.topic_partition}" if error.topic_partition else ""
    where = f"{what.strip()}: " if what else ""
    return advised(nameable(error.group), error.name, f"{where}{error.message}"[:TEXT_CHARACTERS_MAX])


def refusal_for(code: ErrorCode, text: str) -> Refusal:
    """A broker's answer as the error the user sees."""
    return advised(nameable(code.group), code.name, text)


def advised(group: Group, name: str, text: str) -> Refusal:
    """A refusal that ends with its group's advice."""
    return Refusal(group, name, f"{text.rstrip(' .;')}; {ADVICE[group]}")


def nameable(group: Group) -> Group:
    """KIP-1050: what has no group is application-recoverable."""
    return Group.APPLICATION_RECOVERABLE if group is Group.NONE else group
