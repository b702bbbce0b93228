"""ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups, LeaveGroup of others."""

from __future__ import annotations

import pytest

from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from chaffinch.protocol.messages.delete_groups import DeleteGroupsRequest
from chaffinch.protocol.messages.describe_groups import DescribeGroupsRequest
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from chaffinch.protocol.messages.list_groups import ListGroupsRequest
from tests.broker.core.groups.members import GROUP, ClassicMember, ConsumerMember, commit, full_disk, stable_group, subscription
from tests.broker.core_client import Cluster


@pytest.fixture
def cluster() -> Cluster:
    """Three groups: `g` classic and stable, `new` of KIP-848, `simple` with offsets only."""
    cluster = Cluster()
    cluster.topic("orders", 2)
    stable_group(cluster, 2)
    ConsumerMember(cluster, "a", "i-1", group="new").join()
    commit(cluster.client(), group="simple")
    return cluster


class TestList:
    @pytest.mark.parametrize(
        ("states", "types", "names"),
        [
            ([], [], ["g", "new", "simple"]),
            (["Stable"], [], ["g", "new"]),
            (["empty"], [], ["simple"]),
            ([], ["consumer"], ["new"]),
            ([], ["Classic"], ["g", "simple"]),
            (["Stable"], ["classic"], ["g"]),
            (["Dead"], [], []),
            ([], ["share"], []),
        ],
    )
    def test_list_groups_applies_filters(self, cluster: Cluster, states: list[str], types: list[str], names: list[str]) -> None:
        answer = cluster.client().ask(ListGroupsRequest(states_filter=states, types_filter=types))
        assert [group.group_id for group in answer.groups] == names

    def test_list_groups_returns_state_and_type(self, cluster: Cluster) -> None:
        groups = cluster.client().ask(ListGroupsRequest()).groups
        rows = [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in groups]
        assert rows == [
            ("g", "consumer", "Stable", "classic"),
            ("new", "consumer", "Stable", "consumer"),
            ("simple", "", "Empty", "classic"),
        ]
        assert [group.group_id for group in cluster.client().ask(ListGroupsRequest(), 0).groups] == ["g", "new", "simple"]

    def test_each_node_lists_its_own_groups(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        for name in ("a", "b"):
            commit(cluster.client(node=cluster.coordinator_of(name)), group=name)
        lists = [[group.group_id for group in cluster.client(node=node).ask(ListGroupsRequest()).groups] for node in (0, 1)]
        assert sorted(lists) == [["a"], ["b"]]


class TestDescribe:
    def test_stable_classic_group_is_described(self, cluster: Cluster) -> None:
        (group,) = cluster.client().ask(DescribeGroupsRequest(groups=["g"])).groups
        assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (0, "Stable", "consumer", "range")
        first, second = group.members
        assert (bytes(first.member_assignment), bytes(second.member_assignment)) == (b"0", b"1")
        assert (bytes(first.member_metadata), first.client_id) == (subscription("orders"), "test")

    def test_group_in_a_rebalance_is_described_without_protocol(self, cluster: Cluster) -> None:
        ClassicMember(cluster).send_join()
        (group,) = cluster.client().ask(DescribeGroupsRequest(groups=["g"])).groups
        assert (group.group_state, group.protocol_data, len(group.members)) == ("PreparingRebalance", "", 3)
        assert {bytes(member.member_metadata) for member in group.members} == {b""}
        assert [bytes(member.member_assignment) for member in group.members] == [b"0", b"1", b""], "of the last generation"

    @pytest.mark.parametrize("name", ["new", "none"])
    def test_describing_another_group_as_classic_reports_dead(self, cluster: Cluster, name: str) -> None:
        """KIP-1043."""
        for version, code in ((5, 0), (6, 69)):
            (group,) = cluster.client().ask(DescribeGroupsRequest(groups=[name]), version).groups
            assert (group.group_state, group.error_code, group.error_message is not None) == ("Dead", code, version == 6)

    def test_consumer_group_is_described(self, cluster: Cluster) -> None:
        (group,) = cluster.client().ask(ConsumerGroupDescribeRequest(group_ids=["new"])).groups
        assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
            0,
            "Stable",
            1,
            1,
            "uniform",
        )
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.member_epoch, member.subscribed_topic_names) == ("a", "i-1", 1, ["orders"])
        assert (member.member_type, member.subscribed_topic_regex) == (1, "")
        for assignment in (member.assignment, member.target_assignment):
            assert [(topic.topic_name, topic.partitions) for topic in assignment.topic_partitions] == [("orders", [0, 1])]

    @pytest.mark.parametrize(("name", "code"), [("g", 69), ("none", 69), ("", 24)])
    def test_describing_another_group_as_consumer_is_refused(self, cluster: Cluster, name: str, code: int) -> None:
        (group,) = cluster.client().ask(ConsumerGroupDescribeRequest(group_ids=[name])).groups
        assert group.error_code == code

    def test_requests_at_another_node_are_refused(self) -> None:
        cluster = Cluster(nodes=2)
        client = cluster.client(node=1 - cluster.coordinator_of(GROUP))
        assert client.ask(DescribeGroupsRequest(groups=[GROUP])).groups[0].error_code == 16
        assert client.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups[0].error_code == 16
        assert client.ask(DeleteGroupsRequest(groups_names=[GROUP])).results[0].error_code == 16


