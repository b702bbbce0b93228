"""The states of a classic group, the moves between them, and what each request meets in each state.

Follows Apache Kafka's ClassicGroupState and GroupMetadataManager. A group that is gone has no state here: it is not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode


class ClassicState(Enum):
    """Values are the names that clients are shown."""

    EMPTY = "Empty"
    """No members; offsets, perhaps."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are waited for."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Members have joined; the leader's assignment is waited for."""
    STABLE = "Stable"
    """Every member can have its assignment."""


_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING, _STABLE = ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE

MOVES: Final[Mapping[ClassicState, frozenset[ClassicState]]] = {
    _EMPTY: frozenset({_PREPARING}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY}),
    _COMPLETING: frozenset({_STABLE, _PREPARING}),
    _STABLE: frozenset({_PREPARING}),
}
"""From a state to those that may follow."""


class Rejoin(Enum):
    """What becomes of a member that joins although it is one."""

    REBALANCE = auto()
    CURRENT = auto()
    """It is told the generation that is."""
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
"""(state, whether the member brings something new: other protocols, or in a stable group the leader's wish) -> what happens."""


class Sync(Enum):
    """What becomes of a SyncGroup of a member of the current generation."""

    REFUSE = auto()
    """REBALANCE_IN_PROGRESS."""
    WAIT = auto()
    """For the leader's assignment, which this request may be."""
    CURRENT = auto()
    """Its assignment."""


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
