"""What the rules of both protocols share: options, deadlines, a source of ids, answers that are given later, the memory of members."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.groups.group_options import GroupConfigs
from chaffinch.broker.core.timers import Timers
from chaffinch.storage.wall_time import WallTime


class TimerKind(IntEnum):
    """What is due. Order of those due at the same instant within one group."""

    SESSION = 0
    """A member was not heard of."""
    JOIN = 1
    """The members of a rebalance have joined, or had time enough to."""
    SYNC = 2
    """The members of a generation have fetched their assignments, or had time enough to."""
    REVOCATION = 3
    """A member of a consumer group had time enough to give partitions back."""


class TimerKey(NamedTuple):
    """Whose deadline it is; `member_id` is empty for the group's own."""

    group_id: str
    kind: TimerKind
    member_id: str = ""


Answer = TypeVar("Answer")


class Deferred(Generic[Answer]):
    """One promised answer: None until it is there. Each ticket is a key of its own for those that wait."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None


MEMBERS_BYTES_MAX: Final = 256 << 20
"""What all groups and their members may take together; a member beyond it is told that the group is full."""


class RandomSource(Protocol):
    """What is needed of `random.Random`."""

    def getrandbits(self, k: int, /) -> int: ...


class MembersMemory:
    """How many bytes each group takes with its members."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._by_group: dict[str, int] = {}
        self._total = 0

    def has_capacity(self, size_bytes: int) -> bool:
        return self._total + size_bytes <= self._bytes_max

    def note(self, group_id: str, size_bytes: int) -> None:
        """The group takes so much now."""
        self._total += size_bytes - self._by_group.pop(group_id, 0)
        if size_bytes:
            self._by_group[group_id] = size_bytes


@dataclass(slots=True, kw_only=True)
class GroupContext:
    """See the module. `changed` gets the tickets that were answered, `lines` what is worth a line in the log."""

    settings: Mapping[str, Any]
    configs: GroupConfigs
    rng: RandomSource
    changed: list[Hashable]
    wall: WallTime
    timers: Timers[TimerKey] = field(default_factory=Timers)
    memory: MembersMemory = field(default_factory=lambda: MembersMemory(MEMBERS_BYTES_MAX))
    lines: list[str | LogLine] = field(default_factory=list)

    def new_id(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    def answer(self, deferred: Deferred[Answer], answer: Answer) -> None:
        """Keep the promise."""
        deferred.answer = answer
        self.changed.append(deferred)
