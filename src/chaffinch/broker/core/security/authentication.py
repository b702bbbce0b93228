"""Authentication: the broker's side of the SASL mechanisms, and the gate for requests before and after a login (KIP-12, KIP-43, KIP-152,
KIP-368).

A connection starts unauthenticated. SaslHandshake selects a mechanism, SaslAuthenticate carries its tokens; until then only ApiVersions is
allowed in addition. A failed login is answered after a short delay, which slows down guessing, and closes the connection. With
`connections.max.reauth.ms` a login expires: before that the same user must log in again on the same connection. Source:
SaslServerAuthenticator.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from chaffinch.broker.core.error_responses import error_response
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal_log import RefusalLog
from chaffinch.broker.core.security.options import refuse_idle
from chaffinch.broker.core.security.scram_credentials import ScramCredentials
from chaffinch.broker.core.topics.registry import RandomSource
from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol import scram
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.scram import ClientFinal, ClientFirst, Credential, ScramError, ScramMechanism, ServerFirst
from chaffinch.protocol.security_options import SASL_PROTOCOLS

NONCE_BITS: Final = 192


class LoginRefused(Exception):
    """A failed login. The message is sent to the client, so it does not reveal whether the user or the password is wrong."""


class Mechanism(Protocol):
    """One login: takes the client's tokens and returns the server's. `user` is authenticated once `is_complete`."""

    user: str
    is_complete: bool

    def respond(self, token: bytes) -> bytes:
        """The server's token in response to the client's. Raises LoginRefused."""
        ...


class Plain:
    """PLAIN (RFC 4616), for users whose password was given at start."""

    def __init__(self, credentials: ScramCredentials, rng: RandomSource) -> None:
        self.user = ""
        self.is_complete = False
        self._credentials = credentials

    def respond(self, token: bytes) -> bytes:
        try:
            acts_as, user, password = token.decode().split("\0")
        except ValueError:  # Not UTF-8, or not three parts.
            raise LoginRefused("the token is not a valid PLAIN token: expected three parts, separated by null characters") from None
        if acts_as not in ("", user):
            raise LoginRefused("acting as another user is not allowed")
        self.user = user
        if not self._credentials.is_password(user, password):
            raise LoginRefused("the user name or the password is wrong")
        self.is_complete = True
        return b""


class Scram:
    """SCRAM (RFC 5802)."""

    def __init__(self, mechanism: ScramMechanism, credentials: ScramCredentials, rng: RandomSource) -> None:
        self.user = ""
        self.is_complete = False
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = f"{rng.getrandbits(NONCE_BITS):048x}"
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
        if not scram.is_valid_proof(self._credential, final.proof, message):
            raise LoginRefused("the user name or the password is wrong")
        self.is_complete = True
        return scram.server_final(scram.server_signature(self._mechanism, self._credential.server_key, message))


MECHANISMS: Final[Mapping[str, Callable[[ScramCredentials, RandomSource], Mechanism]]] = {
    "PLAIN": Plain,
    "SCRAM-SHA-256": lambda credentials, rng: Scram(ScramMechanism.SCRAM_SHA_256, credentials, rng),
    "SCRAM-SHA-512": lambda credentials, rng: Scram(ScramMechanism.SCRAM_SHA_512, credentials, rng),
}


API_VERSIONS: Final = 18
SASL_APIS: Final = frozenset({17, 36})


class Stage(Enum):
    UNKNOWN = "no mechanism is selected"
    TOKENS = "the mechanism's tokens are exchanged"
    KNOWN = "the user is authenticated"


@dataclass(slots=True)
class _Session:
    """The login state of one connection. `ends_at_ms`: when the login expires; `user` and `mechanism`: those of the valid login."""

    stage: Stage = Stage.UNKNOWN
    name: str = ""
    tokens: Mechanism | None = None
    user: str | None = None
    mechanism: str = ""
    ends_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a login step. `message`: the response, sent after `delay_ms`; None closes the connection. `ends`: the connection is
    closed after the response.
    """

    message: Message | None
    ends: bool = False
    delay_ms: int = 0


