"""SCRAM (RFC 5802, with SHA-256 of RFC 7677): messages, keys and proofs for both ends of a connection.

Without channel binding, as in Kafka. The caller provides nonces and salts. The form of the peer's messages is checked here;
`client/authentication.py` and `broker/core/security/authentication.py` verify its identity.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

GS2_HEADER: Final = "n,,"
"""The client does not support channel binding, and sends no authorization identity."""

CHANNEL_BINDING: Final = base64.b64encode(GS2_HEADER.encode()).decode()
TOKEN_BYTES_MAX: Final = 1 << 19


class ScramMechanism(Enum):
    """SCRAM mechanism; the value is its number in KIP-554. `hash_name` is hashlib's name."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Kafka's limits for credentials. A client accepts more: see `SERVER_ITERATIONS_MAX`."""

SERVER_ITERATIONS_MAX: Final = 10_000_000
"""More iterations would only keep the client busy."""


class ScramError(Exception):
    """A message that RFC 5802 does not allow at this point."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credential:
    """Stored credential of a server: enough to check a proof, not to create one."""

    mechanism: ScramMechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of_salted(cls, mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes) -> Self:
        name = mechanism.hash_name
        client_key = hmac.digest(salted_password, b"Client Key", name)
        return cls(
            mechanism=mechanism,
            salt=salt,
            iterations=iterations,
            stored_key=hashlib.new(name, client_key).digest(),
            server_key=hmac.digest(salted_password, b"Server Key", name),
        )


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password. Takes some milliseconds, on purpose. The password's UTF-8 is not normalised, as in Kafka."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_proof(mechanism: ScramMechanism, salted: bytes, auth_message: bytes) -> bytes:
    name = mechanism.hash_name
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), auth_message, name)
    return _xor(client_key, signature)


def is_valid_proof(credential: Credential, proof: bytes, auth_message: bytes) -> bool:
    """Whether a client's proof is valid. Takes constant time for every proof of the right length."""
    name = credential.mechanism.hash_name
    if len(proof) != len(credential.stored_key):
        return False
    client_key = _xor(proof, hmac.digest(credential.stored_key, auth_message, name))
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)


def server_signature(mechanism: ScramMechanism, server_key: bytes, auth_message: bytes) -> bytes:
    return hmac.digest(server_key, auth_message, mechanism.hash_name)


def server_key_of(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", mechanism.hash_name)


# Messages -------------------------------------------------------------------------------------------------------------------------


def client_first_bare(user: str, nonce: str) -> str:
    return f"n={escaped(user)},r={nonce}"


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """Client's first message. `bare` is the signed part; `header` is repeated in the final message, so that changes on the way are
    detected.
    """

    user: str
    nonce: str
    bare: str
    header: str

    @classmethod
    def parse(cls, token: bytes) -> Self:
        """Raises ScramError for invalid messages, and for a client that requires channel binding or another authorization identity."""
        text = _text(token)
        header, _, bare = text.partition(",,") if text.startswith(("n,,", "y,,")) else ("", "", "")
        if not header:
            raise ScramError("the first message requires channel binding or another identity, or is not a SCRAM message")
        fields = _fields(bare, "nr")
        return cls(unescaped(fields["n"]), _nonce(fields["r"]), bare, f"{header},,")


@dataclass(frozen=True, slots=True)
class ServerFirst:
    nonce: str
    salt: bytes
    iterations: int

    def __str__(self) -> str:
        return f"r={self.nonce},s={_encoded(self.salt)},i={self.iterations}"

    @classmethod
    def parse(cls, token: bytes) -> Self:
        fields = _fields(_text(token), "rsi")
        salt, iterations = _decoded(fields["s"]), fields["i"]
        if not salt or not iterations.isascii() or not iterations.isdecimal() or len(iterations) > 9:
            raise ScramError(f"a salt of {len(salt)} bytes, {iterations[:20]!r} iterations")
        return cls(_nonce(fields["r"]), salt, int(iterations))


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """Client's final message. `without_proof` is the signed part."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str

    @classmethod
    def parse(cls, token: bytes) -> Self:
        text = _text(token)
        fields = _fields(text, "crp")
        return cls(_decoded(fields["c"]), _nonce(fields["r"]), _decoded(fields["p"]), text.rpartition(",p=")[0])


def client_final_without_proof(nonce: str) -> str:
    return f"c={CHANNEL_BINDING},r={nonce}"


def with_proof(without_proof: str, proof: bytes) -> bytes:
    return f"{without_proof},p={_encoded(proof)}".encode()


def server_final(signature: bytes) -> bytes:
    return b"v=" + _encoded(signature).encode()


def parse_server_final(token: bytes) -> bytes:
    """The server's signature. Raises ScramError with the server's message if it reports an error."""
    text = _text(token)
    if text.startswith("e="):
        raise ScramError(f"the server reports {text[2:200]!r}")
    return _decoded(_fields(text, "v")["v"])


def auth_message(first_bare: str, server_first: str, final_without_proof: str) -> bytes:
    return f"{first_bare},{server_first},{final_without_proof}".encode()


def escaped(name: str) -> str:
    """A user name as encoded in a message, where commas and equal signs are escaped."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    plain = name.replace("=2C", ",").replace("=3D", "=")
    if escaped(plain) != name or not name:
        raise ScramError(f"{name[:100]!r} is not a SCRAM user name")
    return plain


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ScramError("the message is not UTF-8") from None


def _fields(text: str, names: str) -> dict[str, str]:
    """The attributes of a message, in the required order; further ones, at the end or before a proof, are ignored."""
    parts = [part.partition("=") for part in text.split(",")]
    if parts[0][0] == "m":
        raise ScramError("the message requires an unknown extension")
    found = {name: value for name, _, value in reversed(parts)}
    if [name for name, _, _ in parts[: len(names) - 1]] != list(names[:-1]) or names[-1] not in found:
        raise ScramError(
            f"the message has the attributes {','.join(name[:5] for name, _, _ in parts[:5])!r} instead of {','.join(names)!r}"
        )
    return found


def _nonce(text: str) -> str:
    if not text or not all("!" <= character <= "~" and character != "," for character in text):
        raise ScramError("the nonce has characters that are not printable")
    return text


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError(f"{text[:20]!r} is not base64") from None


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
