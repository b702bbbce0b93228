"""A sequence of requests that is the same for every broker although each gives out its own ids: what an answer holds is kept in slots.

Names hold `{run}`, so that a sequence can be run again beside its own leftovers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaffinch.protocol.schema import Message
from chaffinch.protocol.violations import UnencodableMessage
from chaffinch.records import batch
from chaffinch.records.batch import Compression
from tests.interop.differential.comparison import Difference, differences
from tests.interop.differential.peer import READY_TRIES, Closed, Peer
from tests.interop.differential.requests import records, request


@dataclass(frozen=True, slots=True)
class Slot:
    """What an earlier answer of this broker held under a name, `plus` something; `default` where there was none."""

    name: str
    default: Any
    plus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records to be sent, as `requests.records` makes them."""

    values: tuple[bytes, ...]
    keys: tuple[bytes | None, ...] | None = None
    timestamps: tuple[int, ...] | None = None
    compression: Compression = Compression.NONE
    producer: tuple[Any, Any] = (-1, -1)
    sequence: int = -1
    is_transactional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request. `keeps`: slot -> what to take out of the answer; an answer that does not have it changes nothing. `until`: asked again
    until an answer is such that it may be compared. `settles`: Apache Kafka answers before all of it knows."""

    api: str
    version: int
    values: dict[str, Any]
    keeps: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    until: Callable[[Any], bool] | None = None
    settles: bool = False

    def __str__(self) -> str:
        return f"{self.api} v{self.version} {_short(self.values)}"


_CHANCE = {
    "ConsumerGroupHeartbeat": re.compile(r"assignment(\..*)?"),
    "ConsumerGroupDescribe": re.compile(
        r"groups\[[^]]*\]\.(group_state|members\[.*\.(target_)?assignment\..*|members\[.*subscribed_topic_names.*)"
    ),
}
"""Which of several members gets which partition, and when, depends on ids that brokers give out at random; names of topics are a set."""
SETTLED_SECONDS = 0.1
NOT_READY_TRIES = 5
"""Random requests can be answered so for good: as when a transaction is to be joined that ends."""


def _short(value: Any) -> str:
    """A value in a few words: what is long is cut."""
    match value:
        case Slot():
            return f"<{value.name}{value.plus:+d}>" if value.plus else f"<{value.name}>"
        case Batch():
            fields = {"sequence": value.sequence, "count": len(value.values), "keys": value.keys, "producer": list(value.producer)}
            return "batch" + _short({**fields, "is_transactional": value.is_transactional, "compression": value.compression.name})
        case dict():
            return "{" + ", ".join(f"{name}: {_short(part)}" for name, part in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_short, value)) + "]"
    return f"{value!r:.40}"


Memory = dict[str, Any]
COMPARED_HEADERS = ("base_offset", "count", "last_offset_delta", "attributes", "producer_epoch", "base_sequence")
"""Of the batches that a log gives back."""


def message(step: Step, memory: Memory) -> Message:
    return request(step.api, **_resolved(step.values, memory))


def _resolved(value: Any, memory: Memory) -> Any:
    match value:
        case Slot():
            kept = memory.get(value.name, value.default)
            return kept + value.plus if value.plus else kept
        case Batch():
            producer_id, epoch = (_resolved(part, memory) for part in value.producer)
            return records(
                *value.values,
                keys=list(value.keys) if value.keys else None,
                timestamps=list(value.timestamps) if value.timestamps else None,
                compression=value.compression,
                producer=(producer_id, epoch),
                sequence=value.sequence,
                is_transactional=value.is_transactional,
            )
        case dict():
            return {name: _resolved(part, memory) for name, part in value.items()}
        case list():
            return [_resolved(part, memory) for part in value]
        case str():
            return value.replace("{run}", memory["run"])
    return value


def run(peer: Peer, steps: Sequence[Step], name: str) -> list[Any]:
    """The answers of one broker; names in it start with `name`."""
    memory: Memory = {"run": name}
    answers = []
    for step in steps:
        try:
            answer = _settled(peer, step, message(step, memory))
        except UnencodableMessage:
            answer = Closed()  # The version has no room for it.
        answers.append(answer)
        if step.settles:
            peer.settle(SETTLED_SECONDS)
        if not isinstance(answer, Closed):
            for slot, find in step.keeps.items():
                try:
                    memory[slot] = find(answer)
                except (IndexError, LookupError):
                    continue
    return answers


def _settled(peer: Peer, step: Step, asked: Message) -> Any:
    for _ in range(READY_TRIES):
        answer = peer.quietly(asked, step.version, NOT_READY_TRIES)
        if step.until is None or isinstance(answer, Closed) or step.until(answer):
            break
        peer.settle()
    return answer


def compared(steps: Sequence[Step], theirs: Sequence[Any], ours: Sequence[Any]) -> Iterator[tuple[int, Difference]]:
    """Where the two answers to each step differ, batches of records included."""
    for index, (step, their, our) in enumerate(zip(steps, theirs, ours, strict=True)):
        for difference in differences(their, our):
            if step.api not in _CHANCE or not _CHANCE[step.api].fullmatch(difference[0]):
                yield index, difference
        if step.api == "Fetch" and not isinstance(their, Closed) and not isinstance(our, Closed):
            one, other = batches_in(their), batches_in(our)
            if one != other:
                yield index, ("batches", one, other)


def batches_in(answer: Any) -> list[Any]:
    """What the headers of the batches in an answer to Fetch say."""
    found = []
    for topic in answer.responses:
        for part in topic.partitions:
            data = part.records or b""
            data = b"".join(bytes(piece) for piece in data) if isinstance(data, list) else bytes(data)
            for view in batch.views(bytearray(data)):
                header = view.header
                found.append((part.partition_index, *(getattr(header, name) for name in COMPARED_HEADERS), header.producer_id >= 0))
    return found
