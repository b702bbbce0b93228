"""Options changed at run time, by AlterConfigs and IncrementalAlterConfigs, and described: resources, layers, refusals."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from chaffinch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    TYPE_INT,
    TYPE_PASSWORD,
)
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_DELETE,
    AlterConfigsResource,
)
from chaffinch.storage.file_system import StorageError
from tests.broker.core.configs.config_requests import alter, change, describe, replace
from tests.broker.core_client import Client, Cluster

CREATABLE = CreatableTopic(name="new", num_partitions=-1, replication_factor=-1)


def codes(client: Client, *resources: AlterConfigsResource) -> list[int]:
    """Of IncrementalAlterConfigs."""
    return [code for code, _ in alter(client, *resources)]


def values(client: Client, name: str, kind: int = RESOURCE_TOPIC) -> dict[str, tuple[str | None, int]]:
    """Name -> value and source of what is not a default."""
    configs = describe(client, name, kind).configs
    return {entry.name: (entry.value, entry.config_source) for entry in configs if entry.config_source != SOURCE_DEFAULT}


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", retention_ms="1000", cleanup_policy="compact")
    return cluster


class TestAlterConfigs:
    """KIP-133: what is not named goes back to its default."""

    @pytest.mark.parametrize("kill", [True, False])
    def test_alter_configs_replaces_all_options(self, cluster: Cluster, kill: bool) -> None:
        assert replace(cluster.client(), "orders", retention_ms="5", segment_ms="6") == (0, "")
        cluster.restart(kill=kill)
        assert values(cluster.client(), "orders") == {"retention.ms": ("5", SOURCE_TOPIC), "segment.ms": ("6", SOURCE_TOPIC)}

    def test_alter_configs_without_options_restores_all_defaults(self, cluster: Cluster) -> None:
        assert replace(cluster.client(), "orders") == (0, "")
        assert values(cluster.client(), "orders") == {}

    def test_validate_only_changes_nothing(self, cluster: Cluster) -> None:
        before = values(cluster.client(), "orders")
        assert replace(cluster.client(), "orders", validate_only=True, retention_ms="5") == (0, "")
        assert replace(cluster.client(), "orders", validate_only=True, retention_ms="soon")[0] == 40
        assert values(cluster.client(), "orders") == before

    @pytest.mark.parametrize(
        ("name", "kind", "options", "code", "says"),
        [
            ("missing", RESOURCE_TOPIC, {}, 3, "does not exist"),
            ("a/b", RESOURCE_TOPIC, {}, 17, "letters"),
            ("orders", RESOURCE_TOPIC, {"retention_ms": None}, 42, "no value"),
            ("orders", RESOURCE_TOPIC, {"retention_msec": "1"}, 40, "retention.ms"),
            ("9", RESOURCE_BROKER, {}, 42, "node '9'"),
            ("", RESOURCE_BROKER, {"flush_policy": "os"}, 42, "while the broker runs"),
            ("", RESOURCE_BROKER, {"log_dirs": "/elsewhere"}, 42, "no effect here"),
            ("", RESOURCE_BROKER, {"log_segment_bytez": "5"}, 40, "log.segment.bytes"),
            ("", RESOURCE_BROKER, {"message_max_bytes": "many"}, 42, "whole number"),
            ("", RESOURCE_BROKER, {"num_partitions": "9" * 26}, 42, "at most 2147483647"),
            ("orders", RESOURCE_TOPIC, {"retention_ms": "9" * 20}, 40, "at most 64 bits"),
            ("missing", RESOURCE_TOPIC, {"retention_ms": "soon"}, 40, "whole number"),
            ("orders", RESOURCE_TOPIC, {"cleanup_policy": "compact,"}, 40, "compact, delete"),
            ("orders", RESOURCE_TOPIC, {"remote_storage_enable": "true"}, 40, "no tiered storage"),
            ("orders", RESOURCE_TOPIC, {"leader_replication_throttled_replicas": "0:1,a:b"}, 40, "partition:node"),
            ("orders", RESOURCE_TOPIC, {"follower_replication_throttled_replicas": "none"}, 40, "partition:node"),
            ("0", RESOURCE_BROKER_LOGGER, {}, 42, "type 8"),
            ("c", RESOURCE_CLIENT_METRICS, {}, 42, "type 16"),
            ("x", 77, {}, 42, "type 77"),
        ],
    )
    def test_invalid_request_is_refused_with_code_and_reason(
        self, cluster: Cluster, name: str, kind: int, options: dict[str, Any], code: int, says: str
    ) -> None:
        before = values(cluster.client(), "orders")
        found, message = replace(cluster.client(), name, kind, **options)
        assert (found, says in message) == (code, True), message
        assert values(cluster.client(), "orders") == before

    @pytest.mark.parametrize(
        ("option", "text", "shown"),
        [
            ("retention_ms", " +7 ", "7"),
            ("cleanup_policy", "delete, compact", "delete,compact"),
            ("preallocate", "TRUE", "true"),
            ("compression_type", " lz4", "lz4"),
            ("min_cleanable_dirty_ratio", "1", "1.0"),
            ("leader_replication_throttled_replicas", "0:1, 1:0", "0:1,1:0"),
            ("follower_replication_throttled_replicas", "*", "*"),
        ],
    )
    def test_topic_value_is_described_normalized(self, cluster: Cluster, option: str, text: str, shown: str) -> None:
        name = option.replace("_", ".")
        options: dict[str, Any] = {option: text}
        assert replace(cluster.client(), "orders", **options) == (0, "")
        assert values(cluster.client(), "orders") == {name: (shown, SOURCE_TOPIC)}
        (entry,) = describe(cluster.client(), "orders", keys=[name], include_synonyms=True).configs
        assert entry.synonyms[0].value == shown

    @pytest.mark.parametrize("name", ["", "0"])
    def test_broker_value_is_described_normalized(self, cluster: Cluster, name: str) -> None:
        replace(cluster.client(), name, RESOURCE_BROKER, num_partitions=" 3")
        assert values(cluster.client(), name, RESOURCE_BROKER)["num.partitions"][0] == "3"

    def test_alter_configs_replaces_options_of_all_nodes(self, cluster: Cluster) -> None:
        client = cluster.client()
        replace(client, "", RESOURCE_BROKER, num_partitions="3")
        replace(client, "", RESOURCE_BROKER, default_replication_factor="1")
        assert values(client, "", RESOURCE_BROKER) == {"default.replication.factor": ("1", SOURCE_DYNAMIC_DEFAULT_BROKER)}


class TestResources:
    def test_duplicate_resource_is_refused(self, cluster: Cluster) -> None:
        cluster.topic("bills")
        first, second = change("orders", retention_ms="1"), change("orders", segment_ms="2")
        assert codes(cluster.client(), first, change("bills", retention_ms="3"), second) == [42, 0, 42]
        assert values(cluster.client(), "orders")["retention.ms"] == ("1000", SOURCE_TOPIC)
        assert values(cluster.client(), "bills") == {"retention.ms": ("3", SOURCE_TOPIC)}

    def test_failed_journal_write_changes_nothing(self, cluster: Cluster) -> None:
        before = values(cluster.client(), "orders")
        refusal = StorageError("cluster.journal", "append", "no space left")
        with mock.patch.object(cluster.core._journals["cluster"], "put", side_effect=refusal):
            assert codes(cluster.client(), change("orders", segment_ms="2")) == [56]
        assert values(cluster.client(), "orders") == before

    def test_duplicate_option_is_refused(self, cluster: Cluster) -> None:
        twice = change("orders", segment_ms="2")
        twice.configs += change("orders", segment_ms="3").configs
        assert codes(cluster.client(), twice) == [42]
        assert "segment.ms" not in values(cluster.client(), "orders")

    def test_invalid_option_leaves_the_resource_unchanged(self, cluster: Cluster) -> None:
        assert codes(cluster.client(), change("orders", segment_ms="2", retention_ms="soon")) == [40]
        assert "segment.ms" not in values(cluster.client(), "orders")

    def test_loggers_and_client_metrics_cannot_be_altered(self, cluster: Cluster) -> None:
        client = cluster.client()
        assert codes(client, change("0", RESOURCE_BROKER_LOGGER, root="DEBUG")) == [40]
        assert codes(client, change("c", RESOURCE_CLIENT_METRICS)) == [42]


class TestLayers:
    """Options of a named node win over those of all nodes, these over what was given at start."""

    def test_most_specific_layer_wins(self) -> None:
        cluster = Cluster({"num.partitions": 2})
        client = cluster.client()
        steps = [
            (None, ("2", SOURCE_STATIC_BROKER)),
            (change("", RESOURCE_BROKER, num_partitions="3"), ("3", SOURCE_DYNAMIC_DEFAULT_BROKER)),
            (change("0", RESOURCE_BROKER, num_partitions="4"), ("4", SOURCE_DYNAMIC_BROKER)),
            (change("", RESOURCE_BROKER, num_partitions="5"), ("4", SOURCE_DYNAMIC_BROKER)),
        ]
        for request, shown in steps:
            assert request is None or codes(client, request) == [0]
            assert values(client, "0", RESOURCE_BROKER)["num.partitions"] == shown
            assert str(cluster.core.state.settings["num.partitions"]) == shown[0]
        cluster.restart()
        client = cluster.client()
        (entry,) = describe(client, "0", RESOURCE_BROKER, ["num.partitions"], include_synonyms=True).configs
        places = [(synonym.value, synonym.source) for synonym in entry.synonyms]
        assert places == [
            ("4", SOURCE_DYNAMIC_BROKER),
            ("5", SOURCE_DYNAMIC_DEFAULT_BROKER),
            ("2", SOURCE_STATIC_BROKER),
            ("1", SOURCE_DEFAULT),
        ]

    def test_describing_all_nodes_shows_only_dynamic_defaults(self, cluster: Cluster) -> None:
        client = cluster.client()
        assert describe(client, "", RESOURCE_BROKER).configs == []
        codes(client, change("", RESOURCE_BROKER, num_partitions="3"), change("0", RESOURCE_BROKER, message_max_bytes="2000000"))
        assert values(client, "", RESOURCE_BROKER) == {"num.partitions": ("3", SOURCE_DYNAMIC_DEFAULT_BROKER)}

    def test_topics_follow_both_dynamic_layers(self, cluster: Cluster) -> None:
        client = cluster.client()
        codes(client, change("", RESOURCE_BROKER, message_max_bytes="2000000"), change("0", RESOURCE_BROKER, log_segment_bytes="5000000"))
        shown = values(client, "orders")
        assert shown["max.message.bytes"] == ("2000000", SOURCE_DYNAMIC_DEFAULT_BROKER)
        assert shown["segment.bytes"] == ("5000000", SOURCE_DYNAMIC_BROKER)
        assert cluster.topic_named("orders").config.log.segment_bytes == 5_000_000

    @pytest.mark.parametrize(
        ("own", "default", "shown"),
        [
            ({"max.compaction.lag.ms": "1000"}, {"log_cleaner_min_compaction_lag_ms": "5000"}, "min.compaction.lag.ms"),
            ({}, {"log_cleanup_policy": ""}, "cleanup.policy"),
        ],
    )
    def test_default_contradicting_a_topic_is_accepted(self, own: dict[str, Any], default: dict[str, Any], shown: str) -> None:
        """As in Apache Kafka; the broker must start again with it, and only new contradictions are refused."""
        cluster = Cluster()
        cluster.topic("other", **own)
        assert codes(cluster.client(), change("", RESOURCE_BROKER, **default)) == [0]
        cluster.restart()
        client = cluster.client()
        assert values(client, "other")[shown] == (*default.values(), SOURCE_DYNAMIC_DEFAULT_BROKER)
        assert codes(client, change("other", retention_ms="1")) == ([40] if own else [0])

    @pytest.mark.parametrize("name", ["", "0"])
    def test_contradicting_defaults_are_refused(self, name: str) -> None:
        """It does not matter where and when the other was set: no topic could be created any more."""
        cluster = Cluster({"log.cleaner.min.compaction.lag.ms": "1000"})
        client, least, most = cluster.client(), "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
        refused = [(42, f"{least}=1000 is above {most}=999: no topic could be created")]
        assert alter(client, change(name, RESOURCE_BROKER, log_cleaner_max_compaction_lag_ms="999")) == refused
        assert codes(client, change("", RESOURCE_BROKER, log_cleaner_min_compaction_lag_ms="5")) == [0]
        assert codes(client, change(name, RESOURCE_BROKER, log_cleaner_max_compaction_lag_ms="999")) == [0]
        refused = [(42, f"{least}=1000 is above {most}=999: no topic could be created")]
        assert alter(client, change("", RESOURCE_BROKER, OPERATION_DELETE, log_cleaner_min_compaction_lag_ms=None)) == refused
        assert codes(client, change(name, RESOURCE_BROKER, num_partitions="10001")) == [42]
        assert cluster.client().ask(CreateTopicsRequest(topics=[CREATABLE])).topics[0].error_code == 0

    def test_contradicting_defaults_after_a_restart_can_be_corrected(self) -> None:
        """Or have been set in an earlier version. The broker starts with them, and takes what makes nothing worse."""
        cluster = Cluster()
        client = cluster.client()
        assert codes(client, change("", RESOURCE_BROKER, log_cleaner_max_compaction_lag_ms="999")) == [0]
        cluster.config["log.cleaner.min.compaction.lag.ms"] = "1000"
        cluster.restart()
        client = cluster.client()
        assert client.ask(CreateTopicsRequest(topics=[CREATABLE])).topics[0].error_code == 40
        assert codes(client, change("", RESOURCE_BROKER, num_partitions="2")) == [0]
        assert codes(client, change("", RESOURCE_BROKER, log_cleaner_max_compaction_lag_ms="998")) == [42]
        assert codes(client, change("", RESOURCE_BROKER, log_cleaner_max_compaction_lag_ms="1000")) == [0]
        assert client.ask(CreateTopicsRequest(topics=[CREATABLE])).topics[0].error_code == 0

    def test_topic_without_cleanup_policy_keeps_everything(self, cluster: Cluster) -> None:
        """KIP-1161."""
        assert codes(cluster.client(), change("orders", cleanup_policy="")) == [0]
        config = cluster.topic_named("orders").config
        assert (config.log.deletes, config.is_compacted) == (False, False)


class TestDescribe:
    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (RESOURCE_BROKER_LOGGER, "0", 0),
            (RESOURCE_BROKER_LOGGER, "7", 42),
            (RESOURCE_BROKER_LOGGER, "", 42),
            (RESOURCE_GROUP, "", 42),
            (RESOURCE_CLIENT_METRICS, "c", 0),
            (RESOURCE_CLIENT_METRICS, "", 42),
            (RESOURCE_TOPIC, "a/b", 17),
            (RESOURCE_TOPIC, "missing", 3),
            (RESOURCE_BROKER, "x", 42),
            (77, "x", 42),
        ],
    )
    def test_resources_without_options(self, cluster: Cluster, kind: int, name: str, code: int) -> None:
        result = describe(cluster.client(), name, kind)
        assert (result.error_code, result.configs, bool(result.error_message)) == (code, [], code != 0)

    @pytest.mark.parametrize("keys", [None, []])
    def test_describing_without_names_shows_all_options(self, cluster: Cluster, keys: list[str] | None) -> None:
        assert len(describe(cluster.client(), "orders", keys=keys).configs) > 25

    def test_documentation_of_min_insync_replicas_names_the_exception(self, cluster: Cluster) -> None:
        for name, kind in (("orders", RESOURCE_TOPIC), ("0", RESOURCE_BROKER)):
            (entry,) = describe(cluster.client(), name, kind, ["min.insync.replicas"], include_documentation=True).configs
            assert "InconsistentReplicationFactorException" in (entry.documentation or "")
            assert (entry.value, entry.config_type, entry.read_only, entry.is_sensitive) == ("1", TYPE_INT, False, False)

    def test_secrets_are_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.settings._SECRET_WORDS", ("listeners",))
        client = Cluster({"listeners": "PLAINTEXT://secret:1"}).client()
        (entry,) = describe(client, "0", RESOURCE_BROKER, ["listeners"], include_synonyms=True).configs
        assert (entry.value, entry.is_sensitive, entry.config_type) == (None, True, TYPE_PASSWORD)
        assert [synonym.value for synonym in entry.synonyms] == [None]

    def test_every_option_has_type_and_documentation(self, cluster: Cluster) -> None:
        for name, kind in (("orders", RESOURCE_TOPIC), ("0", RESOURCE_BROKER)):
            entries: Any = describe(cluster.client(), name, kind, include_documentation=True).configs
            assert all(entry.documentation and entry.config_type for entry in entries)