class TestDelete:
    def delete(self, cluster: Cluster, *names: str) -> list[int]:
        return [result.error_code for result in cluster.client().ask(DeleteGroupsRequest(groups_names=list(names))).results]

    def test_delete_refuses_groups_with_members(self, cluster: Cluster) -> None:
        assert self.delete(cluster, "g", "new", "none", "simple") == [68, 68, 69, 0]
        assert [group.group_id for group in cluster.client().ask(ListGroupsRequest()).groups] == ["g", "new"]

    def test_group_named_twice_is_answered_once(self, cluster: Cluster) -> None:
        assert self.delete(cluster, "simple", "none", "simple", "none") == [0, 69]

    def test_deleted_group_leaves_no_state(self, cluster: Cluster) -> None:
        cluster.advance(60_000)  # All members fall silent.
        assert self.delete(cluster, "g", "new", "simple") == [0, 0, 0]
        cluster.restart()
        assert list(cluster.core.state.groups) == []
        assert cluster.core._journals["offsets"].items() == {}

    def test_delete_on_a_full_disk_is_refused(self, cluster: Cluster) -> None:
        with full_disk(cluster):
            assert self.delete(cluster, "simple") == [16]
        assert "refused: DeleteGroups from client 'test' for group 'simple': NOT_COORDINATOR: cannot append" in cluster.lines[-1]
        assert self.delete(cluster, "simple") == [0]

    def test_member_id_of_a_deleted_group_is_unknown(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster, group="simple")
        member.id = cluster.client().ask(member.request()).member_id
        assert self.delete(cluster, "simple") == [0]
        assert member.join().error_code == 25


class TestLeaving:
    """Tools send members of KIP-848 away with the request of the classic protocol, as Apache Kafka lets them."""

    def test_leave_group_removes_members_of_a_consumer_group(self, cluster: Cluster) -> None:
        others = [ConsumerMember(cluster, name, group="new") for name in "bc"]
        for other in others:
            other.join()
        table = [("who", None, 25), ("", None, 25), ("b", "i-1", 82), ("b", "i-9", 25), ("", "i-9", 25), ("", "i-1", 0), ("", "i-1", 25)]
        table += [("b", None, 0)]
        members = [MemberIdentity(member_id=member, group_instance_id=instance) for member, instance, _ in table]
        answer = cluster.client().ask(LeaveGroupRequest(group_id="new", members=members))
        rows = [(member.member_id, member.group_instance_id, member.error_code) for member in answer.members]
        assert (answer.error_code, rows) == (0, table)
        assert others[0].beat().error_code == 25
        for _ in range(2):
            others[1].beat()
        assert others[1].partitions == [0, 1]

    def test_leave_group_on_a_full_disk_is_refused(self, cluster: Cluster) -> None:
        requested = LeaveGroupRequest(group_id="new", members=[MemberIdentity(member_id="a")])
        with full_disk(cluster):
            assert cluster.client().ask(requested).members[0].error_code == 16
        assert "group 'new': member 'a' cannot be removed: cannot append" in cluster.lines[-1]
        assert cluster.client().ask(requested).members[0].error_code == 0
