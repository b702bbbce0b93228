"""Names of topic options: over the wire and in the data directory there is one spelling of each, that of Apache Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.arguments import parse_text
from chaffinch.broker.core import options
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.topics import registry
from chaffinch.broker.core.topics.topic_options import resolve
from chaffinch.errors import ConfigException
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from chaffinch.protocol.messages.describe_configs import RESOURCE_BROKER, RESOURCE_TOPIC, SOURCE_DEFAULT
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_DELETE,
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
)
from chaffinch.storage.file_system import StorageError
from tests.broker.core.configs.config_requests import alter, change, describe
from tests.broker.core.test_topics import create
from tests.broker.core_client import Client, Cluster

WRONG_NAMES = {
    "retention_ms": "unknown option 'retention_ms': it is spelled 'retention.ms' here, with dots and without blanks",
    " retention.ms": "unknown option ' retention.ms': it is spelled 'retention.ms' here, with dots and without blanks",
    "max_message.bytes ": "unknown option 'max_message.bytes ': it is spelled 'max.message.bytes' here, with dots and without blanks",
    "retention_mss": "unknown option 'retention_mss': the nearest known one is 'retention.ms'",
    "message_max_bytes": "unknown option 'message_max_bytes': the nearest known one is 'max.message.bytes'",
}


def create_with(client: Client, config: Mapping[str, str]) -> tuple[int, str | None]:
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in config.items()]
    (result,) = create(client, CreatableTopic(name="orders", num_partitions=1, replication_factor=1, configs=configs))
    return result.error_code, result.error_message


def set_exactly(client: Client, name: str, kind: int, option: str, value: str | None) -> tuple[int, str]:
    operation = OPERATION_SET if value is not None else OPERATION_DELETE
    configs = [AlterableConfig(name=option, config_operation=operation, value=value)]
    (result,) = alter(client, AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs))
    return result


def set_options(client: Client) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in describe(client, "orders").configs if entry.config_source != SOURCE_DEFAULT}


class TestByWire:
    @pytest.mark.parametrize(("wrong_name", "says"), WRONG_NAMES.items())
    def test_creation_with_another_option_name_is_refused(self, wrong_name: str, says: str) -> None:
        cluster = Cluster()
        assert create_with(cluster.client(), {wrong_name: "100000"}) == (40, says)
        assert cluster.core.topics.get("orders") is None

    @pytest.mark.parametrize(("wrong_name", "says"), WRONG_NAMES.items())
    @pytest.mark.parametrize("value", ["100000", None])
    def test_alteration_with_another_option_name_is_refused(self, wrong_name: str, says: str, value: str | None) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        assert set_exactly(cluster.client(), "orders", RESOURCE_TOPIC, wrong_name, value) == (40, says)
        assert set_options(cluster.client()) == {}

    def test_broker_alteration_with_another_option_name_is_refused(self) -> None:
        client = Cluster().client()
        says = "unknown option 'num_partitions': it is spelled 'num.partitions' here, with dots and without blanks"
        assert set_exactly(client, "0", RESOURCE_BROKER, "num_partitions", "3") == (40, says)

    def test_all_errors_are_reported_at_once(self) -> None:
        code, says = create_with(Cluster().client(), {"retention_ms": "1", "segment.ms": "soon"})
        assert code == 40
        assert says == f"{WRONG_NAMES['retention_ms']}; option segment.ms cannot be 'soon': it must be a whole number"


class TestStoredNames:
    """Earlier versions stored options as they were spelled."""

    @staticmethod
    def cluster(overrides: Mapping[str, str], config: Mapping[str, Any] | None = None) -> Cluster:
        cluster = Cluster()
        cluster.topic("orders")
        topic = cluster.topic_named("orders")
        topic.overrides = dict(overrides)
        cluster.core.topics._write(topic)
        cluster.config = dict(config or {})
        cluster.restart()
        return cluster

    def test_stored_option_names_are_corrected_and_logged_once(self) -> None:
        cluster = self.cluster({"retention_ms": "100000", " cleanup.policy": "compact"}, {"log.retention.ms": 5000})
        client = cluster.client()
        assert set_options(client) == {"retention.ms": "100000", "cleanup.policy": "compact"}
        assert cluster.topic_named("orders").config.log.retention_ms == 100_000
        assert cluster.topic_named("orders").config.is_compacted
        assert cluster.lines == [
            "1 topic had options that were stored under other spellings: 'retention_ms' of orders, for example, is now retention.ms"
        ]
        cluster.lines.clear()
        cluster.restart()
        assert set_options(cluster.client()) == {"retention.ms": "100000", "cleanup.policy": "compact"}
        assert cluster.lines == []

    def test_corrected_option_can_be_reset(self) -> None:
        cluster = self.cluster({"retention_ms": "100000"})
        assert set_exactly(cluster.client(), "orders", RESOURCE_TOPIC, "retention.ms", None) == (0, "")
        cluster.restart()
        assert cluster.topic_named("orders").config.log.retention_ms == 7 * 86_400_000

    def test_broker_default_can_be_changed_with_corrected_options(self) -> None:
        cluster = self.cluster({"retention_ms": "100000"})
        assert alter(cluster.client(), change("", RESOURCE_BROKER, log_retention_ms="5000")) == [(0, "")]
        cluster.restart()
        assert cluster.topic_named("orders").config.log.retention_ms == 100_000

    def test_correction_on_a_full_disk_is_left_to_a_later_start(self) -> None:
        cluster = self.cluster({})
        topic = cluster.topic_named("orders")
        topic.overrides = {"retention_ms": "100000"}
        cluster.core.topics._write(topic)
        cluster.core.close()

        def full(operation: str, path: str, size: int) -> None:
            if operation == "append":
                raise StorageError(path, operation, "no space left on device")

        cluster.file_system.hook = full
        cluster.core = cluster._core()
        assert cluster.topic_named("orders").overrides == {"retention.ms": "100000"}


def overrides_of_orders(core: BrokerCore) -> Mapping[str, str]:
    topic = core.topics.get("orders")
    assert topic is not None
    return topic.overrides


class TestUnderscores:
    """Names of arguments have underscores: they are taken, and stored with dots."""

    def test_topics_argument_accepts_underscores(self) -> None:
        with EmbeddedBroker(topics={"orders": {"retention_ms": 5}}) as broker:
            assert broker._call(overrides_of_orders) == {"retention.ms": "5"}

    def test_create_topic_accepts_underscores(self) -> None:
        with EmbeddedBroker() as broker:
            broker.create_topic("orders", config={"cleanup_policy": ["compact", "delete"]})
            assert broker._call(overrides_of_orders) == {"cleanup.policy": "compact,delete"}

    def test_command_line_accepts_underscores(self) -> None:
        assert parse_text("orders,retention_ms=5, segment.ms=6").config == {"retention.ms": "5", "segment.ms": "6"}

    def test_option_given_under_two_names_is_refused(self) -> None:
        text = "orders,retention.ms=5,retention_ms=6"
        with pytest.raises(ConfigException, match=rf"^topic '{text}': option retention.ms is given twice, once as 'retention_ms': give it"):
            parse_text(text)


class TestInvalidDefaults:
    def test_default_invalid_for_a_topic_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = Cluster()
        cluster.topic("orders")

        def picky(overrides: Mapping[str, str], defaults: Mapping[str, Any]) -> Any:
            if defaults.get("log.retention.ms") == 5000:
                raise ConfigException("option retention.ms cannot be 5000: it must be at least 6000")
            return resolve(overrides, defaults)

        monkeypatch.setattr(registry, "resolve", picky)
        says = "topic options cannot be resolved with this value: option retention.ms cannot be 5000: it must be at least 6000"
        assert alter(cluster.client(), change("", RESOURCE_BROKER, log_retention_ms="5000")) == [(42, says)]
        cluster.restart()
        assert cluster.core.state.settings["log.retention.ms"] is None

    def test_broker_default_is_checked_as_a_topic_option(self) -> None:
        with pytest.raises(
            ConfigException, match=r"option compression.gzip.level cannot be '?0'?: it must be at least -1 and at most 9 and not"
        ):
            options.parse({"compression.gzip.level": 0})
