"""The states of a group member and every legal move between them, as data. What is not in the table cannot happen.

The caller's poll begins a rebalance and ends it, because callbacks belong to the caller's thread; between the two the member gets on by
itself. Heartbeats go out in every state with a generation but JOINING and SYNCING, whose requests wait on the same connection.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Where a member stands."""

    OUT = "out"
    """Not subscribed: no member of any group."""
    UNJOINED = "unjoined"
    """Joins at the caller's next poll. It may have a generation still."""
    PREPARING = "preparing"
    """The caller polls: offsets are committed, partitions given up."""
    JOINING = "joining"
    SYNCING = "syncing"
    ADOPTING = "adopting"
    """The assignment has come; the caller's poll takes it over."""
    STABLE = "stable"


class MembershipEvent(Enum):
    """What moves a member."""

    SUBSCRIBED = "subscribed"
    POLLED = "polled"
    PREPARED = "prepared"
    JOINED = "joined"
    SYNCED = "synced"
    ADOPTED = "adopted"
    REBALANCING = "rebalancing"
    """The group begins anew, or this member wants it to; it stays a member."""
    LOST = "lost"
    """The group has gone on without this member."""
    REFUSED = "refused"
    """The coordinator says why not, and the caller is told: it may try again."""
    LEFT = "left"


_MEMBER: Final = tuple(state for state in State if state is not State.OUT)

TRANSITIONS: Final[dict[tuple[State, MembershipEvent], State]] = {
    (State.OUT, MembershipEvent.SUBSCRIBED): State.UNJOINED,
    (State.UNJOINED, MembershipEvent.POLLED): State.PREPARING,
    (State.PREPARING, MembershipEvent.PREPARED): State.JOINING,
    (State.JOINING, MembershipEvent.JOINED): State.SYNCING,
    (State.SYNCING, MembershipEvent.SYNCED): State.ADOPTING,
    (State.ADOPTING, MembershipEvent.ADOPTED): State.STABLE,
    # What was to be prepared is prepared: straight into the next round.
    (State.UNJOINED, MembershipEvent.REBALANCING): State.UNJOINED,
    (State.PREPARING, MembershipEvent.REBALANCING): State.PREPARING,
    (State.JOINING, MembershipEvent.REBALANCING): State.JOINING,
    (State.SYNCING, MembershipEvent.REBALANCING): State.JOINING,
    (State.ADOPTING, MembershipEvent.REBALANCING): State.ADOPTING,
    (State.STABLE, MembershipEvent.REBALANCING): State.UNJOINED,
    **{(state, event): State.UNJOINED for event in (MembershipEvent.LOST, MembershipEvent.REFUSED) for state in _MEMBER},
    **{(state, MembershipEvent.LEFT): State.OUT for state in State},
}
