"""Argument checks of `Admin`. They raise TypeError or ValueError with argument, value and allowed values, before a request is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from chaffinch.client.arguments import INT32_MAX, INT64_MAX, as_int, checked_topic_partition
from chaffinch.client.arguments import checked_names as without_duplicates
from chaffinch.identifiers import TopicPartition
from chaffinch.settings import as_text, shown_value

REPLICAS_MAX: Final = 32_767


def checked_text(value: Any, argument: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"argument {argument} must be a str, not {shown_value(value)}")
    return value


def checked_name(value: Any, argument: str = "name") -> str:
    if not checked_text(value, argument):
        raise ValueError(f"argument {argument} is empty: no request was sent")
    name: str = value
    return name


def checked_names(names: Any) -> list[str]:
    """Names without duplicates, in the order given."""
    if not isinstance(names, Iterable):
        raise TypeError(f"argument names must be a list of names, not {shown_value(names)}: no request was sent")
    return [checked_text(name, "names") for name in without_duplicates(names)]


def checked_choices(values: Any, argument: str, allowed: Iterable[str]) -> list[str]:
    """Words from a set, in any case, as the set has them."""
    known = {word.lower(): word for word in allowed}
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"argument {argument} must be a list, not {shown_value(values)}: no request was sent")
    found = []
    for value in values:
        if not isinstance(value, str) or value.lower() not in known:
            raise ValueError(f"argument {argument} has the value {shown_value(value)}: it must be one of {', '.join(known.values())}")
        found.append(known[value.lower()])
    return found


def checked_number(value: Any, argument: str, low: int, high: int = INT64_MAX) -> int:
    number = as_int(value)
    if number is None:
        raise TypeError(f"argument {argument} must be an int, not {shown_value(value)}")
    if not low <= number <= high:
        raise ValueError(f"argument {argument} must be from {low} to {high}, not {number}")
    return number


def checked_count(value: Any, argument: str, high: int = INT32_MAX) -> int | None:
    """A number of at least 1, or None."""
    return None if value is None else checked_number(value, argument, 1, high)


def checked_partitions(partitions: Any) -> list[TopicPartition]:
    """Partitions without duplicates, in the order given."""
    if isinstance(partitions, TopicPartition | str) or not isinstance(partitions, Iterable):
        raise TypeError(f"argument partitions must be a list of TopicPartition, not {shown_value(partitions)}")
    return list(dict.fromkeys(map(checked_topic_partition, partitions)))


def checked_offsets(offsets: Any, *, allows_none: bool = False) -> dict[TopicPartition, Any]:
    """Offsets of 0 or more by partition; with `allows_none` also None."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"argument offsets must be a mapping of TopicPartition to offset, not {shown_value(offsets)}")
    return {
        checked_topic_partition(tp): None if allows_none and offset is None else checked_number(offset, f"offsets, for {tp},", 0)
        for tp, offset in offsets.items()
    }


def checked_configs(configs: Any, argument: str) -> dict[str, str]:
    """Configuration values as text, by name. Numbers and booleans are converted."""
    if not isinstance(configs, Mapping):  # Its value may be secret.
        raise TypeError(f"argument {argument} must be a mapping of names to values, not a {type(configs).__name__}")
    for name, value in configs.items():
        if not isinstance(name, str):
            raise TypeError(f"argument {argument} has the name {name!r}, which is not a str")
        if not isinstance(value, str | int | float):
            raise TypeError(f"argument {argument} has a value of type {type(value).__name__} for {name}: it must be a str, number or bool")
    return {name: as_text("", value) for name, value in configs.items()}  # Without the name, which may hide the value.