class Authentication:
    """See the module docstring. `counts`: logins by outcome, for the metrics.

    Raises ConfigException if no user could log in, if users are given without a login, and for options that the security protocol does not
    use.
    """

    def __init__(self, settings: Mapping[str, Any], credentials: ScramCredentials, rng: RandomSource, refusals: RefusalLog) -> None:
        refuse_idle(settings)
        self.is_needed: Final = settings["security.protocol"] in SASL_PROTOCOLS
        protocol = settings["security.protocol"]
        if self.is_needed and not credentials:
            raise ConfigException(
                f"security.protocol={protocol} requires a login, and there are no users: give some with --users FILE, in Python with users="
            )
        if credentials.has_users and not self.is_needed:
            raise ConfigException(f"users are given, but security.protocol={protocol} has no login")
        if self.is_needed and not settings["sasl.enabled.mechanisms"]:
            raise ConfigException(f"security.protocol={protocol} requires a login, and sasl.enabled.mechanisms is empty")
        if self.is_needed:
            credentials.prepare(settings["sasl.enabled.mechanisms"])
        self.credentials: Final = credentials
        self.counts: Counter[str] = Counter()
        self._mechanisms: tuple[str, ...] = settings["sasl.enabled.mechanisms"]
        self._delay_ms: int = settings["connection.failed.authentication.delay.ms"]
        self._session_ms: int = settings["connections.max.reauth.ms"]
        self._rng = rng
        self._refusals = refusals
        self._sessions: dict[int, _Session] = {}

    def is_known(self, connection_id: int) -> bool:
        """Whether the connection has logged in."""
        session = self._sessions.get(connection_id)
        return session is not None and session.user is not None

    def forget(self, connection_id: int) -> None:
        """Remove the state of a closed connection."""
        self._sessions.pop(connection_id, None)

    def gate(self, event: RequestReceived, steady_ms: int) -> Outcome | None:
        """The outcome for a request that is not allowed now; None for allowed requests."""
        session, api = self._sessions.get(event.connection_id), event.request.api
        if api.key in SASL_APIS or (api.key == API_VERSIONS and (session is None or session.stage is not Stage.TOKENS)):
            return None
        if session is None or session.stage is Stage.UNKNOWN:
            self._log_failed_login(event, f"{api.name} was sent before a login: is the client configured for SASL?", steady_ms)
            return Outcome(None)
        if session.stage is Stage.TOKENS:
            return self._out_of_turn(event, steady_ms)
        if session.ends_at_ms is not None and steady_ms >= session.ends_at_ms:
            self.counts["expired"] += 1
            self._log_failed_login(event, f"the login of user {session.user!r} was not renewed in time", steady_ms)
            return Outcome(None)
        return None

    # Requests -------------------------------------------------------------------------------------------------------------------------

    def handshake(self, event: RequestReceived, request: SaslHandshakeRequest, steady_ms: int) -> Outcome:
        """Handle SaslHandshake: select a mechanism, for the first login or to renew it."""
        if not self.is_needed:
            return Outcome(SaslHandshakeResponse(error_code=codes.ILLEGAL_SASL_STATE.number, mechanisms=[]))
        session = self._sessions.setdefault(event.connection_id, _Session())
        if session.stage is Stage.TOKENS:
            return self._out_of_turn(event, steady_ms)
        name = request.mechanism
        if name not in self._mechanisms:
            reason = f"the client requests {name[:100]}, enabled: {', '.join(self._mechanisms)}"
            return self._refused(event, codes.UNSUPPORTED_SASL_MECHANISM, reason, steady_ms)
        if session.user is not None and name != session.mechanism:
            reason = f"the login was by {session.mechanism} and cannot be renewed by {name}"
            return self._refused(event, codes.ILLEGAL_SASL_STATE, reason, steady_ms)
        session.stage, session.name, session.tokens = Stage.TOKENS, name, MECHANISMS[name](self.credentials, self._rng)
        return Outcome(SaslHandshakeResponse(mechanisms=list(self._mechanisms)))

    def authenticate(self, event: RequestReceived, request: SaslAuthenticateRequest, steady_ms: int) -> Outcome:
        """Handle SaslAuthenticate: a token of the mechanism."""
        session = self._sessions.get(event.connection_id)
        if session is None or session.tokens is None:
            text = "SaslAuthenticate was sent without a SaslHandshake before it" if self.is_needed else "this listener has no login"
            return Outcome(SaslAuthenticateResponse(error_code=codes.ILLEGAL_SASL_STATE.number, error_message=text))
        tokens = session.tokens
        try:
            answer = tokens.respond(bytes(request.auth_bytes))
            if tokens.is_complete and session.user not in (None, tokens.user):
                raise LoginRefused(f"the login was of user {session.user!r} and cannot be renewed by another")
        except LoginRefused as refused:
            reason = f"{refused} ({session.name})"
            return self._refused(event, codes.SASL_AUTHENTICATION_FAILED, reason, steady_ms, user=tokens.user)
        if not tokens.is_complete:
            return Outcome(SaslAuthenticateResponse(auth_bytes=answer))
        self.counts["renewed" if session.user is not None else "succeeded"] += 1
        session.stage, session.tokens = Stage.KNOWN, None
        session.user, session.mechanism = tokens.user, session.name
        session.ends_at_ms = steady_ms + self._session_ms if self._session_ms else None
        return Outcome(SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=self._session_ms))

    # Internal -------------------------------------------------------------------------------------------------------------------------

    def _out_of_turn(self, event: RequestReceived, steady_ms: int) -> Outcome:
        """Another request during a login: return an error if the API has a field for it, and close the connection."""
        self.counts["failed"] += 1
        self._log_failed_login(event, f"{event.request.api.name} was sent in the middle of a login", steady_ms)
        try:
            return Outcome(error_response(event.request, codes.ILLEGAL_SASL_STATE.number), ends=True)
        except KeyError:
            return Outcome(None)

    def _refused(self, event: RequestReceived, code: ErrorCode, reason: str, steady_ms: int, *, user: str = "") -> Outcome:
        """A failed login: the response is delayed and the last one."""
        self.counts["failed"] += 1
        self._log_failed_login(event, f"user {user!r}: {reason}" if user else reason, steady_ms)
        if isinstance(event.request.message, SaslHandshakeRequest):
            message: Message = SaslHandshakeResponse(error_code=code.number, mechanisms=list(self._mechanisms))
        else:
            message = SaslAuthenticateResponse(error_code=code.number, error_message=f"authentication failed: {reason}")
        return Outcome(message, ends=True, delay_ms=self._delay_ms)

    def _log_failed_login(self, event: RequestReceived, reason: str, steady_ms: int) -> None:
        host = event.client_host.removeprefix("/")
        self._refusals.log_rate_limited(
            "failed logins", host, f"login refused: client {event.request.client_id!r} from {host}: {reason}", steady_ms
        )
