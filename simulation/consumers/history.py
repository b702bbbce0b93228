"""History of one group (Jepsen's word): deliveries, processing and commits of its members in order, for `consumer_checkers`.

`Span`: one partition assigned to one member. `CommitAttempt`: one attempt to commit an offset, recorded when its request is sent. An
attempt without a response may be carried out at any later time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from chaffinch.identifiers import TopicPartition


@dataclass(slots=True, kw_only=True, eq=False)
class Span:
    """The time from an assignment or a seek to the member's next seek, its loss of the partition, or its death."""

    member: str
    tp: TopicPartition
    began: int
    """Moment after which its position was looked up."""
    start: int | None = None
    """Where it started to read; None if it never did."""
    found: int = -1
    """Moment at which `start` was known."""
    is_reset: bool = False
    """The lookup returned that nothing is committed."""
    ends: tuple[int | None, int | None] = (None, None)
    """End of the partition when the lookup began and when `start` was known; None if unknown."""
    records: list[tuple[int, int]] = field(default_factory=list)
    """(offset, number) as delivered."""
    processed: int = 0
    """How many of them the program has processed."""


@dataclass(slots=True, kw_only=True, eq=False)
class CommitAttempt:
    """`offset` of `tp` as the next offset to read. `ended` None: unknown whether it was, or will be, written."""

    tp: TopicPartition
    offset: int
    began: int
    generation: int = -1
    """Generation of the group in which the member commits; -1 outside of any."""
    ended: int | None = None
    is_refused: bool = False
    span: Span | None = None
    processed: int = 0
    """How many records of the span were processed when this was sent."""


class StaticMembership(NamedTuple):
    """A process was a member under a group.instance.id. `began`: moment of its start; `joined`: of its first assignment."""

    instance: str
    member: str
    began: int
    joined: int


@dataclass(slots=True, kw_only=True)
class History:
    """Everything about one group. `members_of`: the members that got a partition in a generation."""

    group: str
    is_committed_only: bool
    begins_at_end: bool = False
    """Where members start if nothing is committed: at the end, or at the beginning."""
    end_of: Callable[[TopicPartition], int | None] = lambda _place: None
    """Current end of a partition, for members that start there; None if unknown."""
    spans: list[Span] = field(default_factory=list)
    commits: list[CommitAttempt] = field(default_factory=list)
    members_of: dict[tuple[int, TopicPartition], set[str]] = field(default_factory=dict)
    static_memberships: list[StaticMembership] = field(default_factory=list)
    moment: int = 0

    def next_moment(self) -> int:
        """Number the events."""
        self.moment += 1
        return self.moment

    def assigned(self, generation: int, member_id: str, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.members_of.setdefault((generation, tp), set()).add(member_id)
