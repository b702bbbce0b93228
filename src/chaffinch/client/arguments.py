"""Argument checks shared by producer, consumer and administration.

They raise TypeError or ValueError, which name the argument, its value and the allowed values. Integers of other types, such as numpy's,
are converted to int.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Final

from chaffinch.errors import InvalidTopicException, Stored
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.settings import shown_value

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
# 31 years: equivalent to no limit, and close to the longest wait that locks of the operating system accept.
TIMEOUT_MAX_S: Final = 1e9
# Topic.java: legal characters and length; `.` and `..` would be directories.
_TOPIC_LEGAL: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}")


def checked_topic(topic: Any) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"argument topic must be a str, not {type(topic).__name__}")
    return topic


def checked_names(names: Iterable[str]) -> list[str]:
    """The names without duplicates, in the order given. TypeError for a single string, whose characters would be taken for names."""
    if isinstance(names, str | bytes | bytearray | memoryview):
        raise TypeError(f"argument names must be a list of names, not {shown_value(names)}: no request was sent")
    return list(dict.fromkeys(names))


def illegal_topic_reason(topic: str) -> str | None:
    """Why no broker accepts the topic name; None if it is legal."""
    if _TOPIC_LEGAL.fullmatch(topic):
        return None
    if topic in (".", ".."):
        return "'.' and '..' are names of directories"
    return "a name has letters, digits, '.', '_' and '-', at most 249 of them"


def illegal_topic_error(topic: str) -> InvalidTopicException | None:
    """The error of an illegal topic name; None if it is legal."""
    reason = illegal_topic_reason(topic)
    return None if reason is None else InvalidTopicException(f"topic {shown_value(topic)} is not a legal name: {reason}", stored=Stored.NO)


def checked_utf8(text: str, name: str) -> bytes:
    """A string as UTF-8. ValueError for a lone surrogate, which has no encoding."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        reason = f"character {error.start} of {shown_value(text)} is half a surrogate pair"
        raise ValueError(f"argument {name} cannot be encoded as UTF-8: {reason}") from None


def checked_topic_partition(tp: Any) -> TopicPartition:
    """A TopicPartition, or a (topic, partition) pair."""
    index = as_int(tp[1]) if isinstance(tp, tuple) and len(tp) == 2 else None
    if isinstance(tp, TopicPartition) and not isinstance(tp.topic, str):
        raise TypeError(f"argument partition is {shown_value(tp)}: its topic must be a str, not {type(tp.topic).__name__}")
    if isinstance(tp, TopicPartition) and index is None:
        raise TypeError(f"argument partition is {shown_value(tp)}: its partition is a {type(tp.partition).__name__} and must be an int")
    if index is None or not isinstance(tp[0], str):
        raise TypeError(f"argument partition must be a TopicPartition, not {shown_value(tp)}")
    if not 0 <= index <= INT32_MAX:
        raise ValueError(f"argument partition has the number {index}: it must be from 0 to {INT32_MAX}")
    if (error := illegal_topic_error(tp[0])) is not None:
        raise error
    return TopicPartition(tp[0], index)


def checked_offset(offset: Any) -> OffsetAndMetadata:
    """An offset of 0 or more, as an int or OffsetAndMetadata."""
    found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    number, epoch = as_int(found.offset), as_int(found.leader_epoch)
    if number is None:
        raise TypeError(f"argument offset must be an int or an OffsetAndMetadata, not {shown_value(offset)}")
    if not 0 <= number <= INT64_MAX:
        raise ValueError(f"argument offset must be from 0 to {INT64_MAX}, not {number}")
    if not isinstance(found.metadata, str):
        raise TypeError(f"argument offset has the metadata {shown_value(found.metadata)}, which is not a str")
    checked_utf8(found.metadata, "offset, in its metadata,")
    if epoch is None:
        raise TypeError(f"argument offset has the leader_epoch {shown_value(found.leader_epoch)}, which is not an int")
    if not -1 <= epoch <= INT32_MAX:
        raise ValueError(f"argument offset has the leader_epoch {epoch}: it must be from 0 to {INT32_MAX}, or -1 for none")
    return OffsetAndMetadata(number, found.metadata, epoch)


def checked_offsets(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit, by partition."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"argument offsets must be a mapping of TopicPartition to OffsetAndMetadata, not {type(offsets).__name__}")
    return {checked_topic_partition(tp): checked_offset(offset) for tp, offset in offsets.items()}


def checked_timeout_ms(timeout: Any) -> int | None:
    """A timeout in seconds, converted to ms; None waits without limit."""
    if timeout is None:
        return None
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if not is_number:
        raise TypeError(f"argument timeout must be None or a number of seconds, not {shown_value(timeout)}")
    if not timeout >= 0:
        raise ValueError(f"argument timeout must be None or a number of seconds from 0 up, not {shown_value(timeout)}")
    return int(float(min(timeout, TIMEOUT_MAX_S)) * 1000)


def as_int(value: Any) -> int | None:
    """An integer of any type as an int; None for bool and for any value that would have to be rounded or parsed."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
