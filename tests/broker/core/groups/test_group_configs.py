"""Options that a single consumer group has of its own (KIP-848): set, shown, listed, in force with the next heartbeat, kept."""

from __future__ import annotations

from unittest import mock

import pytest

from chaffinch.protocol.messages.describe_configs import RESOURCE_GROUP, SOURCE_DEFAULT, SOURCE_GROUP, SOURCE_STATIC_BROKER
from chaffinch.protocol.messages.incremental_alter_configs import OPERATION_APPEND, OPERATION_DELETE, OPERATION_SET
from chaffinch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from chaffinch.storage.file_system import StorageError
from tests.broker.core.configs.config_requests import alter, change, describe, replace
from tests.broker.core.groups.members import GROUP, ConsumerMember, consumer_group_of
from tests.broker.core_client import Cluster

HEARTBEAT, SESSION = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"


def altered(cluster: Cluster, group: str = GROUP, operation: int = OPERATION_SET, **options: str | None) -> tuple[int, str]:
    return alter(cluster.client(), change(group, RESOURCE_GROUP, operation, **options))[0]


def shown(cluster: Cluster, group: str = GROUP) -> dict[str, tuple[str | None, int]]:
    return {entry.name: (entry.value, entry.config_source) for entry in describe(cluster.client(), group, RESOURCE_GROUP).configs}


def listed(cluster: Cluster) -> list[str]:
    answer = cluster.client().ask(ListConfigResourcesRequest(resource_types=[RESOURCE_GROUP]))
    return [resource.resource_name for resource in answer.config_resources]


class TestInForce:
    def test_changed_interval_is_in_the_next_heartbeat_response(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        assert member.join().heartbeat_interval_ms == 5000
        assert altered(cluster, consumer_heartbeat_interval_ms="7000") == (0, "")
        assert member.beat().heartbeat_interval_ms == 7000
        assert ConsumerMember(cluster, "b", group="another").join().heartbeat_interval_ms == 5000

    @pytest.mark.parametrize("restarts", [False, True])
    def test_longer_session_timeout_applies(self, cluster: Cluster, restarts: bool) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        altered(cluster, consumer_session_timeout_ms="60000")
        if restarts:
            cluster.restart()
        else:
            member.beat()
        cluster.advance(59_999)
        assert set(consumer_group_of(cluster).members) == {"a"}
        cluster.advance(1)
        assert consumer_group_of(cluster).members == {}

    def test_limits_are_options_of_the_broker(self) -> None:
        cluster = Cluster({"group.consumer.min.session.timeout.ms": 100, "group.consumer.min.heartbeat.interval.ms": 1})
        assert altered(cluster, consumer_session_timeout_ms="100", consumer_heartbeat_interval_ms="99") == (0, "")


class TestShown:
    def test_sources_of_values_are_described(self) -> None:
        cluster = Cluster({"group.consumer.session.timeout.ms": 50_000})
        altered(cluster, consumer_heartbeat_interval_ms="7000")
        assert shown(cluster) == {HEARTBEAT: ("7000", SOURCE_GROUP), SESSION: ("50000", SOURCE_STATIC_BROKER)}
        assert shown(cluster, "another") == {HEARTBEAT: ("5000", SOURCE_DEFAULT), SESSION: ("50000", SOURCE_STATIC_BROKER)}

    def test_synonyms_are_described(self, cluster: Cluster) -> None:
        altered(cluster, consumer_heartbeat_interval_ms="7000")
        (entry,) = describe(cluster.client(), GROUP, RESOURCE_GROUP, [HEARTBEAT], include_synonyms=True).configs
        synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]
        assert synonyms == [(HEARTBEAT, "7000", SOURCE_GROUP), (f"group.{HEARTBEAT}", "5000", SOURCE_DEFAULT)]

    def test_groups_with_own_options_are_listed(self, cluster: Cluster) -> None:
        for group in ("h", "g 3 ü"):
            altered(cluster, group, consumer_heartbeat_interval_ms="7000")
        assert listed(cluster) == ["g 3 ü", "h"]
        altered(cluster, "h", OPERATION_DELETE, consumer_heartbeat_interval_ms=None)
        assert listed(cluster) == ["g 3 ü"]


