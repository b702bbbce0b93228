"""TLS and logins over real sockets: our clients against our broker, what does not fit, and clients that only hold the door."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.admin.options import ADMIN_TABLE, connect
from chaffinch.admin.topics import list_topics
from chaffinch.broker import listeners
from chaffinch.broker.metrics import families
from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import (
    ConfigException,
    IllegalSaslStateException,
    KafkaException,
    SaslAuthenticationException,
    SslAuthenticationException,
    Stored,
    UnsupportedSaslMechanismException,
)
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.security_options import SASL_MECHANISMS
from tests.support.certificates import PASSWORD, Certificates

TIMEOUT_SECONDS = 60
USERS = {"alice": "alice's secret"}
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
WAYS = [("SSL", None), *((protocol, mechanism) for protocol in PROTOCOLS[1:] for mechanism in SASL_MECHANISMS)]
ALICE = {"sasl.username": "alice", "sasl.password": USERS["alice"]}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def broker_of(certificates: Certificates, protocol: str, **options: Any) -> EmbeddedBroker:
    config = {"security.protocol": protocol, **{name.replace("_", "."): value for name, value in options.items()}}
    if protocol.endswith("SSL"):
        config.setdefault("ssl.keystore.location", certificates.server)
    return EmbeddedBroker(topics={"orders": {"partitions": 2}}, config=config, users=USERS if protocol.startswith("SASL") else None)


@pytest.fixture(scope="module")
def brokers(certificates: Certificates) -> Iterator[Mapping[str, EmbeddedBroker]]:
    started = {protocol: broker_of(certificates, protocol) for protocol in (*PROTOCOLS, "PLAINTEXT")}
    yield started
    for broker in started.values():
        broker.close()


def port_of(broker: EmbeddedBroker) -> int:
    return int(broker.bootstrap_servers.rpartition(":")[2])


def options_for(
    broker: EmbeddedBroker, certificates: Certificates, protocol: str, mechanism: str | None = None, **more: Any
) -> dict[str, Any]:
    options = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl.truststore.location"] = certificates.root
    if protocol.startswith("SASL"):
        options |= {"sasl.mechanism": mechanism or "PLAIN", **ALICE}
    return options | more


def send(options: Mapping[str, Any], value: bytes = b"v") -> KafkaException | None:
    """What becomes of one record."""
    with Producer(options) as producer:
        error = producer.send("orders", value).exception(TIMEOUT_SECONDS)
    assert error is None or isinstance(error, KafkaException)
    return error


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_producer_writes_under_every_protocol_and_mechanism(
    protocol: str, mechanism: str | None, brokers: Mapping[str, EmbeddedBroker], certificates: Certificates
) -> None:
    broker = brokers[protocol]
    before = broker.read("orders").num_rows
    values = [bytes([number]) * size for number, size in enumerate((1, 20_000, 900_000))]
    with Producer(options_for(broker, certificates, protocol, mechanism)) as producer:
        futures = [producer.send("orders", value, partition=0) for value in values]
        assert [future.result(TIMEOUT_SECONDS).partition for future in futures] == [0, 0, 0]
    assert [row for row in broker.read("orders").column("value").to_pylist() if row in values][-3:] == values
    assert broker.read("orders").num_rows == before + 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_transactions_and_administration_work_under_every_protocol(
    protocol: str, brokers: Mapping[str, EmbeddedBroker], certificates: Certificates
) -> None:
    options = options_for(brokers[protocol], certificates, protocol)
    with Producer(options, transactional_id=f"t-{protocol}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"in a transaction")
        producer.commit_transaction()
    with connect(options) as client:
        assert "orders" in [topic.name for topic in list_topics(client)]


def test_responses_larger_than_tls_buffers_are_read(brokers: Mapping[str, EmbeddedBroker], certificates: Certificates) -> None:
    """Bytes that TLS has decrypted and the client has not read make no socket readable. Metadata of many topics comes in many pieces."""
    broker = brokers["SSL"]
    for number in range(20):
        broker.create_topic(f"many-{number}", partitions=500)
    with connect(options_for(broker, certificates, "SSL")) as client:
        found = client.refresh_metadata()
        assert {found.partition_count(f"many-{number}") for number in range(20)} == {500}


# What does not fit -----------------------------------------------------------------------------------------------------------------

REFUSALS = [
    (
        "another password",
        "SASL_SSL",
        {"sasl.password": "guess"},
        SaslAuthenticationException,
        "user 'alice' by PLAIN: authentication failed",
    ),
    (
        "unknown user",
        "SASL_SSL",
        {"sasl.username": "eve", "sasl.mechanism": "SCRAM-SHA-512"},
        SaslAuthenticationException,
        "'eve' by SCRAM-SHA-512",
    ),
    (
        "another root",
        "SSL",
        {"ssl.truststore.location": "other_root"},
        SslAuthenticationException,
        "certificate is not accepted: unable to get",
    ),
    ("the system's roots", "SASL_SSL", {"ssl.truststore.location": None}, SslAuthenticationException, "certificate is not accepted"),
    (
        "too old",
        "SSL",
        {"ssl.enabled.protocols": "TLSv1.2", "ssl.cipher.suites": "AES128-SHA"},
        SslAuthenticationException,
        "no TLS connection",
    ),
]


@pytest.mark.parametrize(("name", "protocol", "more", "kind", "text"), REFUSALS, ids=[case[0] for case in REFUSALS])
def test_authentication_failure_is_raised_by_the_call(
    name: str,
    protocol: str,
    more: dict[str, Any],
    kind: type[KafkaException],
    text: str,
    brokers: Mapping[str, EmbeddedBroker],
    certificates: Certificates,
) -> None:
    options = options_for(brokers[protocol], certificates, protocol) | more
    if options["ssl.truststore.location"] == "other_root":
        options["ssl.truststore.location"] = certificates.other_root
    error = send(options)
    assert error is not None
    assert type(error) is kind
    assert text in error.message
    assert brokers[protocol].bootstrap_servers in error.message
    assert "\n" not in str(error)
    with connect(options) as client, pytest.raises(kind):
        list_topics(client)
    with pytest.raises(KafkaException) as caught, Producer(options, transactional_id="t") as producer:
        producer.init_transactions()
    assert text in str(caught.value), "and the call does not wait for max.block.ms"


@pytest.mark.parametrize(
    ("server", "text"),
    [("elsewhere", "IP address mismatch, certificate is not valid for '127.0.0.1'"), ("expired", "certificate has expired")],
)
def test_certificate_with_one_defect_is_refused(server: str, text: str, certificates: Certificates) -> None:
    with broker_of(certificates, "SSL", ssl_keystore_location=getattr(certificates, server)) as broker:
        error = send(options_for(broker, certificates, "SSL"))
        assert isinstance(error, SslAuthenticationException)
        assert text in error.message
        unchecked = send(options_for(broker, certificates, "SSL", **{"ssl.endpoint.identification.algorithm": ""}))
        assert (unchecked is None) is (server == "elsewhere"), "only the name may be left unchecked"


def ask(broker: EmbeddedBroker, options: Mapping[str, Any]) -> ResponseReceived | RequestFailed:
    """What becomes of one request to a broker at 127.0.0.1, whatever bootstrap.servers is."""
    network = Network(ConnectionSettings.of(ADMIN_TABLE.parse(options)))
    network.send(Address("127.0.0.1", port_of(broker)), MetadataRequest(topics=[]), "t")
    events: list[Any] = []
    while not any(isinstance(event, ResponseReceived | RequestFailed) for event in events):
        events += network.poll(1_000)
    network.close()
    (outcome,) = [event for event in events if isinstance(event, ResponseReceived | RequestFailed)]
    return outcome


@pytest.mark.parametrize("given", ["127.0.0.1", "localhost"])
def test_certificate_mismatch_names_the_source_of_the_address(given: str, certificates: Certificates) -> None:
    with broker_of(certificates, "SSL", ssl_keystore_location=certificates.elsewhere) as broker:
        options = options_for(broker, certificates, "SSL", **{"bootstrap.servers": f"{given}:{port_of(broker)}"})
        outcome = ask(broker, options)
    assert isinstance(outcome, RequestFailed)
    names_the_source = outcome.reason.endswith("; brokers advertise this address, it is not in bootstrap.servers")
    assert names_the_source is (given != "127.0.0.1")


@pytest.mark.parametrize("theirs", ["PLAINTEXT", *PROTOCOLS])
@pytest.mark.parametrize("ours", ["PLAINTEXT", *PROTOCOLS])
def test_protocol_mismatch_gives_a_hint(ours: str, theirs: str, brokers: Mapping[str, EmbeddedBroker], certificates: Certificates) -> None:
    outcome = ask(brokers[theirs], options_for(brokers[theirs], certificates, ours))
    if ours == theirs:
        assert isinstance(outcome, ResponseReceived)
        return
    assert isinstance(outcome, RequestFailed)
    if (ours, theirs) in {("SASL_PLAINTEXT", "PLAINTEXT"), ("SASL_SSL", "SSL")}:
        assert isinstance(outcome.error, IllegalSaslStateException), "a listener that says that it knows no logins"
    else:
        assert "security.protocol" in outcome.reason
        assert not outcome.is_timeout


def test_mechanism_not_offered_is_refused(certificates: Certificates) -> None:
    with broker_of(certificates, "SASL_PLAINTEXT", sasl_enabled_mechanisms="SCRAM-SHA-512") as broker:
        error = send(options_for(broker, certificates, "SASL_PLAINTEXT", "PLAIN"))
    assert isinstance(error, UnsupportedSaslMechanismException)
    assert "the broker offers SCRAM-SHA-512" in error.message


def test_producer_recovers_when_its_password_becomes_valid(certificates: Certificates) -> None:
    """Nothing is fatal but what each call was for: passwords are changed."""
    with (
        broker_of(certificates, "SASL_PLAINTEXT") as broker,
        Producer(options_for(broker, certificates, "SASL_PLAINTEXT", **{"sasl.password": "new"})) as producer,
    ):
        for _ in range(3):
            assert isinstance(producer.send("orders", b"v").exception(TIMEOUT_SECONDS), SaslAuthenticationException)
            with pytest.raises(SaslAuthenticationException):
                producer.partitions_for("orders")
        broker._users["alice"] = "new"
        broker.restart()
        assert producer.send("orders", b"v").result(TIMEOUT_SECONDS).offset == 0


def test_record_fails_when_its_leader_refuses_the_login(certificates: Certificates) -> None:
    options: dict[str, Any] = {"delivery.timeout.ms": 2**31 - 1}
    with (
        broker_of(certificates, "SASL_PLAINTEXT") as broker,
        Producer(options_for(broker, certificates, "SASL_PLAINTEXT", **options)) as producer,
    ):
        assert producer.send("orders", b"v", partition=0).result(TIMEOUT_SECONDS).offset == 0
        broker._users["alice"] = "new"
        broker.restart()
        error = producer.send("orders", b"v", partition=0).exception(TIMEOUT_SECONDS)
        assert isinstance(error, SaslAuthenticationException)
        assert error.stored is Stored.NO


# Certificates of clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
def test_required_client_certificate_is_checked(versions: str, certificates: Certificates) -> None:
    requested = {"ssl_client_auth": "required", "ssl_truststore_location": certificates.root, "ssl_enabled_protocols": versions}
    with broker_of(certificates, "SSL", **requested) as broker:
        ours = options_for(broker, certificates, "SSL")
        assert send(ours | {"ssl.keystore.location": certificates.client}) is None
        assert send(ours | {"ssl.keystore.location": certificates.locked_client, "ssl.key.password": PASSWORD}) is None
        key, *chain = Path(certificates.client).read_text().partition("-----BEGIN CERTIFICATE")
        assert send(ours | {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": "".join(chain)}) is None
        for stranger in ({}, {"ssl.keystore.location": certificates.strange_client}):
            error = send(ours | stranger | {"max.block.ms": 10_000})
            if versions == "TLSv1.2":
                assert isinstance(error, SslAuthenticationException)
            else:  # For the client the handshake is done before the broker has seen its certificate: the end may overtake its reason.
                assert isinstance(error, SslAuthenticationException) or "may want TLS, a certificate" in str(error)


# Options that cannot be --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"ssl.truststore.location": "/nowhere/ca.pem"}, "option ssl.truststore.location: /nowhere/ca.pem: No such file"),
        ({"ssl.truststore.type": "JKS"}, "only PEM is read; convert it with 'keytool"),
        ({"ssl.truststore.location": "JKS"}, "is a Java key store (JKS), and only PEM is read"),
        ({"ssl.keystore.location": "JKS"}, "option ssl.keystore.location: "),
        ({"ssl.truststore.location": "EMPTY"}, "it contains no readable certificate in PEM"),
        ({"ssl.keystore.location": "EMPTY"}, "no readable private key with its certificate"),
        ({"ssl.keystore.location": "LOCKED"}, "check ssl.key.password"),
        ({"ssl.truststore.certificates": "hello"}, "ssl.truststore.location and ssl.truststore.certificates exclude each other"),
        ({"ssl.truststore.location": None, "ssl.truststore.certificates": "hello"}, "option ssl.truststore.certificates: it contains no"),
        ({"ssl.keystore.key": "x"}, "ssl.keystore.certificate.chain belong together"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"}, "ssl.keystore.key with ssl.keystore.certificate.chain"),
        ({"ssl.cipher.suites": "ROT13"}, "OpenSSL knows none of ROT13"),
        ({"ssl.enabled.protocols": ""}, "must name at least one"),
        ({"sasl.mechanism": None}, "option sasl.mechanism is missing: security.protocol=SASL_SSL needs one of PLAIN"),
        ({"sasl.password": None}, "option sasl.password is missing"),
        ({"sasl.username": ""}, "option sasl.username is missing"),
        ({"sasl.username": "a\0b"}, "null character"),
        ({"sasl.jaas.config": "x required;"}, "give one or the other"),
        ({"sasl.mechanism": "GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_invalid_security_options_are_refused(more: dict[str, Any], text: str, certificates: Certificates, tmp_path: Path) -> None:
    jks, empty = tmp_path / "store.jks", tmp_path / "empty.pem"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    empty.write_bytes(b"")
    files = {"JKS": str(jks), "EMPTY": str(empty), "LOCKED": certificates.locked_client}
    named = {name: files.get(value, value) for name, value in more.items()}
    options = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": certificates.root,
        "sasl.mechanism": "PLAIN",
        **ALICE,
        **named,
    }
    with pytest.raises(ConfigException) as caught:
        Producer(options)
    assert text in str(caught.value)
    assert USERS["alice"] not in str(caught.value)


def test_java_and_librdkafka_option_names_are_accepted(brokers: Mapping[str, EmbeddedBroker], certificates: Certificates) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "bootstrap.servers": brokers["SASL_SSL"].bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": certificates.root,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{module} required username="alice" password="{USERS["alice"]}";',
    }
    assert send(options) is None


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "needs a key"),
        ({"ssl.keystore.location": "/nowhere/key.pem"}, "/nowhere/key.pem: No such file"),
        ({"ssl.keystore.location": "SERVER", "ssl.client.auth": "required"}, "requires trusted certificates"),
    ],
)
def test_broker_without_a_usable_key_does_not_start(config: dict[str, str], text: str, certificates: Certificates) -> None:
    config = {name: value.replace("SERVER", certificates.server) for name, value in config.items()}
    with pytest.raises(ConfigException, match=text):
        EmbeddedBroker(config={"security.protocol": "SSL", **config})


@pytest.mark.parametrize("users", [{"alice": ""}, {"": "x"}, {"alice": 1}, ["alice"]])
def test_invalid_users_are_refused(users: Any) -> None:
    with pytest.raises(ConfigException, match="users"):
        EmbeddedBroker(config={"security.protocol": "SASL_PLAINTEXT"}, users=users)


# Those who only hold the door --------------------------------------------------------------------------------------------------------


def is_closed(held: socket.socket) -> bool:
    held.settimeout(TIMEOUT_SECONDS)
    try:
        while data := held.recv(1 << 16):
            assert data
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unauthenticated_connections_are_closed_in_time(
    protocol: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a handshake or none, half a login or none: other clients are served during it."""
    caplog.set_level(logging.WARNING, "chaffinch.broker")
    with broker_of(certificates, protocol, connections_max_unauthenticated_ms=1_000) as broker:
        held = [socket.create_connection(("127.0.0.1", port_of(broker))) for _ in range(20)]
        for half in held[::2]:
            half.sendall(b"\x16\x03\x01\x00\xa0\x01" if protocol.endswith("SSL") else b"\0\0\0\x20\0\x12")
        assert send(options_for(broker, certificates, protocol)) is None
        assert all(is_closed(half) for half in held)
        for half in held:
            half.close()
        assert broker._call(lambda core: core.state.authentication.counts["failed"]) >= 20, (
            "more where the machine is too slow for one who does"
        )
    assert len(caplog.records) < len(held), "a limited rate, however long that takes"


