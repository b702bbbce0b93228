"""Every broker option of Apache Kafka 4.3 is used, accepted without effect and shown so, or refused by name with what to do instead."""

from __future__ import annotations

import pytest

from chaffinch.broker.core import kafka_options, options
from chaffinch.broker.core.log_maintenance import _DueTimes
from chaffinch.errors import ConfigException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    TYPE_CLASS,
    TYPE_PASSWORD,
    TYPE_SHORT,
)
from chaffinch.protocol.messages.incremental_alter_configs import OPERATION_DELETE, AlterableConfig, AlterConfigsResource
from chaffinch.settings import is_secret
from tests.broker.core.configs.config_requests import alter, describe
from tests.broker.core_client import Client, Cluster

ROWS = [[name, *row] for name, row in kafka_options._ROWS.items()]
DEFAULTS = {name: default for name, _, default, *_ in ROWS if default != "null"}
ANOTHER_DEFAULT = {"sasl.enabled.mechanisms"}
"""GSSAPI is not served: with it every client would wait at the login."""
OTHER_VALUES = {"config.providers": "file", "remote.log.storage.system.enable": "true"}


def set_one(client: Client, name: str, value: str | None, node: str = "", operation: int = 0) -> tuple[int, str]:
    config = AlterableConfig(name=name, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name=node, configs=[config])
    return alter(client, resource)[0]


def test_option_table_is_complete_and_sorted() -> None:
    names = [name for name, *_ in ROWS]
    assert names == sorted(set(names))
    assert len(names) == 363
    assert all(options.find(name) is not None for name in names)


@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() - ANOTHER_DEFAULT))
def test_default_of_apache_kafka_is_accepted(name: str) -> None:
    options.parse({name: DEFAULTS[name]})


def test_password_options_are_secret() -> None:
    """Certificates are no secret, though Apache Kafka keeps them as passwords."""
    passwords = {name for name, kind, *_ in ROWS if kind == "password"}
    assert {name for name in passwords if not is_secret(name)} == {"ssl.keystore.certificate.chain", "ssl.truststore.certificates"}


class TestRefused:
    @pytest.mark.parametrize("name", kafka_options.REFUSED)
    def test_refused_option_is_named_with_an_alternative(self, name: str) -> None:
        value = OTHER_VALUES.get(name, "example")
        for spelled in (name, f"listener.name.external.{name}", f"listener.name.external.plain.{name}"):
            with pytest.raises(ConfigException) as raised:
                options.parse({spelled: value})
            assert str(raised.value) == f"option {spelled} cannot be used here: {kafka_options.REFUSED[name]}"
            assert "example" not in raised.value.message

    @pytest.mark.parametrize("name", kafka_options.REFUSED)
    def test_refused_option_cannot_be_set_at_run_time(self, name: str) -> None:
        cluster = Cluster()
        code, message = set_one(cluster.client(), name, OTHER_VALUES.get(name, "example"))
        assert (code, name in message) == (42, True)
        cluster.restart()

    @pytest.mark.parametrize("name", ["authorizer.class.name", "config.providers", "super.users", "ssl.keystore.password"])
    def test_empty_value_counts_as_not_given(self, name: str) -> None:
        options.parse({name: ""})

    @pytest.mark.parametrize(
        ("name", "instead"),
        [
            ("listener.name.external.ssl.keystore.location", "ssl.keystore.location"),
            ("listener.name.external.ssl.client.auth", "ssl.client.auth"),
            ("listener.name.external.connections.max.reauth.ms", "connections.max.reauth.ms"),
            ("listener.name.external.sasl.enabled.mechanisms", "sasl.enabled.mechanisms"),
        ],
    )
    def test_security_option_of_a_single_listener_is_refused(self, name: str, instead: str) -> None:
        with pytest.raises(ConfigException, match=f"all listeners have the same options: give {instead}"):
            options.parse({name: "1"})

    def test_config_providers_are_refused(self) -> None:
        with pytest.raises(ConfigException, match="variables are not resolved"):
            options.parse({"config.providers.file.class": "org.example.Provider"})

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"listeners": "SSL://:9093"}, "SSL uses SSL in Apache Kafka, but would use PLAINTEXT here"),
            ({"listeners": "A://:1,B://:2", "listener.security.protocol.map": "A:PLAINTEXT,B:SASL_SSL"}, "B uses SASL_SSL"),
            ({"listeners": "SASL_SSL://:9093", "security.protocol": "SSL"}, "SASL_SSL uses SASL_SSL"),
            ({"listener.security.protocol.map": "PLAINTEXT:SSL"}, "PLAINTEXT uses SSL"),
        ],
    )
    def test_listener_less_protected_than_in_kafka_is_refused(self, given: dict[str, str], says: str) -> None:
        with pytest.raises(ConfigException, match=says):
            options.parse(given)

    @pytest.mark.parametrize(
        "given",
        [
            {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://a:9092"},
            {"listeners": "PLAINTEXT://:1,C://:2", "controller.listener.names": "C", "listener.security.protocol.map": "C:SSL"},
            {"listeners": "IN://:1,OUT://:2", "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SSL", "security.protocol": "SASL_SSL"},
        ],
    )
    def test_listener_protected_as_in_kafka_is_accepted(self, given: dict[str, str]) -> None:
        options.parse(given)

    @pytest.mark.parametrize("name", ["log.flush.interval.messages", "log.flush.interval.ms", "log.flush.scheduler.interval.ms"])
    def test_flush_interval_without_flush_policy_always_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigException, match=f"{name}=1 has no effect here.*set flush.policy=always"):
            options.parse({name: "1"})
        options.parse({name: "1", "flush.policy": "always"})
        assert set_one(Cluster().client(), name, "1")[0] == 42


