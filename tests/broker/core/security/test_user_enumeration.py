"""A login does not show which users there are or how a secret is stored: by its work, by its salt, by its iterations.

Time is not measured. The calls that take it are counted: each is the same for every user.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from chaffinch.broker.core.security import scram_credentials
from chaffinch.protocol import scram
from chaffinch.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest
from chaffinch.protocol.scram import ScramMechanism
from chaffinch.storage.file_system import StorageError
from tests.broker.core.security.test_authentication import DELAY_MS, SASL, log_in
from tests.broker.core_client import Cluster

OF_KAFKA = b"1k2j3h4g5f6d7s8a9q0w1e2r3t"
"""A salt as Apache Kafka's tool makes it."""
KINDS = {"alice": "given at start", "bob": "added", "carol": "given and added", "dave": "added for the other mechanism", "eve": "unknown"}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def add(cluster: Cluster, user: str, mechanism: int, iterations: int, salt: bytes) -> None:
    salted = scram.salted_password(ScramMechanism(mechanism), "s3cret", salt, iterations)
    change = ScramCredentialUpsertion(name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted)
    client = cluster.client()
    assert log_in(client) is None
    assert client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[change])).results[0].error_code == 0


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(SASL, users={"alice": "s3cret", "carol": "another"})
    for user, mechanism in (("bob", 1), ("bob", 2), ("carol", 1), ("dave", 1)):
        add(cluster, user, mechanism, 8192, OF_KAFKA)
    return cluster


class Work:
    """What is called of that which takes time, with the number of bytes or iterations that go in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for module, name in (
            (hmac, "digest"),
            (hmac, "compare_digest"),
            (hashlib, "pbkdf2_hmac"),
            (hashlib, "shake_256"),
            (hashlib, "new"),
        ):
            monkeypatch.setattr(module, name, self._noting(name, getattr(module, name)))

    def _noting(self, name: str, call: Any) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            sizes = [len(given) for given in arguments if isinstance(given, bytes | bytearray)]
            self.calls.append(
                (name, *(sizes if name == "compare_digest" else ()), *(given for given in arguments if isinstance(given, int)))
            )
            return call(*arguments, **options)

        return noted

    def take(self) -> list[tuple[Any, ...]]:
        taken, self.calls = self.calls, []
        return taken


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def broker_work(cluster: Cluster, work: Work, mechanism: str, user: str, password: str) -> list[tuple[Any, ...]]:
    """That of the broker alone, in both steps of a login."""
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism=mechanism))
    if mechanism == "PLAIN":
        work.take()
        client.send(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode()))
        return work.take()
    bare = scram.client_first_bare(user, "abc")
    work.take()
    first = scram.ServerFirst.parse(bytes(client.ask(SaslAuthenticateRequest(auth_bytes=f"n,,{bare}".encode())).auth_bytes))
    done = work.take()
    final = scram.client_final_without_proof(first.nonce)
    token = scram.with_proof(final, bytes(hashlib.new(mechanism[6:].replace("-", "").lower()).digest_size))
    work.take()
    client.send(SaslAuthenticateRequest(auth_bytes=token))
    return done + work.take()


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
def test_login_costs_the_same_work_for_every_user(cluster: Cluster, work: Work, mechanism: str) -> None:
    """In the first login of a process and in later ones."""
    for kill in (True, False):
        cluster.restart(kill=kill)
        done = {}
        for user in [*KINDS, *KINDS]:
            for password in ("wrong", "", "w" * 200):
                done[user, password] = broker_work(cluster, work, mechanism, user, password)
                cluster.advance(DELAY_MS)
        different = {str(calls) for calls in done.values()}
        assert len(different) == 1, done
        assert "compare_digest" in different.pop()


def first_of(cluster: Cluster, user: str, mechanism: str) -> scram.ServerFirst:
    client = cluster.client()
    client.ask(SaslHandshakeRequest(mechanism=mechanism))
    token = f"n,,{scram.client_first_bare(user, 'abc')}".encode()
    return scram.ServerFirst.parse(bytes(client.ask(SaslAuthenticateRequest(auth_bytes=token)).auth_bytes))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_salt_and_iterations_are_stable_over_a_restart(cluster: Cluster, mechanism: str) -> None:
    def shown() -> dict[str, tuple[bytes, int]]:
        found = {user: first_of(cluster, user, mechanism) for user in [*KINDS, "frank", "grace"]}
        return {user: (first.salt, first.iterations) for user, first in found.items()}

    before = shown()
    assert shown() == before
    for kill in (True, False):
        cluster._seed += 1
        cluster.restart(kill=kill)
        assert shown() == before


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_unknown_user_looks_like_an_existing_one(cluster: Cluster, mechanism: str) -> None:
    def shape(user: str) -> tuple[int, int, bool]:
        first = first_of(cluster, user, mechanism)
        return first.iterations, len(first.salt), first.salt.isalnum() and first.salt.islower()

    there = {shape("alice"), shape("bob")}
    assert there == {(4096, 16, False), (8192, len(OF_KAFKA), True)}
    assert {shape(f"unknown-{number}") for number in range(40)} == there


def test_unknown_users_look_like_added_ones_without_start_users() -> None:
    cluster = Cluster(SASL, users={"alice": "s3cret"})
    add(cluster, "bob", 1, 10_000, OF_KAFKA)
    cluster.users = {}
    cluster.restart()
    shown = {first_of(cluster, f"unknown-{number}", "SCRAM-SHA-256").iterations for number in range(20)}
    assert shown == {10_000}


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
@pytest.mark.parametrize(
    ("user", "password", "is_allowed"), [("alice", "s3cret", True), ("alice", "", False), ("eve", "", False), ("eve", "s3cret", False)]
)
def test_login_succeeds_only_with_user_and_password(cluster: Cluster, mechanism: str, user: str, password: str, is_allowed: bool) -> None:
    assert (log_in(cluster.client(), user, password, mechanism) is None) is is_allowed


def test_added_password_wins_for_its_mechanism_only(cluster: Cluster) -> None:
    assert log_in(cluster.client(), "carol", "s3cret", "SCRAM-SHA-256") is None
    assert log_in(cluster.client(), "carol", "another", "SCRAM-SHA-256") is not None
    assert log_in(cluster.client(), "carol", "another", "SCRAM-SHA-512") is None
    assert log_in(cluster.client(), "carol", "another", "PLAIN") is None


def test_secret_is_written_by_the_next_start_after_a_full_disk() -> None:
    cluster = Cluster(users={})
    cluster.core.close()
    cluster.config, cluster.users = {**SASL}, {"alice": "s3cret"}

    def fill(operation: str, path: str, size: int) -> None:
        if operation == "append":
            raise StorageError(path, operation, "No space left on device")

    cluster.file_system.hook = fill
    cluster.core = cluster._core()
    assert log_in(cluster.client()) is None
    assert first_of(cluster, "eve", "SCRAM-SHA-256") is not None
    cluster.file_system.hook = None
    cluster.restart()
    assert cluster.core._journals["cluster"].get(scram_credentials._SECRET) is not None


def test_broker_without_logins_writes_no_secret() -> None:
    assert Cluster().core._journals["cluster"].get(scram_credentials._SECRET) is None
