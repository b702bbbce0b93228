"""Which partitions there are, asked of brokers that know more and less: answers written down beforehand, and no real waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TypeAlias, cast
from uuid import UUID

import pytest

from chaffinch.admin import topics
from chaffinch.client.sync_client import SyncClient, Target
from chaffinch.errors import TimeoutException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.source.topic_discovery import TopicDiscovery

AWAY = None
Known: TypeAlias = Mapping[str, int] | None


def index(node: Target) -> int:
    return node if isinstance(node, int) else 0


class Cluster:
    """Two brokers; `knowing` says how many partitions of which topic each knows, `AWAY` does not answer. "any" is broker 0.
    `ids`: the id of topic a that each knows."""

    def __init__(self, *knowing: Known, ids: tuple[UUID, UUID] = (ZERO_UUID, ZERO_UUID)) -> None:
        self.knowing, self.ids = list(knowing), list(ids)
        self.asked: list[Target] = []
        self.pauses: list[int] = []
        self.cluster = SimpleNamespace(
            nodes={0: "a:1", 1: "b:1"},
            topic=lambda name: None,
            partition_count=self._count,
            topic_id=lambda name: self.ids[index(self.asked[-1])],
        )
        self._metadata: Mapping[str, int] = {}

    def _count(self, name: str) -> int | None:
        return self._metadata.get(name)

    def ask(self, node: Target) -> Mapping[str, int]:
        self.asked.append(node)
        found = self.knowing[index(node)]
        if found is None:
            raise TimeoutException("no answer")
        return found

    def pause(self, pause_ms: int) -> None:
        self.pauses.append(pause_ms)

    def refresh_metadata(self, names: Sequence[str], *, node: Target, timeout_ms: int) -> SimpleNamespace:
        self._metadata = self.ask(node)
        return self.cluster


@pytest.fixture(params=["subscribe", "subscribePattern"])
def discovery(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], TopicDiscovery]:
    """A maker of discoveries for topic a, by name and by pattern."""

    def listed(client: Cluster, *, node: Target, timeout_ms: int) -> list[SimpleNamespace]:
        found = client.ask(node)
        return [
            SimpleNamespace(name=name, is_internal=False, partitions=range(count), topic_id=client.cluster.topic_id(name))
            for name, count in found.items()
            if count
        ]

    monkeypatch.setattr(topics, "list_topics", listed)
    return lambda cluster: TopicDiscovery(
        cast(SyncClient, cluster), SourceOptions.parse({"kafka.bootstrap.servers": "a:1", request.param: "a"})
    )


def count(discovery: TopicDiscovery) -> int:
    return len(discovery.partitions().partitions)


@pytest.mark.parametrize("behind", [{"a": 2}, {"a": 0}])
def test_stale_broker_with_fewer_partitions_is_verified(discovery: Callable[[Cluster], TopicDiscovery], behind: Mapping[str, int]) -> None:
    cluster = Cluster({"a": 3}, {"a": 3})
    asked = discovery(cluster)
    assert count(asked) == 3
    cluster.knowing[0] = behind
    assert count(asked) == 3
    assert (cluster.asked, len(cluster.pauses)) == (["any", "any", 1], 1)


def test_partitions_of_checkpoint_are_expected(discovery: Callable[[Cluster], TopicDiscovery]) -> None:
    """After a restart there was no earlier request."""
    asked = discovery(Cluster({"a": 2}, {"a": 3}))
    asked.expect([TopicPartition("a", 2), TopicPartition("a", 0)])
    assert count(asked) == 3


def test_unavailable_broker_is_skipped(discovery: Callable[[Cluster], TopicDiscovery]) -> None:
    cluster = Cluster({"a": 3}, AWAY)
    asked = discovery(cluster)
    assert count(asked) == 3
    cluster.knowing = [{"a": 2}, AWAY]
    assert count(asked) == 2
    assert set(cluster.asked[2:]) == {0, 1}
    before = len(cluster.pauses)
    assert count(asked) == 2
    assert len(cluster.pauses) == before, "a topic that was missing after the wait is not waited for again"


def test_removed_partitions_can_return(discovery: Callable[[Cluster], TopicDiscovery]) -> None:
    cluster = Cluster({"a": 3}, {"a": 3})
    asked = discovery(cluster)
    for known, expected in ((3, 3), (0, 0), (2, 2), (1, 1)):
        cluster.knowing = [{"a": known}] * 2
        assert count(asked) == expected


def test_new_id_is_accepted_if_both_brokers_have_it(discovery: Callable[[Cluster], TopicDiscovery]) -> None:
    """The one that still knows the deleted topic may be asked first, or the one that does not know the new topic yet."""
    old, new = UUID(int=1), UUID(int=2)
    cluster = Cluster({"a": 1}, {"a": 1}, ids=(old, new))
    asked = discovery(cluster)
    asked.expect([TopicPartition("a", 0)], {"a": new})
    asked.partitions()
    assert (asked.ids, cluster.asked) == ({"a": new}, ["any", 1])
    cluster.ids = [old, old]
    asked.partitions()
    assert asked.ids == {"a": old}
    before = len(cluster.pauses)
    asked.partitions()
    assert len(cluster.pauses) == before, "it is not doubted a second time"


def test_existing_partitions_of_checkpoint() -> None:
    options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "a"})
    cluster = Cluster({"a": 1}, {"a": 2})
    wanted = [TopicPartition("a", number) for number in range(2)]
    assert TopicDiscovery(cast(SyncClient, cluster), options).existing(wanted) == set(wanted)
    cluster.knowing = [{"a": 1}] * 2
    assert TopicDiscovery(cast(SyncClient, cluster), options).existing(wanted) == {wanted[0]}


@pytest.mark.parametrize("discovery", ["subscribePattern"], indirect=True)
def test_pattern_without_match_is_logged(discovery: Callable[[Cluster], TopicDiscovery], caplog: pytest.LogCaptureFixture) -> None:
    """Else a read of no row at all looks like one of empty topics."""
    assert discovery(Cluster({"ab": 3})).partitions_at_start() == ()
    line = "no topic on a:1 has a name that option subscribePattern='a' matches as a whole: there is nothing to read now"
    assert [record.getMessage() for record in caplog.records] == [line]
