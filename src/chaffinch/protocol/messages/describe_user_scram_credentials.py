"""DescribeUserScramCredentials (key 50): users with SCRAM credentials (KIP-554). Version 0, flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class UserName(Message):
    """A requested user."""

    name: str = wire(String)


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible_since=0):
    """`users` None or empty requests all."""

    users: list[UserName] | None = wire(Array(UserName), nullable_since=0)


class CredentialInfo(Message):
    """One credential of a user."""

    mechanism: int = wire(Int8)
    iterations: int = wire(Int32)


class DescribeUserScramCredentialsResult(Message):
    """One user."""

    user: str = wire(String)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    credential_infos: list[CredentialInfo] = wire(Array(CredentialInfo))


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=(0, 0), flexible_since=0):
    """One result per user."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    results: list[DescribeUserScramCredentialsResult] = wire(Array(DescribeUserScramCredentialsResult))
