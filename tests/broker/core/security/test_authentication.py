"""Logins at the broker's core: who is let in, what comes before, and users of SCRAM that administrators add (KIP-554)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaffinch.broker.core.handlers import HANDLERS
from chaffinch.broker.core.security.authentication import MECHANISMS, SASL_APIS
from chaffinch.broker.core.security.options import SECURITY_OPTIONS
from chaffinch.client.authentication import Credentials, Login
from chaffinch.errors import AuthenticationException, ConfigException, codes
from chaffinch.protocol import scram
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from chaffinch.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest
from chaffinch.protocol.scram import ScramMechanism
from chaffinch.protocol.security_options import SASL_MECHANISMS
from tests.broker.core_client import Client, Cluster

SASL = {"security.protocol": "SASL_PLAINTEXT"}
METADATA = MetadataRequest(topics=[])
DELAY_MS = 100


def cluster_of(**options: Any) -> Cluster:
    return Cluster({**SASL, **{name.replace("_", "."): value for name, value in options.items()}}, users={"alice": "s3cret"})


def log_in(client: Client, user: str = "alice", password: str = "s3cret", mechanism: str = "SCRAM-SHA-256") -> str | None:
    """Why not; None for a login that is done. Answers of refusals come after the delay."""
    login = Login(Credentials(mechanism=mechanism, user=user, password=password), random.Random(3))
    request = login.first()
    try:
        while request is not None:
            client.send(request)
            if not client.answers:
                client.cluster.advance(DELAY_MS - 1)
                assert (client.answers, client.closed) == ([], None)
                client.cluster.advance(1)
            request = login.next(client.answers.pop(0))  # type: ignore[assignment]
    except AuthenticationException as error:
        return error.message
    return None


@pytest.fixture
def cluster() -> Cluster:
    return cluster_of()


def test_every_mechanism_of_the_option_has_its_row() -> None:
    assert tuple(MECHANISMS) == SASL_MECHANISMS


@pytest.mark.parametrize("mechanism", SASL_MECHANISMS)
class TestLogins:
    def test_right_password_logs_in(self, cluster: Cluster, mechanism: str) -> None:
        client = cluster.client()
        assert log_in(client, mechanism=mechanism) is None
        assert client.ask(METADATA).cluster_id
        assert cluster.core.state.authentication.counts == {"succeeded": 1}
        assert cluster.lines == []

    @pytest.mark.parametrize(("user", "password"), [("alice", "S3cret"), ("unknown", "s3cret"), ("alice", ""), ("unknown", "")])
    def test_wrong_password_or_unknown_user_is_refused(self, cluster: Cluster, mechanism: str, user: str, password: str) -> None:
        """The error message does not show whether there is such a user."""
        client = cluster.client()
        refusal = log_in(client, user, password, mechanism)
        assert refusal is not None
        assert refusal.endswith(f"authentication failed: the user name or the password is wrong ({mechanism})")
        assert client.closed == ""
        assert cluster.core.state.authentication.counts == {"failed": 1}
        (line,) = cluster.lines
        assert f"user '{user}': the user name or the password is wrong" in line
        assert "s3cret" not in line

    def test_disabled_mechanism_is_refused(self, mechanism: str) -> None:
        others = [name for name in SASL_MECHANISMS if name != mechanism]
        refusal = log_in(cluster_of(sasl_enabled_mechanisms=others).client(), mechanism=mechanism)
        assert refusal is not None
        assert f"the broker offers {', '.join(others)}" in refusal


def test_unknown_user_gets_a_stable_salt(cluster: Cluster) -> None:
    def salt_of(user: str) -> bytes:
        client = cluster.client()
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        token = f"n,,{scram.client_first_bare(user, 'abc')}".encode()
        return scram.ServerFirst.parse(bytes(client.ask(SaslAuthenticateRequest(auth_bytes=token)).auth_bytes)).salt

    assert salt_of("unknown") == salt_of("unknown")
    assert len({salt_of("unknown"), salt_of("stranger"), salt_of("alice")}) == 3


@pytest.mark.parametrize("key", sorted(set(HANDLERS) - SASL_APIS - {18}))
def test_request_before_a_login_closes_the_connection(key: int, cluster: Cluster) -> None:
    client = cluster.client()
    client.send(APIS[key].request())
    assert (client.answers, client.silent, client.closed) == ([], 0, "")
    assert "was sent before a login" in cluster.lines[0]


def test_acks_0_before_a_login_closes_the_connection(cluster: Cluster) -> None:
    client = cluster.client()
    client.send(ProduceRequest(acks=0, topics=[]))
    assert client.closed == ""


def test_request_during_a_login_is_refused_and_closes_the_connection(cluster: Cluster) -> None:
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
    assert client.ask(METADATA).error_code == codes.ILLEGAL_SASL_STATE.number
    assert client.closed == ""


def test_produce_during_a_login_closes_the_connection_without_a_response(cluster: Cluster) -> None:
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
    client.send(ProduceRequest(acks=-1, topics=[]))
    assert (client.answers, client.closed) == ([], "")


@pytest.mark.parametrize("message", [SaslHandshakeRequest(mechanism="PLAIN"), None], ids=["handshake", "versions"])
def test_restarting_a_login_closes_the_connection(message: Any, cluster: Cluster) -> None:
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
    client.send(message or client.connection.api_versions_request())
    assert client.closed == ""


def test_token_without_handshake_is_refused(cluster: Cluster) -> None:
    answer = cluster.client().ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0s3cret"))
    assert answer.error_code == codes.ILLEGAL_SASL_STATE.number
    assert "without a SaslHandshake" in answer.error_message


@pytest.mark.parametrize(
    ("mechanism", "token", "text"),
    [
        ("PLAIN", b"bob\0alice\0s3cret", "acting as another user"),
        ("PLAIN", b"alice", "three parts"),
        ("PLAIN", b"\0\xff\0", "three parts"),
        ("SCRAM-SHA-256", b"", "not a SCRAM message"),
        ("SCRAM-SHA-512", b"n,a=bob,n=alice,r=abc", "another identity"),
    ],
)
def test_invalid_token_is_refused_with_its_reason(mechanism: str, token: bytes, text: str, cluster: Cluster) -> None:
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism=mechanism))
    client.send(SaslAuthenticateRequest(auth_bytes=token))
    cluster.advance(DELAY_MS)
    (answer,) = client.answers
    assert answer.error_code == codes.SASL_AUTHENTICATION_FAILED.number
    assert text in answer.error_message


@pytest.mark.parametrize(
    ("binding", "nonce_end", "text"),
    [("biws", "x", "nonce"), ("eSws", "", "channel binding"), ("biws", "", "the user name or the password is wrong")],
)
def test_mismatched_scram_messages_are_refused(binding: str, nonce_end: str, text: str, cluster: Cluster) -> None:
    """A client repeats the messages of another, or changes what both sides agreed on."""
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    first = client.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"))
    nonce = scram.ServerFirst.parse(bytes(first.auth_bytes)).nonce
    final = scram.with_proof(f"c={binding},r={nonce}{nonce_end}", bytes(32))
    client.send(SaslAuthenticateRequest(auth_bytes=final))
    cluster.advance(DELAY_MS)
    assert text in client.answers[0].error_message


def test_repeated_failures_are_rate_limited_in_the_log(cluster: Cluster) -> None:
    for _ in range(50):
        log_in(cluster.client(), password="guess", mechanism="PLAIN")
    assert len(cluster.lines) <= 6
    assert cluster.core.state.authentication.counts["failed"] == 50


def test_closed_connection_leaves_no_session(cluster: Cluster) -> None:
    client = cluster.client()
    log_in(client)
    client.lose()
    assert not cluster.core.state.authentication._sessions


class TestRenewal:
    def test_login_expires_after_max_reauth_ms(self) -> None:
        cluster = cluster_of(connections_max_reauth_ms=1_000)
        client = cluster.client()
        log_in(client)
        cluster.advance(999)
        client.ask(METADATA)
        cluster.advance(1)
        client.send(METADATA)
        assert client.closed == ""
        assert "was not renewed in time" in cluster.lines[0]

    def test_login_can_be_renewed(self) -> None:
        cluster = cluster_of(connections_max_reauth_ms=1_000)
        client = cluster.client()
        log_in(client)
        for _ in range(3):
            cluster.advance(900)
            assert log_in(client) is None
        client.ask(METADATA)
        assert cluster.core.state.authentication.counts == {"succeeded": 1, "renewed": 3}

    @pytest.mark.parametrize(
        ("user", "mechanism", "text"),
        [("bob", "SCRAM-SHA-256", "cannot be renewed by another"), ("alice", "PLAIN", codes.ILLEGAL_SASL_STATE.text)],
    )
    def test_renewal_by_another_user_or_mechanism_is_refused(self, user: str, mechanism: str, text: str) -> None:
        cluster = Cluster(SASL, users={"alice": "s3cret", "bob": "s3cret"})
        client = cluster.client()
        log_in(client)
        refusal = log_in(client, user, mechanism=mechanism)
        assert refusal is not None
        assert text in refusal
        assert client.closed == ""


def test_broker_without_logins_refuses_sasl_requests() -> None:
    client = Cluster().client()
    assert client.ask(SaslHandshakeRequest(mechanism="PLAIN")).error_code == codes.ILLEGAL_SASL_STATE.number
    assert client.ask(SaslAuthenticateRequest(auth_bytes=b"")).error_code == codes.ILLEGAL_SASL_STATE.number
    assert client.ask(METADATA).cluster_id


@pytest.mark.parametrize(
    ("config", "users", "text"),
    [
        (SASL, {}, "there are no users"),
        ({}, {"alice": "x"}, "has no login"),
        ({**SASL, "sasl.enabled.mechanisms": ""}, {"alice": "x"}, "is empty"),
        ({"ssl.keystore.location": "/nowhere"}, {}, "ssl.keystore.location cannot be used with .*PLAINTEXT: set it to SSL or SASL_SSL"),
        ({"ssl.client.auth": "required", "ssl.key.password": "secret"}, {}, "options ssl.client.auth, ssl.key.password cannot be used"),
        ({**SASL, "ssl.client.auth": "required"}, {"alice": "x"}, "security.protocol=SASL_PLAINTEXT: set it to SSL or SASL_SSL"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, {}, "set it to SASL_PLAINTEXT or SASL_SSL"),
        ({"security.protocol": "SSL", "sasl.server.max.receive.size": "9"}, {}, "max.receive.size cannot be used with .*=SSL"),
        ({"security.protocol": "SSL", "connections.max.reauth.ms": "9"}, {}, "set it to SASL_PLAINTEXT or SASL_SSL"),
        ({"connection.failed.authentication.delay.ms": "9"}, {}, "set it to SASL_PLAINTEXT or SASL_SSL"),
        ({"connections.max.unauthenticated.ms": "9"}, {}, "set it to SSL or SASL_PLAINTEXT or SASL_SSL"),
    ],
)
def test_inconsistent_security_options_are_refused(config: dict[str, str], users: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigException, match=text) as refused:
        Cluster(config, users=users)
    assert "secret" not in str(refused.value)


def test_default_security_options_are_accepted() -> None:
    assert Cluster({option.name: option.default for option in SECURITY_OPTIONS}).client().ask(METADATA).cluster_id


# KIP-554 ---------------------------------------------------------------------------------------------------------------------------


def upsertion(user: str, password: str, mechanism: int = 1, iterations: int = 8192) -> ScramCredentialUpsertion:
    kind = ScramMechanism(mechanism) if mechanism in (1, 2) else ScramMechanism.SCRAM_SHA_256
    salted = scram.salted_password(kind, password, b"salt", max(1, min(iterations, 20_000)))
    return ScramCredentialUpsertion(name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=salted)


def alter(client: Client, *changes: Any) -> dict[str, tuple[int, str | None]]:
    answer = client.ask(
        AlterUserScramCredentialsRequest(
            deletions=[change for change in changes if isinstance(change, ScramCredentialDeletion)],
            upsertions=[change for change in changes if isinstance(change, ScramCredentialUpsertion)],
        )
    )
    return {result.user: (result.error_code, result.error_message) for result in answer.results}


def described(client: Client, *users: str) -> dict[str, Any]:
    answer = client.ask(DescribeUserScramCredentialsRequest(users=[UserName(name=user) for user in users] or None))
    return {
        result.user: result.error_code or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }


@pytest.fixture
def admin(cluster: Cluster) -> Client:
    client = cluster.client()
    log_in(client)
    return client


class TestAddedUsers:
    @pytest.mark.parametrize("kill", [True, False])
    def test_added_users_log_in_and_survive_a_restart(self, cluster: Cluster, admin: Client, kill: bool) -> None:
        assert alter(admin, upsertion("bob", "b0b"), upsertion("carol", "c", 2)) == {"bob": (0, None), "carol": (0, None)}
        cluster.users = {}
        cluster.restart(kill=kill)
        assert log_in(cluster.client(), "bob", "b0b") is None
        assert log_in(cluster.client(), "carol", "c", "SCRAM-SHA-512") is None
        assert log_in(cluster.client(), "bob", "b0b", "SCRAM-SHA-512"), "another mechanism is another credential"
        assert log_in(cluster.client(), "bob", "b0b", "PLAIN"), "the password itself is nowhere"

    def test_added_password_can_be_changed_and_deleted(self, cluster: Cluster, admin: Client) -> None:
        alter(admin, upsertion("bob", "old"))
        alter(admin, upsertion("bob", "new"))
        assert log_in(cluster.client(), "bob", "old")
        assert log_in(cluster.client(), "bob", "new") is None
        assert alter(admin, ScramCredentialDeletion(name="bob", mechanism=1)) == {"bob": (0, None)}
        assert log_in(cluster.client(), "bob", "new")
        cluster.restart()
        assert log_in(cluster.client(), "bob", "new")

    def test_added_password_wins_over_the_password_of_the_start(self, cluster: Cluster, admin: Client) -> None:
        alter(admin, upsertion("alice", "changed"))
        assert log_in(cluster.client(), "alice", "changed") is None
        assert log_in(cluster.client(), "alice", "s3cret")

    def test_added_users_are_described(self, admin: Client) -> None:
        alter(admin, upsertion("bob", "b", 1), upsertion("carol", "c", 2, 4096))
        alter(admin, upsertion("bob", "b", 2))
        assert described(admin) == {"bob": [(1, 8192), (2, 8192)], "carol": [(2, 4096)]}
        assert described(admin, "carol", "unknown") == {"carol": [(2, 4096)], "unknown": codes.RESOURCE_NOT_FOUND.number}
        assert described(admin, "bob", "bob") == {"bob": codes.DUPLICATE_RESOURCE.number}

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ([upsertion("", "x")], codes.UNACCEPTABLE_CREDENTIAL),
            ([upsertion("bob", "x", 3)], codes.UNSUPPORTED_SASL_MECHANISM),
            ([upsertion("bob", "x", 1, 4095)], codes.UNACCEPTABLE_CREDENTIAL),
            ([upsertion("bob", "x", 1, 16_385)], codes.UNACCEPTABLE_CREDENTIAL),
            ([upsertion("bob", "x", 1), upsertion("bob", "x", 2)], codes.DUPLICATE_RESOURCE),
            ([ScramCredentialDeletion(name="bob", mechanism=1)], codes.RESOURCE_NOT_FOUND),
        ],
    )
    def test_refused_change_does_not_stop_others(self, admin: Client, changes: list[Any], code: Any) -> None:
        results = alter(admin, *changes, upsertion("carol", "c"))
        assert [number for number, _ in results.values()] == [code.number, 0]
        assert described(admin) == {"carol": [(1, 8192)]}
