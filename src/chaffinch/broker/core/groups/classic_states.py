"""State machine of classic groups: states, transitions, and the result of each request in each state.

Follows Apache Kafka's ClassicGroupState and GroupMetadataManager. A deleted group has no state here: it is not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode


class ClassicState(Enum):
    """Values are the names shown to clients."""

    EMPTY = "Empty"
    """No members; the group may have offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Members have joined; waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member can fetch its assignment."""


_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING, _STABLE = ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE

MOVES: Final[Mapping[ClassicState, frozenset[ClassicState]]] = {
    _EMPTY: frozenset({_PREPARING}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY}),
    _COMPLETING: frozenset({_STABLE, _PREPARING}),
    _STABLE: frozenset({_PREPARING}),
}
"""State -> states that may follow."""


class Rejoin(Enum):
    """Result of a JoinGroup request from an existing member."""

    REBALANCE = auto()
    CURRENT = auto()
    """Respond with the current generation."""
    UNKNOWN = auto()


REJOIN: Final[Mapping[tuple[ClassicState, bool], Rejoin]] = {
    (_EMPTY, False): Rejoin.UNKNOWN,
    (_EMPTY, True): Rejoin.UNKNOWN,
    (_PREPARING, False): Rejoin.REBALANCE,
    (_PREPARING, True): Rejoin.REBALANCE,
    (_COMPLETING, False): Rejoin.CURRENT,
    (_COMPLETING, True): Rejoin.REBALANCE,
    (_STABLE, False): Rejoin.CURRENT,
    (_STABLE, True): Rejoin.REBALANCE,
}
"""(state, whether the member requests a change: other protocols, or it is the leader of a stable group) -> result."""


class Sync(Enum):
    """Result of a SyncGroup request from a member of the current generation."""

    REFUSE = auto()
    """Refuse with REBALANCE_IN_PROGRESS."""
    WAIT = auto()
    """Wait for the leader's assignment, which this request may contain."""
    CURRENT = auto()
    """Respond with the member's assignment."""


SYNC: Final[Mapping[ClassicState, Sync]] = {
    _EMPTY: Sync.REFUSE,
    _PREPARING: Sync.REFUSE,
    _COMPLETING: Sync.WAIT,
    _STABLE: Sync.CURRENT,
}

HEARTBEAT: Final[Mapping[ClassicState, ErrorCode]] = {
    _EMPTY: codes.UNKNOWN_MEMBER_ID,
    _PREPARING: codes.REBALANCE_IN_PROGRESS,
    _COMPLETING: codes.NONE,
    _STABLE: codes.NONE,
}

KEEPS_SESSION_ON_COMMIT: Final = frozenset({_STABLE, _PREPARING})
"""States in which a member's offset commit counts as a heartbeat."""
