"""AlterUserScramCredentials (key 51): create, change and delete SCRAM credentials (KIP-554). Version 0, flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bytes, Int8, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class ScramCredentialDeletion(Message):
    """A credential to delete."""

    name: str = wire(String)
    mechanism: int = wire(Int8)


class ScramCredentialUpsertion(Message):
    """A credential to add or replace. The password itself is not sent."""

    name: str = wire(String)
    mechanism: int = wire(Int8)
    iterations: int = wire(Int32)
    salt: bytes = wire(Bytes)
    salted_password: bytes = wire(Bytes)


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible_since=0):
    """A user may appear only once."""

    deletions: list[ScramCredentialDeletion] = wire(Array(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = wire(Array(ScramCredentialUpsertion))


class AlterUserScramCredentialsResult(Message):
    """One user."""

    user: str = wire(String)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=(0, 0), flexible_since=0):
    """One result per user named."""

    throttle_time_ms: int = wire(Int32)
    results: list[AlterUserScramCredentialsResult] = wire(Array(AlterUserScramCredentialsResult))