class TestWithoutEffect:
    def test_invalid_value_is_refused(self) -> None:
        for name, value in {"num.io.threads": "many", "group.share.max.size": "0", "offsets.topic.replication.factor": "40000"}.items():
            with pytest.raises(ConfigException, match=f"option {name} cannot be"):
                options.parse({name: value})

    def test_options_without_effect_are_logged_once_at_start(self) -> None:
        cluster = Cluster({"num.io.threads": 4, "metric.reporters": "a,b", "listener.name.x.max.connections": "7", "rsm.config.dir": "/d"})
        cluster.client()
        ends = " is known to Apache Kafka and without effect here"
        assert cluster.lines == [
            f"option {each}{ends}"
            for each in ("listener.name.x.max.connections=7", "metric.reporters=a,b", "num.io.threads=4", "rsm.config.dir=/d")
        ]

    def test_secret_value_is_not_logged(self) -> None:
        secrets = {"delegation.token.secret.key": "abc", "sasl.oauthbearer.assertion.private.key.passphrase": "def"}
        cluster = Cluster(secrets)
        client = cluster.client()
        assert [line.partition(" is")[0] for line in cluster.lines] == [f"option {name}=(not shown)" for name in secrets]
        entries = describe(client, "0", RESOURCE_BROKER, keys=list(secrets)).configs
        assert [(entry.value, entry.is_sensitive, entry.config_type) for entry in entries] == [(None, True, TYPE_PASSWORD)] * 2

    @pytest.mark.parametrize(
        "name",
        [
            "background.threads",
            "leader.replication.throttled.rate",
            "follower.replication.throttled.rate",
            "replica.alter.log.dirs.io.max.bytes.per.second",
            "listener.name.external.max.connections",
        ],
    )
    @pytest.mark.parametrize(("node", "source"), [("", SOURCE_DYNAMIC_DEFAULT_BROKER), ("0", SOURCE_DYNAMIC_BROKER)])
    def test_option_without_effect_can_be_set_at_run_time(self, name: str, node: str, source: int) -> None:
        cluster = Cluster()
        client = cluster.client()
        assert set_one(client, name, None, node, OPERATION_DELETE) == (0, "")
        assert set_one(client, name, "many", node)[0] == 42
        for value in ("5", "6"):
            assert set_one(client, name, value, node) == (0, "")
        idle = [line for line in cluster.lines if "without effect" in line]
        assert idle == [f"option {name}=5 is known to Apache Kafka and without effect here"]
        cluster.restart()
        client = cluster.client()
        for resource in {node, "0"}:
            (entry,) = describe(client, resource, RESOURCE_BROKER, keys=[name], include_documentation=True).configs
            assert (entry.value, entry.config_source, entry.read_only) == ("6", source, False)
            assert "without effect here" in (entry.documentation or "")
        assert set_one(client, name, None, node, OPERATION_DELETE) == (0, "")
        assert [e.value for e in describe(client, node, RESOURCE_BROKER, keys=[name]).configs] in ([], ["10"], [str(2**63 - 1)])

    @pytest.mark.parametrize("name", ["num.replica.alter.log.dirs.threads", "node.id", "log.dirs", "listeners", "ssl.keystore.location"])
    def test_start_only_option_cannot_be_set_at_run_time(self, name: str) -> None:
        code, message = set_one(Cluster().client(), name, "1", "0")
        assert (code, message.startswith(f"option {name} cannot be changed while the broker runs")) == (42, True)


