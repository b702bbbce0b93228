"""SaslHandshake (key 17): the mechanism of a login. Versions 0 and 1, not flexible.

After version 1 the mechanism's tokens are sent in SaslAuthenticate requests (KIP-152); after version 0 they would be sent without request
headers.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, String
from chaffinch.protocol.schema import Message, wire


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1)):
    """Sent before a login, and again before each later one on the same connection (KIP-368)."""

    mechanism: str = wire(String)


class SaslHandshakeResponse(Message, api_key=17, versions=(0, 1)):
    """`mechanisms` are those that the listener offers."""

    error_code: int = wire(Int16)
    mechanisms: list[str] = wire(Array(String))
