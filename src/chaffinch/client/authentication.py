"""SASL authentication without I/O: mechanism (SaslHandshake), tokens (SaslAuthenticate), and session lifetime.

`Login` is one login on one connection; a connection logs in again before its session expires (KIP-368). A mechanism is one class and one
row of `MECHANISMS`. The random number generator is passed in; nonces come from it, so it must be cryptographically secure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from chaffinch.errors import AuthenticationException, SaslAuthenticationException, UnsupportedSaslMechanismException, codes, exception_for
from chaffinch.protocol import scram
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.scram import ScramError, ScramMechanism

NONCE_BITS: Final = 192
# Share of a session's lifetime after which a connection logs in again, plus up to a tenth at random, so that not all connections log in
# at the same time (SaslClientAuthenticator.java).
SESSION_SHARE: Final = 0.85
SESSION_SHARE_SPREAD: Final = 0.10


class SecureRng(Protocol):
    """Random number generator for nonces, such as `random.SystemRandom`."""

    def getrandbits(self, k: int, /) -> int: ...
    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """SASL mechanism, user and password."""

    mechanism: str
    user: str
    password: str = field(repr=False)


class Mechanism(Protocol):
    """The client side of a mechanism. Raises ScramError for a wrong token from the server."""

    def respond(self, challenge: bytes) -> bytes | None:
        """The next token after a challenge (b"" for the first token); None if there is nothing more to send."""
        ...


class Plain:
    """RFC 4616: the password in plain text. Only for connections with TLS."""

    def __init__(self, credentials: Credentials, rng: SecureRng) -> None:
        self._tokens = [f"\0{credentials.user}\0{credentials.password}".encode()]

    def respond(self, challenge: bytes) -> bytes | None:
        return self._tokens.pop() if self._tokens else None


class Scram:
    """RFC 5802: both sides prove that they know the password, and neither sends it."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials, rng: SecureRng) -> None:
        self._mechanism = mechanism
        self._password = credentials.password
        self._nonce = f"{rng.getrandbits(NONCE_BITS):048x}"
        self._first_bare = scram.client_first_bare(credentials.user, self._nonce)
        self._signature = b""
        self._step: Callable[[bytes], bytes | None] = self._begin

    def respond(self, challenge: bytes) -> bytes | None:
        return self._step(challenge)

    def _begin(self, challenge: bytes) -> bytes:
        self._step = self._prove
        return (scram.GS2_HEADER + self._first_bare).encode()

    def _prove(self, challenge: bytes) -> bytes:
        first = scram.ServerFirst.parse(challenge)
        if not first.nonce.startswith(self._nonce) or first.nonce == self._nonce:
            raise ScramError("the broker's nonce does not begin with the client's nonce")
        if not scram.ITERATIONS_MIN <= first.iterations <= scram.SERVER_ITERATIONS_MAX:
            bounds = f"{scram.ITERATIONS_MIN} to {scram.SERVER_ITERATIONS_MAX}"
            raise ScramError(f"the broker requires {first.iterations} iterations, allowed: {bounds}")
        salted = scram.salted_password(self._mechanism, self._password, first.salt, first.iterations)
        final = scram.client_final_without_proof(first.nonce)
        message = scram.auth_message(self._first_bare, challenge.decode(), final)
        self._signature = scram.server_signature(self._mechanism, scram.server_key_of(self._mechanism, salted), message)
        self._step = self._verify
        return scram.with_proof(final, scram.client_proof(self._mechanism, salted, message))

    def _verify(self, challenge: bytes) -> None:
        if scram.parse_server_final(challenge) != self._signature:
            raise ScramError("the broker did not prove that it knows the password: its signature is wrong")


MECHANISMS: Final[Mapping[str, Callable[[Credentials, SecureRng], Mechanism]]] = {
    "PLAIN": Plain,
    "SCRAM-SHA-256": lambda credentials, rng: Scram(ScramMechanism.SCRAM_SHA_256, credentials, rng),
    "SCRAM-SHA-512": lambda credentials, rng: Scram(ScramMechanism.SCRAM_SHA_512, credentials, rng),
}


class Login:
    """One login: send `first()`, then the result of `next` for each response, until it is None. AuthenticationException if it fails."""

    def __init__(self, credentials: Credentials, rng: SecureRng) -> None:
        self.session_ms = 0
        """After a successful login: log in again after this time; 0: the session does not expire."""
        self._credentials = credentials
        self._rng = rng
        self._mechanism = MECHANISMS[credentials.mechanism](credentials, rng)

    def first(self) -> Message:
        return SaslHandshakeRequest(mechanism=self._credentials.mechanism)

    def next(self, response: Message) -> Message | None:
        """The next request; None when the login has succeeded."""
        if isinstance(response, SaslHandshakeResponse):
            self._check_handshake(response)
            return self._token(b"")
        assert isinstance(response, SaslAuthenticateResponse)
        if response.error_code:
            code = codes.by_number(response.error_code)
            raise self._failed(response.error_message or code.text, exception_class=type(exception_for(code)))
        request = self._token(bytes(response.auth_bytes))
        if request is None:
            share = SESSION_SHARE + SESSION_SHARE_SPREAD * self._rng.random()
            self.session_ms = int(response.session_lifetime_ms * share)
        return request

    def _check_handshake(self, response: SaslHandshakeResponse) -> None:
        if response.error_code == codes.UNSUPPORTED_SASL_MECHANISM.number:
            offered = ", ".join(response.mechanisms) or "none"
            raise self._failed(f"the broker offers {offered}", exception_class=UnsupportedSaslMechanismException)
        if response.error_code:
            code = codes.by_number(response.error_code)
            raise self._failed(code.text, exception_class=type(exception_for(code)))

    def _token(self, challenge: bytes) -> Message | None:
        try:
            token = self._mechanism.respond(challenge)
        except ScramError as error:
            raise self._failed(str(error), exception_class=SaslAuthenticationException) from None
        return None if token is None else SaslAuthenticateRequest(auth_bytes=token)

    def _failed(self, reason: str, *, exception_class: type[BaseException]) -> AuthenticationException:
        made = exception_class if issubclass(exception_class, AuthenticationException) else SaslAuthenticationException
        who = f"login of user {self._credentials.user!r} by {self._credentials.mechanism}"
        return made(f"{who}: {reason}")
