"""Which part of which partitions a read covers: Spark's offset JSON, and what the brokers say about beginnings and ends. Pure.

The JSON is that of Spark's Kafka source: `{"orders":{"0":23,"1":-2}}`, -2 for the earliest and -1 for the latest offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChoice:
    """Where to start or end: one sentinel for all partitions, or an offset (or sentinel) for each."""

    everywhere: int | None = None
    by_partition: tuple[tuple[TopicPartition, int], ...] = ()

    def of(self, topic_partition: TopicPartition, option: str) -> int:
        """ConfigException where offsets are given by partition and this one has none."""
        if self.everywhere is not None:
            return self.everywhere
        found = dict(self.by_partition).get(topic_partition)
        if found is None:
            named = ", ".join(str(known) for known, _ in self.by_partition)
            raise ConfigException(
                f"{option} says nothing about {topic_partition}: it must name every partition that is read; it names {named}"
            )
        return found


def parse_offsets(option: str, text: str, *, sentinel: int) -> OffsetChoice:
    """`sentinel` is the only one allowed: what to start with is never the latest, what to end with never the earliest, in a batch read."""
    words = {OFFSET_EARLIEST: "earliest", OFFSET_LATEST: "latest"}
    other = OFFSET_LATEST if sentinel == OFFSET_EARLIEST else OFFSET_EARLIEST
    allowed = f'{words[sentinel]}, or JSON such as {{"orders":{{"0":23,"1":{sentinel}}}}}'
    if text.strip().lower() == words[sentinel]:
        return OffsetChoice(everywhere=sentinel)
    pairs = [(where, offset) for where, offset in _pairs(option, text, allowed)]
    for where, offset in pairs:
        if not isinstance(offset, int) or offset < OFFSET_EARLIEST or offset == other:
            raise ConfigException(f"{option} says {offset!r} for {where}; it must be an offset, or {sentinel} for {words[sentinel]}")
    return OffsetChoice(by_partition=tuple(pairs))


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """`{"orders":[0,1]}`, sorted. ConfigException for anything else."""
    allowed = 'JSON such as {"orders":[0,1]}'
    fields = _json_object(option, text, allowed)
    found: list[TopicPartition] = []
    for topic, partitions in fields.items():
        if not isinstance(partitions, list) or not all(isinstance(number, int) and number >= 0 for number in partitions):
            raise ConfigException(f"{option}={text!r}: {topic} must have a list of partition numbers; allowed: {allowed}")
        found.extend(TopicPartition(topic, number) for number in partitions)
    return tuple(sorted(set(found)))


def _pairs(option: str, text: str, allowed: str) -> Iterable[tuple[TopicPartition, int]]:
    for topic, offsets in _json_object(option, text, allowed).items():
        if not isinstance(offsets, dict):
            raise ConfigException(f"{option}={text!r}: {topic} must have an object of partition numbers and offsets; allowed: {allowed}")
        for number, offset in offsets.items():
            if not number.isdigit():
                raise ConfigException(f"{option}={text!r}: {number!r} is no partition number; allowed: {allowed}")
            yield TopicPartition(topic, int(number)), offset


def _json_object(option: str, text: str, allowed: str) -> dict[str, object]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not fields:
        raise ConfigException(f"{option} cannot be {text!r}; allowed: {allowed}")
    return fields
