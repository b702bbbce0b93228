"""SCRAM (RFC 5802, with SHA-256 of RFC 7677): its messages, keys and proofs, as both ends of a connection need them.

Without channel binding, as in Kafka. Nonces and salts come from outside. What a peer sends is checked for form here; whether it is who
it says is the business of `client/authentication.py` and `broker/core/security/authentication.py`.
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
"""The client does not support channel binding, and acts as nobody else."""

CHANNEL_BINDING: Final = base64.b64encode(GS2_HEADER.encode()).decode()
TOKEN_BYTES_MAX: Final = 1 << 19


class ScramMechanism(Enum):
    """Value: its number in KIP-554. `hash_name` is hashlib's; fewer iterations than `iterations_min` are refused, as in Kafka."""

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
"""Kafka's bounds for credentials. A client takes more: see `SERVER_ITERATIONS_MAX`."""

SERVER_ITERATIONS_MAX: Final = 10_000_000
"""Above it a server would only keep the client busy."""


class ScramError(Exception):
    """A message is not what RFC 5802 says comes now."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credential:
    """What a server keeps of a password: enough to check a proof, not to make one."""

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
    """Takes some milliseconds: that is what it is for. The password's UTF-8 is taken as it is, as Kafka does."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_proof(mechanism: ScramMechanism, salted: bytes, auth_message: bytes) -> bytes:
    name = mechanism.hash_name
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), auth_message, name)
    return _xor(client_key, signature)


def is_valid_proof(credential: Credential, proof: bytes, auth_message: bytes) -> bool:
    """Whether the client knows the password. Takes as long for every proof of the right length."""
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
    """`bare` is the part that is signed; `header` comes back in the final message, so that nobody changes it on the way."""

    user: str
    nonce: str
    bare: str
    header: str

    @classmethod
    def parse(cls, token: bytes) -> Self:
        """ScramError for anything else, and for a client that wants channel binding or to act as somebody else."""
        text = _text(token)
        header, _, bare = text.partition(",,") if text.startswith(("n,,", "y,,")) else ("", "", "")
        if not header:
            raise ScramError("the first message asks for channel binding or another identity, or is no SCRAM message")
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
    """`without_proof` is the part that is signed."""

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
    """The server's signature. ScramError with the server's words when it says an error instead."""
    text = _text(token)
    if text.startswith("e="):
        raise ScramError(f"the server says {text[2:200]!r}")
    return _decoded(_fields(text, "v")["v"])


def auth_message(first_bare: str, server_first: str, final_without_proof: str) -> bytes:
    return f"{first_bare},{server_first},{final_without_proof}".encode()


def escaped(name: str) -> str:
    """A user's name as it stands in a message, where commas and equal signs mean something."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    plain = name.replace("=2C", ",").replace("=3D", "=")
    if escaped(plain) != name or not name:
        raise ScramError(f"{name[:100]!r} is no user name of SCRAM")
    return plain


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ScramError("the message is not UTF-8") from None


def _fields(text: str, names: str) -> dict[str, str]:
    """The attributes of a message, which come in this order; further ones, behind them or before a proof, may be there and are ignored."""
    parts = [part.partition("=") for part in text.split(",")]
    if parts[0][0] == "m":
        raise ScramError("the message asks for an extension that is not known here")
    found = {name: value for name, _, value in reversed(parts)}
    if [name for name, _, _ in parts[: len(names) - 1]] != list(names[:-1]) or names[-1] not in found:
        raise ScramError(
            f"the message has the attributes {','.join(name[:5] for name, _, _ in parts[:5])!r} instead of {','.join(names)!r}"
        )
    return found


def _nonce(text: str) -> str:
    if not text or not all("!" <= character <= "~" and character != "," for character in text):
        raise ScramError("the nonce is not made of printable characters")
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