def test_number_of_unfinished_handshakes_is_limited(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKES_MAX", 5)
    with broker_of(certificates, "SSL") as broker:
        held = [socket.create_connection(("127.0.0.1", port_of(broker))) for _ in range(12)]
        assert all(is_closed(half) for half in held[:7]), "the oldest go"
        assert send(options_for(broker, certificates, "SSL")) is None
        for half in held:
            half.close()


def test_unauthenticated_large_request_closes_the_connection(certificates: Certificates) -> None:
    with broker_of(
        certificates, "SASL_PLAINTEXT", sasl_server_max_receive_size=1_000, connections_max_unauthenticated_ms=600_000
    ) as broker:
        with socket.create_connection(("127.0.0.1", port_of(broker))) as stranger:
            stranger.sendall((1_001).to_bytes(4, "big"))
            assert is_closed(stranger)
        options = options_for(broker, certificates, "SASL_PLAINTEXT")
        assert send(options, bytes(100_000)) is None, "who has may"


def test_logins_are_counted(certificates: Certificates) -> None:
    with broker_of(certificates, "SASL_SSL") as broker:
        options = options_for(broker, certificates, "SASL_SSL")
        send(options)
        send(options | {"sasl.password": "guess"})
        with connect(options) as client:
            list_topics(client)
            (family,) = [one for one in broker._thread.call(lambda: list(families(broker._running))) if "authentications" in one.name]
        found = {labels["outcome"]: count for labels, count in family.series}
    assert found["succeeded"] == 2
    assert found["failed"] >= 1


def test_login_is_renewed_on_its_connection(certificates: Certificates) -> None:
    with broker_of(certificates, "SASL_SSL", connections_max_reauth_ms=50) as broker:
        options = options_for(broker, certificates, "SASL_SSL", "SCRAM-SHA-256")
        with connect(options) as client:
            while not broker._call(lambda core: core.state.authentication.counts["renewed"]):
                client.request(MetadataRequest(topics=[]))


def test_close_does_not_wait_for_the_tls_shutdown_of_the_client(certificates: Certificates) -> None:
    """A client that never answers the broker's last word does not keep a broker from closing."""
    context = ssl.create_default_context(cafile=certificates.root)
    broker = broker_of(certificates, "SSL")
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port_of(broker))), server_hostname="127.0.0.1") as mute:
        broker.close()
        assert is_closed(mute)


def test_client_without_tls_loads_no_tls_context() -> None:
    """Without TLS nothing of it is loaded."""
    with SyncClient("127.0.0.1:1") as client:
        assert client._network._tls is None
