"""SaslAuthenticate (key 36): one token of a SASL mechanism, and the server's token (KIP-152).

Versions 0-2. Version 1 adds the lifetime of the session (KIP-368); 2 is flexible.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Bytes, Int16, Int64, String
from chaffinch.protocol.schema import Message, wire


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible_since=2):
    """The mechanism defines the contents of the token."""

    auth_bytes: bytes = wire(Bytes)


class SaslAuthenticateResponse(Message, api_key=36, versions=(0, 2), flexible_since=2):
    """`session_lifetime_ms`: the client must authenticate again before it ends; 0 means no limit."""

    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    auth_bytes: bytes = wire(Bytes)
    session_lifetime_ms: int = wire(Int64, since=1)
