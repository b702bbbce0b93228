"""What a caller may hand to `send`, checked at the call: TypeError or ValueError naming the argument, what it is and what is allowed.

What concerns the record rather than the call (too large, an illegal topic name) is no mistake of the program, and fails its future.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from chaffinch.errors import InvalidTopicException, KafkaException, Stored
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.records import GroupMetadata, Headers, ProducerRecord

# Topic.java: legal characters and length; `.` and `..` would be directories.
_TOPIC_LEGAL: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}")
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1


def content(value: Any, name: str, serializer: Callable[[Any], Any] | None = None) -> bytes | None:
    """A key or value as bytes; a string is its UTF-8. A serializer is asked about everything but None, which stays null."""
    if serializer is not None and value is not None:
        value, name = serializer(value), f"{name} (what {name}.serializer made of it)"
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"argument {name} must be bytes, str or None, not {type(value).__name__}")


def checked_topic(topic: Any) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"argument topic must be a str, not {type(topic).__name__}")
    return topic


def checked_number(value: Any, name: str, maximum: int) -> int | None:
    """A partition or timestamp: None, or from 0 up to `maximum`."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"argument {name} must be an int or None, not {type(value).__name__}")
    if not 0 <= value <= maximum:
        raise ValueError(f"argument {name} must be from 0 to {maximum}, not {value}")
    return value


def checked_headers(headers: Any) -> Headers:
    """Headers as a list of (str, bytes or None); strings as values are their UTF-8."""
    if not headers:
        return ()
    if isinstance(headers, str | bytes | Mapping):
        raise TypeError(f"argument headers must be a sequence of (str, bytes) pairs, not {type(headers).__name__}")
    checked = []
    for entry in headers:
        if not isinstance(entry, tuple | list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise TypeError(f"argument headers must be a sequence of (str, bytes) pairs; one entry is {entry!r}")
        checked.append((entry[0], content(entry[1], f"headers[{entry[0]!r}]")))
    return checked


def record_of(record: Any, others: Mapping[str, Any]) -> ProducerRecord | None:
    """The record when `send` was given one instead of a topic; nothing else may be given then."""
    if not isinstance(record, ProducerRecord):
        return None
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise TypeError(f"argument {given[0]} is given beside a ProducerRecord, which has its own")
    return record


def illegal_topic(topic: str) -> KafkaException | None:
    """The error of a topic name that no broker would accept; None if it is legal."""
    if _TOPIC_LEGAL.fullmatch(topic):
        return None
    text = f"topic {topic!r} is not a legal name: letters, digits, '.', '_' and '-', at most 249 of them"
    return InvalidTopicException(text, stored=Stored.NO)


def checked_callback(callback: Any) -> Callable[..., object]:
    if not callable(callback):
        raise TypeError(f"argument on_delivery must be callable, not {type(callback).__name__}")
    return callback  # type: ignore[no-any-return]


def checked_offsets(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit: (topic, partition) -> offset, alone or as OffsetAndMetadata."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"argument offsets must be a mapping of TopicPartition to OffsetAndMetadata, not {type(offsets).__name__}")
    checked = {}
    for place, offset in offsets.items():
        if not isinstance(place, tuple) or len(place) != 2:
            raise TypeError(f"argument offsets has the key {place!r}, which is not a TopicPartition")
        committed = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if not isinstance(committed.offset, int) or committed.offset < 0:
            raise ValueError(f"argument offsets has the offset {committed.offset!r} for {TopicPartition(*place)}: it must be 0 or more")
        checked[TopicPartition(*place)] = committed
    return checked


def checked_group(group: Any) -> GroupMetadata:
    if isinstance(group, str) and group:
        return GroupMetadata(group)
    if isinstance(group, GroupMetadata):
        return group
    raise TypeError(f"argument group_metadata must be a group id or a GroupMetadata, not {group!r}")


def checked_timeout_ms(timeout: Any) -> int | None:
    """A timeout in seconds, as ms; None waits without limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout < 0:
        raise ValueError(f"argument timeout must be None or a number of seconds from 0 up, not {timeout!r}")
    return int(timeout * 1000)