class TestPersistence:
    @pytest.mark.parametrize("kill", [True, False])
    def test_options_survive_a_restart(self, cluster: Cluster, kill: bool) -> None:
        altered(cluster, "g 3 ü", consumer_heartbeat_interval_ms="7000")
        altered(cluster, "h", consumer_heartbeat_interval_ms="7000")
        altered(cluster, "h", OPERATION_DELETE, consumer_heartbeat_interval_ms=None)
        cluster.restart(kill=kill)
        assert listed(cluster) == ["g 3 ü"]
        assert shown(cluster, "g 3 ü")[HEARTBEAT] == ("7000", SOURCE_GROUP)

    def test_alter_configs_replaces_all_options(self, cluster: Cluster) -> None:
        altered(cluster, consumer_heartbeat_interval_ms="7000")
        assert replace(cluster.client(), GROUP, RESOURCE_GROUP, consumer_session_timeout_ms="46000") == (0, "")
        assert shown(cluster) == {HEARTBEAT: ("5000", SOURCE_DEFAULT), SESSION: ("46000", SOURCE_GROUP)}

    def test_validate_only_changes_nothing(self, cluster: Cluster) -> None:
        assert replace(cluster.client(), GROUP, RESOURCE_GROUP, validate_only=True, consumer_session_timeout_ms="46000") == (0, "")
        assert listed(cluster) == []

    def test_a_full_disk_changes_nothing(self, cluster: Cluster) -> None:
        altered(cluster, consumer_heartbeat_interval_ms="7000")
        refusal = StorageError("cluster.journal", "append", "no space left")
        with mock.patch.object(cluster.core._journals["cluster"], "put", side_effect=refusal):
            assert altered(cluster, consumer_heartbeat_interval_ms="8000")[0] == 56
        assert shown(cluster)[HEARTBEAT] == ("7000", SOURCE_GROUP)


@pytest.mark.parametrize(
    ("group", "operation", "options", "code", "says"),
    [
        (GROUP, OPERATION_SET, {SESSION: "44999"}, 40, "at least 45000 (group.consumer.min.session.timeout.ms)"),
        (GROUP, OPERATION_SET, {SESSION: "60001"}, 40, "at most 60000 (group.consumer.max.session.timeout.ms)"),
        (GROUP, OPERATION_SET, {HEARTBEAT: "4999"}, 40, "at least 5000 (group.consumer.min.heartbeat.interval.ms)"),
        (GROUP, OPERATION_SET, {HEARTBEAT: "15001"}, 40, "at most 15000 (group.consumer.max.heartbeat.interval.ms)"),
        (GROUP, OPERATION_SET, {HEARTBEAT: "soon"}, 40, "whole number"),
        (GROUP, OPERATION_SET, {"consumer.session.timeout": "46000"}, 40, SESSION),
        (GROUP, OPERATION_SET, {HEARTBEAT: None}, 42, "no value"),
        (GROUP, OPERATION_APPEND, {HEARTBEAT: "6000"}, 40, "not a list"),
        ("", OPERATION_SET, {HEARTBEAT: "6000"}, 42, "empty"),
    ],
)
def test_invalid_option_is_refused(
    cluster: Cluster, group: str, operation: int, options: dict[str, str | None], code: int, says: str
) -> None:
    refused = altered(cluster, group, operation, **{name.replace(".", "_"): value for name, value in options.items()})
    assert refused[0] == code
    assert says in refused[1]
    assert listed(cluster) == []


def test_session_timeout_must_exceed_the_heartbeat_interval() -> None:
    cluster = Cluster({"group.consumer.min.session.timeout.ms": 1})
    refused = altered(cluster, consumer_session_timeout_ms="5000")
    assert refused[0] == 40
    assert "sessions must be longer" in refused[1]
