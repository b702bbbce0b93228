"""What is done to one topic does not look at all the others: a request may name thousands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch.broker.core.groups.offsets import CommittedOffset, GroupOffsets
from chaffinch.broker.core.topics import registry
from chaffinch.broker.core.topics.topic_options import TopicConfig, resolve
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from chaffinch.storage.journal import Journal
from tests.broker.core_client import Cluster

NAMES = [f"topic-{index}" for index in range(5)]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    for name in NAMES:
        cluster.topic(name, 2)
    return cluster


class TestDeletion:
    @staticmethod
    def commit(cluster: Cluster, groups: int) -> GroupOffsets:
        offsets = cluster.core.state.offsets
        for group in range(groups):
            offsets.commit(f"group-{group}", {TopicPartition(name, 1): CommittedOffset(offset=7) for name in NAMES})
        return offsets

    @staticmethod
    def delete(cluster: Cluster, *names: str) -> list[DeletableTopicResult]:
        results: list[DeletableTopicResult] = (
            cluster.client().ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])).responses
        )
        return results

    def test_deletion_does_not_read_the_whole_journal(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        def read(_: Journal) -> dict[bytes, bytes]:
            raise AssertionError("all of it")

        monkeypatch.setattr(Journal, "items", read)
        assert [result.error_code for result in self.delete(cluster, *NAMES[:3])] == [0] * 3
        assert len(cluster.file_system.list("logs")) == 2

    def test_deletion_leaves_no_entries(self, cluster: Cluster) -> None:
        kept = {key for key in cluster.core._metadata.items() if b"topic-4" in key}
        self.delete(cluster, *NAMES[:4])
        left = cluster.core._metadata.items()
        assert {key for key in left if b"topic-" in key} == kept

    def test_deletion_searches_each_group_once(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        offsets, searched, forget = self.commit(cluster, 3), [], GroupOffsets.forget

        def counting(offsets: GroupOffsets, group: str, *more: Any) -> None:
            searched.append(group)
            forget(offsets, group, *more)

        monkeypatch.setattr(GroupOffsets, "forget", counting)
        self.delete(cluster, *NAMES[:4], "missing")
        assert searched == ["group-0", "group-1", "group-2"]
        assert [list(offsets.fetch_all(group)) for group in searched] == [[TopicPartition("topic-4", 1)]] * 3
        self.delete(cluster, "missing")
        assert len(searched) == 3


def test_changed_default_is_resolved_once_per_set_of_overrides(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        cluster.topic(name, retention_ms="1")
    cluster.topic("c", retention_ms="2", max_message_bytes="77")
    resolved = []

    def counting(overrides: Mapping[str, str], defaults: Mapping[str, Any]) -> TopicConfig:
        resolved.append(dict(overrides))
        return resolve(overrides, defaults)

    monkeypatch.setattr(registry, "resolve", counting)
    change = AlterableConfig(name="message.max.bytes", config_operation=OPERATION_SET, value="1234")
    cluster.client().ask(
        IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=4, resource_name="", configs=[change])])
    )
    assert resolved == [{}, {"retention.ms": "1"}, {"retention.ms": "2", "max.message.bytes": "77"}]
    for topic in cluster.core.topics:
        batch_bytes, retention_ms = 77 if topic.name == "c" else 1234, {"a": 1, "b": 1, "c": 2}.get(topic.name, 604_800_000)
        assert topic.config.batch_bytes_max == batch_bytes
        for partition in topic.partitions:
            assert (partition.policy.batch_bytes_max, partition.log.config.retention_ms) == (batch_bytes, retention_ms)
            assert partition.policy.topic_partition == partition.topic_partition
