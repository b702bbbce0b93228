"""Logging in: the states of a login, what a broker may not say, and Java's form of user and password."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.authentication import MECHANISMS, Credentials, Login
from chaffinch.client.connections import BrokerConnection, Connected, Disconnected, RequestFailed, ResponseReceived
from chaffinch.client.security import parse_jaas_config
from chaffinch.errors import (
    AuthenticationException,
    ConfigException,
    IllegalSaslStateException,
    SaslAuthenticationException,
    UnsupportedSaslMechanismException,
    codes,
)
from chaffinch.protocol import scram
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from chaffinch.protocol.security_options import SASL_MECHANISMS
from chaffinch.protocol.server_connection import ServerConnection

ALICE = {"user": "alice", "password": "s3cret"}


def login(mechanism: str = "PLAIN") -> Login:
    return Login(Credentials(mechanism=mechanism, **ALICE), random.Random(1))


def token(message: Any) -> bytes:
    assert isinstance(message, SaslAuthenticateRequest)
    return bytes(message.auth_bytes)


def test_every_mechanism_of_the_option_is_implemented() -> None:
    assert tuple(MECHANISMS) == SASL_MECHANISMS


def test_plain() -> None:
    one = login()
    assert one.first() == SaslHandshakeRequest(mechanism="PLAIN")
    assert token(one.next(SaslHandshakeResponse(mechanisms=["PLAIN"]))) == b"\0alice\0s3cret"
    assert one.next(SaslAuthenticateResponse()) is None
    assert one.session_ms == 0


@pytest.mark.parametrize("lifetime_ms", [60_000, 1_000])
def test_session_is_renewed_before_it_expires(lifetime_ms: int) -> None:
    one = login()
    one.next(SaslHandshakeResponse())
    one.next(SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))
    assert 0.85 * lifetime_ms <= one.session_ms <= 0.95 * lifetime_ms


def scram_login(server_first: str | None = None) -> tuple[Login, str]:
    """A SCRAM login whose first token is out, and its nonce."""
    one = login("SCRAM-SHA-256")
    first = scram.ClientFirst.parse(token(one.next(SaslHandshakeResponse())))
    assert first.user == "alice"
    return one, first.nonce


@pytest.mark.parametrize(
    ("server_first", "text"),
    [
        ("r={nonce},s=YQ==,i=4096", "does not begin with the client's nonce"),
        ("r=other,s=YQ==,i=4096", "does not begin with the client's nonce"),
        ("r={nonce}x,s=YQ==,i=4095", "4095 iterations, allowed: 4096 to"),
        ("r={nonce}x,s=YQ==,i=99999999", "99999999 iterations"),
        ("nonsense", "instead of"),
    ],
)
def test_invalid_server_message_is_rejected(server_first: str, text: str) -> None:
    one, nonce = scram_login()
    with pytest.raises(SaslAuthenticationException, match=text):
        one.next(SaslAuthenticateResponse(auth_bytes=server_first.format(nonce=nonce).encode()))


def test_wrong_server_signature_is_rejected() -> None:
    """The broker accepts every login, to read the password."""
    one, nonce = scram_login()
    one.next(SaslAuthenticateResponse(auth_bytes=f"r={nonce}x,s=YQ==,i=4096".encode()))
    with pytest.raises(SaslAuthenticationException, match="its signature is wrong"):
        one.next(SaslAuthenticateResponse(auth_bytes=scram.server_final(bytes(32))))


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI", "PLAIN"]), UnsupportedSaslMechanismException, "offers GSSAPI, PLAIN"),
        (SaslHandshakeResponse(error_code=34), IllegalSaslStateException, codes.ILLEGAL_SASL_STATE.text),
        (SaslAuthenticateResponse(error_code=58, error_message="no such user"), SaslAuthenticationException, "no such user"),
        (SaslAuthenticateResponse(error_code=58), SaslAuthenticationException, codes.SASL_AUTHENTICATION_FAILED.text),
        (SaslAuthenticateResponse(error_code=-1), SaslAuthenticationException, codes.UNKNOWN_SERVER_ERROR.text),
    ],
)
def test_login_error_names_user_mechanism_and_reason(answer: Any, kind: type, text: str) -> None:
    one = login()
    if isinstance(answer, SaslAuthenticateResponse):
        one.next(SaslHandshakeResponse())
    with pytest.raises(AuthenticationException) as caught:
        one.next(answer)
    assert type(caught.value) is kind
    assert "user 'alice' by PLAIN" in caught.value.message
    assert text in caught.value.message
    assert "s3cret" not in str(caught.value) + repr(one._credentials)


# On a connection -------------------------------------------------------------------------------------------------------------------


class Wire:
    """A connection that logs in, and a broker that answers by hand."""

    def __init__(self, apis: tuple[int, ...] = tuple(APIS)) -> None:
        self.connection = BrokerConnection(Address("b", 1), client_id="me", request_timeout_ms=100, make_login=login)
        self.server = ServerConnection()
        self.apis = apis
        self.steady_ms = 0
        self.connection.opened(0)

    def requests(self) -> list[Any]:
        """What the client has sent since."""
        data = b"".join(self.connection.buffers())
        self.connection.written(len(data))
        return self.server.receive(data)

    def answer(self, request: Any, message: Any) -> list[Any]:
        data = b"".join(self.server.encode_response(request, message))
        events: list[Any] = []
        while data:
            buffer = self.connection.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            events += self.connection.received(count, self.steady_ms)
            data = data[count:]
        return events

    def negotiate(self) -> None:
        (request,) = self.requests()
        assert isinstance(request.message, ApiVersionsRequest)
        rows = [ApiVersion(api_key=key, min_version=APIS[key].served[0], max_version=APIS[key].served[-1]) for key in self.apis]
        assert self.answer(request, ApiVersionsResponse(api_keys=rows)) == []

    def log_in(self, lifetime_ms: int = 0) -> list[Any]:
        (handshake,) = self.requests()
        assert isinstance(handshake.message, SaslHandshakeRequest)
        assert self.answer(handshake, SaslHandshakeResponse(mechanisms=["PLAIN"])) == []
        (authenticate,) = self.requests()
        return self.answer(authenticate, SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))


def test_requests_wait_for_the_login() -> None:
    wire = Wire()
    wire.connection.send(MetadataRequest(topics=[]), "t", 0)
    wire.negotiate()
    assert wire.log_in() == [Connected(address=Address("b", 1))]
    (request,) = wire.requests()
    assert isinstance(wire.answer(request, MetadataResponse())[0], ResponseReceived)


@pytest.mark.parametrize(("lifetime_ms", "is_idle"), [(0, True), (60_000, False)])
def test_connection_with_expiring_login_is_never_idle(lifetime_ms: int, is_idle: bool) -> None:
    """Else who borrows it would have to log in."""
    wire = Wire()
    wire.negotiate()
    assert not wire.connection.is_idle
    wire.log_in(lifetime_ms)
    assert wire.connection.is_idle is is_idle


def test_a_login_is_renewed_before_the_next_request() -> None:
    wire = Wire()
    wire.negotiate()
    wire.log_in(lifetime_ms=1_000)
    wire.steady_ms = 849
    wire.connection.send(MetadataRequest(topics=[]), "in time", wire.steady_ms)
    (early,) = wire.requests()
    wire.steady_ms = 950
    wire.connection.send(MetadataRequest(topics=[]), "late", wire.steady_ms)
    handshake_at = len(wire.requests())
    assert handshake_at == 1, "the login, and not the request"
    assert wire.answer(early, MetadataResponse())[0].token == "in time", "what is under way is answered all the same"


def test_request_is_sent_after_the_login_is_renewed() -> None:
    wire = Wire()
    wire.negotiate()
    wire.log_in(lifetime_ms=1_000)
    wire.steady_ms = 950
    wire.connection.send(MetadataRequest(topics=[]), "late", wire.steady_ms)
    wire.log_in(lifetime_ms=1_000)
    (request,) = wire.requests()
    assert wire.answer(request, MetadataResponse())[0].token == "late"


def test_failed_login_closes_the_connection() -> None:
    wire = Wire()
    wire.connection.send(MetadataRequest(topics=[]), "t", 0)
    wire.negotiate()
    (handshake,) = wire.requests()
    wire.answer(handshake, SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI"]))
    refusal = wire.connection.refusal
    assert isinstance(refusal, UnsupportedSaslMechanismException)
    assert refusal.message.startswith("b:1: login of user 'alice' by PLAIN")
    failed, lost = wire.connection.lost(refusal.message, error=refusal)
    assert isinstance(failed, RequestFailed)
    assert isinstance(lost, Disconnected)
    assert (failed.error, failed.was_sent, lost.error) == (refusal, False, refusal)


def test_broker_without_sasl_handshake() -> None:
    wire = Wire(apis=(3, 18))
    wire.negotiate()
    assert isinstance(wire.connection.refusal, IllegalSaslStateException)


# Java's form -----------------------------------------------------------------------------------------------------------------------

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "mechanism", "found"),
    [
        (f'{PLAIN} required username="alice" password="s3cret";', "PLAIN", ("alice", "s3cret")),
        (f'{SCRAM} required username="alice" password="a \\"b\\" \\\\ ;=";', "SCRAM-SHA-512", ("alice", 'a "b" \\ ;=')),
        (f"  {SCRAM}\n REQUIRED\n password=p username = alice ; ", "SCRAM-SHA-256", ("alice", "p")),
        (f'{SCRAM} required username="alice" password="p" tokenauth="false";', "SCRAM-SHA-256", ("alice", "p")),
    ],
)
def test_jaas_config_is_parsed(text: str, mechanism: str, found: tuple[str, str]) -> None:
    assert parse_jaas_config(text, mechanism) == found
    assert parse_jaas_config(f" kafkashaded.{text.lstrip()}", mechanism) == found, "as Databricks has its users write it"


@pytest.mark.parametrize(
    ("text", "mechanism", "words"),
    [
        ("", "PLAIN", "cannot be parsed"),
        (f'{PLAIN} required username="alice" password="s3cret"', "PLAIN", "cannot be parsed"),
        (f'{PLAIN} perhaps username="alice" password="s3cret";', "PLAIN", "cannot be parsed"),
        (f'{PLAIN} required username="alice" password="s3cret;', "PLAIN", "cannot be parsed after 1"),
        (f'{PLAIN} required username="alice";', "PLAIN", "has no password"),
        (f"{PLAIN} required;", "PLAIN", "has no username"),
        (f'{PLAIN} required username="alice" password="s3cret";', "SCRAM-SHA-256", "is for PLAIN, and sasl.mechanism is SCRAM-SHA-256"),
        (f'shaded{PLAIN} required username="alice" password="s3cret";', "PLAIN", "PlainLoginModule, supported:"),
        ('com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true";', "PLAIN", "Krb5LoginModule, supported:"),
    ],
)
def test_invalid_jaas_config_is_rejected(text: str, mechanism: str, words: str) -> None:
    with pytest.raises(ConfigException) as caught:
        parse_jaas_config(text, mechanism)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