class TestDescribed:
    def test_node_describes_every_option(self) -> None:
        entries = describe(Cluster().client(), "0", RESOURCE_BROKER, include_documentation=True).configs
        found = {entry.name: entry for entry in entries}
        assert {name for name, *_ in ROWS} <= found.keys()
        assert len(found) == len(entries)
        for name in options.IDLE_OPTIONS_BY_NAME.keys() | options.WITHOUT_EFFECT_ON_TOPICS:
            assert "without effect here" in (found[name].documentation or "")
        short, class_ = found["offsets.topic.replication.factor"], found["principal.builder.class"]
        assert (short.value, short.config_type, short.config_source, short.read_only) == ("3", TYPE_SHORT, SOURCE_DEFAULT, True)
        assert class_.config_type == TYPE_CLASS
        assert not found["background.threads"].read_only

    def test_node_describes_its_id_and_listeners(self) -> None:
        client = Cluster({"listeners": "PLAINTEXT://elsewhere:1", "node.id": "7"}, nodes=2).client()
        names = ["node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir", "process.roles"]
        found = {entry.name: entry for entry in describe(client, "1", RESOURCE_BROKER, keys=names).configs}
        assert all((entry.config_source, entry.read_only) == (SOURCE_STATIC_BROKER, True) for entry in found.values())
        assert {name: found[name].value for name in names[:4]} == {
            "node.id": "1",
            "broker.id": "1",
            "listeners": "PLAINTEXT://node1:9093",
            "advertised.listeners": "PLAINTEXT://node1:9093",
        }
        assert found["log.dirs"].value == found["log.dir"].value != ""
        assert found["process.roles"].value == "broker,controller"

    def test_topic_option_without_effect_is_described_so(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        entries = describe(cluster.client(), "orders", include_documentation=True).configs
        found = {entry.name: entry.documentation or "" for entry in entries}
        assert "without effect here" in found["preallocate"]
        assert "without effect here" not in found["retention.ms"]


def test_unserved_group_protocol_is_logged() -> None:
    cluster = Cluster({"group.coordinator.rebalance.protocols": "classic,consumer,streams"})
    cluster.client()
    assert cluster.lines == ["option group.coordinator.rebalance.protocols=streams is known to Apache Kafka and without effect here"]


def test_cleaner_options_can_be_set_at_run_time() -> None:
    client = Cluster().client()
    for name in ("log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second", "max.connections"):
        assert set_one(client, name, "5000000") == (0, "")


def test_cleaner_due_times_follow_the_backoff_option() -> None:
    interval_ms = 10
    due = _DueTimes(0, lambda: interval_ms)
    due.put(TopicPartition("t", 0), 3)
    assert due.next_ms == 10
    interval_ms = 5
    due.put(TopicPartition("t", 0), 3)
    assert due.next_ms == 5


@pytest.mark.parametrize(("name", "says"), [("retention.ms", "'log.retention.ms'"), ("remote.storage.enable", "an option of topics")])
def test_topic_option_as_broker_option_gets_a_suggestion(name: str, says: str) -> None:
    with pytest.raises(ConfigException, match=f"unknown option '{name}'.*{says}"):
        options.parse({name: "1"})
