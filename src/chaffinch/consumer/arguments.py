"""What a caller may hand to a consumer, checked at the call: TypeError or ValueError naming the argument and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from chaffinch.identifiers import OffsetAndMetadata, TopicPartition

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


def checked_topics(topics: Any) -> list[str] | re.Pattern[str]:
    """Names (one alone will do), or a compiled pattern."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise TypeError("argument topics must be a pattern of str, not of bytes")
        return topics
    if isinstance(topics, str):
        return [topics]
    if isinstance(topics, Mapping) or not isinstance(topics, Iterable):
        raise TypeError(f"argument topics must be names of topics or a compiled pattern, not {type(topics).__name__}")
    names = list(topics)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"argument topics has {name!r}, which is not a str")
        if not name:
            raise ValueError("argument topics has an empty name")
    return names


def checked_topic(topic: Any) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"argument topic must be a str, not {type(topic).__name__}")
    return topic


def checked_place(place: Any) -> TopicPartition:
    """A TopicPartition, or a pair like one."""
    if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[0], str) or not _is_number(place[1]):
        raise TypeError(f"argument partition must be a TopicPartition, not {place!r}")
    if not 0 <= place[1] <= INT32_MAX:
        raise ValueError(f"argument partition has the number {place[1]}: it must be from 0 to {INT32_MAX}")
    return TopicPartition(*place)


def checked_places(places: Any) -> list[TopicPartition]:
    """Several; each once."""
    if isinstance(places, str | TopicPartition | Mapping) or not isinstance(places, Iterable):
        raise TypeError(f"argument partitions must be a list of TopicPartitions, not {places!r}")
    return list(dict.fromkeys(checked_place(place) for place in places))


def checked_offset(offset: Any) -> OffsetAndMetadata:
    """An offset from 0 up, alone or as OffsetAndMetadata."""
    found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if not _is_number(found.offset):
        raise TypeError(f"argument offset must be an int or an OffsetAndMetadata, not {offset!r}")
    if not 0 <= found.offset <= INT64_MAX:
        raise ValueError(f"argument offset must be from 0 to {INT64_MAX}, not {found.offset}")
    return found


def checked_offsets(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"argument offsets must be a mapping of TopicPartition to OffsetAndMetadata, not {type(offsets).__name__}")
    return {checked_place(place): checked_offset(offset) for place, offset in offsets.items()}


def checked_times(times: Any) -> dict[TopicPartition, int]:
    if not isinstance(times, Mapping):
        raise TypeError(f"argument times must be a mapping of TopicPartition to milliseconds, not {type(times).__name__}")
    for place, time_ms in times.items():
        if not _is_number(time_ms):
            raise TypeError(f"argument times has {time_ms!r} for {place}: it must be an int, ms since 1970")
        if not 0 <= time_ms <= INT64_MAX:
            raise ValueError(f"argument times has {time_ms} for {place}: it must be from 0 to {INT64_MAX}")
    return {checked_place(place): time_ms for place, time_ms in times.items()}


def checked_callback(callback: Any, name: str) -> Callable[..., object] | None:
    if callback is not None and not callable(callback):
        raise TypeError(f"argument {name} must be callable, not {type(callback).__name__}")
    return callback  # type: ignore[no-any-return]


def checked_timeout_ms(timeout: Any) -> int | None:
    """A timeout in seconds, as ms; None waits without limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"argument timeout must be None or a number of seconds, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"argument timeout must be None or a number of seconds from 0 up, not {timeout!r}")
    return int(min(timeout, 2.0**53) * 1000)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
