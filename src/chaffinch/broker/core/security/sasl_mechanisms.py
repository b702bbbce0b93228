"""The broker's half of the SASL mechanisms, one login each: a token of the client in, the answer to it out.

`user` is who it is once `is_complete`. LoginRefused ends the login; its words go to the client and do not say whether it was the user or
the password that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from chaffinch.broker.core.security.scram_credentials import ScramCredentials
from chaffinch.broker.core.topics.registry import Dice
from chaffinch.protocol import scram
from chaffinch.protocol.scram import ClientFinal, ClientFirst, Credential, ScramError, ScramMechanism, ServerFirst

NONCE_BITS: Final = 192


class LoginRefused(Exception):
    """Why a client is not let in."""


class Mechanism(Protocol):
    user: str
    is_complete: bool

    def respond(self, token: bytes) -> bytes:
        """The answer to a token. Raises LoginRefused."""
        ...


class Plain:
    """RFC 4616: who may log in so has a password that was given at start."""

    def __init__(self, credentials: ScramCredentials, dice: Dice) -> None:
        self.user = ""
        self.is_complete = False
        self._credentials = credentials

    def respond(self, token: bytes) -> bytes:
        try:
            acts_as, user, password = token.decode().split("\0")
        except ValueError:  # Not UTF-8, or not three parts.
            raise LoginRefused("the token is not that of PLAIN: three parts, with null characters between them") from None
        if acts_as not in ("", user):
            raise LoginRefused("nobody may act as another user")
        self.user = user
        if not self._credentials.is_password(user, password):
            raise LoginRefused("the user name or the password is wrong")
        self.is_complete = True
        return b""


class Scram:
    """RFC 5802."""

    def __init__(self, mechanism: ScramMechanism, credentials: ScramCredentials, dice: Dice) -> None:
        self.user = ""
        self.is_complete = False
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = f"{dice.getrandbits(NONCE_BITS):048x}"
        self._credential: Credential | None = None
        self._first_bare = ""
        self._header = b""
        self._server_first = ""

    def respond(self, token: bytes) -> bytes:
        try:
            return self._challenge(ClientFirst.parse(token)) if self._credential is None else self._verify(ClientFinal.parse(token))
        except ScramError as error:
            raise LoginRefused(str(error)) from None

    def _challenge(self, first: ClientFirst) -> bytes:
        self.user = first.user
        self._credential = credential = self._credentials.find(first.user, self._mechanism)
        self._nonce = first.nonce + self._nonce
        self._first_bare, self._header = first.bare, first.header.encode()
        self._server_first = str(ServerFirst(self._nonce, credential.salt, credential.iterations))
        return self._server_first.encode()

    def _verify(self, final: ClientFinal) -> bytes:
        assert self._credential is not None
        if final.channel_binding != self._header:
            raise LoginRefused("the client's two messages do not belong together: channel binding")
        if final.nonce != self._nonce:
            raise LoginRefused("the client's two messages do not belong together: nonce")
        message = scram.auth_message(self._first_bare, self._server_first, final.without_proof)
        if not scram.is_proof(self._credential, final.proof, message):
            raise LoginRefused("the user name or the password is wrong")
        self.is_complete = True
        return scram.server_final(scram.server_signature(self._mechanism, self._credential.server_key, message))


MECHANISMS: Final[Mapping[str, Callable[[ScramCredentials, Dice], Mechanism]]] = {
    "PLAIN": Plain,
    "SCRAM-SHA-256": lambda credentials, dice: Scram(ScramMechanism.SCRAM_SHA_256, credentials, dice),
    "SCRAM-SHA-512": lambda credentials, dice: Scram(ScramMechanism.SCRAM_SHA_512, credentials, dice),
}
