"""States of a group member, and all legal transitions as a table; any other transition is a bug.

The caller's poll starts and completes a rebalance, since callbacks run on the caller's thread. Between the two the member proceeds without
it. Heartbeats are sent in every state with a generation, except JOINING and SYNCING, whose requests wait on the same connection.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """State of a member."""

    OUT = "out"
    """Not subscribed: not a member of a group."""
    UNJOINED = "unjoined"
    """Joins at the caller's next poll. It may still have a generation."""
    PREPARING = "preparing"
    """The caller polls: offsets are committed, partitions revoked."""
    JOINING = "joining"
    SYNCING = "syncing"
    ADOPTING = "adopting"
    """The assignment has arrived; the caller's poll adopts it."""
    STABLE = "stable"


class MembershipEvent(Enum):
    """Event that changes the state."""

    SUBSCRIBED = "subscribed"
    POLLED = "polled"
    PREPARED = "prepared"
    JOINED = "joined"
    SYNCED = "synced"
    ADOPTED = "adopted"
    REBALANCING = "rebalancing"
    """The group rebalances, or this member requests it; the member stays in the group."""
    LOST = "lost"
    """The group has removed this member."""
    REFUSED = "refused"
    """The coordinator rejected a request; the caller gets the error, and may try again."""
    LEFT = "left"


_MEMBER: Final = tuple(state for state in State if state is not State.OUT)

TRANSITIONS: Final[dict[tuple[State, MembershipEvent], State]] = {
    (State.OUT, MembershipEvent.SUBSCRIBED): State.UNJOINED,
    (State.UNJOINED, MembershipEvent.POLLED): State.PREPARING,
    (State.PREPARING, MembershipEvent.PREPARED): State.JOINING,
    (State.JOINING, MembershipEvent.JOINED): State.SYNCING,
    (State.SYNCING, MembershipEvent.SYNCED): State.ADOPTING,
    (State.ADOPTING, MembershipEvent.ADOPTED): State.STABLE,
    # Preparation is complete: the next round follows directly.
    (State.UNJOINED, MembershipEvent.REBALANCING): State.UNJOINED,
    (State.PREPARING, MembershipEvent.REBALANCING): State.PREPARING,
    (State.JOINING, MembershipEvent.REBALANCING): State.JOINING,
    (State.SYNCING, MembershipEvent.REBALANCING): State.JOINING,
    (State.ADOPTING, MembershipEvent.REBALANCING): State.ADOPTING,
    (State.STABLE, MembershipEvent.REBALANCING): State.UNJOINED,
    **{(state, event): State.UNJOINED for event in (MembershipEvent.LOST, MembershipEvent.REFUSED) for state in _MEMBER},
    **{(state, MembershipEvent.LEFT): State.OUT for state in State},
}
