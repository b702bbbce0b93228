"""KIP-848 on the wire: epochs, giving back before taking, static members, subscriptions by name and pattern, restarts."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from chaffinch.broker.core.groups import group_journal
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from chaffinch.protocol.messages.consumer_group_heartbeat import TopicPartitions
from chaffinch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.core.groups.members import (
    GROUP,
    REBALANCE_MS,
    ClassicMember,
    ConsumerMember,
    commit,
    consumer_group_of,
    full_disk,
    settle,
    stable_group,
    state_of,
)
from tests.broker.core_client import Cluster

SESSION_MS = 45_000


class TestMembers:
    def test_first_member_gets_all_partitions_at_once(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        answer = member.join()
        assert (answer.error_code, answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == (0, "a", 1, 5000)
        assert member.partitions == [0, 1, 2, 3]
        assert state_of(cluster) == "Stable"
        assert member.beat().assignment is None, "nothing changed"

    def test_version_0_receives_its_member_id(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "")
        assert UUID(member.join(version=0).member_id)
        assert member.beat(version=0).error_code == 0

    def test_partitions_are_revoked_before_they_are_assigned(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        assert (second.epoch, second.partitions) == (2, [])
        assert state_of(cluster) == "Reconciling"
        answer = first.beat()
        assert (answer.member_epoch, len(first.partitions)) == (1, 2), "it is to give two back, and stays in its epoch"
        assert second.beat().assignment is None, "they are not free yet"
        assert first.beat().member_epoch == 2, "it said that it gave them back"
        assert len(second.beat().assignment.topic_partitions[0].partitions) == 2
        assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
        assert state_of(cluster) == "Stable"

    def test_partitions_of_a_member_that_omits_them_are_not_reassigned(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        first.beat()
        for _ in range(2):
            assert first.beat(with_owned=False).member_epoch == 1
            assert second.beat().error_code == 0
            assert second.owned == set()

    def test_member_that_does_not_revoke_in_time_is_removed(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        held = set(first.owned)
        second.join()
        first.beat()
        for _ in range(6):
            cluster.advance(REBALANCE_MS // 6 - 1)
            first.owned = set(held)
            assert first.beat(rebalance_timeout_ms=REBALANCE_MS).error_code == 0
            assert second.beat().error_code == 0
        cluster.advance(6)
        assert first.beat().error_code == 25
        second.beat()
        assert second.partitions == [0, 1, 2, 3]

    def test_silent_member_is_removed(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        settle(first, second)
        cluster.advance(SESSION_MS - 1)
        assert second.beat().error_code == 0
        cluster.advance(1)
        assert second.beat().assignment is not None
        assert second.partitions == [0, 1, 2, 3]
        assert first.beat().error_code == 25

    def test_leaving_member_frees_its_partitions(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        settle(first, second)
        answer = first.leave()
        assert (answer.error_code, answer.member_epoch) == (0, -1)
        settle(second)
        assert second.partitions == [0, 1, 2, 3]
        assert second.leave().error_code == 0
        assert state_of(cluster) == "Empty"

    def test_full_heartbeat_gets_the_whole_assignment(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        answer = member.beat(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["orders"])
        assert answer.assignment is not None

    def test_join_of_a_full_group_is_refused(self) -> None:
        cluster = Cluster({"group.consumer.max.size": "1"})
        cluster.topic("orders")
        assert ConsumerMember(cluster, "a").join().error_code == 0
        assert ConsumerMember(cluster, "b").join().error_code == 81

    def test_memory_of_all_members_is_bounded(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster.core.state.groups._context.memory, "_bytes_max", 20_000)
        codes = [ConsumerMember(cluster, f"m{number}").join(["x" * 200] * 10).error_code for number in range(20)]
        assert 0 in codes
        assert 81 in codes

    def test_fields_absent_from_a_heartbeat_stay(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a", "i-1")
        member.join(server_assignor="range", rack_id="r")
        member.beat(subscribed_topic_regex="none")
        known = consumer_group_of(cluster).members["a"]
        stored_fields = (known.instance_id, known.rack_id, known.rebalance_timeout_ms, known.topics, known.pattern, known.assignor)
        assert stored_fields == ("i-1", "r", REBALANCE_MS, frozenset({"orders"}), "none", "range")

    def test_repeated_full_heartbeat_gets_the_whole_assignment(self, cluster: Cluster) -> None:
        """A client does so when it does not know what of the last answer came."""
        member = ConsumerMember(cluster, "a")
        member.join()
        everything: list[dict[str, Any]] = [{"subscribed_topic_names": ["orders"]}, {"subscribed_topic_regex": ""}]
        for subscription_fields in everything:
            answer = member.beat(rebalance_timeout_ms=REBALANCE_MS, **subscription_fields)
            assert len(answer.assignment.topic_partitions[0].partitions) == 4
            for part in (subscription_fields, {"rebalance_timeout_ms": REBALANCE_MS}):
                assert member.beat(**part).assignment is None
            assert member.beat(rebalance_timeout_ms=REBALANCE_MS, with_owned=False, **subscription_fields).assignment is None

    @pytest.mark.parametrize("goes", ["leaves", "expires"])
    def test_removed_member_leaves_no_state(self, cluster: Cluster, goes: str) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        cluster.advance(1000)
        second.join()
        settle(second)
        if goes == "leaves":
            first.leave()
        else:
            cluster.advance(SESSION_MS - 1000)
        group = consumer_group_of(cluster)
        assert set(group.members) == set(group.targets) == {"b"}
        settle(second)
        assert set(group.owners.values()) == {"b"}


class TestRequests:
    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"group_id": ""}, 42),
            ({"member_id": ""}, 42),
            ({"instance_id": ""}, 42),
            ({"rack_id": ""}, 42),
            ({"rebalance_timeout_ms": -1}, 42),
            ({"rebalance_timeout_ms": -5}, 42),
            ({"topic_partitions": None}, 42),
            ({"topic_partitions": [TopicPartitions(topic_id=UUID(int=1), partitions=[0])]}, 42),
            ({"subscribed_topic_names": None}, 42),
            ({"member_epoch": -2}, 42),
            ({"member_epoch": -3}, 42),
            ({"server_assignor": "mine"}, 112),
            ({"subscribed_topic_regex": "("}, 128),
            ({"subscribed_topic_regex": "(?=x)"}, 128),
        ],
        ids=str,
    )
    def test_invalid_heartbeat_is_refused_and_logged(self, cluster: Cluster, fields: dict[str, Any], code: int) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        with mock.patch.object(member.client, "ask", side_effect=cluster.client().ask) as ask:
            member.join()
        answer = cluster.client().ask(ask.call_args_list[0].args[0].replace(**fields))
        assert (answer.error_code, bool(answer.error_message)) == (code, True)
        assert any(
            f"ConsumerGroupHeartbeat from client 'test' for group {fields.get('group_id', GROUP)!r}" in line for line in cluster.lines
        )

    def test_heartbeat_at_another_node_is_refused(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        member = ConsumerMember(cluster, "a")
        member.client.node = 1 - cluster.coordinator_of(GROUP)
        assert member.join().error_code == 16

    def test_disabled_protocol_is_unsupported_and_not_announced(self) -> None:
        cluster = Cluster({"group.coordinator.rebalance.protocols": "classic"})
        cluster.topic("orders")
        assert ConsumerMember(cluster, "a").join().error_code == 35
        features = cluster.client().connection.versions
        assert features is not None
        assert "group.version" not in features.finalized.levels

    def test_group_version_is_announced(self, cluster: Cluster) -> None:
        features = cluster.client().connection.versions
        assert features is not None
        assert features.finalized.levels["group.version"] == 1


class TestStaticMembers:
    def test_static_member_back_within_its_session_keeps_its_partitions(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a", "i-1"), ConsumerMember(cluster, "b", "i-2")
        first.join()
        second.join()
        settle(first, second)
        mine, epoch = first.partitions, second.epoch
        assert first.leave(-2).member_epoch == -2
        again = ConsumerMember(cluster, "a2", "i-1")
        again.join()
        assert (again.partitions, second.beat().member_epoch) == (mine, epoch)
        group: Any = cluster.core.state.groups.find(GROUP)
        assert set(group.targets) == set(group.members) == {"a2", "b"}
        old = ConsumerMember(cluster, "a", "i-1")
        old.epoch = epoch
        assert old.beat().error_code == 82

    def test_static_member_not_back_within_its_session_is_removed(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a", "i-1"), ConsumerMember(cluster, "b", "i-2")
        first.join()
        second.join()
        settle(first, second)
        first.leave(-2)
        cluster.advance(SESSION_MS - 1)
        settle(second)
        assert len(second.partitions) == 2
        cluster.advance(1)
        settle(second)
        assert second.partitions == [0, 1, 2, 3]

    @pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
    def test_temporarily_left_static_member_has_no_revocation_deadline(self, cluster: Cluster, restarts: bool) -> None:
        """It has given that back by leaving: only its session counts from then on."""
        first, second = ConsumerMember(cluster, "a", "i-1"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        first.beat()
        mine = first.partitions
        assert first.beat(with_owned=False).member_epoch == 1, "it has not yet given back"
        first.leave(-2)
        if restarts:
            cluster.restart()
            second.client = cluster.client()
        settle(second)
        assert second.partitions == sorted({0, 1, 2, 3} - set(mine))
        cluster.advance(REBALANCE_MS)
        settle(second)
        assert set(consumer_group_of(cluster).members) == {"a", "b"}
        again = ConsumerMember(cluster, "a2", "i-1")
        again.join()
        assert again.partitions == mine

    @pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
    def test_returned_static_member_may_commit_in_earlier_epochs(self, cluster: Cluster, restarts: bool) -> None:
        """Its partitions are its own since epoch 0 (KIP-1251): the answer with the present one may be on its way."""
        first = ConsumerMember(cluster, "a", "i-1")
        first.join()
        first.beat(subscribed_topic_names=["orders", "more"])
        first.leave(-2)
        if restarts:
            cluster.restart()
        again = ConsumerMember(cluster, "a2", "i-1")
        assert again.join(["orders", "more"]).member_epoch == 2
        client = cluster.client()
        assert [commit(client, member="a2", instance="i-1", generation=epoch) for epoch in (0, 1, 2, 3)] == [0, 0, 0, 113]

    def test_instance_id_in_use_is_refused(self, cluster: Cluster) -> None:
        ConsumerMember(cluster, "a", "i-1").join()
        assert ConsumerMember(cluster, "b", "i-1").join().error_code == 111

    def test_unknown_instance_is_refused(self, cluster: Cluster) -> None:
        ConsumerMember(cluster, "a", "i-1").join()
        stranger = ConsumerMember(cluster, "b", "i-9")
        stranger.epoch = 1
        assert stranger.beat().error_code == 25


class TestSubscriptions:
    def test_created_grown_and_deleted_topics_change_the_assignment(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join(["orders", "later"])
        assert len(member.owned) == 4
        cluster.topic("later", 2)
        assert (member.beat().member_epoch, len(member.owned)) == (2, 6)
        cluster.topic("unrelated", 2)
        assert member.beat().member_epoch == 2
        wider = CreatePartitionsTopic(name="later", count=3, assignments=None)
        cluster.client().ask(CreatePartitionsRequest(topics=[wider], timeout_ms=1000))
        assert (member.beat().member_epoch, len(member.owned)) == (3, 7)
        cluster.core.topics.delete("orders")
        settle(member)
        assert len(member.owned) == 3

    def test_subscription_by_pattern_follows_topic_names(self, cluster: Cluster) -> None:
        cluster.topic("orders-eu", 2)
        member = ConsumerMember(cluster, "a")
        member.join(pattern="orders.*")
        assert len(member.owned) == 6
        cluster.topic("orders-us", 1)
        cluster.topic("my-orders", 1)
        member.beat()
        assert len(member.owned) == 7
        member.beat(subscribed_topic_regex="my-.*")
        settle(member)
        assert len(member.owned) == 1

    @pytest.mark.parametrize("nothing", [{"topics": []}, {"pattern": ""}], ids=["no names", "no pattern"])
    def test_empty_subscription_gets_no_partitions(self, cluster: Cluster, nothing: dict[str, Any]) -> None:
        """A client that matches a pattern itself joins before there is a topic for it."""
        member, other = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        assert (member.join(**nothing).error_code, member.owned) == (0, set())
        other.join()
        assert len(other.owned) == 4
        member.beat(subscribed_topic_names=["orders"])
        settle(member, other)
        assert (len(member.owned), len(other.owned)) == (2, 2)

    def test_names_and_pattern_are_combined(self, cluster: Cluster) -> None:
        cluster.topic("a-1", 2)
        member = ConsumerMember(cluster, "a")
        member.join(["orders"], pattern="a-[0-9]+")
        assert len(member.owned) == 6

    def test_changed_subscription_moves_partitions(self, cluster: Cluster) -> None:
        cluster.topic("more", 3)
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join(["orders", "more"])
        settle(first, second)
        assert (len(first.owned), len(second.owned)) in [(4, 3), (3, 4)]
        first.beat(subscribed_topic_names=["more"])
        settle(first, second)
        assert len(first.owned | second.owned) == 7
        assert len({topic for topic, _ in first.owned}) == 1

    @pytest.mark.parametrize(("votes", "name"), [((None, None), "uniform"), (("range", None), "range"), (("range", "uniform"), "range")])
    def test_assignor_follows_the_votes(self, cluster: Cluster, votes: tuple[str | None, ...], name: str) -> None:
        members = [ConsumerMember(cluster, f"m{number}") for number in range(2)]
        for member, vote in zip(members, votes, strict=True):
            member.join(server_assignor=vote)
        settle(*members)
        group = consumer_group_of(cluster)
        assert group.preferred_assignor(group.members, ("uniform", "range")) == name
        if name == "range":
            assert [member.partitions for member in members] == [[0, 1], [2, 3]]

    def test_assignor_no_longer_offered_is_replaced(self, cluster: Cluster) -> None:
        """Nor does it go on with one that a member asked for while it did."""
        members = [ConsumerMember(cluster, name) for name in "ab"]
        for member in members:
            member.join(server_assignor="uniform")
        cluster.config["group.consumer.assignors"] = "range"
        cluster.restart()
        for member in members:
            member.client = cluster.client()
        assert ConsumerMember(cluster, "c").join(server_assignor="uniform").error_code == 112
        members[0].beat(subscribed_topic_names=["orders", "more"])
        settle(*members)
        assert [member.partitions for member in members] == [[0, 1], [2, 3]]
        requested = ConsumerGroupDescribeRequest(group_ids=[GROUP])
        assert cluster.client().ask(requested).groups[0].assignor_name == "range"


class TestOtherKinds:
    def test_empty_classic_group_becomes_a_consumer_group_with_its_offsets(self, cluster: Cluster) -> None:
        (old,) = stable_group(cluster, 1)
        assert old.commit(7) == 0
        old.leave()
        assert ConsumerMember(cluster, "a").join().member_epoch == 1
        assert cluster.core.state.offsets.fetch_all(GROUP)
        cluster.restart()
        assert state_of(cluster) == "Stable"

    def test_empty_consumer_group_becomes_a_classic_group(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        member.leave()
        (new,) = stable_group(cluster, 1)
        assert new.heartbeat() == 0
        cluster.restart()
        new.client = cluster.client()
        assert new.heartbeat() == 0

    def test_group_with_members_keeps_its_protocol(self, cluster: Cluster) -> None:
        stable_group(cluster, 1)
        assert ConsumerMember(cluster, "a").join().error_code == 69
        ConsumerMember(cluster, "a", group="new").join()
        classic = ClassicMember(cluster, group="new")
        assert classic.join().error_code == 23
        classic.id = "a"
        assert (classic.heartbeat(), classic.sync().error_code) == (25, 25)


class TestRestart:
    def test_members_and_epochs_survive_a_restart(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b", "i-2")
        first.join()
        second.join()
        cluster.restart()
        first.client, second.client = cluster.client(), cluster.client()
        settle(first, second)
        assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
        assert {first.epoch, second.epoch} == {2}

    def test_silent_members_get_a_new_session_after_a_restart(self, cluster: Cluster) -> None:
        ConsumerMember(cluster, "a").join()
        cluster.advance(SESSION_MS - 1)
        cluster.restart()
        cluster.advance(SESSION_MS - 1)
        assert state_of(cluster) == "Stable"
        cluster.advance(1)
        assert state_of(cluster) == "Empty"

    def test_heartbeats_are_not_written(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        journal = cluster.core._journals["offsets"]
        before = journal.size_bytes
        for _ in range(20):
            member.beat()
        assert journal.size_bytes == before

    def test_topics_are_written_only_when_they_change(self, cluster: Cluster) -> None:
        for number in range(100):
            cluster.topic(f"many-{number:050}")
        members = [ConsumerMember(cluster, name) for name in "abc"]
        journal = cluster.core._journals["offsets"]
        written = []
        joins: list[dict[str, Any]] = [{"pattern": "many-.*"}, {"topics": ["orders"]}, {"topics": ["orders"]}]
        for member, wanted in zip(members, joins, strict=True):
            with mock.patch.object(journal, "put", wraps=journal.put) as put:
                member.join(**wanted)
            written.append(sum(len(value or b"") for call in put.call_args_list for value in call.args[0].values()))
        assert written[0] > 5000
        assert written[2] < 1000, "the third brings no topic that the second has not brought"
        settle(*members)
        before = consumer_group_of(cluster)
        cluster.restart()
        after = consumer_group_of(cluster)
        assert (after.topics, after.epoch, len(after.topics)) == (before.topics, before.epoch, 101)
        for member in members:
            member.client = cluster.client()
        settle(*members)
        assert consumer_group_of(cluster).epoch == before.epoch, "nothing has changed"

    def test_topics_stored_by_an_earlier_version_are_read(self, cluster: Cluster) -> None:
        """In the entry of the group, with its epochs."""
        ConsumerMember(cluster, "a").join()
        topics = consumer_group_of(cluster).topics
        fields = {"type": "consumer", "epoch": 1, "assignment_epoch": 1, "topics": {"orders": [topics["orders"].topic_id.hex, 4]}}
        topics_key = json.dumps(["group topics", GROUP]).encode()
        cluster.core._journals["offsets"].put({group_journal.key_of(GROUP): json.dumps(fields).encode(), topics_key: None})
        cluster.restart()
        assert consumer_group_of(cluster).topics == topics
        ConsumerMember(cluster, "b").join()  # Another epoch, the same topics.
        cluster.restart()
        assert consumer_group_of(cluster).topics == topics

    def test_a_full_disk_changes_nothing(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        with full_disk(cluster):
            answer = second.join()
            assert (answer.error_code, "the broker's disk failed for group g; " in answer.error_message) == (16, True)
            assert cluster.lines[-1].endswith("no space left")
            assert first.beat().error_code == 0
            cluster.advance(SESSION_MS)
        assert state_of(cluster) == "Stable"
        cluster.advance(1000)
        assert state_of(cluster) == "Empty", "what could not be written is tried again"


def test_metadata_creates_the_topic_that_a_member_waits_for(cluster: Cluster) -> None:
    member = ConsumerMember(cluster, "a")
    member.join(["made-later"])
    assert member.owned == set()
    cluster.client().ask(MetadataRequest(topics=[MetadataRequestTopic(name="made-later")], allow_auto_topic_creation=True))
    member.beat()
    assert len(member.owned) == 1
