"""Shared context of both group protocols: options, timers, ids, deferred responses, memory accounting."""

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
    """Kinds of group deadlines, in the order in which they are processed if due at the same time in one group."""

    SESSION = 0
    """The session of a member has timed out."""
    JOIN = 1
    """The members of a rebalance have joined, or their time to join is over."""
    SYNC = 2
    """The members of a generation have fetched their assignments, or their time to do so is over."""
    REVOCATION = 3
    """A consumer group member's time to revoke partitions is over."""


class TimerKey(NamedTuple):
    """Key of a deadline; `member_id` is empty for a deadline of the group itself."""

    group_id: str
    kind: TimerKind
    member_id: str = ""


Answer = TypeVar("Answer")


class Deferred(Generic[Answer]):
    """A deferred response: None until it is completed. Each instance is its own key for delayed responses."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None


MEMBERS_BYTES_MAX: Final = 256 << 20
"""Memory limit of all groups and their members; a member beyond it is refused as if the group were full."""


class RandomSource(Protocol):
    """The method of `random.Random` that groups need."""

    def getrandbits(self, k: int, /) -> int: ...


class MembersMemory:
    """Memory used by groups and their members, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._by_group: dict[str, int] = {}
        self._total = 0

    def has_capacity(self, size_bytes: int) -> bool:
        return self._total + size_bytes <= self._bytes_max

    def note(self, group_id: str, size_bytes: int) -> None:
        """Record the memory used by a group."""
        self._total += size_bytes - self._by_group.pop(group_id, 0)
        if size_bytes:
            self._by_group[group_id] = size_bytes


@dataclass(slots=True, kw_only=True)
class GroupContext:
    """See the module docstring. `changed` collects completed deferred responses, `lines` lines to log."""

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
        """Complete a deferred response."""
        deferred.answer = answer
        self.changed.append(deferred)
