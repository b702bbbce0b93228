"""Error messages with tags: `Refusal` and its text, and `tag_in`, which finds the tag in Spark's text (decision 43).

Spark passes on only the text of an error, so each text begins with a tag: `KAFKA[<group>] <NAME>: <one line>`. Pure.
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
from chaffinch.public_names import exported_from

_TAG: Final = re.compile(rf"KAFKA\[({'|'.join(group.value for group in Group)})\] ([A-Za-z][A-Za-z0-9_]*): ([^\r\n]*)")
TEXT_CHARACTERS_MAX: Final = 1000
"""Messages of brokers can be 32 KiB long."""
# If the text is quoted, as by repr() or JSON, backslashes are doubled and line ends are escaped, including those before the tag.
_QUOTED_REST: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\n.*")
_QUOTED: Final = re.compile(r"\\([\\'\"])")
_STATES: Final = re.compile(r"(?: SQLSTATE: \w+)+\s*$")
"""SQLSTATE, which Spark adds at the end of the tag's line."""


class Kind(Enum):
    """The kind of run in which the error occurred; it determines the wording of the advice."""

    QUERY = "a streaming query"
    BATCH = "a read, or a batch write without a token"
    BATCH_ONCE = "a batch write with a token, which its marker records, or a replay"


class Remedy(Enum):
    """How the user can resolve an error."""

    AGAIN = "no record of it is visible: run it again"
    LOOK = "it is unknown whether it was written"
    CORRECT = "it fails again unless something is corrected"


ADVICE: Final = {
    Remedy.AGAIN: {
        Kind.QUERY: "start the query again",
        Kind.BATCH: "run it again",
        Kind.BATCH_ONCE: "run it again",
    },
    Remedy.LOOK: {
        Kind.QUERY: "start the query again: it reads the marker, and writes the batch only if it was not written",
        Kind.BATCH: "check the topic before you run it again; with an idempotencyToken nothing would be written twice",
        Kind.BATCH_ONCE: "run it again: it reads the marker, so nothing is written twice",
    },
    Remedy.CORRECT: {
        Kind.QUERY: "correct the data, the options or the topic; a restart alone does not help",
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
"""Remedies for Kafka errors without a specific one."""


class _Headline(Exception):
    """The line of a Refusal, as the exception context that Python prints before the traceback."""


@exported_from("chaffinch.spark")
class Refusal(Exception):
    """Error of a batch that must not or cannot be written. `name` is an error name of Kafka or Chaffinch; the text is one line.

    The text begins with the group in brackets, because Spark passes on only the text (decision 43), and ends with the remedy. `remedy` is
    None if `reason` already contains it.
    """

    def __init__(self, group: Group, name: str, reason: str, remedy: Remedy | None = None, kind: Kind = Kind.QUERY) -> None:
        self.group, self.name, self.remedy = group, name, remedy
        self.reason = " ".join(reason.split())
        self.text = self.reason if remedy is None else f"{self.reason.rstrip(' .;')}; {ADVICE[remedy][kind]}"
        super().__init__(group, name, reason, remedy, kind)

    @property
    def __suppress_context__(self) -> bool:
        """Whether Python omits the context from a traceback. PySpark sets it when it shortens a traceback; a headline stays visible."""
        return not isinstance(self.__context__, _Headline) and super().__suppress_context__

    @__suppress_context__.setter
    def __suppress_context__(self, value: bool) -> None:
        BaseException.__dict__["__suppress_context__"].__set__(self, value)

    def worded_for(self, kind: Kind) -> Refusal:
        """The same refusal with advice for this kind of run."""
        return Refusal(self.group, self.name, self.reason, self.remedy, kind)

    def __str__(self) -> str:
        return f"KAFKA[{self.group.value}] {self.name}: {self.text}"


@exported_from("chaffinch.spark")
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTag:
    """A tag found in an error text.

    Attributes:
        group: the error group of KIP-1050.
        name: the error name, such as INVALID_RECORD.
        text: the message on one line, without the tag.
    """

    group: Group
    name: str
    text: str


@exported_from("chaffinch.spark")
def tag_in(text: str) -> ErrorTag | None:
    """Find the first tag in a text.

    Args:
        text: any text that contains the message of an error, such as that of a Spark exception.

    Returns:
        The tag, or None if there is none.
    """
    found = _TAG.search(text)
    if found is None:
        return None
    line = found[3]
    if r"\n" in text[text.rfind("\n", 0, found.start()) + 1 : found.start()]:
        line = _QUOTED.sub(r"\1", _QUOTED_REST.sub(r"\1", line))
    return ErrorTag(group=Group(found[1]), name=found[2], text=_STATES.sub("", line).rstrip())


@contextmanager
def worded_for(kind: Kind) -> Iterator[None]:
    """Give each Refusal of the block the advice for this kind of run."""
    try:
        yield
    except Refusal as refusal:
        raise refusal.worded_for(kind) from None


@contextmanager
def line_first() -> Iterator[None]:
    """Put the line of a Refusal before the frames of its traceback, because Spark shows the traceback as the text.

    Python prints the context of an exception before it, and a headline without frames is printed as one line.
    """
    try:
        yield
    except Refusal as refusal:
        headline = type(f"KAFKA[{refusal.group.value}] {refusal.name}", (_Headline,), {"__module__": "builtins"})
        if refusal.__cause__ is not None:  # An unexpected error: its own traceback comes last.
            refusal.add_note("".join(traceback.format_exception(refusal.__cause__)))
        refusal.__cause__, refusal.__context__ = None, headline(refusal.text)
        raise


def invalid(error: ConfigException) -> Refusal:
    """The Refusal for an invalid configuration."""
    return Refusal(Group.INVALID_CONFIGURATION, "CONFIG", str(error))


def refusal_of(error: KafkaException) -> Refusal:
    """The Refusal for a client's exception: group, name, API and partition, reason, and advice for a query."""
    if not isinstance(error, ApiException):
        return advised(error.group, type(error).__name__, str(error))
    what = f"{error.api} " if error.api else ""
    what += f"for {error.topic_partition}" if error.topic_partition else ""
    where = f"{what.strip()}: " if what else ""
    return advised(error.group, error.name, f"{where}{error.message}"[:TEXT_CHARACTERS_MAX])


def refusal_for(code: ErrorCode, text: str) -> Refusal:
    """The Refusal for an error code of a broker."""
    return advised(code.group, code.name, text)


def advised(group: Group, name: str, text: str) -> Refusal:
    """A Refusal that ends with the advice of its group. According to KIP-1050 an error without a group is application-recoverable."""
    known = Group.APPLICATION_RECOVERABLE if group is Group.NONE else group
    return Refusal(known, name, text, REMEDIES[known])
