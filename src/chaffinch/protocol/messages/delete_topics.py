"""DeleteTopics (key 20).

Versions 0-6. Version 4 is the first flexible one; 5 adds error messages (KIP-599); 6 deletes by name or id (KIP-516).
"""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.primitives import Array, Int16, Int32, String, Uuid
from chaffinch.protocol.schema import Message, wire


class DeleteTopicState(Message):
    """A topic by name, or with name None by id."""

    name: str | None = wire(String, since=6, nullable_since=6, default=None)
    topic_id: UUID = wire(Uuid, since=6)


class DeleteTopicsRequest(Message, api_key=20, versions=(0, 6), flexible_since=4):
    """`topic_names` up to version 5, `topics` from 6 on; a caller that does not know the version fills both."""

    topics: list[DeleteTopicState] = wire(Array(DeleteTopicState), since=6)
    topic_names: list[str] = wire(Array(String), until=5)
    timeout_ms: int = wire(Int32)


class DeletableTopicResult(Message):
    """Result of one topic."""

    name: str | None = wire(String, nullable_since=6)
    topic_id: UUID = wire(Uuid, since=6)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, since=5, nullable_since=5, default=None)


class DeleteTopicsResponse(Message, api_key=20, versions=(0, 6), flexible_since=4):
    """One result per topic."""

    throttle_time_ms: int = wire(Int32, since=1)
    responses: list[DeletableTopicResult] = wire(Array(DeletableTopicResult))
