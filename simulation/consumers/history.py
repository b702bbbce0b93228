"""What the members of one group were given, did with it, and committed: facts for `consumer_checkers`, in the order in which they happened.

`Span`: one partition in the hands of one member. `CommitAttempt`: one attempt to write one committed offset, as it left for the
coordinator;
an attempt without an answer may be carried out at any later time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from chaffinch.identifiers import TopicPartition


@dataclass(slots=True, kw_only=True, eq=False)
class Span:
    """From when a partition was given to a member, or it went back, to when it gave it up, went back, or died."""

    member: str
    tp: TopicPartition
    began: int
    """Moment after which its position was looked up."""
    start: int | None = None
    """Where it began to read; None: it never came to that."""
    found: int = -1
    """Moment at which `start` was known."""
    is_reset: bool = False
    """Nothing was committed, it was told."""
    ends: tuple[int | None, int | None] = (None, None)
    """Where the partition ended when it began to ask, and when it knew `start`; None: nobody could say."""
    records: list[tuple[int, int]] = field(default_factory=list)
    """(offset, number) as delivered."""
    processed: int = 0
    """How many of them the program is done with."""


@dataclass(slots=True, kw_only=True, eq=False)
class CommitAttempt:
    """`offset` of `tp` as the offset to read next. `ended` None: nobody knows whether it was, or will be, written."""

    tp: TopicPartition
    offset: int
    began: int
    generation: int = -1
    """Of the group, under which the member commits; -1: outside of any."""
    ended: int | None = None
    is_refused: bool = False
    span: Span | None = None
    processed: int = 0
    """How many records of the span the program was done with when this was sent."""


class StaticMembership(NamedTuple):
    """A process was a member under a group.instance.id. `began`: moment at which the process did; `joined`: at which it was told."""

    instance: str
    member: str
    began: int
    joined: int


@dataclass(slots=True, kw_only=True)
class History:
    """Everything of one group. `members_of`: who was given a partition in which generation."""

    group: str
    is_committed_only: bool
    begins_at_end: bool = False
    """Where nothing is committed; else at the beginning."""
    end_of: Callable[[TopicPartition], int | None] = lambda _place: None
    """Where a partition ends at the moment, for who begins there; None: nobody can say."""
    spans: list[Span] = field(default_factory=list)
    commits: list[CommitAttempt] = field(default_factory=list)
    members_of: dict[tuple[int, TopicPartition], set[str]] = field(default_factory=dict)
    static_memberships: list[StaticMembership] = field(default_factory=list)
    moment: int = 0

    def next_moment(self) -> int:
        """Numbers what happens."""
        self.moment += 1
        return self.moment

    def assigned(self, generation: int, member_id: str, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.members_of.setdefault((generation, tp), set()).add(member_id)
