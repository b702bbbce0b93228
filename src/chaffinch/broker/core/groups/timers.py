"""What the deadlines of groups and members are for: the keys of their `Timers`."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


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
