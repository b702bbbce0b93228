"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id.

Versions 0-6. Version 1 adds the key's type (KIP-98); 3 is the first flexible one; 4 requests several keys at once (KIP-699); 5 may answer
with TRANSACTION_ABORTABLE (KIP-890); 6 supports share groups (KIP-932).
"""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire

KEY_TYPE_GROUP: Final = 0
KEY_TYPE_TRANSACTION: Final = 1


class FindCoordinatorRequest(Message, api_key=10, versions=(0, 6), flexible_since=3):
    """`key` up to version 3, `coordinator_keys` from 4 on; a caller that does not know the version fills both."""

    key: str = wire(String, until=3)
    key_type: int = wire(Int8, since=1, essential=True)
    coordinator_keys: list[str] = wire(Array(String), since=4)


class Coordinator(Message):
    """The coordinator of one key, or its error."""

    key: str = wire(String, since=4)
    node_id: int = wire(Int32, since=4)
    host: str = wire(String, since=4)
    port: int = wire(Int32, since=4)
    error_code: int = wire(Int16, since=4)
    error_message: str | None = wire(String, since=4, nullable_since=4, default=None)


class FindCoordinatorResponse(Message, api_key=10, versions=(0, 6), flexible_since=3):
    """Up to version 3 one coordinator in the response itself, from 4 on a list."""

    throttle_time_ms: int = wire(Int32, since=1)
    error_code: int = wire(Int16, until=3)
    error_message: str | None = wire(String, since=1, until=3, nullable_since=1, default=None)
    node_id: int = wire(Int32, until=3)
    host: str = wire(String, until=3)
    port: int = wire(Int32, until=3)
    coordinators: list[Coordinator] = wire(Array(Coordinator), since=4)
