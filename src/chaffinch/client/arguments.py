"""What callers of a producer and of a consumer may hand over alike, checked at the call: TypeError or ValueError naming the argument,
what it is and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from chaffinch.identifiers import OffsetAndMetadata, TopicPartition

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
# Longer waits are as good as this one (31 years), and no lock of the system takes much more.
TIMEOUT_MAX_S: Final = 1e9


def checked_topic(topic: Any) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"argument topic must be a str, not {type(topic).__name__}")
    return topic


def checked_text(text: str, name: str) -> bytes:
    """A string as UTF-8; half a surrogate pair has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"argument {name} has no UTF-8: character {error.start} of {text!r} is half a surrogate pair") from None


def checked_place(place: Any) -> TopicPartition:
    """A TopicPartition, or a pair like one."""
    if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[0], str) or not is_number(place[1]):
        raise TypeError(f"argument partition must be a TopicPartition, not {place!r}")
    if not 0 <= place[1] <= INT32_MAX:
        raise ValueError(f"argument partition has the number {place[1]}: it must be from 0 to {INT32_MAX}")
    return TopicPartition(*place)


def checked_offset(offset: Any) -> OffsetAndMetadata:
    """An offset from 0 up, alone or as OffsetAndMetadata."""
    found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if not is_number(found.offset):
        raise TypeError(f"argument offset must be an int or an OffsetAndMetadata, not {offset!r}")
    if not 0 <= found.offset <= INT64_MAX:
        raise ValueError(f"argument offset must be from 0 to {INT64_MAX}, not {found.offset}")
    if not isinstance(found.metadata, str):
        raise TypeError(f"argument offset has the metadata {found.metadata!r}, which is not a str")
    checked_text(found.metadata, "offset, in its metadata,")
    if not is_number(found.leader_epoch):
        raise TypeError(f"argument offset has the leader_epoch {found.leader_epoch!r}, which is not an int")
    if not -1 <= found.leader_epoch <= INT32_MAX:
        raise ValueError(f"argument offset has the leader_epoch {found.leader_epoch}: it must be from 0 to {INT32_MAX}, or -1 for none")
    return found


def checked_offsets(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit, by partition."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"argument offsets must be a mapping of TopicPartition to OffsetAndMetadata, not {type(offsets).__name__}")
    return {checked_place(place): checked_offset(offset) for place, offset in offsets.items()}


def checked_timeout_ms(timeout: Any) -> int | None:
    """A timeout in seconds, as ms; None waits without limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"argument timeout must be None or a number of seconds, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"argument timeout must be None or a number of seconds from 0 up, not {timeout!r}")
    return int(min(timeout, TIMEOUT_MAX_S) * 1000)


def is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
