"""Start and end offsets in options and in checkpoints of Spark. Pure.

The JSON format is that of Spark's Kafka source: `{"orders":{"0":23,"1":-2}}`, -2 for the earliest and -1 for the latest offset, or
times in ms. A checkpoint also has each topic's id, as a name without partitions, which Spark's Kafka source skips:
`{"orders":{"0":23},"orders@jfwh-8fNRzCYPLoFTVbHNg":{}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.settings import LONG_MAX, shown_value
from chaffinch.spark import topic_ids

# Not `00`, which would be a second `0`.
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
SPECIAL_OFFSETS: Final = {OFFSET_EARLIEST: "earliest", OFFSET_LATEST: "latest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChoice:
    """Start or end of a read: one position for all partitions, or one for each. `option`: the name of the option.

    A position is an offset or one of `SPECIAL_OFFSETS`; with `is_time`, milliseconds since 1970.
    """

    option: str
    everywhere: int | None = None
    by_partition: tuple[tuple[TopicPartition, int], ...] = ()
    is_time: bool = False

    def covered(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that have a position."""
        named = dict(self.by_partition)
        return {tp for tp in partitions if self.everywhere is not None or tp in named}

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The position of each partition. Raises ConfigException if positions are given by partition, but not for exactly these."""
        wanted = list(partitions)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        named = dict(self.by_partition)
        if missing := [tp for tp in wanted if tp not in named]:
            raise ConfigException(
                f"{self.option} lacks {_listed(missing)}: it must have every partition that is read; it has {_listed(named)}"
            )
        if excess := sorted(named.keys() - set(wanted)):
            raise ConfigException(f"{self.option} has {_listed(excess)}, not among the partitions that are read: {_listed(wanted)}")
        return {tp: named[tp] for tp in wanted}


def parse_offsets(option: str, text: str, *, words: Iterable[int]) -> OffsetChoice:
    """Parse offsets. `words`: which of `SPECIAL_OFFSETS` are allowed: a batch cannot start with the latest or end with the earliest.

    Raises ConfigException.
    """
    names = {SPECIAL_OFFSETS[position]: position for position in words}
    numbers = " or ".join(f"{position} for {name}" for name, position in names.items())
    allowed = f'{", ".join(names)}, or JSON such as {{"orders":{{"0":23,"1":{next(iter(names.values()))}}}}}'
    if (found := names.get(text.strip().lower())) is not None:
        return OffsetChoice(option=option, everywhere=found)
    pairs = tuple(_pairs(option, text, allowed))
    for tp, offset in pairs:
        if offset < 0 and offset not in names.values():
            raise ConfigException(f"{option} has {offset!r} for {tp}; it must be an offset, or {numbers}")
    return OffsetChoice(option=option, by_partition=pairs)


def parse_times(option: str, text: str) -> OffsetChoice:
    """Parse a time for each partition. Raises ConfigException."""
    pairs = tuple(_pairs(option, text, 'JSON such as {"orders":{"0":1700000000000}}'))
    for tp, time_ms in pairs:
        if time_ms < 0:
            raise ConfigException(f"{option} has {time_ms!r} for {tp}; it must be milliseconds since 1970")
    return OffsetChoice(option=option, by_partition=pairs, is_time=True)


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse JSON such as `{"orders":[0,1]}`; returns the sorted partitions. Raises ConfigException."""
    allowed = 'JSON such as {"orders":[0,1]}'
    fields = _json_object(option, text, allowed)
    found: list[TopicPartition] = []
    for topic, partitions in fields.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_number(number) and number >= 0 for number in partitions):
            raise ConfigException(f"{option}={shown_value(text)}: {topic} must have a list of partition numbers; allowed: {allowed}")
        found.extend(TopicPartition(topic, number) for number in partitions)
    return tuple(sorted(set(found)))


def from_checkpoint(fields: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Parse offsets of `to_checkpoint` or of Spark's Kafka source. Raises ConfigException for those of another source."""
    try:
        return {TopicPartition(topic, int(number)): int(offset) for topic, offsets in fields.items() for number, offset in offsets.items()}
    except (AttributeError, TypeError, ValueError):
        text = f"the checkpoint was written by another source: instead of topic offsets it has {json.dumps(fields)}"
        raise ConfigException(f"{text}; give the query its own checkpointLocation") from None


def to_checkpoint(offsets: Mapping[TopicPartition, int], ids: topic_ids.TopicIds | None = None) -> dict[str, dict[str, int]]:
    """Format offsets and the ids of their topics for a checkpoint. The order is fixed, because Spark detects new data by comparing the
    text.
    """
    fields: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        fields.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    known = {topic: found for topic in fields if (found := (ids or {}).get(topic, ZERO_UUID)) != ZERO_UUID}
    return fields | {topic_ids.key(topic, found): {} for topic, found in known.items()}


def _pairs(option: str, text: str, allowed: str) -> Iterator[tuple[TopicPartition, int]]:
    for topic, offsets in _json_object(option, text, allowed).items():
        if not isinstance(offsets, dict):
            raise ConfigException(
                f"{option}={shown_value(text)}: {topic} must have an object of partition numbers and offsets; allowed: {allowed}"
            )
        for number, position in offsets.items():
            if not _PARTITION.fullmatch(number):
                raise ConfigException(f"{option}={shown_value(text)}: {shown_value(number)} is not a partition number; allowed: {allowed}")
            if not _is_number(position):
                raise ConfigException(f"{option} has {position!r} for {topic}-{number}, which is not an integer; allowed: {allowed}")
            if position > LONG_MAX:
                raise ConfigException(f"{option} has {position!r} for {topic}-{number}; it must be at most {LONG_MAX}")
            yield TopicPartition(topic, int(number)), position


def _json_object(option: str, text: str, allowed: str) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigException(f"{option}={shown_value(text)} has {twice!r} twice: remove one of them")
        return found

    try:
        fields = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not fields:
        raise ConfigException(f"{option} cannot be {shown_value(text)}; allowed: {allowed}")
    return fields


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
