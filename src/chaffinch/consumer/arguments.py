"""Argument validation of the consumer's methods; raises TypeError or ValueError naming the argument and the allowed values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chaffinch.client.arguments import INT64_MAX, as_int, illegal_topic_error
from chaffinch.client.arguments import checked_offset as checked_offset
from chaffinch.client.arguments import checked_offsets as checked_offsets
from chaffinch.client.arguments import checked_timeout_ms as checked_timeout_ms
from chaffinch.client.arguments import checked_topic as _checked_text_of_topic
from chaffinch.client.arguments import checked_topic_partition as checked_topic_partition
from chaffinch.identifiers import TopicPartition
from chaffinch.settings import shown_value

# Iterating over these would yield numbers, as iterating over a str yields characters.
_BYTES = (bytes, bytearray, memoryview)


def checked_topic(topic: Any) -> str:
    """One topic name. Raises InvalidTopicException if brokers do not accept it."""
    name = _checked_text_of_topic(topic)
    if (error := illegal_topic_error(name)) is not None:
        raise error
    return name


def checked_topics(topics: Any) -> list[str] | re.Pattern[str]:
    """A list of names (a single name is accepted), or a compiled pattern."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise TypeError("argument topics must be a pattern of str, not of bytes")
        return topics
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, (Mapping, *_BYTES)) or not isinstance(topics, Iterable):
        raise TypeError(f"argument topics must be names of topics or a compiled pattern, not {type(topics).__name__}")
    names = list(topics)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"argument topics has {shown_value(name)}, which is not a str")
        if not name:
            raise ValueError("argument topics has an empty name")
        if name.startswith("^"):
            pattern = name.removeprefix("^").removesuffix("$") if name.endswith(("$", ".*")) else name.removeprefix("^") + ".*"
            raise ValueError(
                f"argument topics has {shown_value(name)}, which is not a topic name: a pattern must be compiled, and matches whole names:"
                f" subscribe(re.compile({shown_value(pattern)}))"
            )
        if (error := illegal_topic_error(name)) is not None:
            raise error
    return names


def checked_partitions(tps: Any) -> list[TopicPartition]:
    """A list of TopicPartitions without duplicates."""
    if isinstance(tps, (str, TopicPartition, Mapping, *_BYTES)) or not isinstance(tps, Iterable):
        raise TypeError(f"argument partitions must be a list of TopicPartitions, not {shown_value(tps)}")
    return list(dict.fromkeys(checked_topic_partition(tp) for tp in tps))


def checked_times(times: Any) -> dict[TopicPartition, int]:
    if not isinstance(times, Mapping):
        raise TypeError(f"argument times must be a mapping of TopicPartition to milliseconds, not {type(times).__name__}")
    return {checked_topic_partition(tp): _checked_time_ms(time_ms, tp) for tp, time_ms in times.items()}


def _checked_time_ms(time_ms: Any, tp: Any) -> int:
    found = as_int(time_ms)
    if found is None:
        raise TypeError(f"argument times has {shown_value(time_ms)} for {tp}: it must be an int, ms since 1970")
    if not 0 <= found <= INT64_MAX:
        raise ValueError(f"argument times has {found} for {tp}: it must be from 0 to {INT64_MAX}")
    return found


def checked_callback(callback: Any, name: str) -> Callable[..., object] | None:
    if callback is not None and not callable(callback):
        raise TypeError(f"argument {name} must be callable, not {type(callback).__name__}")
    return callback  # type: ignore[no-any-return]
