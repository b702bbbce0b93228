"""Groups as described by their coordinators, in cases without a test of the commands."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.admin import group_offsets, groups, options, topics
from chaffinch.admin.group_offsets import commit_offsets, committed_offsets
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import GroupNotEmptyException, UnknownTopicIdException, UnknownTopicOrPartitionException, UnsupportedVersionException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tests.client.scripted_server import ScriptedServer


def assignment(topics: dict[str, list[int]], *, version: int = 0, user_data: bytes = b"") -> bytes:
    """ConsumerProtocolAssignment as Kafka's clients write it."""
    data = struct.pack(">hi", version, len(topics))
    for name, numbers in topics.items():
        data += struct.pack(">h", len(name)) + name.encode() + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return data + struct.pack(">i", len(user_data)) + user_data


TWO = {"orders": [0, 2], "b": []}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (assignment({}), ()),
        (assignment(TWO), (TopicPartition("orders", 0), TopicPartition("orders", 2))),
        (assignment(TWO, version=3, user_data=b"sticky"), (TopicPartition("orders", 0), TopicPartition("orders", 2))),
        (b"", ()),
        (assignment(TWO)[:12], ()),
        (b"\x00\x00\x7f\xff\xff\xff", ()),
        (struct.pack(">hihb", 0, 1, 1, -1) + struct.pack(">i", 0), ()),
    ],
    ids=["nothing", "two topics", "a later version", "no bytes", "cut short", "a count beyond the bytes", "a name that is no text"],
)
def test_assignments_of_the_classic_protocol(data: bytes, expected: tuple[TopicPartition, ...]) -> None:
    assert groups._assigned(data) == expected


def test_share_groups_are_listed_and_not_described() -> None:
    def script(server: ScriptedServer, message: object) -> object:
        if isinstance(message, ListGroupsRequest):
            return ListGroupsResponse(
                groups=[ListedGroup(group_id="shared", protocol_type="share", group_state="Stable", group_type="Share")], error_code=0
            )
        return None

    with ScriptedServer(script) as server, options.connect(bootstrap_servers=server.bootstrap_servers) as client:
        (listing,) = groups.list_groups(client)
        assert (listing.group, listing.group_type, listing.state) == ("shared", "share", "Stable")
        assert groups.list_groups(client, types=["SHARE"], states=["stable"]) == [listing]
        assert groups.list_groups(client, types=["classic"]) == []
        with pytest.raises(UnsupportedVersionException, match="is a share group"):
            groups.describe_groups(client)


def test_commit_beyond_the_end_has_lag_zero() -> None:
    with EmbeddedBroker(topics={"orders": {}}) as broker, options.connect(bootstrap_servers=broker.bootstrap_servers) as client:
        commit_offsets(client, "readers", {TopicPartition("orders", 0): 7})
        assert committed_offsets(client, "readers", [TopicPartition("orders", 0)])[TopicPartition("orders", 0)].offset == 7
        assert committed_offsets(client, "readers", []) == {}
        (description,) = groups.describe_groups(client, ["readers"])
        (found,) = description.offsets
        # More than there is: a topic that was created again.
        assert (found.committed, found.end, found.lag) == (7, 0, 0)


def test_partition_without_leader_has_no_end_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "LEADERLESS_MS", 0)
    with (
        EmbeddedBroker(topics={"orders": {"partitions": 4, "replication": 1}}, brokers=2) as broker,
        options.connect(bootstrap_servers=broker.bootstrap_servers, default_api_timeout_ms=2_000) as client,
    ):
        places = [TopicPartition("orders", number) for number in range(4)]
        for group in ("readers", "others"):
            commit_offsets(client, group, dict.fromkeys(places, 0))
        cluster = client.refresh_metadata(["orders"])
        leaders = {place: cluster.leader_of(place) for place in places}
        broker.stop_node(1)
        described = groups.describe_groups(client)
        assert [description.listing.group for description in described] == ["others", "readers"]
        for description in described:
            assert {found.topic_partition: (found.end, found.lag) for found in description.offsets} == {
                place: (None, None) if leaders[place] == 1 else (0, 0) for place in places
            }
        assert set(leaders.values()) == {0, 1}


@pytest.mark.parametrize("place", [TopicPartition("orders", 7), TopicPartition("nowhere", 0)])
def test_missing_partition_is_not_waited_for(place: TopicPartition) -> None:
    with (
        EmbeddedBroker(topics={"orders": {}}) as broker,
        options.connect(bootstrap_servers=broker.bootstrap_servers, default_api_timeout_ms=2_000) as client,
    ):
        commit_offsets(client, "readers", {TopicPartition("orders", 0): 7})
        with pytest.raises(UnknownTopicOrPartitionException):
            commit_offsets(client, "readers", {place: 0})
        with pytest.raises(UnknownTopicOrPartitionException):
            groups.delete_offsets(client, "readers", [place])


@pytest.mark.parametrize("takes_ids", [True, False], ids=["by id", "by name"])
@pytest.mark.parametrize("ends", ["created again", "deleted"])
def test_offsets_of_a_deleted_topic_are_not_committed(monkeypatch: pytest.MonkeyPatch, takes_ids: bool, ends: str) -> None:
    """Between the plan of a reset and the commit, or between reading and the commit of `chaffinch consume`."""
    if not takes_ids:
        commit = group_offsets._commit

        def commits(client: SyncClient, group: str, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID]) -> Any:
            if topic_ids:
                raise UnsupportedVersionException("before Apache Kafka 4.2")
            return commit(client, group, offsets, topic_ids)

        monkeypatch.setattr(group_offsets, "_commit", commits)
    place = TopicPartition("t", 0)
    with EmbeddedBroker(topics=["t"]) as broker, options.connect(bootstrap_servers=broker.bootstrap_servers) as client:
        plan = groups.plan_reset(client, "g", [place], groups.Target("earliest"))
        groups.execute_reset(client, "g", plan)
        assert list(committed_offsets(client, "g")) == [place]
        with options.connect(bootstrap_servers=broker.bootstrap_servers) as other:
            topics.delete_topics(other, ["t"])
        if ends == "created again":
            broker.create_topic("t", 1)
        with pytest.raises((UnknownTopicIdException, UnknownTopicOrPartitionException)) as raised:
            groups.execute_reset(client, "g", plan)
        if ends == "created again":
            assert "topic 't' was deleted, and perhaps created again" in str(raised.value)
        assert committed_offsets(client, "g") == {}


def listing(group: str, state: str) -> groups.GroupListing:
    return groups.GroupListing(group=group, group_type="classic", protocol_type="consumer", state=state, coordinator=1)


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "Empty", ""])
def test_only_a_group_without_members_is_reset(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """An old broker names no state; it refuses by itself."""
    place = TopicPartition("t", 0)
    monkeypatch.setattr(groups, "list_groups", lambda _: [listing("other", "Stable"), listing("g", state)])
    with EmbeddedBroker(topics=["t"]) as broker, options.connect(bootstrap_servers=broker.bootstrap_servers) as client:
        plan = groups.plan_reset(client, "g", [place], groups.Target("earliest"))
        if state in ("Empty", ""):
            groups.execute_reset(client, "g", plan)
            assert list(committed_offsets(client, "g")) == [place]
        else:
            with pytest.raises(GroupNotEmptyException, match=f"group 'g' is in state {state}: its offsets can be reset only without"):
                groups.execute_reset(client, "g", plan)
            assert committed_offsets(client, "g") == {}
