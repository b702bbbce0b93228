"""What the user reads when something is wrong, and how to find it again in Spark's text (decision 43).

Nothing but text crosses Spark, so each error's text begins with a tag, `KAFKA_PREFIX[<group>] <NAME>: <one line>`, and `tag_in` finds
that tag in whatever Spark wraps around it. Pure.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from chaffinch.errors import ApiException, ConfigException, KafkaException
from chaffinch.errors.codes import ErrorCode, Group

_TAG: Final = re.compile(rf"KAFKA\[({'|'.join(group.value for group in Group)})\] ([A-Za-z][A-Za-z0-9_]*): ([^\r\n]*)")
TEXT_CHARACTERS_MAX: Final = 1000
"""A broker's message may be 32 KiB long."""
# A text that was quoted, as by repr() or in JSON, has its line ends written out, before the tag too; a backslash of ours is two there.
_QUOTED_REST: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\n.*")
_QUOTED: Final = re.compile(r"\\([\\'\"])")
_STATES: Final = re.compile(r"(?: SQLSTATE: \w+)+\s*$")
"""Spark's own, at the end of the tag's line."""


class Kind(Enum):
    """What was run when it went wrong: there is no query to start again where there was none."""

    QUERY = "a streaming query"
    BATCH = "a read, or a batch write that nobody remembers"
    BATCH_ONCE = "a batch write with a token, which the marker remembers; a replay is one too"


class Remedy(Enum):
    """What a person does about an error."""

    AGAIN = "nothing of it is visible: run it again"
    LOOK = "whether it is written is not known"
    CORRECT = "it fails again as it is"


ADVICE: Final = {
    Remedy.AGAIN: {
        Kind.QUERY: "start the query again",
        Kind.BATCH: "run it again",
        Kind.BATCH_ONCE: "run it again",
    },
    Remedy.LOOK: {
        Kind.QUERY: "start the query again: it reads the marker, and writes the batch exactly if it is not",
        Kind.BATCH: "look into the topic before it is run again; with an idempotencyToken nothing would be written twice",
        Kind.BATCH_ONCE: "run it again: the marker tells, nothing is written twice",
    },
    Remedy.CORRECT: {
        Kind.QUERY: "correct the data, the options or the topic, a restart alone fails again",
        Kind.BATCH: "correct the data, the options or the topic",
        Kind.BATCH_ONCE: "correct the data, the options or the topic",
    },
}
REMEDIES: Final = {
    Group.RETRIABLE: Remedy.AGAIN,
    Group.REFRESH_RETRIABLE: Remedy.AGAIN,
    Group.TRANSACTION_ABORTABLE: Remedy.AGAIN,
    Group.APPLICATION_RECOVERABLE: Remedy.AGAIN,
    Group.INVALID_CONFIGURATION: Remedy.CORRECT,
}
"""Of an error of Kafka's that says nothing of it by itself."""


class _Headline(Exception):
    """The line of a Refusal, as the context that is printed before its traceback."""


class Refusal(Exception):
    """A batch that must not be written, or cannot be. `name` is Kafka's error name or one of ours; the text is one line.

    The text that reaches the user begins with the class in brackets, because nothing but text crosses Spark (decision 43). It ends with
    what to do; `remedy` is None where `reason` says that by itself.
    """

    def __init__(self, group: Group, name: str, reason: str, remedy: Remedy | None = None, kind: Kind = Kind.QUERY) -> None:
        self.group, self.name, self.remedy = group, name, remedy
        self.reason = " ".join(reason.split())
        self.text = self.reason if remedy is None else f"{self.reason.rstrip(' .;')}; {ADVICE[remedy][kind]}"
        super().__init__(group, name, reason, remedy, kind)

    @property
    def __suppress_context__(self) -> bool:
        """Whether Python leaves the context out of a traceback. PySpark asks for that when it shortens one; a headline stays."""
        return not isinstance(self.__context__, _Headline) and super().__suppress_context__

    @__suppress_context__.setter
    def __suppress_context__(self, value: bool) -> None:
        BaseException.__dict__["__suppress_context__"].__set__(self, value)

    def worded_for(self, kind: Kind) -> Refusal:
        """The same, said to who has run something of this kind."""
        return Refusal(self.group, self.name, self.reason, self.remedy, kind)

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
    line = found[3]
    if r"\n" in text[text.rfind("\n", 0, found.start()) + 1 : found.start()]:
        line = _QUOTED.sub(r"\1", _QUOTED_REST.sub(r"\1", line))
    return ErrorTag(group=Group(found[1]), name=found[2], text=_STATES.sub("", line).rstrip())


@contextmanager
def worded_for(kind: Kind) -> Iterator[None]:
    """Whatever is refused within is said to who has run something of this kind."""
    try:
        yield
    except Refusal as refusal:
        raise refusal.worded_for(kind) from None


@contextmanager
def line_first() -> Iterator[None]:
    """Spark shows the traceback of an exception as its text. Of a Refusal raised within, its line comes first there, before the frames:
    Python prints the context of an exception before it, and a headline has no frames."""
    try:
        yield
    except Refusal as refusal:
        headline = type(f"KAFKA[{refusal.group.value}] {refusal.name}", (_Headline,), {"__module__": "builtins"})
        if refusal.__cause__ is not None:  # What nobody thought of: its own traceback comes last.
            refusal.add_note("".join(traceback.format_exception(refusal.__cause__)))
        refusal.__cause__, refusal.__context__ = None, headline(refusal.text)
        raise


def invalid(error: ConfigException) -> Refusal:
    """A wrong configuration, as its text reaches the user."""
    return Refusal(Group.INVALID_CONFIGURATION, "CONFIG", str(error))


def refusal_of(error: KafkaException) -> Refusal:
    """A client's exception as the error the user sees: its class, its name, where and why, and what to do about a query."""
    if not isinstance(error, ApiException):
        return advised(error.group, type(error).__name__, str(error))
    what = f"{error.api} " if error.api else ""
    what += f"for {error.topic_partition}" if error.topic_partition else ""
    where = f"{what.strip()}: " if what else ""
    return advised(error.group, error.name, f"{where}{error.message}"[:TEXT_CHARACTERS_MAX])


def refusal_for(code: ErrorCode, text: str) -> Refusal:
    """A broker's answer as the error the user sees."""
    return advised(code.group, code.name, text)


def advised(group: Group, name: str, text: str) -> Refusal:
    """A refusal that ends with its group's advice. KIP-1050: what has no group is application-recoverable."""
    known = Group.APPLICATION_RECOVERABLE if group is Group.NONE else group
    return Refusal(known, name, text, REMEDIES[known])
