"""KIP-848 on the wire: which epochs heartbeats and commits may name, and who comes again."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.broker.core.groups.members import (
    GROUP,
    REBALANCE_MS,
    ConsumerMember,
    commit,
    settle,
)
from tests.broker.core_client import Cluster


class TestEpochs:
    def test_epoch_stays_until_partitions_are_revoked(self, cluster: Cluster) -> None:
        """However often the target moves on; each time it has all the time again."""
        member, second, *others = (ConsumerMember(cluster, name) for name in "abcd")
        member.join()
        second.join()
        assert (member.beat().member_epoch, len(member.owned)) == (1, 2)
        cluster.advance(REBALANCE_MS - 1)
        second.beat()
        for other in others:
            other.join()
        assert (member.beat().member_epoch, len(member.owned)) == (1, 1)
        cluster.advance(REBALANCE_MS - 1)
        assert member.beat().member_epoch == 4

    def test_wrong_epoch_is_fenced(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        for epoch in (2, 7):
            member.epoch = epoch
            answer = member.beat()
            assert (answer.error_code, answer.error_message is not None) == (110, True)

    def test_fenced_member_rejoins_under_its_id(self, cluster: Cluster) -> None:
        """With epoch 0, at once: it need not wait until its former session ends. The other members do not notice."""
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        settle(first, second)
        mine, epoch = first.owned, first.epoch
        first.epoch = 9
        assert first.beat().error_code == 110
        assert first.join().error_code == 0
        assert (first.owned, first.epoch, second.beat().member_epoch) == (mine, epoch, epoch)

    def test_rejoining_member_has_revoked_its_partitions(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        assert len(first.beat(with_owned=False).assignment.topic_partitions[0].partitions) == 2
        assert first.join().error_code == 0
        settle(second)
        assert (len(first.owned), len(second.owned)) == (2, 2)

    def test_rejoining_member_has_nothing_to_revoke(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        assert (first.join().member_epoch, len(first.owned)) == (2, 2), "it had all four, and says that it has none"

    def test_member_without_revocation_may_omit_its_owned_partitions(self, cluster: Cluster) -> None:
        cluster.topic("more")
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join(["more"])
        assert (first.beat(with_owned=False).member_epoch, len(first.owned)) == (2, 4)

    def test_previous_epoch_is_accepted_after_a_lost_response(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        first.beat()
        first.beat()
        assert first.epoch == 2
        first.epoch = 1
        assert first.beat().member_epoch == 2
        first.epoch = 1
        first.owned.add((UUID(int=9), 9))
        assert first.beat().error_code == 110

    def test_repeated_join_has_the_same_response(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        first = member.join()
        assert member.join() == first

    @pytest.mark.parametrize(("group", "epoch", "code"), [(GROUP, 1, 25), ("none", 1, 69), ("none", -1, 69), (GROUP, -1, 25)])
    def test_unknown_member_is_refused(self, cluster: Cluster, group: str, epoch: int, code: int) -> None:
        ConsumerMember(cluster, "a").join()
        stranger = ConsumerMember(cluster, "x", group=group)
        stranger.epoch = epoch
        assert stranger.beat().error_code == code


class TestOffsets:
    def test_commit_requires_the_member_epoch(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        client = cluster.client()
        assert commit(client, member="a", generation=1) == 0
        assert commit(client, member="a", generation=2) == 113
        assert commit(client, member="x", generation=1) == 25
        assert commit(client, member="a", generation=1, version=8) == 35
        assert commit(client) == 25

    def test_partition_may_be_committed_in_any_epoch_since_its_assignment(self, cluster: Cluster) -> None:
        """KIP-1251: the answer with the new epoch may be on its way. Over a restart, too."""
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        first.beat(with_owned=False)
        client, given = cluster.client(), sorted({0, 1, 2, 3} - set(first.partitions))
        assert commit(client, member="a", generation=1, partition=given[0]) == 0, "it is to give it back"
        settle(first, second)
        cluster.restart()
        client, (mine, *_), epoch = cluster.client(), first.partitions, second.epoch
        assert (first.epoch, second.partitions) == (epoch, given)
        table = [("a", epoch - 1, mine, 0), ("a", 0, mine, 113), ("a", epoch + 1, mine, 113), ("b", epoch, given[0], 0)]
        table += [("a", epoch - 1, given[0], 113), ("b", epoch - 1, given[0], 113), ("b", epoch - 1, mine, 113), ("b", epoch - 1, 4, 3)]
        for member, named, partition, code in table:
            assert commit(client, member=member, generation=named, partition=partition) == code, (member, named, partition)

    def test_commit_of_several_partitions_is_refused_as_a_whole(self, cluster: Cluster) -> None:
        first, second = ConsumerMember(cluster, "a"), ConsumerMember(cluster, "b")
        first.join()
        second.join()
        settle(first, second)
        requested = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(4)]
        topics = [OffsetCommitRequestTopic(name="orders", partitions=requested)]
        request = OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=1, member_id="a", topics=topics)
        answer = cluster.client().ask(request, 9)
        assert [row.error_code for row in answer.topics[0].partitions] == [113] * 4

    def test_members_stored_by_an_earlier_version_need_their_own_epoch(self, cluster: Cluster) -> None:
        """Without the epochs of their partitions: only their own epoch counts."""
        members = [ConsumerMember(cluster, name) for name in "ab"]
        for member in members:
            member.join()
        settle(*members)
        journal, key = cluster.core._journals["offsets"], json.dumps(["group member", GROUP, "a"]).encode()
        fields = json.loads(journal.items()[key])
        del fields["since"]
        journal.put({key: json.dumps(fields).encode()})
        cluster.restart()
        (mine, *_), epoch = members[0].partitions, members[0].epoch
        for named, code in ((epoch - 1, 113), (epoch, 0)):
            assert commit(cluster.client(), member="a", generation=named, partition=mine) == code

    @pytest.mark.parametrize(("member", "epoch", "code"), [(None, -1, 0), ("a", 1, 0), ("a", 9, 113), ("x", 1, 25), ("x", -1, 25)])
    def test_offset_fetch_checks_the_member_epoch(self, cluster: Cluster, member: str | None, epoch: int, code: int) -> None:
        ConsumerMember(cluster, "a").join()
        topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
        group = OffsetFetchRequestGroup(group_id=GROUP, member_id=member, member_epoch=epoch, topics=topics)
        answer = cluster.client().ask(OffsetFetchRequest(groups=[group]), 9)
        assert answer.groups[0].error_code == code
