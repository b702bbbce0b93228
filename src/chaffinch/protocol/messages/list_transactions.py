"""ListTransactions (key 66): the transactional ids of one coordinator (KIP-664).

Versions 0-2, all flexible. Version 1 filters by duration (KIP-994), 2 by a pattern of the id (KIP-1152).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class ListTransactionsRequest(Message, api_key=66, versions=(0, 2), flexible_since=0):
    """Filters; an empty list, a negative duration or no pattern match all. `duration_filter` in ms."""

    state_filters: list[str] = wire(Array(String))
    producer_id_filters: list[int] = wire(Array(Int64))
    duration_filter: int = wire(Int64, since=1, default=-1, essential=True)
    transactional_id_pattern: str | None = wire(String, since=2, nullable_since=2, default=None, essential=True)


class ListTransactionsState(Message):
    """One transactional id."""

    transactional_id: str = wire(String)
    producer_id: int = wire(Int64)
    transaction_state: str = wire(String)


class ListTransactionsResponse(Message, api_key=66, versions=(0, 2), flexible_since=0):
    """`unknown_state_filters`: names of states that do not exist."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    unknown_state_filters: list[str] = wire(Array(String))
    transaction_states: list[ListTransactionsState] = wire(Array(ListTransactionsState))
